"""Count the copies of each record of a log on stdout and on stderr."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from itertools import accumulate

from placement_checks.logs.record_formats import Record, text_of

_LONGEST = 1000  # bytes of a name
_MAX_WITHOUT_COPY = 10_000  # with more records without a copy, the streams belong to two runs


class Copies:
    """The number of copies of each record on the two streams of a process.

    Since 1.15 TensorFlow prints every placement twice: on stdout, and with a log prefix on stderr.

    Attributes:
        plain: copies without a log prefix, which come from stdout.
        logged: copies with a log prefix, which come from stderr.
    """

    def __init__(self) -> None:
        self.plain: Counter[Record] = Counter()
        self.logged: Counter[Record] = Counter()

    def __bool__(self) -> bool:
        return bool(self.plain or self.logged)

    def update(self, other: Copies) -> None:
        """Add the copies of another log of the same run."""
        self.plain.update(other.plain)
        self.logged.update(other.logged)

    def rename(self, record: Record, right: Record) -> None:
        """Count the copies of a misread record as copies of the right record."""
        for stream in (self.plain, self.logged):
            if record in stream:
                stream[right] += stream.pop(record)

    def without_logged(self) -> list[Record]:
        """Records that are on stdout only."""
        return [
            record
            for record, times in self.plain.items()
            if times > 0 and record not in self.logged
        ]

    def lacking_plain(self) -> Counter[Record]:
        """How many copies of each record are on stderr, and not on stdout."""
        return self.logged - self.plain

    def total(self) -> int:
        return self.plain.total() + self.logged.total()

    def placements(self) -> dict[Record, int]:
        """How often each op was placed: the larger of the two numbers of copies.

        Records on stderr come first, in the order of stderr. Other records follow in the order of
        stdout.
        """
        counts = dict(self.logged)
        for record, times in self.plain.items():
            if times > counts.get(record, 0):
                counts[record] = times
        return counts

    def begun_by(self, beginnings: Mapping[bytes, int]) -> Counter[bytes]:
        """Count the beginnings of records of stdout that have a whole copy on stderr only.

        Args:
            beginnings: the beginning of the text of each record, with its number.
        """
        lacking = self.lacking_plain() if beginnings else Counter()
        texts = sorted((text_of(record).encode(), times) for record, times in lacking.items())
        before = [0, *accumulate(times for _, times in texts)]
        begun: Counter[bytes] = Counter()
        left = lacking.total()
        for beginning, times in beginnings.items():
            text = beginning.partition(b"/task:")[0]  # TensorFlow 1.3 spells devices otherwise
            first, end = (bisect_left(texts, (edge,)) for edge in (text, text + b"\xff"))
            begun[beginning] = min(times, before[end] - before[first], left)
            left -= begun[beginning]
        return begun

    def correct_names(self) -> None:
        """Correct the names of records that are on stdout only, using records on stderr.

        A record torn within its name has only the end of the name. Text without a newline becomes
        part of a name: ``loss: 2.30w/read``.
        """
        uncopied = [record for record in self.without_logged() if record.node]
        if not 0 < len(uncopied) <= _MAX_WITHOUT_COPY:
            return
        backwards: defaultdict[tuple[str | None, str], set[str]] = defaultdict(set)
        for node, op, device in self.lacking_plain():
            if node and len(node) <= _LONGEST:
                backwards[op, device].add(node[::-1])
        groups = {key: (sorted(names), names) for key, names in backwards.items()}
        for record in uncopied:
            node, op, device = record
            if (op, device) in groups and (name := _right_name(node or "", *groups[op, device])):
                self.rename(record, record._replace(node=name))


def _right_name(name: str, backwards: Sequence[str], known: Set[str]) -> str | None:
    """The name of the record that was printed as ``name``; None if it is not known.

    Args:
        name: the printed name.
        backwards: names of records with the same type and device, reversed and sorted.
        known: the same names as a set.
    """
    end = name[::-1]
    at = bisect_left(backwards, end)
    if at < len(backwards) and backwards[at].startswith(end):
        return backwards[at][::-1]
    lengths = range(len(end) - 1, 0, -1) if len(end) <= _LONGEST else ()
    return next((end[:n][::-1] for n in lengths if end[:n] in known), None)
