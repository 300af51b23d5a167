from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.capture.eager.errors import EagerOnlyError, GraphOnlyError
from placement_checks.capture.in_process.builder import build, build_eagerly, record_eager_code
from placement_checks.core.errors import InputError
from placement_checks.core.program import Program

tf1 = tf.compat.v1


def fails_in_a_graph(builder: Callable[..., Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        build(Program.from_function(builder), 2)
    return caught.value


def fails_eagerly(builder: Callable[..., Any]) -> InputError:
    program = Program.from_function(builder)
    with record_eager_code(program, 2) as building, pytest.raises(InputError) as caught:
        build_eagerly(building)
    return caught.value


@pytest.mark.parametrize(
    "use",
    [
        lambda tensor: tensor.numpy(),
        lambda tensor: tf.Variable(tensor[0]).numpy(),
        lambda tensor: np.mean(tensor),
        lambda tensor: float(tensor[0]),
        lambda tensor: range(tf.cast(tensor[0], tf.int32)),
        lambda tensor: f"{tensor[0]:.3f}",
        lambda tensor: len(tensor),
        lambda tensor: 1 if tensor[0] > 0 else 2,
        lambda tensor: list(tf.data.Dataset.from_tensors(tensor)),
    ],
    ids=["numpy", "variable", "mean", "float", "range", "format", "len", "branch", "dataset"],
)
def test_an_error_of_eager_code_in_a_graph(use: Callable[[Any], Any]) -> None:
    error = fails_in_a_graph(lambda: use(tf.constant([1.0])))

    assert isinstance(error, EagerOnlyError)
    assert error.is_guess


def numpy_without_a_name() -> None:
    getattr(np, "no_such" + "_dtype")


def numpy_refuses() -> None:
    np.zeros([2]) + np.zeros([3])


def words_of_eager_code() -> None:
    raise ValueError("choose eager or symbolic")


def not_implemented() -> None:
    raise NotImplementedError


def no_such_attribute_of_a_tensor() -> None:
    _ = tf.constant([1.0]).shpae


def wrong_shapes() -> None:
    tf.zeros([2, 3]) @ tf.zeros([2, 3])


@pytest.mark.parametrize(
    "builder",
    [
        numpy_without_a_name,
        numpy_refuses,
        words_of_eager_code,
        not_implemented,
        no_such_attribute_of_a_tensor,
        wrong_shapes,
    ],
)
def test_an_error_of_the_builder(builder: Callable[[], None]) -> None:
    assert not isinstance(fails_in_a_graph(builder), EagerOnlyError)


def test_an_initial_value_from_another_variable() -> None:
    """In a graph TensorFlow raises an error without a message, in its own frames."""

    def of_a_generator() -> None:
        tf.Variable(tf.random.Generator.from_seed(1).normal([2]))

    assert isinstance(fails_in_a_graph(of_a_generator), EagerOnlyError)


def test_a_variable_that_was_created_eagerly() -> None:
    """Such as variables of modules that are imported before a graph is built."""
    with tf.init_scope():
        w = tf.Variable([1.0])
    optimizer = tf.keras.optimizers.SGD()

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    assert isinstance(fails_in_a_graph(lambda: step(tf.constant([1.0]))), EagerOnlyError)


def test_a_program_with_a_strategy_is_eager() -> None:
    def mirrored() -> None:
        tf.distribute.MirroredStrategy(["/cpu:0"])
        raise ValueError("wrong")

    error = fails_in_a_graph(mirrored)

    assert isinstance(error, EagerOnlyError)
    assert not error.is_guess


def builds_a_graph() -> None:
    x = tf1.placeholder(tf.float32, [4])
    np.mean(x)


def reads_a_missing_file() -> None:
    float(tf.constant(1.0))
    tf.io.read_file("nosuchfile")


def test_the_builders_error_comes_first_if_eager_execution_fails() -> None:
    first, second = fails_in_a_graph(builds_a_graph), fails_eagerly(builds_a_graph)

    assert isinstance(first, EagerOnlyError)
    assert isinstance(second, GraphOnlyError)
    error = pickle.loads(pickle.dumps(first)).with_eager_error(second)
    assert not isinstance(error, EagerOnlyError)
    assert (error.message, error.fix) == (first.message, first.fix)
    assert error.message.startswith(
        "the builder raised NotImplementedError: Cannot convert a symb"
    )
    frames, _, note = error.details.rpartition("\n")
    assert frames == first.details
    assert note.startswith(
        "note: run eagerly, it raised RuntimeError: tf.placeholder() is not compatible with eager"
    )


def test_the_eager_error_comes_first_if_the_program_runs_eagerly() -> None:
    first, second = fails_in_a_graph(reads_a_missing_file), fails_eagerly(reads_a_missing_file)

    assert isinstance(first, EagerOnlyError)
    error = first.with_eager_error(second)
    assert error.message == second.message
    assert error.message.startswith("it raised NotFoundError")
    assert "\nnote: built into a graph, the builder raised TypeError: float() " in error.details


def test_one_error_is_reported_once() -> None:
    first = EagerOnlyError.from_error(
        InputError("f", "the builder raised ValueError: odd"), is_guess=True
    )
    second = InputError("f", "it raised ValueError: odd")

    assert first.with_eager_error(second) is second


def test_messages_of_the_program_are_not_read_as_refusals() -> None:
    def raises() -> None:
        raise ValueError("in eager mode it is slow")

    assert not isinstance(fails_eagerly(raises), GraphOnlyError)
