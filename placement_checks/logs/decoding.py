"""The lines of a log, each text of which is read once, however often it stands there.

There are millions of lines, so no Python code runs for each: only `map`, `zip` and their like.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress, count, filterfalse, repeat
from operator import not_

from placement_checks.logs.copies import records_of
from placement_checks.logs.record_formats import (
    NODE,
    Reading,
    Record,
    is_name,
    read_common,
    typed_of,
)

_MAX_SEEN = 50_000
_SEPARATOR = b": "  # between the name of a node and its type
_NO_BEGINNING = re.compile(rb"\n(?=[-/>\n])([^\n]*)")  # of a node's name


class Texts(dict[bytes, int]):
    """The number of each text that is one record in the forms of graphs, as most lines are.

    The copies of a record on both streams mostly have the same text, and so one number.

    Attributes:
        records: the record with each number; numbers begin at 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records = [Record(None, None, "")]

    def learn(self, texts: Sequence[bytes]) -> bool:
        """Take in those of new texts that are records; whether any is."""
        if not texts:
            return False
        known = len(self)
        heads, _, tails = zip(*map(bytes.partition, texts, repeat(_SEPARATOR)), strict=True)
        typed = {tail: typed_of(tail) for tail in set(tails)}
        untyped = {tail for tail, found in typed.items() if found and found[0] is None}
        of_tail = {tail: typed[tail] for tail in typed.keys() - untyped}
        kinds = list(map(of_tail.get, tails))
        self._add(
            list(compress(texts, kinds)), list(compress(heads, kinds)), list(filter(None, kinds))
        )
        for text in compress(texts, map(untyped.__contains__, tails)) if untyped else ():
            if record := read_common(text):
                self[text] = len(self.records)
                self.records.append(record)
        return len(self) > known

    def _add(
        self,
        texts: Sequence[bytes],
        nodes: Sequence[bytes],
        kinds: Sequence[tuple[str | None, str]],
    ) -> None:
        """Take in texts with what they were cut into, if that is the name of a node."""
        if not texts:
            return
        ops, devices = zip(*kinds, strict=True)
        names = b"\n".join(nodes).decode("latin-1")  # all at once takes half as long
        self.update(zip(texts, count(len(self.records))))
        self.records += records_of(names, ops, devices)
        no_names = _no_names(nodes)
        for text in list(compress(texts, map(no_names.__contains__, nodes))) if no_names else ():
            del self[text]


class Stream:
    """The lines on one of the two streams of a log.

    Attributes:
        common: how often the record with each number of `Texts` stands there.
        others: how often each reading stands there in another form, as all there is on a line.
    """

    def __init__(self) -> None:
        self.common: Counter[int] = Counter()
        self.others: Counter[Reading] = Counter()
        self._seen: dict[bytes, Reading] = {}

    def count(self, lines: Sequence[bytes], texts: Texts) -> dict[bytes, int]:
        """Count a block's lines; return those whose reading is not known, with their number."""
        numbers: Iterable[int | None] = list(map(texts.get, lines))
        new = Counter(compress(lines, map(not_, numbers)))
        for text in new.keys() & self._seen.keys():
            self.others[self._seen[text]] += new.pop(text)
        if texts.learn(list(new)):
            numbers = map(texts.get, lines)
        self.common.update(filter(None, numbers))
        return {text: times for text, times in new.items() if text not in texts}

    def see(self, text: bytes, reading: Reading, times: int) -> bool:
        """Remember the only reading of a text; False if there are too many."""
        if len(self._seen) == _MAX_SEEN:
            return False
        self._seen[text] = reading
        self.others[reading] += times
        return True


def _no_names(nodes: Sequence[bytes]) -> set[bytes]:
    """What of many texts is no name of a node."""
    lines = b"\n%b\n" % b"\n".join(nodes)
    found = set(_NO_BEGINNING.findall(lines))
    if len(lines.translate(None, NODE)) > len(nodes) + 1:
        found.update(filterfalse(is_name, nodes))
    return found
