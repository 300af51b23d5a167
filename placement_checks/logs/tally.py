"""Counts the records of a log, block by block, in memory that grows with distinct ones only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from itertools import islice

from placement_checks.logs.forms import Reading, Record, is_common, read, read_common
from placement_checks.logs.hints import Hints
from placement_checks.logs.log import Log
from placement_checks.logs.torn import Torn, complete, cut, may_be_torn, unfinished

# The start of a line, and the time of TensorFlow's or absl's log prefix, in which no two lines
# are alike: 2024-01-21 21:16:10.179741: | I0000 00:00:1795000000.179741   19303
_START = re.compile(
    rb"\n(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: |I\d{4} \d\d:\d\d:\d+\.\d+ +\d+ )?"
)
_MAX_SEEN = 50_000


class Tally:
    """What was found so far.

    Common lines are counted as they stand, which costs one look-up each: few of the millions of
    lines of a long log are distinct. All others are read at once.
    """

    def __init__(self) -> None:
        self._common: Counter[bytes] = Counter()
        self._texts: tuple[Counter[bytes], Counter[bytes]] = (Counter(), Counter())
        self._seen: dict[bytes, Reading] = {}  # lines among them that `is_common` does not know
        self._mixed: Counter[Reading] = Counter()
        self._torn = Torn()
        self._hints = Hints()

    def add(self, block: bytes) -> None:
        """Count the lines of a block, each behind its newline; blocks come in order."""
        _, *lines = _START.split(block)
        before = len(self._common)
        self._common.update(lines)
        heads: dict[bytes, bytes] = {}
        for line in list(islice(reversed(self._common), len(self._common) - before)):
            if not is_common(line):
                self._look_at(line, heads)
        if heads or self._torn.waiting:
            self._torn.look(lines, heads)

    def _look_at(self, line: bytes, heads: dict[bytes, bytes]) -> None:
        """Read a line that is more, or less, than one record."""
        head, rest = cut(line)
        readings = read(rest)
        torn = unfinished(rest, readings)
        if len(readings) == 1 and not (head or torn) and len(self._seen) < _MAX_SEEN:
            self._seen[line] = readings[0]
            return
        times = self._common.pop(line)
        if head:
            heads[line] = head
            if record := complete(head):
                self._mixed[Reading(record, logged=False)] += times
            if is_common(rest):
                self._common[rest] += times
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
            self._torn.look_beyond(_START.split(block)[1:])

    def fold(self) -> None:
        """Make of the lines the two copies of each text, behind a log prefix and without."""
        while self._common:  # handed over piece by piece: there may be much of it
            line, times = self._common.popitem()
            if reading := self._seen.get(line):
                self._mixed[reading] += times
                continue
            _, bracket, text = line.rpartition(b"] ")
            count = self._texts[bracket != b""]
            count[text] = count.get(text, 0) + times
        self._seen.clear()

    def merge(self, other: Tally) -> None:
        """Take in what was counted of the next part of a log, or of another log of the run."""
        for texts, others in zip(self._texts, other._texts, strict=True):
            texts.update(others)
        self._mixed.update(other._mixed)
        self._torn.merge(other._torn)
        self._hints.merge(other._hints)

    def __bool__(self) -> bool:
        return bool(self._common or self._mixed or any(self._texts))

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
        counts = {
            record: count
            for record in dict.fromkeys((*logged, *plain))
            if (count := max(plain.get(record, 0), logged.get(record, 0)))
        }
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
        plain: dict[Record, int] = {}
        logged: dict[Record, int] = {}
        plain_texts, logged_texts = self._texts
        while logged_texts:
            text, times = logged_texts.popitem()
            if record := read_common(text):  # None if the block was interrupted
                _add(logged, record, times)
                _add(plain, record, plain_texts.pop(text, 0))
        while plain_texts:
            text, times = plain_texts.popitem()
            if record := read_common(text):
                _add(plain, record, times)
        for (record, with_prefix), times in self._mixed.items():
            _add(logged if with_prefix else plain, record, times)
        return plain, logged


def _add(counts: MutableMapping[Record, int], record: Record, times: int) -> None:
    if times:
        counts[record] = counts.get(record, 0) + times


def _unglue(plain: MutableMapping[Record, int], logged: Mapping[Record, int]) -> None:
    """Take pytest's progress dots off the names of nodes that were printed right behind them."""
    for record in [record for record in plain if record.node and record.node[0] == "."]:
        node = (record.node or "").lstrip(".")
        if record not in logged and node[:1].isalnum():
            _add(plain, record._replace(node=node), plain.pop(record))
