"""Refuses eager code that itself names a CPU which stands in for a GPU."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.loading.simulated import to_requested
from placement_checks.loading.source_lines import is_users, users_frames
from placement_checks.loading.tf_internals.eager_devices import SCOPES_THROUGH
from placement_checks.loading.tf_internals.gpu_counts import ASKED_THROUGH

# What stands between a program and the check of a device scope that it opens.
_BETWEEN = ASKED_THROUGH | SCOPES_THROUGH | {contextlib.__name__}
_OURS = f"{__package__}."


class Refused(BaseException):
    """Ends eager code that cannot be watched; no handler of the program's own takes it.

    Args:
        message: what it does, one sentence.
        fix: what to do about it.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def refuse_stand_in(name: Any) -> None:
    """Check what a device scope is opened with.

    A full name, with its job, is that of a tensor or variable: what TensorFlow itself has said.

    Raises:
        Refused: the program names a CPU that stands in for a GPU.
    """
    text = name.to_string() if hasattr(name, "to_string") else name
    # Most scopes are of GPUs, or of the host: the others are worth a closer look.
    if isinstance(text, str) and "CPU:" in text.upper() and not text.endswith(":0"):
        device = Device.parse(text)
        if device.job is None and _is_stand_in(device) and _is_named_by_user():
            raise _refused(device)


def refuse_stand_ins(strategy: Any) -> None:
    """Check the devices of a strategy.

    Raises:
        Refused: the program names a CPU that stands in for a GPU.
    """
    for name in strategy.extended.worker_devices:
        device = Device.parse(name)
        if _is_stand_in(device):
            raise _refused(device)


def _is_stand_in(device: Device) -> bool:
    return to_requested(device) != device


def _is_named_by_user() -> bool:
    """Whether the user's own code has opened the scope, by ``tf.device``."""
    frame = inspect.currentframe()
    while frame is not None and _is_between(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename, None)


def _is_between(module: str) -> bool:
    return module in _BETWEEN or module.startswith(_OURS)


def _refused(device: Device) -> Refused:
    named = Device(type=device.type, index=device.index)
    # An op knows the lines of functions that AutoGraph has converted.
    is_traced = not tf.executing_eagerly()
    frames = users_frames(tf.no_op().traceback if is_traced else traceback.extract_stack(), None)
    where = f" ({frames[-1]})" if frames else ""
    return Refused(
        f"names {named}{where}, which stands for {to_requested(named)} while it is watched",
        "name GPUs, and no CPU but /cpu:0",
    )
