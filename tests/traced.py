"""Steps of TensorFlow 2 that are watched in the process of the tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from placement_checks import watch
from placement_checks.core.program import WatchedCode


def traced(train: Callable[..., Any], gpus: int = 2) -> WatchedCode:
    """The first step of a function that trains, which is told the number of GPUs if it asks."""
    with watch(gpus, name=getattr(train, "__name__", "train"), eager=True) as code:
        train(**({"num_gpus": gpus} if inspect.signature(train).parameters else {}))
    return code
