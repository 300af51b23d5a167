"""Parts of a batch: how the rows of an input are cut for towers.

A part is a path of cuts from the whole batch, the empty path: `(Cut("split", 1, 2),)` is the
second half, and `(Cut("split", 1, 2), Cut("split", 0, 4))` the first of the four micro-batches of
it. Towers and devices do not occur: two tensors belong to one tower if they have rows of one
part.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from fractions import Fraction
from math import prod
from typing import Literal, NamedTuple

# What cuts rows: a placeholder for each tower, an element of a pipeline for each tower, a split
# into equal parts, ``x[i::n]``, slices of different sizes, or rows by their numbers.
Family = Literal["feed", "draw", "split", "stride", "range", "rows"]

# A part that was fed or drawn has any number of rows, and rows by their numbers are any share of
# all rows; the others have a known share.
OF_ANY_SIZE = frozenset({"feed", "draw", "rows"})
LAST_ROW = Fraction(sys.maxsize)  # the end of rows by their numbers, if they are all other rows


class Cut(NamedTuple):
    """One of several parts that the rows around it are cut into.

    Attributes:
        family: what cuts the rows.
        number: the number of the part, from 0.
        parts: the number of parts; 0 for a range or rows, because their siblings may be unknown.
        begin: of a range: its first row, as a fraction of the rows around it; of rows: the number
            of the first row, from 0.
        end: of a range or rows: the row after the last row, likewise.
    """

    family: Family
    number: int
    parts: int
    begin: Fraction = Fraction(0)
    end: Fraction = Fraction(0)

    def __hash__(self) -> int:
        return hash(self[:3])  # the hash of a fraction takes long

    @property
    def share(self) -> Fraction:
        """The share of the rows around it, if all fed or drawn parts have equally many rows."""
        if self.family == "range":
            return self.end - self.begin
        return Fraction(1, self.parts)

    @property
    def bounds(self) -> tuple[Fraction, Fraction]:
        """The first row of a slice, and the row after its last row, as fractions."""
        if self.family == "split":
            return Fraction(self.number, self.parts), Fraction(self.number + 1, self.parts)
        return self.begin, self.end

    @property
    def is_slice(self) -> bool:
        """Whether it is a row and the next ones, up to another row."""
        return self.family in ("split", "range")

    @property
    def siblings(self) -> tuple[Family, int]:
        """What a cut has in common with the other parts of the same rows."""
        return self.family, self.parts


Part = tuple[Cut, ...]
WHOLE: Part = ()  # the whole batch


def cut_range(begin: Fraction, end: Fraction) -> Cut:
    """The rows from ``begin`` to ``end``, as fractions; one of n equal parts if it is one."""
    size = end - begin
    if size.numerator == 1 and (begin / size).denominator == 1:
        return Cut("split", int(begin / size), size.denominator)
    return Cut("range", 0, 0, begin, end)


def finest(parts: Iterable[Part]) -> Part | None:
    """The part that lies within all others; None without parts, or if two lie side by side."""
    found: Part | None = None
    for part in parts:
        if found is None or within(part, found):
            found = part
        elif not within(found, part):
            return None
    return found


def within(part: Part, other: Part) -> bool:
    """Whether a part is the other part, or was cut from it."""
    return part[: len(other)] == other


def are_neighbors(part: Part) -> bool:
    """Whether the rows of a part follow each other in the batch."""
    return not any(cut.family == "stride" for cut in part)


def are_all_rows(cuts: Collection[Cut]) -> bool:
    """Whether cuts of one family, or slices of any sizes, are all rows around them, each once."""
    first = next(iter(cuts))
    if first.parts and all(cut.siblings == first.siblings for cut in cuts):
        return len(cuts) == first.parts
    if not all(cut.is_slice for cut in cuts):
        return False
    ranges = sorted(cut.bounds for cut in cuts)
    ends = [Fraction(0), *(end for _, end in ranges)]
    return ends == [*(begin for begin, _ in ranges), Fraction(1)]


def describe(part: Part) -> str:
    """A part in words, such as ``part 2 of 2``."""
    if not part:
        return "the whole batch"
    cut = part[-1]
    if cut.family == "rows":
        is_rest = cut.end == LAST_ROW
        own = f"rows from {cut.begin}" if is_rest else f"rows {cut.begin} to {cut.end - 1}"
    elif cut.family == "range":
        own = f"rows {cut.begin} to {cut.end}"
    else:
        own = f"part {cut.number + 1} of {cut.parts}"
    return own if len(part) == 1 else f"{own} of {describe(part[:-1])}"


def share(part: Part) -> Fraction:
    """The share of the whole batch, if all fed or drawn parts have equally many rows."""
    return prod((cut.share for cut in part), start=Fraction(1))
