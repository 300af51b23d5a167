"""Replaces files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from pathlib import Path


def check_replaceable(file: Path) -> None:
    """Fail early if `replace_file` would fail.

    Raises:
        OSError: the file or its directory is not writable.
    """
    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    tempfile.TemporaryFile(dir=file.parent).close()


def replace_file(file: Path, text: str) -> None:
    """Replace a file atomically. The new file has the mode and owner of the old file.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    temporary = file.with_name(f".placement-checks.{secrets.token_hex(8)}")
    try:
        with open(temporary, "x", encoding="utf-8", errors="backslashreplace") as new:
            if file.exists():
                was = file.stat()
                with contextlib.suppress(PermissionError):
                    os.chown(temporary, was.st_uid, was.st_gid)
                temporary.chmod(stat.S_IMODE(was.st_mode))
            new.write(text)
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
