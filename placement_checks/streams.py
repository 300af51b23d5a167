"""Keeps the report apart from what user code and C++ print."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def report_stream() -> Iterator[TextIO]:
    """A stream to the real standard output; meanwhile file descriptor 1 leads to stderr."""
    stdout = sys.stdout
    stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        if _leads_to(1, stdout):
            with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stream:
                yield stream
        else:  # somebody has replaced it, such as a test
            with contextlib.redirect_stdout(sys.stderr):
                yield stdout
    finally:
        stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _leads_to(descriptor: int, stream: TextIO) -> bool:
    try:
        return stream.fileno() == descriptor
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return False


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back what is written to file descriptor 2, and show it only if an error passes."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
