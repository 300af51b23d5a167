"""Steps of TensorFlow 2 that are watched in the process of the tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from placement_checks import watch
from placement_checks.capture.in_process.builder import build_eagerly, record_eager_code
from placement_checks.core.program import CapturedProgram, Program, WatchedCode


def traced(train: Callable[..., Any], gpus: int = 2) -> WatchedCode:
    """The first step of a function that trains, which is told the number of GPUs if it asks."""
    with watch(gpus, name=getattr(train, "__name__", "train"), eager=True) as code:
        train(**({"num_gpus": gpus} if inspect.signature(train).parameters else {}))
    return code


def built_eagerly(program: Callable[..., Any], gpus: int = 2) -> CapturedProgram:
    """What a function builds that trains, or returns what does.

    Raises:
        InputError: it raised, or does not train.
    """
    with record_eager_code(Program.of(program), gpus) as building:
        return build_eagerly(building)
