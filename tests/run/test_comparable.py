"""Variables that depend on a race are not compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tensorflow as tf
from support import pairs, watched

from placement_checks import Verdict
from placement_checks.core.evidence import Evidence
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.run.compare.measure import measure
from placement_checks.run.compare.sessions import Conditions

tf1 = tf.compat.v1

LEFT_OUT = (
    "equal after 3 steps; 2 variables are not compared: the step may read w for "
    "w/ExponentialMovingAverage before or after w is updated; read it under "
    "tf.control_dependencies([train_op])"
)


def averaged(
    num_gpus: int = 2, *, ordered: bool, times: int = 1, rate: float = 0.1
) -> dict[str, Any]:
    """Towers with averages of their variables, in a given order with their update."""
    made = pairs.towers(num_gpus, optimizer=lambda: tf1.train.GradientDescentOptimizer(rate))
    averages = tf1.train.ExponentialMovingAverage(0.5)
    update = made["train_op"]
    with tf.device("/cpu:0"):
        for _ in range(times):
            with tf.control_dependencies([update] if ordered else []):
                update = tf.group(update, averages.apply(tf1.trainable_variables()))
    return {**made, "train_op": update}


grouped, ordered = partial(averaged, ordered=False), partial(averaged, ordered=True)


def judged(towers: Callable[..., Any], single: Callable[..., Any]) -> Verdict:
    """Returns the verdict on the weights of two builders."""
    pair = pairs.pair(towers, single)
    measured = measure(pair, pairs.batch, Conditions())
    evidence = Evidence(pair.towers.placement, program=pair.towers.built, measurement=measured)
    return WeightsEqual().judge(evidence)


@pytest.mark.parametrize(
    ("towers", "single"), [(grouped, grouped), (grouped, ordered), (ordered, grouped)]
)
def test_averages_grouped_with_the_update_are_left_out(
    towers: Callable[..., Any], single: Callable[..., Any]
) -> None:
    verdict = judged(towers, partial(single, 1))

    assert (verdict.state, verdict.note) == ("kept", f"2 variables {LEFT_OUT}")


def test_averages_of_captured_programs_are_left_out() -> None:
    def towers(num_gpus: int = 2) -> dict[str, Any]:
        return grouped(num_gpus)

    evidence = watched.judged(
        watched.watched(towers, pairs.batch, 16, 2), watched.watched(towers, pairs.batch, 16, 1)
    )

    verdict = WeightsEqual().judge(evidence)

    assert (verdict.state, verdict.note) == ("kept", f"2 variables {LEFT_OUT}")


def test_averages_after_the_update_are_compared() -> None:
    single = partial(ordered, 1)

    assert judged(ordered, single).note == "4 variables equal after 3 steps"
    assert {finding.object for finding in judged(partial(ordered, times=2), single).findings} == {
        "w/ExponentialMovingAverage",
        "b/ExponentialMovingAverage",
    }


def test_variables_next_to_moving_averages_are_compared() -> None:
    """The variables are trained with twice the learning rate."""
    fast = partial(grouped, rate=0.2)

    assert {finding.object for finding in judged(fast, partial(grouped, 1)).findings} == {"w", "b"}
