"""The copies of a strategy's variables are compared with the reference like variables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tensorflow as tf
from support import pairs

from placement_checks.core.measurement import Measurement
from placement_checks.numerics.training_divergence import (
    compare_variables,
    variables_with_stale_copies,
)

tf1 = tf.compat.v1


def towers(
    num_gpus: int = 2,
    *,
    counted: Callable[[Any], Any] = lambda count: count.assign_add(1.0),
    reading: tf.VariableSynchronization = tf.VariableSynchronization.AUTO,
    optimizer: Callable[[], Any] = lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    scale: float = 1.0,
) -> dict[str, Any]:
    """Towers of a strategy, with a counter that increments in every copy."""
    adding = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy([f"/gpu:{i}" for i in range(num_gpus)], adding)

    def replica() -> tuple[Any, Any, Any]:
        x, y = tf1.placeholder(tf.float32, [None, 4]), tf1.placeholder(tf.float32, [None, 1])
        loss = scale * pairs.squared_error(x, y) / num_gpus
        return optimizer().minimize(loss), x, y

    with strategy.scope():
        count = tf1.get_variable(
            "count",
            initializer=1.0,
            trainable=False,
            synchronization=reading,
            aggregation=tf.VariableAggregation.MEAN,
        )
        train_op, *made = strategy.run(replica)
        counting = strategy.extended.update(count, counted)
    xs, ys = map(strategy.experimental_local_results, made)
    inputs = [{"x": x, "y": y} for x, y in zip(xs, ys, strict=True)]
    return {"train_op": [train_op, counting], "inputs": inputs if num_gpus > 1 else inputs[0]}


def single() -> dict[str, Any]:
    return towers(1)


def apart(measured: Measurement) -> list[str]:
    assert measured.trajectory
    found = compare_variables(measured, measured.trajectory, scale=measured.scale)[1]
    return [divergence.difference.variable for divergence in found]


def twice_on_the_last(count: Any) -> Any:
    return count.assign_add(2.0 if "replica_1" in count.name else 1.0)


@pytest.mark.parametrize("gpus", [2, 3])
def test_every_copy_is_compared(gpus: int) -> None:
    measured = pairs.measured(towers, single, gpus=gpus)

    names = [f"{name}{slot}" for name in ("w", "b") for slot in ("", "/Momentum")] + ["count"]
    copies = {f"{name}/replica_{i}" for name in names for i in range(1, gpus)}
    assert measured.trajectory
    assert {same.variable for same in compare_variables(measured, measured.trajectory)[0]} == {
        *names,
        *copies,
    }
    assert not apart(measured)
    assert not measured.saved


def test_a_copy_with_another_update_differs() -> None:
    measured = pairs.measured(partial(towers, counted=twice_on_the_last), single)

    assert apart(measured) == ["count/replica_1"]
    assert measured.saved


def test_copies_that_are_combined_when_read_may_differ() -> None:
    on_read = partial(
        towers, counted=twice_on_the_last, reading=tf.VariableSynchronization.ON_READ
    )

    assert not apart(pairs.measured(on_read, single))


def test_after_the_last_step_copies_equal_the_reference() -> None:
    """Otherwise a factor on all gradients, which the optimizer hides, would show in the copies."""
    adam = partial(towers, optimizer=lambda: tf1.train.AdamOptimizer(0.1, epsilon=1e-5))

    measured = pairs.measured(partial(adam, scale=1.5), partial(adam, 1), scale=1.5)

    assert not apart(measured)
    assert not variables_with_stale_copies(measured)
