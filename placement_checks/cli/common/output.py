"""Output of commands: writes to standard streams and files either succeed or raise an error."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from placement_checks.core.errors import UsageError
from placement_checks.util.files import check_replaceable, replace_file
from placement_checks.util.text import join_and, printable


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Open closed standard streams, and make stdout a stream that reports every lost byte.

    Python's own stdout drops the rest of a text if a disk is full and PYTHONUNBUFFERED is set, and
    reports other failures only when the process ends.
    """
    for descriptor in range(3):
        _ensure_open(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    stdout = sys.stdout
    if stdout is not None and not _is_stream_of(1, stdout):
        yield  # a caller, such as a test, has replaced stdout
        return
    sys.stdout = open_fd(os.dup(1), "standard output")
    try:
        yield
    finally:
        with contextlib.suppress(UsageError, OSError):  # already reported, or closed by user code
            sys.stdout.close()
        sys.stdout = stdout


def _ensure_open(descriptor: int) -> None:
    """Open a closed descriptor on /dev/null, so that no other file gets its number.

    Using stdin or stdout then fails; text for stderr is discarded.
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
    """Write a line to stderr; returns False if that fails."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # so that the last flush does not fail
        return False
    return True


def open_fd(descriptor: int, name: str) -> TextIO:
    """A text stream for a descriptor; errors call it ``name``."""
    buffer = io.BufferedWriter(_Descriptor(descriptor, name))
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")


class _Descriptor(io.FileIO):
    """A writable descriptor that raises its first failure and discards all later data."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w")
        self._name = name
        self._lost = False

    def write(self, data: Any) -> int:
        if self._lost:
            return len(data)
        try:
            while (written := super().write(data)) is None:  # the descriptor is non-blocking
                select.select([], [self], [])
        except OSError as reason:
            self._lost = True
            raise UsageError(self._name, reason.strerror or "cannot be written") from None
        return written


class Output(NamedTuple):
    """A report to write."""

    format: str
    file: str | None  # the file; None for standard output


def parse_outputs(files: Sequence[str], given: str | None, formats: Sequence[str]) -> list[Output]:
    """The reports of a call.

    The suffix of a file decides its format. A format that is given, but that no file has, is
    written to standard output.

    Args:
        files: the values of --output.
        given: the value of --format; None without the option.
        formats: the formats of the command; the first one is the default.

    Raises:
        UsageError: a file has an unknown suffix, and no format is given.
    """
    suffixes = _suffixes(formats) if files else {}
    outputs = []
    for file in files:
        suffix = Path(file).suffix.lower()
        if suffix not in suffixes and suffix and given is None:
            raise UsageError(
                f"--output {file}",
                "has no suffix of a format",
                f"use one of {join_and(suffixes)}, or add --format",
                is_predicate=True,
            )
        outputs.append(Output(suffixes.get(suffix, given or formats[0]), file))
    if not files or (given is not None and all(each.format != given for each in outputs)):
        outputs.append(Output(given or formats[0], None))
    return outputs


def _suffixes(formats: Sequence[str]) -> Mapping[str, str]:
    """The formats by the suffix of their files."""
    from placement_checks.report.formats import FORMATS  # which imports each of these formats

    return {FORMATS[name].suffix: name for name in formats if FORMATS[name].suffix}


@contextlib.contextmanager
def open_outputs(outputs: Sequence[Output]) -> Iterator[Sequence[tuple[str, TextIO]]]:
    """The format and the stream of each report, as `open_output` opens it."""
    with contextlib.ExitStack() as stack:
        yield [(each.format, stack.enter_context(open_output(each.file))) for each in outputs]


@contextlib.contextmanager
def open_output(path: str | None, option: str = "--output") -> Iterator[TextIO]:
    """A stream for a file or stdout; the file is replaced as a whole at the end of the block.

    Args:
        path: the file, or None or ``-`` for stdout; a file that is not regular, such as a pipe, is
            written directly.
        option: the command-line option that named the file.

    Raises:
        UsageError: the file cannot be written, which is checked before the block.
    """
    if path is None or path == "-" or _is_open(path, 1):
        yield sys.stdout
        return
    if _is_open(path, 2):
        yield sys.stderr
        return
    name, file = f"{option} {path}", Path(os.path.realpath(path))
    with _usage_errors(name):
        with contextlib.suppress(FileNotFoundError):
            Path(path).stat()  # fails if the kernel does not follow the link of another user
        is_special = file.exists() and not file.is_file()
        if is_special:
            descriptor = os.open(path, os.O_WRONLY)
        else:
            check_replaceable(file)
    if is_special:
        with open_fd(descriptor, name) as stream:
            yield stream
        return
    text = io.StringIO()
    yield text
    with _usage_errors(name):
        replace_file(file, text.getvalue())


def _is_open(path: str, descriptor: int) -> bool:
    """Whether a path, such as /dev/stdout, is the file behind a descriptor."""
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(descriptor))
    except OSError:
        return False


@contextlib.contextmanager
def _usage_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(name, error.strerror or "cannot be written") from None
