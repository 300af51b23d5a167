"""Steps of TensorFlow 2, captured in the process of the tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from placement_checks import watch
from placement_checks.capture.in_process.builder import build_eagerly, record_eager_code
from placement_checks.core.program import CapturedProgram, Program, WatchedCode


def traced(train: Callable[..., Any], gpus: int = 2) -> WatchedCode:
    """The first step of a training function, which may take the number of GPUs."""
    with watch(gpus, name=getattr(train, "__name__", "train"), eager=True) as code:
        train(**({"num_gpus": gpus} if inspect.signature(train).parameters else {}))
    return code


def built_eagerly(program: Callable[..., Any], gpus: int = 2) -> CapturedProgram:
    """The program of a function that trains, or that returns a step.

    Raises:
        InputError: the function raised an exception, or does not train.
    """
    with record_eager_code(Program.from_function(program), gpus) as building:
        return build_eagerly(building)
