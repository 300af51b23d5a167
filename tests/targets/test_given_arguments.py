"""A function is called with the arguments of its target, for each number of GPUs."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from placement_checks import place
from placement_checks.capture.programs import load, load_for_one_gpu, load_reference
from placement_checks.core.errors import InputError
from placement_checks.run.feeding.batches import load_batch_function
from placement_checks.targets.forms import resolve

TRAIN = """
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

def build(width=1, n_gpu=1, name="w"):
    for gpu in range(n_gpu):
        with tf.device(f"/gpu:{gpu}"):
            tf1.get_variable(f"{name}_{gpu}", [width])

def fixed(num_gpus=2):
    build(n_gpu=num_gpus)

def batch(rng, n, width=1, seed=0):
    return {"x": np.full([n, width], seed)}
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    return f"{tmp_path}/train.py"


def test_a_builder_gets_its_arguments(train: str) -> None:
    target = f"{train}:build(n_gpu={{gpus}}, width=7)"
    evidence = place(target, gpus=3)

    assert {variable.name: variable.shape for variable in evidence.placement.variables} == {
        "w_0": (7,),
        "w_1": (7,),
        "w_2": (7,),
    }
    assert evidence.placement.program == target
    assert evidence.single_gpu
    assert [variable.name for variable in evidence.single_gpu.variables] == ["w_0"]


def test_the_same_function_with_the_same_arguments_is_the_reference(train: str) -> None:
    towers = load(resolve(f"{train}:build(n_gpu={{gpus}})"), 2)

    alike = load_reference(resolve(f"{train}:build( n_gpu = {{gpus}} )"), towers)
    other = load_reference(resolve(f"{train}:build(n_gpu={{gpus}}, width=2)"), towers)

    assert alike is load_for_one_gpu(towers)
    assert [variable.shape for variable in other.requested.variables] == [(2,)]


def test_a_fixed_number_of_gpus_has_no_build_for_one(train: str) -> None:
    assert str(load_for_one_gpu(load(resolve(f"{train}:fixed(num_gpus=2)"), 2))) == (
        "the target sets num_gpus (write num_gpus={gpus} there)"
    )


def test_a_batch_function_gets_its_arguments(train: str) -> None:
    batch = load_batch_function(f"{train}:batch(width=3, seed={{gpus}})", 2)

    assert batch is not None
    np.testing.assert_array_equal(batch(np.random.default_rng(0), 4)["x"], np.full([4, 3], 2))
    assert inspect.unwrap(batch).__name__ == "batch"


def test_arguments_may_not_set_rng_and_n(train: str) -> None:
    with pytest.raises(InputError) as caught:
        load_batch_function(f"{train}:batch(n=3)", 2)
    assert (caught.value.message, caught.value.fix) == (
        "the function takes no 'n'",
        "it takes width and seed",
    )


def test_a_whole_program_is_not_a_batch_function(train: str) -> None:
    with pytest.raises(InputError, match="is not a function; name one"):
        load_batch_function(train, 2)
