"""Records of one stream that are torn, found by their copies on the other.

How often each record stands in a log, on stdout and on stderr.
"""

from __future__ import annotations

import marshal
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, repeat
from operator import itemgetter, ne

from placement_checks.logs.record_formats import Record, spellings

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


_NAME = re.compile(rb"[\w.>/-]+:? ?")
_LONGEST = 1000  # characters of a name that are looked at
_MAX_WITHOUT_COPY = 10_000  # if more records have no copy, the two streams are not of one run


def without_copy(heads: Counter[bytes], copies: Copies, *, doubled: bool) -> int:
    """Count the heads of records whose copy on stderr is whole; return the number of the others.

    Where all records have that copy, and are ``doubled``, a lone word is no head: it would begin
    like one of them.
    """
    if not heads or len(heads) > _MAX_WITHOUT_COPY:
        return heads.total()
    begun = sorted(
        (text.encode(), record)
        for record in copies.lacking_plain()
        if record.node
        for text in spellings(record)
    )
    left = 0
    for head in sorted(heads, key=len, reverse=True):  # the clear ones first
        at = bisect_left(begun, (head,))
        times = heads[head]
        while times and at < len(begun) and begun[at][0].startswith(head):
            record = begun[at][1]
            found = min(times, copies.logged(record) - copies.plain(record))
            copies.add(record, found)
            times -= found
            at += 1
        if not (doubled and _NAME.fullmatch(head)):
            left += times
    return left


def correct_names(copies: Copies) -> None:
    """Correct the names of records without a copy by those of records that lack theirs.

    A record torn in its name leaves a line that looks like a whole record; where its beginning ran
    into other text, only the copies show it. And text without a newline becomes the beginning of a
    name: ``loss: 2.30w/read``.
    """
    uncopied = [record for record in copies.without_logged() if record.node]
    if not 0 < len(uncopied) <= _MAX_WITHOUT_COPY:
        return
    names: dict[tuple[str | None, str], _Names] = defaultdict(_Names)
    for node, op, device in copies.lacking_plain():
        if node:
            names[op, device].add(node)
    for group in names.values():
        group.settle()
    for record in uncopied:
        node, op, device = record
        if node and (op, device) in names and (name := names[op, device].of(node)):
            copies.rename(record, record._replace(node=name))


class _Names:
    """Names of records of one type and device, found by their ends."""

    def __init__(self) -> None:
        self._backwards: list[str] = []

    def add(self, name: str) -> None:
        """Take in a name; `settle` comes after the last."""
        if len(name) <= _LONGEST:
            self._backwards.append(name[::-1])

    def settle(self) -> None:
        """Put all names with the same end side by side."""
        self._backwards.sort()
        self._known = frozenset(self._backwards)

    def of(self, name: str) -> str | None:
        """The only longer name that ends with this one, or the longest of those that it ends with.

        None where there are several longer ones, or none of either.
        """
        end = name[::-1]
        begin = bisect_right(self._backwards, end)
        # Two are enough to know that it is not the only one.
        longer = [text for text in self._backwards[begin : begin + 2] if text.startswith(end)]
        if longer:
            return longer[0][::-1] if len(longer) == 1 else None
        lengths = range(len(end) - 1, 0, -1) if len(end) <= _LONGEST else ()
        return next((end[:n][::-1] for n in lengths if end[:n] in self._known), None)
