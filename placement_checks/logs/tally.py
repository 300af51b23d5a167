"""Counts the records of a log, block by block, in memory that grows with distinct ones only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from itertools import compress, repeat
from operator import not_

from placement_checks.logs.forms import Reading, Record, is_common, read
from placement_checks.logs.hints import Hints
from placement_checks.logs.log import Log
from placement_checks.logs.texts import Texts, counted, larger, records_of
from placement_checks.logs.torn import Torn, complete, cut, may_be_torn, unfinished

# The start of a line, the time of TensorFlow's or absl's log prefix, in which no two lines are
# alike, and what is left of that prefix:
# 2024-01-21 21:16:10.179741: I tensorflow/…/placer.cc:125] | I0000 00:00:1795000000.179741   19303
# Without a time or an I it is left to `read`, as a line of stdout would be walked over for it.
_START = re.compile(
    rb"\n(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: |I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ )?"
    rb"((?:I |(?<= ))\S{1,200}\.cc:\d{1,9}\] )?"
)
_MAX_SEEN = 50_000


class Tally:
    """What was found so far.

    Common lines are counted by their text, the copies on stderr apart, which costs one look-up
    each: few of the millions of lines of a long log are distinct. All others are read at once.
    """

    def __init__(self) -> None:
        self._common = Texts()
        self._logged = Texts()
        self._behind: Counter[bytes] = Counter()  # common lines behind torn records, of a block
        self._mixed: Counter[Reading] = Counter()
        self._torn = Torn()
        self._hints = Hints()

    def add(self, block: bytes) -> None:
        """Count the lines of a block, each behind its newline; blocks come in order."""
        plain, logged, prefixes = _streams(block)
        heads: dict[bytes, bytes] = {}
        for text in self._common.count(plain, self._logged):
            self._look_at(text, text, self._common, heads)
        if odd := self._logged.count(logged, self._common):
            prefix_of = dict(zip(logged, prefixes, strict=True))
            for text in odd:
                self._look_at(prefix_of[text] + text, text, self._logged, heads)
        for rest, times in self._behind.items():
            _, bracket, text = rest.rpartition(b"] ")
            (self._logged if bracket else self._common)[text] += times
        self._behind.clear()
        self._common.checked()
        self._logged.checked()
        if heads or self._torn.waiting:
            self._torn.look(plain, heads)

    def _look_at(self, line: bytes, text: bytes, texts: Texts, heads: dict[bytes, bytes]) -> None:
        """Read a line that is more, or less, than one record; ``texts`` has its ``text``."""
        head, rest = cut(line)
        readings = read(rest)
        torn = unfinished(rest, readings)
        if len(readings) == 1 and not (head or torn) and len(texts.seen) < _MAX_SEEN:
            texts.seen[text] = readings[0]
            return
        times = texts.pop(text)
        if head:
            heads[line] = head
            if record := complete(head):
                self._mixed[Reading(record, logged=False)] += times
            if is_common(rest):
                self._behind[rest] += times
                return
        for reading in readings:
            self._mixed[reading] += times
        if not readings:
            self._hints.look(rest, times)
        if not head and not readings and may_be_torn(line):
            heads[line] = line  # whether it is torn is found out there
        else:
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
        """Leave nothing but records among the texts."""
        self._mixed.update(self._common.fold())
        self._mixed.update(self._logged.fold())

    def merge(self, other: Tally) -> None:
        """Take in what was counted of the next part of a log, or of another log of the run."""
        self._common.update(other._common)
        self._logged.update(other._logged)
        self._common.checked()
        self._logged.checked()
        self._mixed.update(other._mixed)
        self._torn.merge(other._torn)
        self._hints.merge(other._hints)

    def __bool__(self) -> bool:
        return bool(self._common or self._logged or self._mixed)

    @property
    def has_text(self) -> bool:
        """Whether anything but blanks was read."""
        return bool(self) or self._hints.has_text

    def log(self, name: str, troubles: Sequence[str] = ()) -> Log:
        """All that was counted; it is not counted on after this."""
        self.fold()
        plain, logged = self._copies()
        torn = self._torn.settle(plain, logged)
        _unglue(plain, logged)
        counts = larger(plain, logged)
        return Log(
            name,
            counts,
            sum(plain.values()) + sum(logged.values()),
            torn,
            frozenset(self._hints.devices),
            None if counts else self._hints.reason(torn),
            tuple(troubles),
        )

    def _copies(self) -> tuple[dict[Record, int], dict[Record, int]]:
        """How often each record is there without a log prefix, and with one."""
        records = records_of(self._logged)
        logged = counted(records, list(self._logged.values()))
        # Of most records both copies have the same text: it is cut up only once.
        copies = list(map(self._common.pop, self._logged, repeat(0)))
        self._logged.clear()
        both = compress(records, copies)
        plain = counted(
            [*both, *records_of(self._common)],
            [*filter(None, copies), *self._common.values()],
        )
        self._common.clear()
        for (record, with_prefix), times in self._mixed.items():
            _add(logged if with_prefix else plain, record, times)
        return plain, logged


def _streams(block: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The lines of stdout, and those of stderr in two parts: the texts, and their log prefixes."""
    _, *pieces = _START.split(block)
    prefixes, texts = pieces[::2], pieces[1::2]
    plain = list(compress(texts, map(not_, prefixes)))
    return plain, list(compress(texts, prefixes)), list(filter(None, prefixes))


def _add(counts: MutableMapping[Record, int], record: Record, times: int) -> None:
    if times:
        counts[record] = counts.get(record, 0) + times


def _unglue(plain: MutableMapping[Record, int], logged: Mapping[Record, int]) -> None:
    """Take pytest's progress dots off the names of nodes that were printed right behind them."""
    for record in [record for record in plain if record.node and record.node[0] == "."]:
        node = (record.node or "").lstrip(".")
        if record not in logged and node[:1].isalnum():
            _add(plain, record._replace(node=node), plain.pop(record))
