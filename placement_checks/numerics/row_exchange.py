"""Classify how an op combines the rows of a batch, from its values on exchanged rows.

Let X = [A, B] and Y = [C, D] be two batches, each of two parts, and X' = [A, C] and Y' = [B, D]
the same rows, exchanged. A value t that is computed for each row is exchanged like the rows. A sum
over rows keeps the total: t(X') + t(Y') = t(X) + t(Y). A value with neither property combines rows
in another way, such as a quotient of two sums, a product of two rows, or another order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Kind = Literal["constant", "rows", "sum"]


class Exchanged(NamedTuple):
    """Values on two batches, X and Y, and on the exchanged batches, X' and Y'."""

    first: Any
    second: Any
    first_exchanged: Any
    second_exchanged: Any


class Layout(NamedTuple):
    """Where the rows of an array are.

    Attributes:
        axis: the axis with the rows.
        is_minor: whether the axis has all rows for each entry, instead of all entries for each
            row. This differs only if the axis is longer than the number of rows.
    """

    axis: int = 0
    is_minor: bool = False

    def rows_first(self, values: Values, rows: int) -> Values:
        """Return a view with the rows on the first axis."""
        front = np.moveaxis(values, self.axis, 0)
        if self.is_minor:
            return np.moveaxis(front.reshape(-1, rows, *front.shape[1:]), 1, 0)
        return front.reshape(rows, -1, *front.shape[1:])

    def restored(self, values: Values, shape: Sequence[int]) -> Values:
        """Return an array of this shape from an array with the rows on the first axis."""
        front = np.moveaxis(values, 0, 1) if self.is_minor else values
        rest = [length for axis, length in enumerate(shape) if axis != self.axis]
        return np.moveaxis(front.reshape(shape[self.axis], *rest), 0, self.axis)


def exchange_orders(rows: Sequence[int], size: int) -> Exchanged:
    """Return the rows of two batches of ``size`` rows, and of the exchanged batches.

    If there are fewer than twice as many rows, each batch repeats its half.

    Args:
        rows: the numbers of at least two rows.
        size: the number of rows in a batch, at least 2.
    """
    if len(rows) >= 2 * size:
        first, second = list(rows[:size]), list(rows[size : 2 * size])
    else:
        middle = len(rows) // 2
        first, second = (
            [part[at % len(part)] for at in range(size)] for part in (rows[:middle], rows[middle:])
        )
    at = size // 2
    return Exchanged(
        first, second, first[:at] + second[: size - at], first[at:] + second[size - at :]
    )


def exchange_rows(
    of_first: Any, of_second: Any, layout: Layout, rows: int
) -> tuple[Values, Values] | None:
    """Return the values on the exchanged batches, if they are computed for each row.

    The result is None if the shapes of the arrays differ, or if they do not have these rows.
    """
    first, second = np.asarray(of_first), np.asarray(of_second)
    length = first.shape[layout.axis] if layout.axis < first.ndim else 0
    if first.shape != second.shape or not length or length % rows:
        return None
    one, other = (layout.rows_first(array, rows) for array in (first, second))
    at = rows // 2
    exchanged = (
        np.concatenate([one[:at], other[: rows - at]]),
        np.concatenate([one[at:], other[rows - at :]]),
    )
    return layout.restored(exchanged[0], first.shape), layout.restored(exchanged[1], first.shape)


def classify(values: Exchanged, rows: int) -> tuple[Kind, float]:
    """Classify the values of one tensor.

    Args:
        values: four arrays of numbers or booleans.
        rows: the number of rows in each batch.

    Returns:
        The kind that fits best, and its error: the largest deviation, divided by the largest
        value. For integers and booleans, it is the fraction of elements that deviate. If the error
        is large, the values combine rows. It is infinite if the shapes differ.
    """
    arrays = Exchanged(*map(np.asarray, values))
    if len({array.shape for array in arrays}) > 1:
        return "rows", np.inf
    if all(np.array_equal(arrays.first, array) for array in arrays[1:]):
        return "constant", 0.0
    found: list[tuple[Kind, float]] = []
    for layout in _layouts(arrays.first.shape, rows):
        exchanged = exchange_rows(arrays.first, arrays.second, layout, rows)
        assert exchanged
        found.append(("rows", _error(exchanged, arrays[2:], arrays)))
    if arrays.first.dtype.kind in "iufc":
        wide = [array.astype(np.promote_types(array.dtype, np.float64)) for array in arrays]
        found.append(("sum", _error([wide[0] + wide[1]], [wide[2] + wide[3]], arrays)))
    return min(found, key=lambda each: each[1], default=("rows", np.inf))


def _layouts(shape: Sequence[int], rows: int) -> Iterator[Layout]:
    for axis, length in enumerate(shape):
        if length and length % rows == 0:
            yield Layout(axis)
            if length > rows:
                yield Layout(axis, is_minor=True)


def _error(expected: Sequence[Values], found: Sequence[Values], scale: Sequence[Values]) -> float:
    pairs = list(zip(expected, found, strict=True))
    if scale[0].dtype.kind not in "fc":
        return float(max(np.mean(one != other) for one, other in pairs))
    size = max(float(np.max(np.abs(array), initial=0.0)) for array in scale)
    with np.errstate(invalid="ignore"):
        largest = max(float(np.max(np.abs(one - other), initial=0.0)) for one, other in pairs)
    if not np.isfinite(size) or not np.isfinite(largest):
        return 0.0  # such a value shows nothing
    return largest / size if size else 0.0
