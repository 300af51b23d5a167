"""The common lines of a log, one record each: counted by their text, and cut up many at a time.

There are millions of them, so no Python code runs for each: only `map`, `zip` and their like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, islice, repeat
from operator import lt

from placement_checks.logs.forms import NODE, Reading, Record, read_common, typed_of

_SEPARATOR = b": "  # between the name of a node and its type
_NO_BEGINNINGS = {b"", b"-", b"/", b">"}  # of a node's name
_BATCH = 2048  # texts; their pieces stay in the processor's cache
_new_record = partial(tuple.__new__, Record)  # without the Python code of a NamedTuple


class Texts(Counter[bytes]):
    """How often each text stands on one of the two streams of a log.

    Attributes:
        seen: the texts among them that are no common record, and what each says.
    """

    def __init__(self, counted: Mapping[bytes, int] | None = None) -> None:
        super().__init__(counted)
        self.seen: dict[bytes, Reading] = {}
        self._checked = len(self)

    def count(self, lines: Iterable[bytes], other: Texts) -> list[bytes]:
        """Count a block's lines; return the new ones that are no common record.

        Args:
            lines: their texts.
            other: the other stream, whose copies of the same records need no second look.
        """
        self.update(lines)
        new = self._unchecked()
        return uncommon([text for text in new if text not in other or text in other.seen])

    def checked(self) -> None:
        """Note that all texts are common records, or among those ``seen``."""
        self._checked = len(self)

    def fold(self) -> Counter[Reading]:
        """Take out what is no common record; return what of it was read."""
        readings: Counter[Reading] = Counter()
        for text, reading in self.seen.items():
            readings[reading] += self.pop(text)
            self._checked -= 1
        self.seen.clear()
        for text in uncommon(self._unchecked()):  # of a block that was interrupted
            del self[text]
        self.checked()
        return readings

    def _unchecked(self) -> list[bytes]:
        """The texts behind those that were checked: none of these is ever taken out before."""
        return list(islice(reversed(self), len(self) - self._checked))


def uncommon(texts: Sequence[bytes]) -> list[bytes]:
    """Those of many texts that are not one record in one of the forms of graphs."""
    if not texts:
        return []
    nodes, _, tails = zip(*map(bytes.partition, texts, repeat(_SEPARATOR)), strict=True)
    plain = {tail for tail in set(tails) if (typed := typed_of(tail)) and typed[0] is not None}
    signs = map(bytes.translate, nodes, repeat(None), repeat(NODE))  # that no name has
    odd = [
        text
        for text, node, tail, sign in zip(texts, nodes, tails, signs, strict=True)
        if sign or tail not in plain or node[:1] in _NO_BEGINNINGS
    ]
    return [text for text in odd if read_common(text) is None]


def records_of(texts: Iterable[bytes]) -> list[Record]:
    """The record of each of many texts, all of which are common."""
    left = iter(texts)
    records: list[Record] = []
    while batch := list(islice(left, _BATCH)):
        records += _records_of(batch)
    return records


def _records_of(texts: Sequence[bytes]) -> Iterable[Record]:
    nodes, _, tails = zip(*map(bytes.partition, texts, repeat(_SEPARATOR)), strict=True)
    typed = {tail: typed_of(tail) or (None, "") for tail in set(tails)}
    ops, devices = zip(*[typed[tail] for tail in tails], strict=True)
    names = b"\n".join(nodes).decode().split("\n")  # all at once takes half as long
    return map(_new_record, zip(names, ops, devices, strict=True))


def counted(records: Sequence[Record], times: Sequence[int]) -> dict[Record, int]:
    """How often each record is there; where it is written in two ways, it is there twice."""
    counts = dict(zip(records, times, strict=True))
    if len(counts) < len(records):
        counts = dict.fromkeys(records, 0)
        for record, number in zip(records, times, strict=True):
            counts[record] += number
    return counts


def lacking(plain: Mapping[Record, int], logged: Mapping[Record, int]) -> list[Record]:
    """The records that are fewer times in ``plain`` than in ``logged``."""
    fewer = map(lt, map(plain.get, logged, repeat(0)), logged.values())
    return list(compress(logged, fewer))


def larger(plain: Mapping[Record, int], logged: Mapping[Record, int]) -> dict[Record, int]:
    """How often each record was made, of which either stream may lack copies."""
    counts = {**logged, **plain}
    counts.update((record, logged[record]) for record in lacking(plain, logged))
    for record in [record for record, times in counts.items() if times <= 0]:
        del counts[record]
    return counts
