"""Says on standard error what is being done, while that takes long."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from placement_checks.util.text import printable

_T = TypeVar("_T")
_Show = Callable[[int, threading.Event], None]

_REDRAWN_EVERY = 1.0  # seconds, and first after as many: what is quick does not flicker
_TOLD = 120  # letters of such a line, without the seconds
_TOLD_EVERY = 30.0  # seconds, where there is no terminal
_PATIENCE = 1.0  # seconds for the last write, to a terminal that may be held with Ctrl-S
_ERASED = "\r\x1b[2K"

_doing: tuple[str, ...] = ()  # the outermost first


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Note what is done in this block, such as "importing TensorFlow"."""
    global _doing
    before = _doing
    _doing = own = (*before, what)
    try:
        yield
    finally:
        if _doing[: len(own)] == own:  # else it is over: an exception keeps a generator alive
            _doing = before


def track(items: Sequence[_T], what: str) -> Iterator[_T]:
    """The items, each noted as "step 2 of 3" while it is worked on; a single one is not."""
    if len(items) == 1:
        yield from items
        return
    for number, item in enumerate(items, 1):
        with step(f"{what} {number} of {len(items)}"):
            yield item


@contextlib.contextmanager
def live() -> Iterator[None]:
    """Show what is being done in this block.

    On a terminal that is one line, which is erased at the end; elsewhere a line now and then. It
    is written to where standard error leads now: later the descriptor may be redirected.
    """
    ended = threading.Event()
    thread = None if "PYTEST_CURRENT_TEST" in os.environ else _start(ended)
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            thread.join(_PATIENCE)


def _start(ended: threading.Event) -> threading.Thread | None:
    """The thread that shows it; None where the system gives none, which is no reason to fail."""
    try:
        descriptor = os.dup(2)
    except OSError:
        return None
    show = _draw if _can_erase(descriptor) else _tell
    thread = threading.Thread(target=_until_ended, args=(show, descriptor, ended), daemon=True)
    try:
        thread.start()
    except RuntimeError:
        os.close(descriptor)
        return None
    return thread


def _can_erase(descriptor: int) -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return not plain and os.isatty(descriptor)


def _until_ended(show: _Show, descriptor: int, ended: threading.Event) -> None:
    """Show it; a stream that cannot be written is left alone."""
    with contextlib.suppress(OSError):
        show(descriptor, ended)
    os.close(descriptor)


def _draw(descriptor: int, ended: threading.Event) -> None:
    """Draw a line on a terminal, over and over, and erase it.

    Behind it are two blanks, since what user code prints is put there.
    """
    begin, drawn = time.monotonic(), False
    while not ended.wait(_REDRAWN_EVERY):
        seconds = f" … {time.monotonic() - begin:.0f} s  "
        columns = os.get_terminal_size(descriptor).columns or 80
        line = _cut(_what(), columns - len(seconds) - 1) + seconds
        drawn |= _write(descriptor, _ERASED + line)
    if drawn:
        _write(descriptor, _ERASED)


def _tell(descriptor: int, ended: threading.Event) -> None:
    """Write a line now and then."""
    begin = time.monotonic()
    while not ended.wait(_TOLD_EVERY):
        _write(
            descriptor,
            f"placement-checks: {_cut(_what(), _TOLD)} ({time.monotonic() - begin:.0f} s)\n",
        )


def _what() -> str:
    return printable(": ".join(_doing) or "working")


def _cut(text: str, most: int) -> str:
    """Without its middle, where it is longer than a line."""
    if len(text) <= most:
        return text
    half = max(most, 4) // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def _write(descriptor: int, text: str) -> bool:
    """Write at once, so that no other's output comes between; not where that would block."""
    free = select.poll()
    free.register(descriptor, select.POLLOUT)
    if not free.poll(0):
        return False
    os.write(descriptor, text.encode())
    return True
