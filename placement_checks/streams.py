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
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except (io.UnsupportedOperation, AttributeError, ValueError):  # replaced by a test
        stream = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield stream
        return
    kept = os.dup(descriptor)
    os.dup2(2, descriptor)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


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
