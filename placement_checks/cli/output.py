"""Standard output and error of a command: all that it prints is written, or it fails.

Files that a command writes: each is replaced whole, or not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from placement_checks.core.errors import UsageError
from placement_checks.util.files import check_replaceable, replace_file
from placement_checks.util.text import printable


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Open standard output and error where they are closed, and let no output be lost silently.

    Python's own stream would lose what is left of a text when a disk is full and
    PYTHONUNBUFFERED is set, and reports other failures only when the process has ended.
    """
    for descriptor in range(3):
        _occupied(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    stdout = sys.stdout
    if stdout is not None and not _is_stream_of(
        1, stdout
    ):  # somebody has replaced it, such as a test
        yield
        return
    sys.stdout = open_fd(os.dup(1), "standard output")
    try:
        yield
    finally:
        with contextlib.suppress(UsageError, OSError):  # reported before, or closed by user code
            sys.stdout.close()
        sys.stdout = stdout


def _occupied(descriptor: int) -> None:
    """Open a descriptor that was closed at the start, or a file of ours would get its number.

    Standard output and input cannot be used then; what is printed on standard error is dropped,
    as whoever closed it wants.
    """
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDONLY if descriptor == 1 else os.O_WRONLY)


def _is_stream_of(descriptor: int, stream: TextIO) -> bool:
    try:
        return stream.fileno() == descriptor
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return False


def write_stderr(line: str) -> bool:
    """Write a line to standard error; False where that fails."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # so that the last flush does not fail
        return False
    return True


def open_fd(descriptor: int, name: str) -> TextIO:
    """A stream to a descriptor; ``name`` stands in the error if it cannot be written."""
    buffer = io.BufferedWriter(_Descriptor(descriptor, name))
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")


class _Descriptor(io.FileIO):
    """A file descriptor to write to: a failure is raised once, and what follows is dropped."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w")
        self._name = name
        self._lost = False

    def write(self, data: Any) -> int:
        if self._lost:
            return len(data)
        try:
            while (written := super().write(data)) is None:  # it is non-blocking
                select.select([], [self], [])
        except OSError as reason:
            self._lost = True
            raise UsageError(self._name, reason.strerror or "cannot be written") from None
        return written


@contextlib.contextmanager
def open_output(path: str | None, option: str = "--output") -> Iterator[TextIO]:
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
        with open_fd(descriptor, name) as straight:
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
