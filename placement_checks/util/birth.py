"""When a file was made."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from pathlib import Path
from typing import Any

# statx(2) and linux/stat.h; Python's os.stat does not tell the time of birth on Linux.
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_BTIME = 0x800
_SIZE, _MASK, _BTIME = 256, 0, 80  # bytes of struct statx, and where two of its fields are


def birth_time(path: Path) -> int | None:
    """When what is at a path, be it a link, was made, in ns since 1970; None where not known."""
    statx = _statx()
    if statx is None:
        return None
    answer = ctypes.create_string_buffer(_SIZE)
    if statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer):
        return None
    (mask,) = struct.unpack_from("I", answer, _MASK)
    seconds, fraction = struct.unpack_from("qI", answer, _BTIME)
    return int(seconds) * 10**9 + int(fraction) if mask & _STATX_BTIME else None


@functools.cache
def _statx() -> Any:
    """The C library's function; None where it has none."""
    return getattr(ctypes.CDLL(None), "statx", None)
