"""How often each record stands in a log, on stdout and on stderr.

Both numbers are one: ``complex(plain, logged)``, of copies without a log prefix, and of those with
one. Few of these differ in a log, so what is to be said of hundreds of thousands of records is
found out once for each number.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, repeat
from operator import itemgetter

from placement_checks.logs.forms import Record

_new_record = partial(tuple.__new__, Record)  # without the Python code of a NamedTuple


class Copies(dict[Record, complex]):
    """The number of copies of each record.

    Those with a copy on stderr are in its order, and those without one in the order of stdout.
    """

    @classmethod
    def of(
        cls, records: Sequence[Record], plain: Mapping[int, int], logged: Mapping[int, int]
    ) -> Copies:
        """How often ``records`` stand on stdout and on stderr, which is said by their numbers."""
        both = {**logged, **plain}

        def pairs() -> Iterator[tuple[Record, complex]]:
            numbers = (map(stream.get, both, repeat(0)) for stream in (plain, logged))
            return zip(map(records.__getitem__, both), map(complex, *numbers), strict=True)

        copies = cls(pairs())
        if len(copies) < len(both):  # one record, written in two ways
            copies.clear()
            for record, number in pairs():
                copies[record] = copies.get(record, 0) + number
        return copies

    def take(self, more: Copies) -> None:
        """Add those of another part, which comes behind this one; ``more`` is used up."""
        known = list(filter(self.__contains__, more)) if self else []
        numbers = zip(map(self.__getitem__, known), map(more.__getitem__, known), strict=True)
        for record, (before, number) in zip(known, numbers, strict=True):
            if number.imag and not before.imag:
                del self[record]  # its place is that of its copy on stderr
            more[record] = before + number
        self.update(more)

    def plain(self, record: Record) -> int:
        """How often a record stands on stdout."""
        return int(self.get(record, 0).real)

    def logged(self, record: Record) -> int:
        """How often a record stands on stderr."""
        return int(self.get(record, 0).imag)

    def where(self, holds: Callable[[complex], object]) -> list[Record]:
        """The records of whose number something holds."""
        numbers = {number for number in set(self.values()) if holds(number)}
        return list(compress(self, map(numbers.__contains__, self.values()))) if numbers else []

    def without_logged(self) -> list[Record]:
        """The records that have no copy on stderr."""
        return self.where(lambda number: not number.imag)

    def lacking_plain(self) -> list[Record]:
        """The records that are fewer times on stdout than on stderr."""
        return self.where(lambda number: number.real < number.imag)

    def total(self) -> int:
        """How many copies there are in all."""
        both = sum(self.values())
        return int(both.real + both.imag)

    def placements(self) -> dict[Record, int]:
        """How often each record was made, of which either stream may lack copies."""
        times = {number: int(max(number.real, number.imag)) for number in set(self.values())}
        counts = dict.fromkeys(dict(self), 1)  # of a dict, so that no record is hashed again
        for record in self.where(lambda number: times[number] != 1):
            counts[record] = times[self[record]]
        if len({bool(number.imag) for number in times}) > 1:
            last = self.without_logged()
            counts.update([(record, counts.pop(record)) for record in last])
        if min(times.values(), default=1) <= 0:
            for record in self.where(lambda number: times[number] <= 0):
                del counts[record]
        return counts

    def __reduce__(self) -> tuple[Callable[[bytes], Copies], tuple[bytes]]:
        """In columns, which are written and read in a tenth of the time."""
        nodes, ops, devices = (list(map(itemgetter(column), self)) for column in range(3))
        packed = marshal.dumps(("\n".join(nodes), ops, devices, list(self.values())))
        return _unpacked, (packed,)


def _unpacked(packed: bytes) -> Copies:
    nodes, ops, devices, numbers = marshal.loads(packed)
    return Copies(zip(records_of(nodes, ops, devices), numbers, strict=False))


def records_of(nodes: str, ops: Iterable[str | None], devices: Iterable[str]) -> Iterator[Record]:
    """Records of the names of nodes, one a line, with ops and devices."""
    return map(_new_record, zip(nodes.split("\n"), ops, devices, strict=False))
