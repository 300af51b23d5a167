"""Changes to gradients between the backward pass and the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from support import pairs, towers

from placement_checks.capture.programs import load
from placement_checks.core.program import Gradient, Program
from placement_checks.run.clipping import clipped_gradients, raw_gradients, where_clipped
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


def clipping(towers: bool = False, average: bool = True) -> Callable[..., Any]:
    """Towers that clip their own gradients, the averaged gradients, or both, by a global norm."""

    class Clipping(GradientDescentOptimizer):
        def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
            computed = super().compute_gradients(*args, **kwargs)
            return _clip(computed) if towers else computed

        def apply_gradients(self, averaged: Any, *args: Any, **kwargs: Any) -> Any:
            return super().apply_gradients(
                _clip(averaged) if average else averaged, *args, **kwargs
            )

    return partial(pairs.towers, optimizer=lambda: Clipping(0.1))


def _clip(computed: list[Any]) -> list[Any]:
    gradients, variables = zip(*computed, strict=True)
    return list(zip(tf.clip_by_global_norm(gradients, 0.5)[0], variables, strict=True))


@pytest.mark.parametrize(
    ("towers", "average", "where"),
    [
        (False, False, ""),
        (False, True, "average"),
        (True, False, "towers"),
        (True, True, "both"),
    ],
)
def test_where_gradients_are_clipped(towers: bool, average: bool, where: str) -> None:
    built = load(Program("towers", clipping(towers, average)), 2)

    assert where_clipped(make_runnable(built, "simulated")) == where


def test_raw_gradients_are_results_of_the_backward_pass() -> None:
    clipped, unclipped = (
        make_runnable(load(Program("single", build), 1), "simulated")
        for build in (partial(clipping(average=average), 1) for average in (True, False))
    )

    names = raw_gradients(clipped)

    assert len(names) == 2
    assert all(name.startswith("gradients") for name in names)
    assert raw_gradients(unclipped) == []


def test_slices_have_no_raw_gradients_to_average() -> None:
    """Two towers look up different rows."""

    def build(num_gpus: int) -> dict[str, Any]:
        table = tf1.get_variable("table", [8, 2], tf.float32, tf1.ones_initializer())
        ids = tf1.placeholder(tf.int32, [None], name="ids")
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids)))
        optimizer = GradientDescentOptimizer(0.1)
        train_op = optimizer.apply_gradients(_clip(optimizer.compute_gradients(loss, [table])))
        return {"train_op": train_op, "loss": loss, "inputs": {"ids": ids}}

    program = make_runnable(load(Program("single", build), 1), "simulated")

    assert clipped_gradients(program).keys() == {"table"}
    assert raw_gradients(program) == []
