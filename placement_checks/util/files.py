"""Files that are replaced whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from pathlib import Path


def check_replaceable(file: Path) -> None:
    """Fail now where `replace_file` would.

    Raises:
        OSError: the file cannot be written, or its folder cannot hold a new one.
    """
    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    tempfile.TemporaryFile(dir=file.parent).close()


def replace_file(file: Path, text: str) -> None:
    """Put another file in the place of one, with its mode and owner.

    Raises:
        OSError: it cannot be written; the old one is left as it was.
    """
    beside = file.with_name(f".placement-checks.{secrets.token_hex(8)}")
    try:
        with open(beside, "x", encoding="utf-8", errors="backslashreplace") as new:
            if file.exists():
                was = file.stat()
                with contextlib.suppress(PermissionError):
                    os.chown(beside, was.st_uid, was.st_gid)
                beside.chmod(stat.S_IMODE(was.st_mode))
            new.write(text)
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
