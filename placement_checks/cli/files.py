"""Files that a command writes: each is replaced whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from placement_checks.cli.output import stream
from placement_checks.core.errors import UsageError


@contextlib.contextmanager
def written(path: str | None, option: str = "--output") -> Iterator[TextIO]:
    """The stream of a file, or standard output; a file is replaced whole when all is written.

    Args:
        path: the file; one that is not regular, such as a pipe, is written to directly.
        option: the one that named it.

    Raises:
        UsageError: it cannot be written; this is checked first.
    """
    if path is None or _is_open(path, 1):
        yield sys.stdout
        return
    if _is_open(path, 2):
        yield sys.stderr
        return
    name, file = f"{option} {path}", Path(os.path.realpath(path))
    with _refused_as(name):
        with contextlib.suppress(FileNotFoundError):
            Path(path).stat()  # fails where the kernel does not follow another user's link
        direct = file.exists() and not file.is_file()
        if direct:
            descriptor = os.open(path, os.O_WRONLY)
        else:
            _check(file)
    if direct:
        with stream(descriptor, name) as straight:
            yield straight
        return
    text = io.StringIO()
    yield text
    with _refused_as(name):
        _replace(file, text.getvalue())


def _is_open(path: str, descriptor: int) -> bool:
    """Whether a path, such as /dev/stdout, is the file of a descriptor."""
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(descriptor))
    except OSError:
        return False


@contextlib.contextmanager
def _refused_as(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise UsageError(name, reason.strerror or "cannot be written") from None


def _check(file: Path) -> None:
    """Fail now where `_replace` would."""
    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    tempfile.TemporaryFile(dir=file.parent).close()


def _replace(file: Path, text: str) -> None:
    """Put another file in the place of one, with its mode and owner."""
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
