"""Device names, parsed, merged and matched as TensorFlow does; the GPUs of this machine.

Grammar: ``/job:J/replica:R/task:T/device:TYPE:I``, every part optional, ``*`` for "any", and the
legacy short forms ``/cpu:0`` and ``/gpu:0`` (``tf.DeviceSpec.from_string``).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

from placement_checks.core import limits
from placement_checks.core.errors import InputError, UsageError

_PART = re.compile(
    r"job:(?P<job>[A-Za-z][A-Za-z0-9_]*|\*)"
    r"|replica:(?P<replica>\d{1,9}|\*)"
    r"|task:(?P<task>\d{1,9}|\*)"
    r"|device:(?P<type>[A-Za-z_][A-Za-z0-9_]*|\*):(?P<index>\d{1,9}|\*)"
    r"|(?P<short>cpu|gpu)(?::(?P<short_index>\d{1,9}|\*))?",
    re.IGNORECASE,
)


_Parts = tuple[str | None, int | None, int | None, str | None, int | None]
_devices: WeakValueDictionary[_Parts, Device] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class Device:
    """A full or partial device name. Parts that the name does not state are ``None``.

    The type is upper case. Two spellings of one device are equal: ``/cpu:0``, ``CPU:0`` and
    ``/device:CPU:0`` all parse to the same value. Devices are sorted by their parts, with GPU 2
    before GPU 10, and unstated parts first.

    Equal devices are the same object. Every op has devices, and comparing objects is much faster
    than comparing their parts.
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    type: str | None = None
    index: int | None = None

    def __new__(
        cls,
        job: str | None = None,
        replica: int | None = None,
        task: int | None = None,
        type: str | None = None,
        index: int | None = None,
    ) -> Device:
        return _devices.setdefault((job, replica, task, type, index), object.__new__(cls))

    def __reduce__(self) -> tuple[Any, _Parts]:
        return Device, (self.job, self.replica, self.task, self.type, self.index)

    @staticmethod
    @lru_cache(maxsize=65536)
    def parse(text: str) -> Device:
        """Parse a device name; empty parts, as in ``//cpu:0``, are ignored.

        Raises:
            InputError: the name has a part that TensorFlow does not know, or one part twice.
        """
        named: dict[str, str] = {}
        for part in filter(None, text.split("/")):
            match = _PART.fullmatch(part)
            if match is None:
                raise InputError(
                    repr(text),
                    f"'{part}' is not part of a device name",
                    "write it like /cpu:0, /gpu:1 or /job:ps/task:0/device:CPU:0",
                )
            parts = {key: value for key, value in match.groupdict().items() if value is not None}
            if "short" in parts:
                parts = {"type": parts["short"], "index": parts.get("short_index", "*")}
            if named.keys() & parts.keys():
                raise InputError(repr(text), f"'{part}' names a part twice", "name one device")
            named |= parts
        stated = {key: value for key, value in named.items() if value != "*"}
        return Device(
            stated.get("job"),
            _number(stated.get("replica")),
            _number(stated.get("task")),
            stated["type"].upper() if "type" in stated else None,
            _number(stated.get("index")),
        )

    def over(self, outer: Device) -> Device:
        """Merge this device with the device of an outer scope, which supplies unstated parts.

        Works as ``tf.DeviceSpec.make_merged_spec`` does.
        """
        return Device(
            outer.job if self.job is None else self.job,
            outer.replica if self.replica is None else self.replica,
            outer.task if self.task is None else self.task,
            outer.type if self.type is None else self.type,
            outer.index if self.index is None else self.index,
        )

    def matches(self, pattern: Device) -> bool:
        """Whether this name agrees with every part that ``pattern`` states."""
        return (
            (pattern.job is None or pattern.job == self.job)
            and (pattern.replica is None or pattern.replica == self.replica)
            and (pattern.task is None or pattern.task == self.task)
            and (pattern.type is None or pattern.type == self.type)
            and (pattern.index is None or pattern.index == self.index)
        )

    @property
    def is_gpu(self) -> bool:
        """Whether the type is ``GPU``."""
        return self.type == "GPU"

    @property
    def task_device(self) -> Device:
        """The device's task, as a device without type and index."""
        return _task_device(self)

    @property
    def short(self) -> str:
        """The name without the parts of the local host."""
        if self.job == "localhost" and not self.replica and not self.task:
            return str(Device(type=self.type, index=self.index))
        return str(self)

    def __lt__(self, other: Device) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[str, int, int, str, int]:
        replica, task, index = (
            -1 if number is None else number for number in (self.replica, self.task, self.index)
        )
        return (self.job or "", replica, task, self.type or "", index)

    def __bool__(self) -> bool:
        return self is not _ANYWHERE

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __str__(self) -> str:
        parts = [
            f"/{key}:{value}"
            for key, value in (("job", self.job), ("replica", self.replica), ("task", self.task))
            if value is not None
        ]
        if self.type is not None or self.index is not None:
            index = "*" if self.index is None else self.index
            parts.append(f"/device:{self.type or '*'}:{index}")
        return "".join(parts)


@lru_cache(maxsize=65536)
def _task_device(device: Device) -> Device:
    return Device(device.job, None, device.task)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


_ANYWHERE = Device()
LOCALHOST = Device("localhost", 0, 0)


# Which GPUs a run uses: real GPUs if there are enough (auto), only real GPUs, or simulated GPUs.
Devices: TypeAlias = Literal["auto", "real", "simulated"]
RunDevices: TypeAlias = Literal["real", "simulated"]  # the GPUs that a run used


VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"  # environment variable


def present_gpus() -> int:
    """The number of NVIDIA GPUs of this machine: the device files of the driver."""
    return sum(
        bool(re.fullmatch(r"nvidia\d+", path.name)) for path in Path("/dev").glob("nvidia*")
    )


def local_gpus() -> int:
    """The number of NVIDIA GPUs that this process may use, by ``CUDA_VISIBLE_DEVICES``.

    This does not need TensorFlow, which may find fewer GPUs: `run.runnable.usable_gpus`.
    """
    present = present_gpus()
    visible = os.environ.get(VISIBLE_GPUS)
    if visible is None or not present:
        return present
    entries = [entry.strip() for entry in visible.split(",")]
    # CUDA ignores the entries after an invalid one.
    return len(list(takewhile(lambda entry: _names_gpu(entry, present), entries)))


def _names_gpu(entry: str, present: int) -> bool:
    """Whether an entry of ``CUDA_VISIBLE_DEVICES`` is an index or an identifier of a GPU."""
    return int(entry) < present if entry.isdigit() else entry.startswith(("GPU-", "MIG-"))


def checked_gpus(count: int) -> int:
    """Return ``count`` if it is a valid number of GPUs.

    Raises:
        UsageError: the number is not an integer from 1 to 256.
    """
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise UsageError(
            f"gpus={count!r:.60}",
            "is not a whole number",
            "give one, such as gpus=2",
            is_predicate=True,
        )
    if not 1 <= count <= limits.GPUS.most:
        raise UsageError(
            f"{count} GPUs",
            f"one host has between 1 and {limits.GPUS.most}",
            "give 1 or more; a program for CPUs alone has no towers to check"
            if count < 1
            else 'describe a cluster with --machine "worker*64: gpu*8"',
        )
    return count
