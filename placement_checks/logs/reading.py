"""Reads logs, the parts of a large one in as many processes as there are processors.

Counts the records of a log, block by block, in memory that grows with distinct ones only.
"""

from __future__ import annotations

import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from operator import attrgetter, not_
from pathlib import Path

from placement_checks.core.errors import InputError
from placement_checks.logs.copies import Copies
from placement_checks.logs.decoding import Stream, Texts
from placement_checks.logs.hints import Hints
from placement_checks.logs.log import Log
from placement_checks.logs.record_formats import Reading, read
from placement_checks.logs.sources import STDIN, Source
from placement_checks.logs.split_records import (
    Torn,
    complete,
    cut,
    is_cut,
    may_be_torn,
    unfinished,
)
from placement_checks.logs.unwrap import Unwrapper, in_pieces
from placement_checks.util.resources import gc_paused

# The start of a line, the time of TensorFlow's or absl's log prefix, in which no two lines are
# alike, and what is left of that prefix:
# 2024-01-21 21:16:10.179741: I tensorflow/…/placer.cc:125] | I0000 00:00:1795000000.179741   19303
# Without a time or an I it is left to `read`, as a line of stdout would be walked over for it.
_START = re.compile(
    rb"\n(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: |I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ )?"
    rb"((?:I |(?<= ))\S{1,200}\.cc:\d{1,9}\] )?"
)


class Tally:
    """What was found so far."""

    def __init__(self) -> None:
        self._texts = Texts()
        self._plain = Stream()
        self._logged = Stream()
        self._copies = Copies()
        self._mixed: Counter[Reading] = Counter()
        self._torn = Torn()
        self._hints = Hints()

    def add(self, block: bytes) -> None:
        """Count the lines of a block, each behind its newline; blocks come in order."""
        plain, logged, prefixes = _streams(block)
        heads: dict[bytes, bytes] = {}
        rests: list[bytes] = []  # of the lines that begin with a torn record
        for line, times in self._plain.count(plain, self._texts).items():
            head, rest = cut(line)
            if head:
                heads[line] = head
                rests += [rest] * times
                if record := complete(head):
                    self._mixed[Reading(record, logged=False)] += times
            elif may_be_torn(line) and not read(line):
                heads[line] = line  # whether it is torn is found out there
                self._hints.look(line, times)
            else:
                self._look_at(line, line, times, self._plain)
        self._add_logged(logged, prefixes)
        if rests:
            behind, logged, prefixes = _streams(b"\n" + b"\n".join(rests))
            for line, times in self._plain.count(behind, self._texts).items():
                self._look_at(line, line, times, self._plain)
            self._add_logged(logged, prefixes)
        if heads or self._torn.waiting:
            self._torn.look(plain, heads)

    def _add_logged(self, texts: Sequence[bytes], prefixes: Sequence[bytes]) -> None:
        """Count lines of stderr."""
        if odd := self._logged.count(texts, self._texts):
            prefix_of = dict(zip(texts, prefixes, strict=True))
            for text, times in odd.items():
                self._look_at(prefix_of[text] + text, text, times, self._logged)

    def _look_at(self, line: bytes, text: bytes, times: int, stream: Stream) -> None:
        """Read a line that is more, or less, than one common record."""
        readings = read(line)
        torn = unfinished(line, readings)
        if len(readings) == 1 and not torn and stream.see(text, readings[0], times):
            return
        for reading in readings:
            self._mixed[reading] += times
        if not readings:
            self._hints.look(line, times)
        for beginning in torn:
            self._torn.lose(beginning, times)

    def look_beyond(self, blocks: Iterable[bytes]) -> None:
        """Find how a record goes on that is torn at the end; the rest is read by another."""
        for block in blocks:
            if not self._torn.waiting:
                break
            plain, _, _ = _streams(block)
            self._torn.look_beyond(plain)

    def fold(self) -> None:
        """Keep the records, and nothing of the texts; no block is added after this."""
        plain, logged = self._plain, self._logged
        copies = Copies.of(self._texts.records, plain.common, logged.common)
        if self._copies:
            self._copies.take(copies)
        else:
            self._copies = copies
        self._mixed.update(plain.others)
        self._mixed.update(logged.others)
        self._texts, self._plain, self._logged = Texts(), Stream(), Stream()

    def merge(self, other: Tally) -> None:
        """Take in what was counted of the next part of a log, or of another log of the run."""
        self._copies.take(other._copies)
        self._mixed.update(other._mixed)
        self._torn.merge(other._torn)
        self._hints.merge(other._hints)

    def __bool__(self) -> bool:
        return bool(self._copies or self._mixed)

    @property
    def has_text(self) -> bool:
        """Whether anything but blanks was read."""
        return bool(self) or self._hints.has_text

    def log(self, name: str, troubles: Sequence[str] = ()) -> Log:
        """All that was counted; it is not counted on after this."""
        self.fold()
        copies = self._copies
        copies.take(_copies_of(self._mixed))
        torn = self._torn.settle(copies)
        records = copies.total()
        _unglue(copies)
        counts = copies.placements()
        return Log(
            name,
            counts,
            records,
            torn,
            frozenset(self._hints.devices),
            None if counts else self._hints.reason(torn),
            tuple(troubles),
        )


def _streams(block: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The lines of stdout, and those of stderr in two parts: the texts, and their log prefixes."""
    _, *pieces = _START.split(block)
    prefixes, texts = pieces[::2], pieces[1::2]
    plain = list(compress(texts, map(not_, prefixes)))
    return plain, list(compress(texts, prefixes)), list(filter(None, prefixes))


def _copies_of(readings: Mapping[Reading, int]) -> Copies:
    copies = Copies()
    for record, logged in sorted(readings, key=attrgetter("logged"), reverse=True):
        times = readings[Reading(record, logged)]
        copies.add(record, complex(0, times) if logged else times)
    return copies


def _unglue(copies: Copies) -> None:
    """Take pytest's progress dots off the names of nodes that were printed right behind them."""
    for record in copies.without_logged():
        if record.node and record.node[0] == ".":
            node = record.node.lstrip(".")
            if node[:1].isalnum():
                copies.rename(record, record._replace(node=node))


_CUT = "it ends in the middle of a record; copy it again when the process has ended"
Watch = Callable[[Source], None]


def processors() -> int:
    """How many processors there are for reading; 1 where a process cannot be forked."""
    if hasattr(os, "fork") and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return 1


def read_logs(
    names: str | Path | Sequence[str | Path],
    *,
    processes: int = 1,
    watch: Watch | None = None,
    packed: bool = True,
) -> Log:
    """Read one log, or several of one run: the copies in one pair with those in another.

    Args:
        names: a path or several; ``-`` is standard input. gzip is unpacked.
        processes: how many may read parts of a large file. Others than this one are forked, which
            is unsafe where threads run, as they do once TensorFlow is loaded.
        watch: called with the source after each block of it, to show how far it is.
        packed: whether a file may be compressed, and is refused if it is no text.

    Raises:
        InputError: a file does not exist, cannot be read, or is not text.
    """
    listed = [names] if isinstance(names, str | Path) else names
    with gc_paused():
        return _read([str(name) for name in listed], processes, watch, packed)


def _read(names: Sequence[str], processes: int, watch: Watch | None, packed: bool) -> Log:
    total = Tally()
    troubles: list[str] = []
    for name in names:
        source = Source(name, packed=packed)
        parts = [source] if in_pieces(source.sample) else source.parts(processes)
        others = [_Forked(part) for part in parts[1:]]
        first = _tally(parts[0], watch)
        tallies = [first, *(other.tally() for other in others)]
        if packed and source.is_binary and not any(tallies):
            raise InputError(name, "is a binary file, not a log", "name what the process printed")
        if parts[0].troubles and not any(tally.has_text for tally in tallies):
            raise InputError(name, f"has nothing that can be read: {parts[0].troubles[0]}")
        for tally in tallies:
            total.merge(tally)
        troubles += [f"{name}: {trouble}" for part in parts for trouble in part.troubles]
    return total.log(" + ".join(names), troubles)


def _tally(source: Source, watch: Watch | None = None) -> Tally:
    tally = Tally()
    unwrapper = Unwrapper()
    try:
        for packed in source.blocks():
            block = unwrapper.unwrap(packed)
            tally.add(block if source.ends else _uncut(block, source))
            if watch:
                watch(source)
    except KeyboardInterrupt:
        if source.name != STDIN:
            raise
        source.troubles.append("it was interrupted")
    if rest := unwrapper.rest():
        tally.add(_uncut(b"\n" + rest, source))
    tally.look_beyond(unwrapper.unwrap(block) for block in source.beyond())
    tally.fold()
    return tally


def _uncut(block: bytes, source: Source) -> bytes:
    """The end of a log without its last line, if that ends in the middle of a record."""
    end = block.rfind(b"\n")
    if not is_cut(block[end + 1 :]):
        return block
    if not source.troubles:
        source.troubles.append(_CUT)
    return block[:end]


class _Forked:
    """Reads a part in another process.

    Made by hand: importing `multiprocessing` costs as much as reading ten megabytes.
    """

    def __init__(self, part: Source) -> None:
        self._part = part
        self._pipe, sending = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(sending)
            return
        try:
            with os.fdopen(sending, "wb") as pipe:
                pickle.dump((_tally(part), part.troubles), pipe)
        finally:
            os._exit(0)

    def tally(self) -> Tally:
        """What it counted. Where it died, the part is read here."""
        tally: Tally
        try:
            with os.fdopen(self._pipe, "rb") as pipe:
                tally, self._part.troubles[:] = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):
            tally = _tally(self._part.anew())
        os.waitpid(self._pid, 0)
        return tally
