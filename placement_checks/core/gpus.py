"""How many GPUs there are on this machine, and how many a host can have."""

from __future__ import annotations

import os
import re
from numbers import Integral
from pathlib import Path
from typing import Literal, TypeAlias

from placement_checks.core.errors import UsageError

MAX_GPUS = 256
# Which GPUs are used: those of this machine where there are enough, none else, or simulated ones.
Devices: TypeAlias = Literal["auto", "real", "simulated"]


def local_gpus() -> tuple[int, ...]:
    """The indices of the NVIDIA GPUs that this process may use, without asking TensorFlow.

    Read from the device files of the driver and ``CUDA_VISIBLE_DEVICES``; empty without a driver.
    """
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*"))
    present = sorted(int(number[1]) for number in numbers if number)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(present)
    chosen = []
    for entry in visible.split(","):
        if not entry.strip().isdigit() or int(entry) not in present:
            break
        chosen.append(int(entry))
    return tuple(chosen)


def checked_gpus(count: int) -> int:
    """``count``, if a host can have so many GPUs.

    Raises:
        UsageError: it is not a whole number from 1 to 256.
    """
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise UsageError(
            f"gpus={count!r:.60}", "is not a whole number", "give one, such as gpus=2"
        )
    if not 1 <= count <= MAX_GPUS:
        raise UsageError(
            f"{count} GPUs",
            f"one host has between 1 and {MAX_GPUS}",
            'describe a cluster with --machine "worker*64: gpu*8"',
        )
    return count
