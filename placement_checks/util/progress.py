"""Shows the current step of slow work on standard error."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from placement_checks.util.text import printable

_T = TypeVar("_T")

_DRAW_INTERVAL = 1.0  # seconds; also before the first line, so that quick work does not flicker
_LINE_WIDTH = 120  # characters of a line without a terminal, not counting the seconds
_LINE_INTERVAL = 30.0  # seconds between lines without a terminal
_PATIENCE = 1.0  # seconds for the last write: Ctrl-S may have stopped the terminal
_ERASE_LINE = "\r\x1b[2K"

_steps: tuple[str, ...] = ()  # the outermost first


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Name the step that this block does, such as "importing TensorFlow"."""
    global _steps
    before = _steps
    _steps = own = (*before, what)
    try:
        yield
    finally:
        if _steps[: len(own)] == own:  # else the step is over: an exception holds the generator
            _steps = before


def track(items: Sequence[_T], what: str) -> Iterator[_T]:
    """Yield the items, each as a step such as "program 2 of 3". A single item is not a step."""
    if len(items) == 1:
        yield from items
        return
    for number, item in enumerate(items, 1):
        with step(f"{what} {number} of {len(items)}"):
            yield item


@contextlib.contextmanager
def live() -> Iterator[None]:
    """Show the current step during this block.

    A terminal shows one line, which is erased at the end. Elsewhere a line is written now and
    then. Output goes to the present standard error, also if its descriptor is redirected later.
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
    """Start the thread that shows steps; return None if the system refuses a thread."""
    try:
        descriptor = os.dup(2)
    except OSError:
        return None
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    show = _write_lines if is_plain or not os.isatty(descriptor) else _draw

    def show_until_ended() -> None:
        with contextlib.suppress(OSError):
            show(descriptor, ended)
        os.close(descriptor)

    thread = threading.Thread(target=show_until_ended, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        os.close(descriptor)
        return None
    return thread


def _draw(descriptor: int, ended: threading.Event) -> None:
    """Redraw a line on a terminal, and erase it at the end.

    The line ends with two spaces, because output of user code may follow it.
    """
    begin, drawn = time.monotonic(), False
    while not ended.wait(_DRAW_INTERVAL):
        seconds = f" … {time.monotonic() - begin:.0f} s  "
        columns = os.get_terminal_size(descriptor).columns or 80
        line = _cut(_current_step(), columns - len(seconds) - 1) + seconds
        drawn |= _write(descriptor, _ERASE_LINE + line)
    if drawn:
        _write(descriptor, _ERASE_LINE)


def _write_lines(descriptor: int, ended: threading.Event) -> None:
    begin = time.monotonic()
    while not ended.wait(_LINE_INTERVAL):
        seconds = time.monotonic() - begin
        step = _cut(_current_step(), _LINE_WIDTH)
        _write(descriptor, f"placement-checks: {step} ({seconds:.0f} s)\n")


def current_steps() -> Sequence[str]:
    """Return the names of the current steps, the outermost first."""
    return _steps


def _current_step() -> str:
    return printable(": ".join(_steps) or "working")


def _cut(text: str, width: int) -> str:
    """Shorten a text in its middle."""
    if len(text) <= width:
        return text
    half = max(width, 4) // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def _write(descriptor: int, text: str) -> bool:
    """Write in one call, so that the output stays whole; skip it if the call would block."""
    free = select.poll()
    free.register(descriptor, select.POLLOUT)
    if not free.poll(0):
        return False
    os.write(descriptor, text.encode())
    return True
