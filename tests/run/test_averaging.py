"""The mean of the towers' gradients, compared with NumPy in float64 and with one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from placement_checks.run.averaging import average_gradients
from placement_checks.run.runnable import gpu_scope

tf1 = tf.compat.v1
KINDS = ("dense", "sparse", None)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
# Averages are paired with their variables, which may be any objects.
W = object()


class Case(NamedTuple):
    """The gradients of one variable in each tower, and the same in float64."""

    grads: list[Any]
    dense: np.ndarray  # (towers, *shape), zeros for None
    sizes: np.ndarray  # the same for absolute values, for the rounding error of values that cancel

    @property
    def pairs(self) -> list[list[tuple[Any, Any]]]:
        return [[(grad, W)] for grad in self.grads]

    def check(self, mean: Any, weights: Any = None) -> None:
        """Check with the rounding errors of float32 or float64, and of half precision."""
        parts = np.ones(len(self.grads)) if weights is None else np.array(weights)
        expected, size = (np.tensordot(parts, arrays, 1) / parts.sum() for arrays in self[1:])
        dtype = next(grad.dtype for grad in self.grads if grad is not None)
        rounding = 32 * (2.0**-52 if dtype == tf.float64 else 2.0**-23)
        rounding += {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8}.get(dtype, 0)
        subnormal = 2.0**-22 if dtype == tf.float16 else 0

        assert mean.dtype == dtype
        assert mean.shape == self.dense.shape[1:]
        assert (np.abs(densified(mean) - expected) <= rounding * size + subnormal).all()


def numbers(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.numpy()).astype(np.float64)


def densified(grad: Any) -> np.ndarray:
    if not isinstance(grad, tf.IndexedSlices):
        return numbers(grad)
    dense = np.zeros(grad.shape)
    np.add.at(dense, grad.indices.numpy(), numbers(grad.values))
    return dense


def arrays(shape: tuple[int, ...], largest: float) -> st.SearchStrategy[np.ndarray]:
    elements = st.floats(-largest, largest, width=16)
    return hnp.arrays(np.float16, shape, elements=elements)


@st.composite
def cases(draw: st.DrawFn, most: int = 5) -> Case:
    """Gradients of 1 to `most` towers, at least one of them present. float16 values may
    overflow."""
    dtype = draw(st.sampled_from(FLOATS))
    pattern = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=most).filter(any))
    sparse = "sparse" in pattern
    shape = draw(hnp.array_shapes(min_dims=sparse, max_dims=3, min_side=sparse, max_side=3))
    grads: list[Any] = []
    dense, sizes = np.zeros((2, len(pattern), *shape))
    for tower, kind in enumerate(pattern):
        grad: Any = None
        if kind == "dense":
            grad = tf.cast(draw(arrays(shape, 65504)), dtype)
            dense[tower] = numbers(grad)
            sizes[tower] = np.abs(dense[tower])
        elif kind == "sparse":
            indices = draw(st.lists(st.integers(0, shape[0] - 1), max_size=4))
            values = tf.cast(draw(arrays((len(indices), *shape[1:]), 16000)), dtype)
            grad = tf.IndexedSlices(values, tf.constant(indices, tf.int64), tf.constant(shape))
            np.add.at(dense[tower], indices, numbers(values))
            np.add.at(sizes[tower], indices, np.abs(numbers(values)))
        grads.append(grad)
    return Case(grads, dense, sizes)


def rows_of(towers: int, most: int = 1000) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), min_size=towers, max_size=towers).filter(any)


def tensor(dtype: tf.DType) -> Callable[[int], Any]:
    return lambda number: tf.constant(number, dtype)


NUMBERS: list[Callable[[int], Any]] = [
    int,
    float,
    np.int64,
    np.float32,
    *map(tensor, [tf.int32, tf.int64, tf.float32, tf.float64]),
]
FORMS = st.sampled_from(NUMBERS)


@settings(deadline=None)
@given(case=cases())
def test_the_mean_equals_the_mean_of_numpy(case: Case) -> None:
    [(mean, variable)] = average_gradients(case.pairs)

    case.check(mean)
    assert variable is W


@settings(deadline=None)
@given(case=cases(), data=st.data())
def test_the_weighted_mean_equals_the_mean_of_numpy(case: Case, data: st.DataObject) -> None:
    towers = len(case.grads)
    rows = data.draw(rows_of(towers))
    forms = data.draw(st.lists(FORMS, min_size=towers, max_size=towers))

    [(mean, _)] = average_gradients(
        case.pairs, [form(number) for form, number in zip(forms, rows, strict=True)]
    )

    case.check(mean, rows)


@settings(deadline=None)
@given(case=cases())
def test_only_sparse_gradients_stay_sparse(case: Case) -> None:
    [(mean, _)] = average_gradients(case.pairs)

    present = [grad for grad in case.grads if grad is not None]
    sparse = all(isinstance(grad, tf.IndexedSlices) for grad in present)
    assert isinstance(mean, tf.IndexedSlices) == sparse
    if sparse:
        assert [*mean.indices.numpy()] == [row for grad in present for row in grad.indices.numpy()]


@settings(deadline=None)
@given(case=cases(most=1))
def test_one_tower_keeps_its_gradient(case: Case) -> None:
    [(mean, _)] = average_gradients(case.pairs)

    if isinstance(mean, tf.IndexedSlices):
        np.testing.assert_array_equal(numbers(mean.values), numbers(case.grads[0].values))
    elif not isinstance(case.grads[0], tf.IndexedSlices):
        np.testing.assert_array_equal(numbers(mean), case.dense[0])


def test_float16_rows_of_one_index_may_overflow() -> None:
    rows = tf.IndexedSlices(
        tf.constant([6e4, 6e4], tf.float16), tf.zeros(2, tf.int32), tf.constant([1])
    )

    [(mean, _)] = average_gradients([[(rows, W)], [(tf.zeros(1, tf.float16), W)]])

    assert mean.numpy() == [6e4]


def test_none_in_every_tower_stays_none() -> None:
    other = object()

    averages = average_gradients(
        [[(None, W), (tf.constant(tower), other)] for tower in (1.0, 2.0)]
    )

    assert [variable for _, variable in averages] == [W, other]
    assert averages[0][0] is None
    assert averages[1][0].numpy() == 1.5


def test_none_counts_as_zero_and_keeps_its_weight() -> None:
    pairs = [[(tf.constant(6.0), W)], [(None, W)], [(None, W)]]

    assert average_gradients(pairs)[0][0].numpy() == 2.0
    assert average_gradients(pairs, [1, 1, 4])[0][0].numpy() == 1.0


@pytest.mark.parametrize("weights", [(8, 7), (8 / 15, 7 / 15), (np.int32(8), 7.0)])
def test_weights_keep_the_precision_of_float64(weights: Any) -> None:
    pairs = [[(tf.constant(number, tf.float64), W)] for number in (1, 0)]

    assert average_gradients(pairs, weights)[0][0].numpy() == 8 / 15


@pytest.mark.parametrize("zero", [int, tf.constant])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_tower_without_rows_does_not_count(zero: Callable[..., Any], sparse: bool) -> None:
    grads = [tf.constant([np.nan, np.inf]), tf.constant([1.0, 2.0])]
    if sparse:
        grads = [tf.IndexedSlices(grad, tf.range(2), tf.constant([2])) for grad in grads]

    [(mean, _)] = average_gradients([[(grad, W)] for grad in grads], [zero(0), 3])

    assert densified(mean).tolist() == [1.0, 2.0]


def loss_of(variables: Sequence[Any], batch: Sequence[Any]) -> Any:
    """The mean loss of a small model; the gradient of its table is sparse."""
    (table, kernel, bias), (rows, labels) = variables, batch
    hidden = tf.tanh(tf.gather(table, rows))
    return tf.reduce_mean((tf.linalg.matvec(hidden, kernel) + bias - labels) ** 2)


def initial() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=size) for size in ((5, 4), (4,), ())]


def batch_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels.

    Labels are far from 0, because canceling errors would leave rounding errors.
    """
    random = np.random.default_rng(size)
    return random.integers(0, 5, size), random.normal(5, size=size)


@settings(deadline=None, max_examples=25)
@given(split=st.integers(1, 5).flatmap(lambda towers: rows_of(towers, 16)))
def test_parts_weighted_by_their_rows_give_the_gradient_of_the_batch(split: list[int]) -> None:
    variables = [tf.Variable(value) for value in initial()]
    batch = batch_of(sum(split))

    def gradients(part: slice) -> list[tuple[Any, Any]]:
        with tf.GradientTape() as tape:
            loss = loss_of(variables, [array[part] for array in batch])
        return list(zip(tape.gradient(loss, variables), variables, strict=True))

    ends = np.cumsum(split)
    parts = [gradients(slice(end - rows, end)) for rows, end in zip(split, ends, strict=True)]
    average = average_gradients(parts, split)

    for (found, _), (expected, _) in zip(average, gradients(slice(None)), strict=True):
        error = np.abs(densified(found) - densified(expected)).max()
        assert error <= 32 * 2.0**-52 * np.abs(densified(expected)).max()


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_towers_in_a_v1_graph_train_as_one_device_does(use_resource: bool) -> None:
    batches = [(batch_of(15), 8), (batch_of(9), 2), (batch_of(4), 4)]  # the last tower gets none

    def train(towers: int) -> list[np.ndarray]:
        feeds, tower_grads = [], []
        with tf.Graph().as_default(), gpu_scope(towers, devices="simulated") as config:
            with tf.device("/cpu:0"):
                variables = [
                    tf1.get_variable(f"v{number}", initializer=value, use_resource=use_resource)
                    for number, value in enumerate(initial())
                ]
                optimizer = tf1.train.GradientDescentOptimizer(0.1)
            for number in range(towers):
                with tf.device(f"/gpu:{number}"):
                    rows = tf1.placeholder(tf.int64, [None])
                    labels = tf1.placeholder(tf.float64, [None])
                    loss = loss_of(variables, (rows, labels))
                    tower_grads.append(optimizer.compute_gradients(loss))
                    feeds.append((rows, labels))
            with tf.device("/cpu:0"):
                before = len(tf1.get_default_graph().get_operations())
                average = average_gradients(tower_grads, [tf.size(rows) for rows, _ in feeds])
                made = tf1.get_default_graph().get_operations()[before:]
                step = optimizer.apply_gradients(average)
            assert {op.device for op in made} == {"/device:CPU:0"}
            with tf1.Session(config=config) as session:
                session.run(tf1.global_variables_initializer())
                for batch, cut in batches:
                    parts = [slice(cut), slice(cut, None)] if towers == 2 else [slice(None)]
                    session.run(
                        step,
                        {
                            placeholder: array[part]
                            for part, fed in zip(parts, feeds, strict=True)
                            for placeholder, array in zip(fed, batch, strict=True)
                        },
                    )
                trained: list[np.ndarray] = session.run(variables)
        return trained

    for found, expected in zip(train(2), train(1), strict=True):
        assert np.abs(found - expected).max() <= 32 * 2.0**-52 * np.abs(expected).max()


def test_weights_in_a_function_may_be_tensors() -> None:
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def averages(rows: Any) -> Any:
        pairs = [[(variable * 3.0, variable)], [(tf.zeros(2), variable)]]
        return average_gradients(pairs, [rows, 2])[0][0]

    assert averages(tf.constant(1)).numpy().tolist() == [1.0, 2.0]


def test_towers_may_be_generators() -> None:
    pairs = (zip([tf.constant(number)], [W], strict=True) for number in (1.0, 3.0))

    assert average_gradients(pairs)[0][0].numpy() == 2.0


class Named(NamedTuple):
    """A different variable that is equal to any variable with its name."""

    name: str


A, B = Named("a:0"), Named("b:0")
ONE = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("tower_grads", "expected"),
    [
        ([], "tower_grads is empty: give the gradients of one tower at least"),
        (
            [[(ONE, A), (ONE, B)], [(ONE, A)]],
            "pair 1 is of nothing in tower 1 and of b:0 in tower",
        ),
        (
            [[(ONE, A)], [(ONE, A), (ONE, B)]],
            "pair 1 is of b:0 in tower 1 and of nothing in tower",
        ),
        (
            [[(ONE, A), (ONE, B)], [(ONE, B), (ONE, A)]],
            "pair 0 is of b:0 in tower 1 and of a:0 in tower 0: let the towers share",
        ),
        ([[(ONE, A)], [(ONE, Named("a:0"))]], "of a:0 in tower 1 and of a:0 in tower 0: let the"),
        (
            [[(None, A)], [(ONE, A)], [(ONE.astype(np.float64), A)]],
            r"the gradient of a:0 is float64 of shape \(2,\) in tower 2 and float32 of shape "
            r"\(2,\) in tower 1: let all towers compute",
        ),
        (
            [[(ONE, A)], [(ONE[:1], A)]],
            r"the gradient of a:0 is float32 of shape \(1,\) in tower 1 and float32 of shape \(2,",
        ),
    ],
)
def test_towers_that_do_not_match_are_refused(tower_grads: Any, expected: str) -> None:
    towers = [
        [(None if grad is None else tf.constant(grad), variable) for grad, variable in tower]
        for tower in tower_grads
    ]
    with pytest.raises(ValueError, match=expected):
        average_gradients(towers)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1], "1 weight for 2 towers: give one for each tower"),
        ([1, 2, 3], "3 weights for 2 towers"),
        ([1, -2], "the weight of tower 1 is -2: give a finite scalar of 0 or more"),
        ([np.nan, 1], "the weight of tower 0 is nan"),
        ([1, np.inf], "the weight of tower 1 is inf"),
        ([0, 0.0], "all weights are 0: give at least one tower a weight above 0"),
        ([1, lambda: tf.ones(2)], r"the weight of tower 1 is \[1. 1.\]: give a finite scalar"),
    ],
)
def test_weights_that_add_up_to_zero_are_refused(weights: Any, expected: str) -> None:
    made = [weight() if callable(weight) else weight for weight in weights]
    with pytest.raises(ValueError, match=expected):
        average_gradients([[(tf.constant(1.0), W)]] * 2, made)
