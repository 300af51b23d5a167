"""Redirects what Python, C or C++ write to a file descriptor."""

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
    """Send what user code, TensorFlow or C++ print in this block to standard error."""
    with contextlib.suppress(OSError):
        flush()
    original = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(OSError):
            flush()
        os.dup2(original, 1)
        os.close(original)


@contextlib.contextmanager
def redirected(descriptor: int, file: IO[bytes]) -> Iterator[None]:
    """Send to ``file`` what is written to a file descriptor, by Python, C or C++."""
    flush()
    original = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        flush()
        os.dup2(original, descriptor)
        os.close(original)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back what is written to file descriptor 2, and show it only if an error passes."""
    with unnamed_file() as buffer:
        try:
            with redirected(2, buffer):
                yield
        except BaseException:
            write_back(buffer, 2)
            raise


def unnamed_file() -> BinaryIO:
    """A file for what is printed; in memory where the system can: no folder need be writable."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("placement_checks"), "w+b")
    return cast(BinaryIO, tempfile.TemporaryFile())


def write_back(file: IO[bytes], descriptor: int) -> None:
    """Write all that is in a file to a file descriptor."""
    file.seek(0)
    while text := file.read(1 << 16):
        while text:
            text = text[os.write(descriptor, text) :]


def flush() -> None:
    """Write out what Python and C hold back, so that it goes where the descriptors lead now."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
