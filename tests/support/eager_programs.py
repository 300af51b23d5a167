"""Short programs with a `tf.function` as training step, and their captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from placement_checks import watch
from placement_checks.core.program import CapturedProgram

ROWS, WIDTH = 8, 3


def rows(number: int = ROWS) -> Any:
    return tf.reshape(tf.range(number * WIDTH, dtype=tf.float32), [number, WIDTH])


def weights(name: str = "w") -> Any:
    return tf.Variable(tf.ones([WIDTH, 1]), name=name)


def loss_of(w: Any, x: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.matmul(x, w)))


def updates(w: Any, x: Any) -> Any:
    """The loss of a plain step."""
    with tf.GradientTape() as tape:
        loss = loss_of(w, x)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


def watched(program: Callable[[], object], gpus: int = 2) -> CapturedProgram:
    """The captured program, up to its first step."""
    with watch(gpus, name="program", eager=True) as code:
        program()
    assert code.built is not None
    return code.built


def types(built: CapturedProgram) -> set[str]:
    return {op.type for op in built.requested.ops.values()}


def devices(built: CapturedProgram, names: Sequence[str]) -> list[str]:
    return [str(built.requested.ops[name].requested) for name in names]
