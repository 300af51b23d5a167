"""Redirects output of Python, C and C++ to a file descriptor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, BinaryIO, cast


@contextlib.contextmanager
def stdout_for_report() -> Iterator[None]:
    """Redirect standard output to standard error, for user code and TensorFlow."""
    with redirected(1, 2), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def redirected(descriptor: int, target: int) -> Iterator[None]:
    """Redirect a file descriptor to another one during this block."""
    with contextlib.suppress(OSError):  # the reader of a pipe may be gone
        flush()
    original = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            flush()
        os.dup2(original, descriptor)
        os.close(original)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Suppress output to file descriptor 2; write it if the block raises."""
    with unnamed_file() as buffer:
        try:
            with redirected(2, buffer.fileno()):
                yield
        except BaseException:
            write_back(buffer, 2)
            raise


def unnamed_file() -> BinaryIO:
    """A temporary file, in memory if the system supports that, so that no directory is needed."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("placement_checks"), "w+b")
    return cast(BinaryIO, tempfile.TemporaryFile())


def write_back(file: IO[bytes], descriptor: int) -> None:
    """Write the whole contents of a file to a file descriptor."""
    file.seek(0)
    while text := file.read(1 << 16):
        while text:
            text = text[os.write(descriptor, text) :]


def flush() -> None:
    """Flush the output buffers of Python and C, before a descriptor changes."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
