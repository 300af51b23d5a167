"""Parts of a batch: how the rows of an input are cut for towers.

A part is a path of cuts from the whole batch, the empty path: `(Cut("split", 1, 2),)` is the
second half, and `(Cut("split", 1, 2), Cut("split", 0, 4))` the first of the four micro-batches of
it. Towers and devices do not occur: two tensors belong to one tower if they have rows of one
part.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import Literal, NamedTuple

# What cuts rows: a placeholder for each tower, an element of a pipeline for each tower, a split
# into equal parts, ``x[i::n]``, slices of different sizes, or a choice of rows by their numbers.
Family = Literal["feed", "draw", "split", "stride", "range", "rows"]

# A part that was fed or drawn has any number of rows, and rows by their numbers are any share of
# all rows; the others have a known share.
OF_ANY_SIZE = frozenset({"feed", "draw", "rows"})
LAST_ROW = sys.maxsize  # the end of rows by their numbers, if they are all other rows


class Cut(NamedTuple):
    """One of several parts that the rows around it are cut into.

    Attributes:
        family: what cuts the rows.
        number: the number of the part, from 0.
        parts: the number of parts; 0 for a range or rows, because their siblings may be unknown.
        begin: of a range: its first row, as a fraction of the rows around it.
        end: of a range: the row after the last row, likewise.
        rows: of rows: their numbers, from 0.
    """

    family: Family
    number: int
    parts: int
    begin: Fraction = Fraction(0)
    end: Fraction = Fraction(0)
    rows: Sequence[int] = range(0)

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


def rows_in(part: Part, rows: Sequence[int]) -> Sequence[int]:
    """The rows of a part of some rows, in their order, if no cut is fed or drawn."""
    for cut in part:
        if cut.family == "stride":
            rows = rows[cut.number :: cut.parts]
        elif cut.is_slice:
            begin, end = (int(bound * len(rows)) for bound in cut.bounds)
            rows = rows[begin:end]
        elif isinstance(cut.rows, range):
            rows = rows[cut.rows.start : cut.rows.stop : cut.rows.step]
        else:
            rows = in_steps([rows[number] for number in cut.rows if number < len(rows)])
    return rows


def in_steps(numbers: Sequence[int]) -> Sequence[int]:
    """Numbers as a range, if they increase by equal steps; else as a tuple."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    found = range(numbers[0], numbers[-1] + 1, step) if numbers and step > 0 else range(0)
    return found if [*found] == [*numbers] else tuple(numbers)


def within(part: Part, other: Part) -> bool:
    """Whether a part is the other part, or was cut from it."""
    return part[: len(other)] == other


def are_neighbors(part: Part) -> bool:
    """Whether the rows of a part follow each other in the batch."""
    steps = [cut.rows.step if isinstance(cut.rows, range) else 0 for cut in part]
    return {1}.issuperset(steps) and not any(cut.family == "stride" for cut in part)


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
        own = _describe_rows(cut.rows)
    elif cut.family == "stride":
        own = _describe_rows(range(cut.number, LAST_ROW, cut.parts))
    elif cut.family == "range":
        own = f"rows {cut.begin} to {cut.end}"
    else:
        own = f"part {cut.number + 1} of {cut.parts}"
    return own if len(part) == 1 else f"{own} of {describe(part[:-1])}"


def _describe_rows(rows: Sequence[int]) -> str:
    if isinstance(rows, range) and rows.step == 1:
        is_rest = rows.stop == LAST_ROW
        return f"rows from {rows.start}" if is_rest else f"rows {rows.start} to {rows.stop - 1}"
    return f"rows {', '.join(map(str, rows[:3]))}{', …' if len(rows) > 3 else ''}"


def share(part: Part) -> Fraction:
    """The share of the whole batch, if all fed or drawn parts have equally many rows."""
    return prod((cut.share for cut in part), start=Fraction(1))
