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
        copies = map(complex, map(plain.get, both, repeat(0)), map(logged.get, both, repeat(0)))
        found = list(zip(map(records.__getitem__, both), copies, strict=True))
        all_copies = cls(found)
        if len(all_copies) < len(found):  # one record, written in two ways
            all_copies.clear()
            for record, number in found:
                all_copies[record] = all_copies.get(record, 0) + number
        return all_copies

    def take(self, more: Copies) -> None:
        """Add those of another part, which comes behind this one."""
        known = list(filter(self.__contains__, more)) if self else []
        for record in known:
            before = self[record]
            if more[record].imag and not before.imag:
                del self[record]  # its place is that of its copy on stderr
            more[record] += before
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
        counts = dict(zip(self, map(times.__getitem__, self.values()), strict=True))
        last = self.without_logged()
        if 0 < len(last) < len(counts):
            counts.update([(record, counts.pop(record)) for record in last])
        if min(times.values(), default=1) <= 0:
            counts = {record: number for record, number in counts.items() if number > 0}
        return counts

    def __reduce__(self) -> tuple[Callable[[bytes], Copies], tuple[bytes]]:
        """In columns, which are written and read in a tenth of the time."""
        nodes, ops, devices = zip(*self, strict=True) if self else ((), (), ())
        packed = marshal.dumps(("\n".join(nodes), ops, devices, list(self.values())))
        return _unpacked, (packed,)


def _unpacked(packed: bytes) -> Copies:
    nodes, ops, devices, numbers = marshal.loads(packed)
    return Copies(zip(records_of(nodes, ops, devices), numbers, strict=False))


def records_of(nodes: str, ops: Iterable[str | None], devices: Iterable[str]) -> Iterator[Record]:
    """Records of the names of nodes, one a line, with ops and devices."""
    return map(_new_record, zip(nodes.split("\n"), ops, devices, strict=False))
