"""Variables with a part for each row have another shape in a program with several towers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import pairs

from placement_checks.core.errors import CannotRun
from placement_checks.numerics.comparing import differing_variables

tf1 = tf.compat.v1
ROWS = 8


def towers(
    num_gpus: int = 2, *, start: float | None = 0.0, reads: bool = True, scale: float = 1.0
) -> dict[str, Any]:
    """Each tower adds the hidden values of its rows in the last step; `start` None is random."""
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    rows = ROWS // num_gpus
    inputs, gradients, states = [], [], []
    for i in range(num_gpus):
        with (
            tf.device(f"/gpu:{i}"),
            tf1.device(lambda op: "/cpu:0" if op.type == "VarHandleOp" else op.device),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE),
        ):
            x, y = (tf1.placeholder(tf.float32, [rows, size]) for size in (4, 1))
            rng = np.random.default_rng(i)
            first = rng.normal(size=(rows, 3)) if start is None else np.full((rows, 3), start)
            name = f"state_{i}" if i else "state"
            state = tf1.get_variable(name, initializer=first.astype("float32"), trainable=False)
            hidden = pairs.predicted(x, ("v", "c"), 3) + (state if reads else 0.0)
            loss = scale * tf.reduce_mean((pairs.predicted(tf.tanh(hidden)) - y) ** 2)
            weights = tf1.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)
            gradients.append(optimizer.compute_gradients(loss, weights))
            states.append((state, hidden))
        inputs.append({"x": x, "y": y})
    with tf.device("/cpu:0"):
        mean = [
            (tf.add_n([gradient for gradient, _ in of_one]) / num_gpus, of_one[0][1])
            for of_one in zip(*gradients, strict=True)
        ]
        applied = optimizer.apply_gradients(mean)
    with tf.control_dependencies([applied]):
        train_op = tf.group(*(state.assign(hidden) for state, hidden in states))
    return {"train_op": train_op, "inputs": inputs if num_gpus > 1 else inputs[0]}


def measured(**options: Any) -> Any:
    same = {name: value for name, value in options.items() if name != "scale"}
    return pairs.measured(partial(towers, **options), partial(towers, 1, **same))


@pytest.mark.parametrize(
    "options", [{"start": 0.0}, {"start": 0.5}, {"start": None, "reads": False}]
)
def test_towers_may_start_with_their_own_state(options: dict[str, Any]) -> None:
    """Equal elements are the same state for any rows, and an unread state does not matter."""
    found = measured(**options)

    assert not differing_variables(found.trials[0], found.precisions)
    assert found.trajectory
    assert "state" not in found.trajectory.steps[0]
    assert set(found.trajectory.steps[0]) == {"w", "b", "v", "c"}


def test_a_mistake_is_found_with_a_state() -> None:
    found = measured(scale=2.0)

    assert differing_variables(found.trials[0], found.precisions) == {"w", "b", "v", "c"}


def test_other_states_are_a_reason() -> None:
    with pytest.raises(CannotRun) as error:
        measured(start=None)

    reason = str(error.value)
    assert reason.startswith(
        "the step reads state, which has the shape [4, 3] in towers and [8, 3] in the reference, "
        "built at "
    )
    assert reason.endswith(
        "; so both programs cannot start with the same values; let its initial values be equal, "
        "such as zeros, or give it one shape"
    )
