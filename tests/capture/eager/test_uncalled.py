"""Which functions take gradients, according to their source code."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from placement_checks.capture.eager.uncalled import takes_gradients

HELPER = """
def descend(variables, loss, tape):
    return tape.gradient(loss, variables)
"""
PROGRAM = """
import tensorflow as tf
import gradient_helper
from gradient_helper import descend


def replica_step(x):
    with tf.GradientTape() as tape:
        loss = x
    return loss


class Trainer:
    def inner(self, x):
        return self.optimizer.minimize(x)

    def by_method(self, x):
        return self.inner(x)

    def evaluate(self, x):
        return self.model.inner(x)


def run(x):
    return replica_step(x)


def by_argument(strategy, x):
    return strategy.run(replica_step, args=(x,))


def by_import(x):
    return descend(x, x, x)


def by_module(x):
    return gradient_helper.descend(x, x, x)


def by_nested_function(x):
    def update():
        x.assign_sub(x)

    return update()


def evaluate(strategy, x):
    return strategy.run(predict, args=(x,))


def predict(x):
    return predict(x - 1) if x else tf.reduce_sum(x)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("program")
    (folder / "gradient_helper.py").write_text(HELPER)
    (folder / "uncalled_program.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module("uncalled_program")


@pytest.mark.parametrize(
    "name",
    [
        "replica_step",
        "Trainer.by_method",
        "run",
        "by_argument",
        "by_import",
        "by_module",
        "by_nested_function",
    ],
)
def test_a_function_that_takes_gradients(program: Any, name: str) -> None:
    assert takes_gradients(attribute(program, name).__code__)


@pytest.mark.parametrize("name", ["predict", "evaluate", "Trainer.evaluate"])
def test_a_function_without_gradients(program: Any, name: str) -> None:
    """A method of another object than ``self`` is not known."""
    assert not takes_gradients(attribute(program, name).__code__)


def attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
