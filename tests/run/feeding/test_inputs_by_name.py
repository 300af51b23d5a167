"""A batch with names of placeholders as keys needs no declared inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import pairs

from placement_checks import assert_gradients_equal, assert_training_equal
from placement_checks.core.errors import CannotRun
from placement_checks.run.feeding.batches import Case

tf1 = tf.compat.v1


def towers(num_gpus: int = 2, *, drops: bool = False) -> tuple[Any, Any]:
    """Towers that split the batch themselves; with ``drops``, a row is left out."""
    x = tf1.placeholder(tf.float32, [None, 4], name="in/x")
    y = tf1.placeholder_with_default(np.zeros([1, 1], np.float32), [None, 1], name="y")
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    sums, gradients = [], []
    rows = tf.shape(x)[0]
    for i in range(num_gpus):
        part = slice(rows * i // num_gpus + (1 if drops and i else 0), rows * (i + 1) // num_gpus)
        with (
            tf.device(f"/gpu:{i}"),
            tf1.device(lambda op: "/cpu:0" if op.type == "VarHandleOp" else op.device),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE),
        ):
            error = tf.math.squared_difference(pairs.predicted(x[part]), y[part])
            sums.append(tf.reduce_sum(error) / tf.cast(rows, tf.float32))
            gradients.append(optimizer.compute_gradients(sums[-1]))
    with tf.device("/cpu:0"):
        mean = [
            (tf.add_n([gradient for gradient, _ in of_one]), of_one[0][1])
            for of_one in zip(*gradients, strict=True)
        ]
        return optimizer.apply_gradients(mean), tf.add_n(sums)


def single() -> tuple[Any, Any]:
    return towers(1)


def named(*names: str) -> Callable[[np.random.Generator, int], Mapping[str, Any]]:
    def batch(rng: np.random.Generator, n: int) -> Mapping[str, Any]:
        return dict(zip(names, pairs.batch(rng, n).values(), strict=True))

    return batch


@pytest.mark.parametrize("names", [("in/x", "y"), ("in/x:0", "y:0")])
def test_keys_of_the_batch_name_placeholders(names: tuple[str, str]) -> None:
    assert_training_equal(towers, single, named(*names), gpus=2)

    with pytest.raises(AssertionError, match="gradients-equal"):
        assert_gradients_equal(partial(towers, drops=True), single, named(*names), gpus=2)


def test_with_an_unknown_key_the_inputs_are_unknown() -> None:
    with pytest.raises(CannotRun, match="towers declares no inputs"):
        pairs.measured(towers, single, named("in/x", "labels"))


def test_with_a_failing_batch_function_the_inputs_are_unknown() -> None:
    def fails(_rng: np.random.Generator, _n: int) -> Mapping[str, Any]:
        raise ValueError

    with pytest.raises(CannotRun, match="towers declares no inputs"):
        pairs.measured(towers, single, fails)


def test_a_saved_case_names_the_placeholders_of_both_programs() -> None:
    """A single batch is enough: finding the names does not use it up."""
    case = Case([named("in/x", "y")(np.random.default_rng(0), 8)], {})

    assert pairs.pair(towers, single).feeding(case).rows == 8


def test_declared_inputs_have_precedence() -> None:
    calls = []

    def batch(rng: np.random.Generator, n: int) -> Mapping[str, Any]:
        calls.append(n)
        return pairs.batch(rng, n)

    pairs.pair(pairs.towers, pairs.single).feeding(batch)

    assert calls == []
