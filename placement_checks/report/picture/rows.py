"""The rows of the picture: a tree of which no level is too wide to be seen at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_WIDEST = 14  # rows at one level
_RANGES = 10  # that a wider level is cut into


class Numbered(NamedTuple):
    """Rows numbered from the top down, each before those inside it; row 0 holds all.

    Attributes:
        names, parents: of the rows, by their numbers.
        number: the new number of each row, by the one that `Rows` gave it.
    """

    names: Sequence[str]
    parents: Sequence[int]
    number: Sequence[int]


class Rows:
    """Rows in the order in which they were added."""

    def __init__(self) -> None:
        self._names = [""]
        self._inside: list[list[int]] = [[]]
        self._found: dict[tuple[int, str], int] = {}
        self._sections: set[int] = set()

    def section(self, name: str) -> int:
        """A row at the top that stays there by itself, whatever other rows are called."""
        row = self._add(0, name)
        self._sections.add(row)
        return row

    def of(self, path: Sequence[str], inside: int = 0) -> int:
        """The row of a path of names, such as ``("block1", "conv2", "MatMul")``."""
        row = inside
        for name in path:
            found = self._found.get((row, name))
            if found is None:
                found = self._found[row, name] = self._add(row, name)
            row = found
        return row

    def _add(self, parent: int, name: str) -> int:
        self._names.append(name)
        self._inside.append([])
        self._inside[parent].append(len(self._names) - 1)
        return len(self._names) - 1

    def numbered(self) -> Numbered:
        """The rows as they are drawn: of a level that is too wide, neighbours in one row."""
        for row in range(len(self._names)):
            self._fold(row)
        names: list[str] = []
        parents: list[int] = []
        number = [0] * len(self._names)
        todo = [(0, -1)]
        while todo:
            row, parent = todo.pop()
            number[row] = len(names)
            names.append(self._names[row])
            parents.append(parent)
            todo += [(each, number[row]) for each in reversed(self._inside[row])]
        return Numbered(names, parents, number)

    def _fold(self, row: int) -> None:
        inside = self._inside[row]
        plain = [each for each in inside if each not in self._sections]
        if len(plain) <= _WIDEST:
            return
        size = -(-len(plain) // _RANGES)
        begins, hidden = {}, set()
        for start in range(0, len(plain), size):
            members = plain[start : start + size]
            if len(members) == 1:
                continue
            self._names.append(f"{self._names[members[0]]} … {self._names[members[-1]]}")
            self._inside.append(members)
            begins[members[0]] = len(self._names) - 1
            hidden.update(members[1:])
        self._inside[row] = [begins.get(each, each) for each in inside if each not in hidden]
        for new in begins.values():
            self._fold(new)
