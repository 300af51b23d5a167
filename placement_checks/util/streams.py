"""Leads elsewhere what Python, C or C++ write to a file descriptor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, BinaryIO, cast


@contextlib.contextmanager
def report_alone() -> Iterator[None]:
    """Meanwhile what user code, TensorFlow or C++ print goes to standard error."""
    with contextlib.suppress(OSError):
        flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(OSError):
            flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def redirected(descriptor: int, file: IO[bytes]) -> Iterator[None]:
    """Send to ``file`` what is written to a file descriptor, by Python, C or C++."""
    flush()
    kept = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        flush()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back what is written to file descriptor 2, and show it only if an error passes."""
    with unnamed_file() as held:
        try:
            with redirected(2, held):
                yield
        except BaseException:
            write_back(held, 2)
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
