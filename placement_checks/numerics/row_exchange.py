"""Classify how an op combines the rows of a batch, from its values on exchanged rows.

Let X and Y be two batches, and X' and Y' two other batches of the same rows. A value t that is
computed for each row is exchanged like the rows. A sum over rows keeps the total:
t(X') + t(Y') = t(X) + t(Y). A value with neither property combines rows in another way, such as a
quotient of two sums, a product of two rows, or another order of rows.

By chance, a value may have a property on some rows, such as a quotient of sums if the divisors are
equal. Therefore, the rows are exchanged several times: at random, and sorted by the numbers of an
input, so that one batch has the rows with most tokens, for example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Kind = Literal["constant", "rows", "sum"]

_EXCHANGES = 3


class Exchange(NamedTuple):
    """Batches of the same rows.

    Attributes:
        size: the number of rows in each batch.
        orders: for each further pair of batches, the positions of their rows in the first two
            batches.
    """

    size: int
    orders: Sequence[npt.NDArray[np.intp]]

    @staticmethod
    def of_size(size: int) -> Exchange:
        """Return random orders that exchange rows of batches of this size, at least 2."""
        rng = np.random.default_rng(size)
        orders: list[npt.NDArray[np.intp]] = []
        while len(orders) < _EXCHANGES:
            order = rng.permutation(2 * size)
            if 0 < np.count_nonzero(order[:size] < size) < size:
                orders.append(order)
        return Exchange(size, orders)

    def sorted_by(self, columns: Iterable[npt.NDArray[Any]]) -> Exchange:
        """Return this exchange with further orders: the rows sorted by the sum of their numbers.

        Args:
            columns: numbers of the rows of the first two batches: arrays with as many rows as
                both.
        """
        orders = list(self.orders)
        for column in columns:
            with np.errstate(invalid="ignore", over="ignore"):
                sums = column.reshape(len(column), -1).sum(axis=1, dtype=np.float64)
            order = np.argsort(sums, kind="stable")
            if 0 < np.count_nonzero(order[: self.size] < self.size) < self.size:
                orders.append(order)
        return self._replace(orders=orders)

    def batches(self, rows: Sequence[int]) -> list[list[int]]:
        """Return the rows of all batches, in pairs: the first two, and each exchanged pair.

        Args:
            rows: the numbers of at least two rows. If they are fewer than twice the size, the
                first two batches repeat one half of the rows each.
        """
        middle = self.size if len(rows) >= 2 * self.size else len(rows) // 2
        halves = rows[:middle], rows[middle:]
        both = [half[at % len(half)] for half in halves for at in range(self.size)]
        pairs = [both, *([both[at] for at in order] for order in self.orders)]
        return [part for pair in pairs for part in (pair[: self.size], pair[self.size :])]


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


def exchange_rows(
    first: Any, second: Any, exchange: Exchange, layout: Layout
) -> list[Values] | None:
    """Return the values on the exchanged batches, if they are computed for each row.

    Args:
        first: the values on the first batch.
        second: the values on the second batch.
        exchange: the batches.
        layout: where the rows are.

    Returns:
        The values, in pairs; None if the shapes differ, or if the values do not have these rows.
    """
    arrays = np.asarray(first), np.asarray(second)
    shape = arrays[0].shape
    length = shape[layout.axis] if layout.axis < len(shape) else 0
    if arrays[1].shape != shape or not length or length % exchange.size:
        return None
    both = np.concatenate([layout.rows_first(array, exchange.size) for array in arrays])
    parts = (part for order in exchange.orders for part in np.split(both[order], 2))
    return [layout.restored(part, shape) for part in parts]


def classify(values: Sequence[Any], exchange: Exchange) -> tuple[Kind, float]:
    """Classify the values of one tensor.

    Args:
        values: arrays of numbers or booleans, one for each batch.
        exchange: the batches.

    Returns:
        The kind that fits best, and its error: the largest deviation, divided by the largest
        value. For integers and booleans, it is the fraction of elements that deviate. If the error
        is large, the values combine rows. It is infinite if the shapes differ.
    """
    arrays = [np.asarray(each) for each in values]
    if len({array.shape for array in arrays}) > 1:
        return "rows", np.inf
    if all(np.array_equal(arrays[0], array) for array in arrays[1:]):
        return "constant", 0.0
    found: list[tuple[Kind, float]] = []
    for layout in _layouts(arrays[0].shape, exchange.size):
        exchanged = exchange_rows(arrays[0], arrays[1], exchange, layout)
        assert exchanged
        found.append(("rows", _error(exchanged, arrays[2:], arrays)))
    if arrays[0].dtype.kind in "iufc":
        wide = np.promote_types(arrays[0].dtype, np.float64)
        with np.errstate(invalid="ignore"):  # of opposite infinities
            total, *totals = (
                np.add(*pair, dtype=wide) for pair in zip(arrays[::2], arrays[1::2], strict=True)
            )
        found.append(("sum", _error([total] * len(totals), totals, arrays)))
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
    sizes = (np.abs(array[np.isfinite(array)]) for array in scale)
    size = max(float(np.max(each, initial=0.0)) for each in sizes)
    largest = 0.0
    for one, other in pairs:
        differs = (one != other) & ~(np.isnan(one) & np.isnan(other))
        with np.errstate(invalid="ignore"):  # NaN and infinite values differ infinitely
            differences = np.nan_to_num(np.abs(one - other)[differs], nan=np.inf, posinf=np.inf)
        largest = max(largest, float(np.max(differences, initial=0.0)))
    return largest / size if size else largest
