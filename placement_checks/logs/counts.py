"""How often each record stands in a log, on stdout and on stderr."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, repeat
from operator import itemgetter, ne

from placement_checks.logs.forms import Record

_new_record = partial(tuple.__new__, Record)  # without the Python code of a NamedTuple


class Copies:
    """The number of copies of each record.

    Those with a copy on stderr are in its order, and those without one in the order of stdout.
    Most of a log's hundreds of thousands of records stand as often on both, and have one number;
    that of any other is ``complex(plain, logged)``, of copies without a log prefix, and with one.
    """

    def __init__(self) -> None:
        self._each: dict[Record, int] = {}  # of all records, unless they are among the others
        self._uneven: dict[Record, complex] = {}

    def __bool__(self) -> bool:
        return bool(self._each)

    @classmethod
    def of(
        cls, records: Sequence[Record], plain: Mapping[int, int], logged: Mapping[int, int]
    ) -> Copies:
        """How often ``records`` stand on stdout and on stderr, which is said by their numbers."""
        both = {**logged, **plain}
        found = list(map(records.__getitem__, both))
        plains, loggeds = (list(map(stream.get, both, repeat(0))) for stream in (plain, logged))
        copies = cls()
        copies._each = dict(zip(found, plains, strict=True))
        if len(copies._each) == len(found):
            uneven = list(map(ne, plains, loggeds))
            numbers = map(complex, compress(plains, uneven), compress(loggeds, uneven))
            copies._uneven = dict(zip(compress(found, uneven), numbers, strict=True))
        else:  # one record, written in two ways
            copies._each = {}
            for record, number in zip(found, map(complex, plains, loggeds), strict=True):
                copies.add(record, number)
        return copies

    def add(self, record: Record, number: complex) -> None:
        """Count so many more copies of a record, or fewer."""
        self._uneven[record] = self._number(record) + number
        self._each.setdefault(record, 0)

    def rename(self, record: Record, right: Record) -> None:
        """Count the copies of a record as those of another, which it is."""
        self.add(right, self._number(record))
        del self._each[record]
        self._uneven.pop(record, None)

    def take(self, more: Copies) -> None:
        """Add those of another part, which comes behind this one; ``more`` is used up."""
        known = list(filter(self._each.__contains__, more._each)) if self else []
        for record in known:
            before, number = self._number(record), more._number(record)
            if number.imag and not before.imag:
                del self._each[record]  # its place is that of its copy on stderr
            if record in self._uneven or record in more._uneven:
                more._uneven[record] = before + number
            else:
                more._each[record] = int(before.real + number.real)
        if self:
            self._each.update(more._each)
            self._uneven.update(more._uneven)
        else:
            self._each, self._uneven = more._each, more._uneven

    def plain(self, record: Record) -> int:
        """How often a record stands on stdout."""
        return int(self._number(record).real)

    def logged(self, record: Record) -> int:
        """How often a record stands on stderr."""
        return int(self._number(record).imag)

    def _number(self, record: Record) -> complex:
        number = self._uneven.get(record)
        if number is None:
            each = self._each.get(record, 0)
            number = complex(each, each)
        return number

    def without_logged(self) -> list[Record]:
        """The records that stand on stdout alone."""
        return [
            record for record, number in self._uneven.items() if number.real > number.imag == 0
        ]

    def lacking_plain(self) -> list[Record]:
        """The records that are fewer times on stdout than on stderr."""
        return [record for record, number in self._uneven.items() if number.real < number.imag]

    def total(self) -> int:
        """How many copies there are in all."""
        even = sum(self._each.values()) - sum(map(self._each.__getitem__, self._uneven))
        both = sum(self._uneven.values())
        return 2 * even + int(both.real + both.imag)

    def placements(self) -> dict[Record, int]:
        """How often each record was made, of which either stream may lack copies."""
        counts = dict(self._each)
        for record, number in self._uneven.items():
            counts[record] = int(max(number.real, number.imag))
            if counts[record] <= 0:
                del counts[record]
        alone = set(self.without_logged())
        if 0 < len(alone) < len(counts):
            last = list(filter(alone.__contains__, counts))
            counts.update([(record, counts.pop(record)) for record in last])
        return counts

    def __reduce__(self) -> tuple[Callable[[bytes], Copies], tuple[bytes]]:
        """In columns, which are written and read in a tenth of the time."""
        columns = (list(map(itemgetter(column), self._each)) for column in range(3))
        nodes, ops, devices = columns
        numbers = list(map(self._uneven.get, self._each))
        packed = ("\n".join(nodes), ops, devices, list(self._each.values()), numbers)
        return _unpacked, (marshal.dumps(packed),)


def _unpacked(packed: bytes) -> Copies:
    nodes, ops, devices, each, numbers = marshal.loads(packed)
    copies = Copies()
    copies._each = dict(zip(records_of(nodes, ops, devices), each, strict=False))
    uneven = [number is not None for number in numbers]
    copies._uneven = dict(
        zip(compress(copies._each, uneven), compress(numbers, uneven), strict=True)
    )
    return copies


def records_of(nodes: str, ops: Iterable[str | None], devices: Iterable[str]) -> Iterator[Record]:
    """Records of the names of nodes, one a line, with ops and devices."""
    return map(_new_record, zip(nodes.split("\n"), ops, devices, strict=False))
