"""How much memory can be had.

Pauses Python's collector of cycles while many objects are made and none is thrown away.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")
# Of a control group, as the system of version 2 and that of version 1 call them.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_memory() -> int | None:
    """Bytes that a process here can have, swap among them; None where that is not known.

    What a container may use is less than what the machine has free (cgroups(7)); file caches are
    given up where memory is needed.
    """
    found = [_of_machine(), *(_of_group(*files) for files in _LIMITS)]
    return min((free for free in found if free is not None), default=None)


def _of_machine() -> int | None:
    fields = {}
    with contextlib.suppress(OSError):
        fields = dict(re.findall(r"(\w+): +(\d+) kB", _MEMORY.read_text()))
    if "MemAvailable" not in fields:
        return None
    return 1024 * (int(fields["MemAvailable"]) + int(fields.get("SwapFree", 0)))


def _of_group(limit: str, used: str, statistics: str) -> int | None:
    try:
        bytes_left = int((_GROUPS / limit).read_text()) - int((_GROUPS / used).read_text())
        cached = re.search(r"^inactive_file (\d+)", (_GROUPS / statistics).read_text(), re.M)
    except (OSError, ValueError):  # there is none; "max" is no limit
        return None
    return max(0, bytes_left + (int(cached[1]) if cached else 0))


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Without collections, which would walk all objects of TensorFlow's graph again and again.

    On a graph of 15,000 ops they cost more than the rules themselves; a log's records are as many.
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
    """Load in this block what stays as long as the process: no collection ever walks it.

    Of what importing TensorFlow costs they are a quarter, with the one at the end of the process.
    """
    with gc_paused():
        yield
    gc.freeze()
