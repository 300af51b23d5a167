"""Pauses Python's collector of cycles while many objects are made and none is thrown away."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Without collections, which would walk all objects of TensorFlow's graph again and again.

    On a graph of 15,000 ops they cost more than the rules themselves; a log's records are as many.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def kept_for_good() -> Iterator[None]:
    """Load in this block what stays as long as the process: no collection ever walks it.

    Of what importing TensorFlow costs they are a quarter, with the one at the end of the process.
    """
    with gc_paused():
        yield
    gc.freeze()
