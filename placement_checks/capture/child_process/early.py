"""Starts captures early, before their answers are needed, and limits their number.

Captures have the same results as if each one started at the end of the one before:

* An early capture changes nothing that other processes can see until it is its turn
  (`held_effects`).
* If an early capture fails, its program is captured again when the answer is needed. So every
  error comes from a capture that ran alone.
* If a program changes or deletes files of the user, these files are different until its capture
  ends (`file_journal`). All early captures are then discarded, because they may have looked for
  the files in the meantime.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from placement_checks.util.resources import available_cores, available_memory

# Bytes of memory that a capture is expected to need, unless an earlier capture needed more.
# TensorFlow takes 0.5 GB, and a graph of 78,000 ops 1 GB more.
_EXPECTED_MEMORY = 2 << 30
_MIN_MEMORY = 1 << 30  # available bytes, below which an early capture is discarded
_WATCH_INTERVAL = 0.5  # seconds


class Capture(Protocol):
    """A capture that has started; `parent` implements it."""

    @property
    def is_answered(self) -> bool:
        """Whether the child process has answered, or ended without an answer."""

    @property
    def has_renames(self) -> bool:
        """Whether files of the user are renamed, because the program deleted or overwrote them."""

    @property
    def has_queried(self) -> bool:
        """Whether the program has asked for the number of GPUs."""

    @property
    def memory(self) -> int:
        """The largest memory of the child process so far, in bytes; 0 if it has ended."""

    def let_continue(self) -> None:
        """Allow the program to change files: it is its turn now."""

    def answer(self, meanwhile: Callable[[], object]) -> object:
        """Wait for the answer, and call ``meanwhile`` several times in each second."""

    def show_output(self) -> None:
        """Write the output of an early capture to standard error."""

    def kill(self) -> None:
        """Kill the child process."""

    def end(self) -> Sequence[Path]:
        """End all processes of the program, restore its files, and return these files."""


class CaptureResult(NamedTuple):
    """The result of a capture.

    Attributes:
        answer: the captured program, or an error.
        restored: the restored files of the user, which the program deleted or overwrote.
    """

    answer: object
    restored: Sequence[Path]


@contextlib.contextmanager
def early_captures(jobs: int | None) -> Iterator[None]:
    """Let expected captures start early in this block; at its end, kill unneeded captures.

    At most ``jobs`` captures run at the same time; None means one for each core.
    """
    global _current
    before, _current = _current, _EarlyCaptures(jobs)
    try:
        yield
    finally:
        _current.close()
        _current = before


def expect(
    task: Hashable, start: Callable[[], Capture | None], *, if_queried_by: Hashable | None = None
) -> None:
    """Announce that a capture will be needed, after the captures announced before.

    Args:
        task: a key for the capture; captures with equal keys have equal answers.
        start: starts the capture. It returns None if the state of this process has changed since,
            so that the key no longer applies.
        if_queried_by: the key of another capture. If given, ``task`` is needed only if the program
            of the other capture asks for the number of GPUs.
    """
    if _current is not None:
        _current.expect(task, start, if_queried_by)


def take(task: Hashable) -> CaptureResult | None:
    """Return the answer of a capture that started early, as soon as there is one.

    None if the capture has not started, has failed, or may have missed files.
    """
    return None if _current is None else _current.take(task)


def finish(task: Hashable, capture: Capture) -> CaptureResult:
    """Wait for the answer of a capture, and end it. Expected captures may start meanwhile."""
    captures = _EarlyCaptures(1) if _current is None else _current
    return captures.finish(task, capture)


class _EarlyCaptures:
    """The expected captures of a command, and its early captures."""

    def __init__(self, jobs: int | None) -> None:
        self._max_early = (available_cores() if jobs is None else jobs) - 1
        self._expected: dict[Hashable, Callable[[], Capture | None]] = {}
        self._if_queried: dict[Hashable, dict[Hashable, Callable[[], Capture | None]]] = {}
        self._started: dict[Hashable, Capture] = {}
        self._discarded: set[Capture] = set()
        self._needed: Capture | None = None
        self._memory = _EXPECTED_MEMORY
        self._has_warned = False
        self._is_closed = threading.Event()
        self._watch: threading.Thread | None = None

    def expect(
        self,
        task: Hashable,
        start: Callable[[], Capture | None],
        if_queried_by: Hashable | None = None,
    ) -> None:
        if if_queried_by is not None:
            self._if_queried.setdefault(if_queried_by, {})[task] = start
        elif task not in self._started:
            self._expected.setdefault(task, start)

    def take(self, task: Hashable) -> CaptureResult | None:
        self._expected.pop(task, None)
        capture = self._started.get(task)
        if capture is None:
            return None
        finished = None
        with contextlib.suppress(Exception):  # the next capture of the program raises it again
            finished = self.finish(task, capture)
        if (
            finished is None
            or isinstance(finished.answer, Exception)
            or capture in self._discarded
        ):
            return None
        capture.show_output()
        return finished

    def finish(self, task: Hashable, capture: Capture) -> CaptureResult:
        def start_next() -> None:
            if capture.has_queried:
                for other, start in self._if_queried.pop(task, {}).items():
                    self.expect(other, start)
            self._start_next()

        self._needed = capture
        try:
            capture.let_continue()
            start_next()
            answer = capture.answer(meanwhile=start_next)
        finally:
            self._needed = None
            self._started = {task: each for task, each in self._started.items() if each != capture}
            restored = capture.end()
            if restored:
                self._discard_all()
        return CaptureResult(answer, restored)

    def close(self) -> None:
        self._is_closed.set()
        if self._watch is not None:
            self._watch.join()
        for capture in self._started.values():
            with contextlib.suppress(Exception):
                capture.end()

    def _start_next(self) -> None:
        """Start expected captures, in their order, if there are cores and memory for them."""
        while (
            self._expected
            and len(self._early()) < self._max_early
            and len(self._started) < 2 * self._max_early  # their answers take memory
        ):
            needed = self._memory * (1 + len(self._running()))
            if (free := available_memory()) is not None and free < needed:
                self._warn()
                return
            task = next(iter(self._expected))
            start, capture = self._expected.pop(task), None
            # The error is raised again when the answer is needed.
            with contextlib.suppress(Exception):
                capture = start()
            if capture is None:
                continue
            self._started[task] = capture
            if self._watch is None:
                self._watch = threading.Thread(target=self._watch_captures, daemon=True)
                self._watch.start()

    def _early(self) -> list[Capture]:
        """The early captures that have not answered."""
        started = list(self._started.values())
        return [each for each in started if each != self._needed and not each.is_answered]

    def _running(self) -> list[Capture]:
        return [*self._early(), *([self._needed] if self._needed else ())]

    def _watch_captures(self) -> None:
        """Discard early captures if memory runs out, or if they may miss files."""
        while not self._is_closed.wait(_WATCH_INTERVAL):
            self._memory = max([self._memory, *(each.memory for each in self._running())])
            free = available_memory()
            if free is not None and free < _MIN_MEMORY and (early := self._early()):
                self._discard(early[-1])
                self._warn()
            if self._needed and self._needed.has_renames:
                self._discard_all()

    def _discard_all(self) -> None:
        for capture in list(self._started.values()):
            if capture != self._needed:
                self._discard(capture)

    def _discard(self, capture: Capture) -> None:
        self._discarded.add(capture)
        if not capture.is_answered:
            capture.kill()

    def _warn(self) -> None:
        """Print once that memory is too small."""
        if not self._has_warned:
            self._has_warned = True
            message = "too little memory for parallel captures; they run in sequence"
            print(f"placement-checks: {message}", file=sys.stderr, flush=True)


_current: _EarlyCaptures | None = None
