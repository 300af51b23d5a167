"""Changes to gradients between the backward pass and the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from support import pairs, towers

from placement_checks.capture.programs import load
from placement_checks.core.program import Gradient, Program
from placement_checks.run.preconditions import clipped_gradients
from placement_checks.run.runnable import make_runnable

tf1 = tf.compat.v1
GradientDescentOptimizer: Any = tf1.train.GradientDescentOptimizer


def whole(gradient: Any) -> Any:
    shape = tf.shape(gradient)
    return tf.slice(gradient, tf.zeros_like(shape), shape)


def masked(gradients: list[Any]) -> list[Any]:
    rows = tf1.placeholder_with_default(3, [])
    share = tf.cast(tf.less(rows // 2, 5), tf.float32) * tf.sqrt(2.0)
    return [gradient * share for gradient in gradients]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda gradients: gradients, set()),
        (lambda gradients: [tf.reduce_mean(tf.stack([g, g]), 0) / 2 for g in gradients], set()),
        (lambda gradients: [whole(g) for g in gradients], set()),
        (masked, set()),
        (lambda gradients: tf.clip_by_global_norm(gradients, 1.0)[0], {"w", "b"}),
        (lambda gradients: [tf.clip_by_value(gradients[0], -1.0, 1.0), gradients[1]], {"w"}),
        (lambda gradients: [tf.sign(g) for g in gradients], {"w", "b"}),
    ],
    ids=[
        "as they are",
        "averaged",
        "cut",
        "scaled by another tensor",
        "by norm",
        "by value",
        "signs",
    ],
)
def test_changed_gradients_are_found_by_data_flow(
    change: Callable[[list[Any]], list[Any]], names: set[str]
) -> None:
    class Changing(GradientDescentOptimizer):
        def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            gradients, variables = zip(*pairs, strict=True)
            changed_pairs = zip(change(list(gradients)), variables, strict=True)
            return super().apply_gradients(list(changed_pairs), *args, **kwargs)

    def towers(num_gpus: int = 2) -> dict[str, Any]:
        return pairs.towers(num_gpus, optimizer=lambda: Changing(0.1))

    assert (
        set(clipped_gradients(make_runnable(load(Program("towers", towers), 2), "simulated")))
        == names
    )


@pytest.mark.parametrize(
    ("kind", "found"),
    [("CollectiveReduceV2", []), ("NcclAllReduce", []), ("AddN", []), ("Sign", ["w"])],
)
def test_sums_of_a_strategy_are_unchanged(kind: str, found: list[str]) -> None:
    """Otherwise a sum instead of a mean could not be found in any program with a strategy."""
    sums = towers.on(0, "sum", kind, towers.gradient(0), towers.gradient(1))
    taken = SimpleNamespace(by_variable={"w": Gradient("sum:0")})
    program: Any = SimpleNamespace(placement=towers.program(sums), gradients=taken)

    assert list(clipped_gradients(program)) == found


def test_a_branch_chosen_by_gradients_changes_them() -> None:
    """A strategy joins sparse gradients in branches, by how many rows each replica has."""

    def chosen_by(predicate: str) -> list[str]:
        gradient = towers.gradient(0)
        norm = towers.on(0, "norm", "L2Loss", gradient)
        rows = towers.on(0, "rows", "Placeholder")
        choice = towers.on(0, "choice", "If", predicate, gradient)
        padded = towers.on(0, "choice/else/Pad", "Pad", gradient, caller="choice")
        taken = SimpleNamespace(by_variable={"w": Gradient("choice:0")})
        placement = towers.program(norm, rows, choice, padded)
        program: Any = SimpleNamespace(placement=placement, gradients=taken)
        return list(clipped_gradients(program))

    assert chosen_by("rows") == []
    assert chosen_by("norm") == ["w"]
