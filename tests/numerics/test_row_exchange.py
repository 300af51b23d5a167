"""Values on exchanged rows show how an op combines rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.numerics.row_exchange import Exchange, Layout, classify, exchange_rows

Values = npt.NDArray[Any]

_RNG = np.random.default_rng(0)
# Rows of a pool, with columns of very different sizes.
_POOL = _RNG.normal(size=(64, 6)) * np.logspace(-1, 1, 6)
_WEIGHTS = _RNG.normal(size=(6, 5))
_MASK = _RNG.random(64) < 0.6


def kind(compute: Callable[[list[int]], Any], size: int, rows: int = 64) -> str:
    """The kind of a function of row numbers; ``mixed`` if none fits."""
    exchange = Exchange.of_size(size)
    found, error = classify(list(map(compute, exchange.batches(range(rows)))), exchange)
    return found if error < 1e-6 else "mixed"


PER_ROW: list[Callable[[list[int]], Any]] = [
    lambda rows: _POOL[rows],
    lambda rows: np.tanh(_POOL[rows] @ _WEIGHTS),
    lambda rows: _POOL[rows] - _POOL[rows].mean(axis=1, keepdims=True),
    lambda rows: _POOL[rows].T,
    lambda rows: _POOL[rows].reshape(-1),
    lambda rows: _POOL[rows].T.reshape(-1),
    lambda rows: _POOL[rows] > 0,
    lambda rows: _POOL[rows].argmax(axis=1),
    lambda rows: np.tile(_POOL[rows], (2, 1)),
]
SUMS: list[Callable[[list[int]], Any]] = [
    lambda rows: _POOL[rows].sum(),
    lambda rows: _POOL[rows].mean(axis=0),
    lambda rows: _POOL[rows].T @ _POOL[rows],
    lambda rows: _MASK[rows].sum(),
    lambda rows: 3 - (_POOL[rows] ** 2).sum() / 7,
]
CONSTANT: list[Callable[[list[int]], Any]] = [
    lambda rows: len(rows),
    lambda _: _WEIGHTS,
]
MIXED: list[Callable[[list[int]], Any]] = [
    lambda rows: _POOL[rows][_MASK[rows]].sum() / _MASK[rows].sum(),
    lambda rows: _POOL[rows] - _POOL[rows].mean(axis=0),
    lambda rows: _POOL[rows] / _MASK[rows].sum(),
    lambda rows: _POOL[rows] @ _POOL[rows].T,
    lambda rows: np.log(np.exp(_POOL[rows]).sum()),
    lambda rows: np.sort(_POOL[rows, 0]),
    lambda rows: _POOL[rows][::-1],
    lambda rows: np.roll(_POOL[rows], 1, axis=0),
    lambda rows: _POOL[rows] * np.arange(len(rows))[:, None],
    lambda rows: _POOL[rows][_MASK[rows]],
    lambda rows: _POOL[rows].mean() ** 2,
    lambda rows: _POOL[rows].max(axis=0),
    lambda rows: _POOL[rows] > _POOL[rows].mean(axis=0),
]


@pytest.mark.parametrize("size", [4, 7, 32])
@pytest.mark.parametrize(
    ("computes", "expected"),
    [(PER_ROW, "rows"), (SUMS, "sum"), (CONSTANT, "constant"), (MIXED, "mixed")],
    ids=["rows", "sums", "constants", "mixed"],
)
def test_each_kind_is_recognized(
    computes: list[Callable[[list[int]], Any]], expected: str, size: int
) -> None:
    assert [kind(compute, size) for compute in computes] == [expected] * len(computes)


def test_a_batch_of_all_rows_repeats_half_of_them() -> None:
    first, second, *others = Exchange.of_size(6).batches(range(6))

    assert (first, second) == ([0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5])
    assert len(others) == 6
    assert kind(lambda rows: _POOL[rows].sum(), 6, rows=6) == "sum"
    assert kind(lambda rows: _POOL[rows, 0].sum() ** 2, 6, rows=7) == "mixed"


@given(st.integers(2, 9), st.integers(2, 40))
def test_exchanged_batches_have_the_same_rows(size: int, rows: int) -> None:
    batches = Exchange.of_size(size).batches(range(rows))

    first, second = batches[:2]
    assert {len(batch) for batch in batches} == {size}
    assert set(first).isdisjoint(second)
    for one, other in zip(batches[2::2], batches[3::2], strict=True):
        assert sorted(one + other) == sorted(first + second)
        assert set(one) & set(first)
        assert set(one) & set(second)


@given(
    st.integers(2, 6),
    st.integers(1, 3),
    st.lists(st.integers(1, 3), max_size=2),
    st.booleans(),
    st.data(),
)
def test_rows_are_exchanged_on_any_axis(
    rows: int, entries: int, others: list[int], is_minor: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(others)))
    shape = [*others[:axis], rows * entries, *others[axis:]]
    layout, exchange = Layout(axis, is_minor), Exchange.of_size(rows)
    first = np.arange(np.prod(shape)).reshape(shape)
    second = -1 - first

    exchanged = exchange_rows(first, second, exchange, layout)

    assert exchanged
    both = [*layout.rows_first(first, rows), *layout.rows_first(second, rows)]
    for number, order in enumerate(exchange.orders):
        one, other = (layout.rows_first(each, rows) for each in exchanged[2 * number :][:2])
        expected = [both[at] for at in order]
        assert np.array_equal([*one, *other], expected)


def test_arrays_without_rows_are_not_exchanged() -> None:
    exchange = Exchange.of_size(4)

    assert exchange_rows(1.0, 2.0, exchange, Layout()) is None
    assert exchange_rows(np.ones(6), np.ones(6), exchange, Layout()) is None
    assert exchange_rows(np.ones(4), np.ones(8), exchange, Layout()) is None


def test_values_that_are_not_finite() -> None:
    exchange = Exchange.of_size(3)
    batches = exchange.batches(range(6))
    rows = np.array([1, np.inf, 2, -np.inf, np.nan, 3])
    counts = np.array([0, 0, 0, 1, 1, 1])

    assert classify([rows[batch] for batch in batches], exchange) == ("rows", 0)
    with np.errstate(invalid="ignore"):
        means = [np.float64(counts[batch].sum()) / counts[batch].sum() for batch in batches]
    assert np.isnan(means[0])
    assert classify(means, exchange)[1] == np.inf


def test_sorted_rows_show_a_divisor_that_is_equal_by_chance() -> None:
    """Random orders may give every batch as many tokens. Sorted rows do not."""
    tokens = np.array([1, 0, 1, 0])
    exchange = Exchange(2, [np.array([0, 3, 1, 2])])

    def kind(exchange: Exchange) -> tuple[str, float]:
        batches = exchange.batches(range(4))
        return classify([np.sum(tokens[each]) for each in batches], exchange)

    assert kind(exchange)[0] == "constant"
    assert kind(exchange.sorted_by([tokens]))[0] == "sum"
    quotients = exchange.sorted_by([tokens, np.ones(4)])
    means = [
        np.sum(tokens[each]) / (1 + np.sum(tokens[each])) for each in quotients.batches(range(4))
    ]
    assert classify(means, quotients)[1] > 0.01
