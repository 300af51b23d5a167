"""Open files from any source, and explain paths that are not files."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from placement_checks.core.errors import InputError
from placement_checks.core.limits import Limit


def link_fault(path: Path) -> str:
    """Why a symbolic link leads to no file, as a sentence; ``""`` for any other path."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "its symbolic links form a loop"
        if error.errno == errno.ENOENT and path.is_symlink():
            return f"it is a symbolic link to {os.readlink(path)!r}, which does not exist"
    except ValueError:  # a NUL
        pass
    return ""


def read_bytes(path: Path, limit: Limit) -> bytes:
    """Read a regular file.

    Raises:
        FileNotFoundError: there is neither a file nor a link.
        InputError: the path is something else than a file, or the file is larger than ``limit``.
        OSError: the file cannot be read.
    """
    if fault := link_fault(path):
        raise InputError(str(path), fault, "replace the link")
    # A pipe must not block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise InputError(str(path), "is a directory", "name a file", is_predicate=True)
        if not stat.S_ISREG(mode):
            raise InputError(
                str(path), "is a pipe or device, not a file", "name a file", is_predicate=True
            )
        data = file.read(limit.most + 1)
    limit.check(len(data), str(path))
    return data


def read_text(path: Path, limit: Limit) -> str:
    """Read a text file in UTF-8.

    Raises:
        UnicodeDecodeError: the file is not UTF-8.
        FileNotFoundError, InputError, OSError: as for `read_bytes`.
    """
    text = read_bytes(path, limit).decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")
