"""Small towers and their reference, for tests that run programs.

Arguments replace parts of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from placement_checks import Program
from placement_checks.capture.programs import load
from placement_checks.core.devices import Devices
from placement_checks.core.measurement import Measurement
from placement_checks.run.compare.measure import measure
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.sessions import Conditions

tf1 = tf.compat.v1

Loss = Callable[[Any, Any], Any]


def batch(rng: np.random.Generator, n: int) -> Mapping[str, Any]:
    """Arrays x (n, 4) and y (n, 1), float32."""
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return {"x": x, "y": 1 + x[:, :1] ** 2}


def predicted(x: Any, names: tuple[str, str] = ("w", "b"), width: int = 1) -> Any:
    normal, zeros = tf1.random_normal_initializer(), tf1.zeros_initializer()
    w = tf1.get_variable(names[0], [x.shape[-1], width], x.dtype, normal)
    return tf.matmul(x, w) + tf1.get_variable(names[1], [width], x.dtype, zeros)


def squared_error(x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.math.squared_difference(predicted(x), y))


def towers(
    num_gpus: int = 2,
    *,
    loss: Loss = squared_error,
    optimizer: Callable[[], Any] = lambda: tf1.train.GradientDescentOptimizer(0.1),
    rows: int | None = None,
    device: Callable[[int], str] = "/gpu:{}".format,
    dtype: Any = tf.float32,
) -> dict[str, Any]:
    """Correct towers with variables on the host. With one tower, they are the reference."""
    with tf.device("/cpu:0"):
        made = optimizer()
    losses, inputs, tower_grads = [], [], []
    for i in range(num_gpus):
        with (
            tf.device(device(i)),
            tf1.device(_variables_on_host),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE),
        ):
            x, y = tf1.placeholder(dtype, [rows, 4]), tf1.placeholder(dtype, [rows, 1])
            losses.append(loss(x, y))
            tower_grads.append(made.compute_gradients(losses[-1]))
        inputs.append({"x": x, "y": y})
    with tf.device("/cpu:0"):
        mean = [
            (tf.add_n([gradient for gradient, _ in pairs]) / num_gpus, pairs[0][1])
            for pairs in zip(*tower_grads, strict=True)
        ]
        train_op = made.apply_gradients(mean)
    return {"train_op": train_op, "loss": losses, "inputs": inputs if num_gpus > 1 else inputs[0]}


def single() -> dict[str, Any]:
    return towers(1)


def _variables_on_host(op: Any) -> str:
    return "/cpu:0" if op.type in ("VarHandleOp", "VariableV2") else op.device


def measured(
    towers: Any,
    single: Any,
    batch: Any = batch,
    gpus: int = 2,
    devices: Devices = "auto",
    **conditions: Any,
) -> Measurement:
    """The measurement of two builders."""
    return measure(pair(towers, single, gpus, devices), batch, Conditions(**conditions))


def pair(towers: Any, single: Any, gpus: int = 2, devices: Devices = "auto") -> ProgramPair:
    """Two builders as runnable programs."""
    return ProgramPair.from_programs(
        load(Program("towers", towers), gpus), load(Program("single", single), 1), devices
    )
