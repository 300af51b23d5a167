"""Counts the records of a log, block by block, in memory that grows with distinct ones only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import attrgetter, not_

from placement_checks.logs.counts import Copies
from placement_checks.logs.forms import Reading, read
from placement_checks.logs.hints import Hints
from placement_checks.logs.log import Log
from placement_checks.logs.texts import Stream, Texts
from placement_checks.logs.torn import Torn, complete, cut, may_be_torn, unfinished

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
