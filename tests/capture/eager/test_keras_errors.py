"""Keras models that cannot be captured: an error of one line, with cause and fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.traced import built_eagerly

from placement_checks.capture.eager.errors import EagerOnlyError, explain_keras_error
from placement_checks.capture.in_process.builder import build
from placement_checks.core.errors import InputError
from placement_checks.core.program import Program
from placement_checks.tf.simulated_devices import configure_logical_cpus

ROWS, WIDTH = 32, 3
DATA = np.ones((ROWS, WIDTH), np.float32), np.ones((ROWS, 1), np.float32)


@pytest.fixture(autouse=True)
def devices() -> None:
    configure_logical_cpus(3)


def model(*, compiled: bool = True, built: bool = True, **options: Any) -> Any:
    keras = tf.keras
    with tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"]).scope():
        inputs = [keras.Input((WIDTH,))] if built else []
        made = keras.Sequential([*inputs, keras.layers.Dense(1)])
        if compiled:
            made.compile("sgd", "mse", **options)
    return made


def not_compiled() -> None:
    model(compiled=False).fit(*DATA, verbose=0)


def run_eagerly() -> None:
    model(run_eagerly=True).fit(*DATA, verbose=0)


def empty_generator() -> None:
    batches: list[Any] = []
    model().fit((batch for batch in batches), steps_per_epoch=1, verbose=0)


def unequal_lengths() -> None:
    x, y = DATA
    model().fit(x, y[:5], verbose=0)


def without_data() -> object:
    return {"model": model()}


def no_model() -> object:
    return {"model": "resnet", "x": DATA[0]}


def not_fitted() -> None:
    model()


@pytest.mark.parametrize(
    ("program", "message", "fix"),
    [
        (not_compiled, "compile", "look at "),
        (run_eagerly, "compiled with run_eagerly=True", "compile it without run_eagerly"),
        (empty_generator, "ends before the first batch", "look at "),
        (unequal_lengths, "unequal lengths: x has 32 rows and y has 5 rows", "look at "),
        (without_data, "no 'x' to train it with", "{'model': model, 'x': x,"),
        (
            no_model,
            "has a 'model' of type str, which has no method fit",
            "{'model': model, 'x': x,",
        ),
        (not_fitted, "ended without a training step", "or return a Keras model: {'model': model"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    program: Callable[[], object], message: str, fix: str
) -> None:
    with pytest.raises(InputError) as raised:
        built_eagerly(program)

    assert message in raised.value.message
    assert fix in raised.value.fix
    assert "\n" not in str(raised.value)


def fits() -> None:
    model().fit(*DATA, verbose=0)


def fits_batches() -> None:
    model().train_on_batch(*DATA)


@pytest.mark.parametrize("program", [fits, fits_batches])
def test_a_function_that_fits_a_model_is_eager(
    program: Callable[[], None],
) -> None:
    with pytest.raises(EagerOnlyError):
        build(Program.from_function(program), 2)


def from_mapping() -> object:
    return {"model": model(), "x": DATA[0], "y": DATA[1], "batch": 8}


def of_a_dataset() -> object:
    dataset = tf.data.Dataset.from_tensor_slices(DATA).batch(8)
    return {"model": model(built=False), "x": dataset}


@pytest.mark.parametrize("program", [from_mapping, of_a_dataset])
def test_a_model_with_its_data_is_trained(program: Callable[[], object]) -> None:
    built = built_eagerly(program)

    assert built.notes == ["run until its first training step, the step of model.fit"]
    assert {len(array) for array in built.fed.values()} == {4}


@pytest.mark.parametrize(
    "message",
    [
        "Attempt to convert a value (PerReplica:{",
        "To use this dataset, you need to pass it to create_per_worker_dataset",
    ],
)
def test_errors_in_callbacks_are_unchanged(message: str) -> None:
    def called_back(_: object) -> None:
        raise ValueError(message)

    error = InputError("train.py", "it raised it")
    try:
        tf.keras.layers.Lambda(called_back)(np.ones((1, 1), np.float32))
    except ValueError as raised:
        error.__context__ = raised

    assert error.__context__ is not None
    assert explain_keras_error(error) is error


def test_errors_of_other_code_are_unchanged() -> None:
    error = InputError("train.py", "it raised it")
    error.__context__ = ValueError("Data cardinality is ambiguous. 'x' sizes: 3")

    assert explain_keras_error(error) is error
    assert explain_keras_error(InputError("train.py", "it is")).message == "it is"
