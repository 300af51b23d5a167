"""Count the copies of each record of a log on stdout and on stderr."""

from __future__ import annotations

from collections import Counter

from placement_checks.logs.record_formats import Record


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

    def lacking_plain(self) -> list[Record]:
        """Records with fewer copies on stdout than on stderr."""
        return [record for record, times in self.logged.items() if self.plain[record] < times]

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
