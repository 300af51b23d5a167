"""Files that a command writes: each is replaced whole, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from placement_checks.cli.output import stream
from placement_checks.core.errors import UsageError
from placement_checks.util.files import check_replaceable, replace_file


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
            check_replaceable(file)
    if direct:
        with stream(descriptor, name) as straight:
            yield straight
        return
    text = io.StringIO()
    yield text
    with _refused_as(name):
        replace_file(file, text.getvalue())


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
