"""Records of one stream that are torn, found by their copies on the other."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict

from placement_checks.logs.counts import Copies
from placement_checks.logs.writing import spellings

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
