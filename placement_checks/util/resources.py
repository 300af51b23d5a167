"""Available cores and memory, and control of Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")
# Files of a control group, version 2 and version 1.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_memory() -> int | None:
    """Bytes of memory and swap that a process can still get; None if unknown.

    A container may have a limit below the free memory of the machine (cgroups(7)). File caches
    count as available, as the kernel frees them.
    """
    found = [_free_on_machine(), *(_free_in_group(*files) for files in _LIMITS)]
    return min((free for free in found if free is not None), default=None)


def peak_memory(process: int) -> int:
    """The largest resident memory of a process so far, in bytes; 0 if the process has ended."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text()
        if found := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            return 1024 * int(found[1])
    return 0


def available_cores() -> int:
    """The cores that this process may use, at least 1. A container may have a limit."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_GROUPS / "cpu.max").read_text().split()
        cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def _free_on_machine() -> int | None:
    fields = {}
    with contextlib.suppress(OSError):
        fields = dict(re.findall(r"(\w+): +(\d+) kB", _MEMORY.read_text()))
    if "MemAvailable" not in fields:
        return None
    return 1024 * (int(fields["MemAvailable"]) + int(fields.get("SwapFree", 0)))


def _free_in_group(limit: str, used: str, statistics: str) -> int | None:
    try:
        bytes_left = int((_GROUPS / limit).read_text()) - int((_GROUPS / used).read_text())
        cached = re.search(r"^inactive_file (\d+)", (_GROUPS / statistics).read_text(), re.M)
    except (OSError, ValueError):  # no such file; "max" means no limit
        return None
    return max(0, bytes_left + (int(cached[1]) if cached else 0))


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection during this block, which makes many objects and frees few.

    Each collection would visit all objects of TensorFlow's graph. With 15,000 ops, collections
    take longer than all rules.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def freeze_loaded() -> Iterator[None]:
    """Exclude objects made in this block from all collections: parts of modules are never freed.

    Collections take a quarter of the time of ``import tensorflow``.
    """
    with gc_paused():
        yield
    gc.freeze()
