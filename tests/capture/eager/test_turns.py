"""The selection of alternating steps, and the remarks on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf

from placement_checks import place, watch

RATE = 0.1


def variables(names: str) -> Sequence[tf.Variable]:
    with tf.device("/cpu:0"):
        return [tf.Variable(tf.ones([3]), name=name) for name in names]


def descend(tape: tf.GradientTape, loss: tf.Tensor, trained: Sequence[tf.Variable]) -> tf.Tensor:
    for variable, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
        variable.assign_sub(RATE * gradient)
    return loss


def adversaries() -> None:
    a, b = variables("ab")

    @tf.function
    def train_a(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * b * x)
        return descend(tape, loss, [a])

    @tf.function
    def train_b(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(a * b * x)
        return descend(tape, loss, [b])

    for _ in range(3):
        train_a(tf.ones([2, 3]))
        train_b(tf.ones([2, 3]))


def short_batch() -> None:
    (a,) = variables("a")

    @tf.function
    def train(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * x)
        return descend(tape, loss, [a])

    for rows in (4, 2):
        train(tf.ones([rows, 3]))


def two_ways() -> None:
    (a,) = variables("a")

    @tf.function
    def warm_up(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * x)
        return descend(tape, loss, [a])

    @tf.function
    def train(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * a * x)
        return descend(tape, loss, [a])

    warm_up(tf.ones([3]))
    train(tf.ones([3]))


LINE = r"tests/capture/eager/test_turns.py:\d+"


@pytest.mark.parametrize(
    ("program", "updated", "turns", "notes"),
    [
        (
            adversaries,
            {"a", "b"},
            2,
            [f"run until 2 alternating training steps: train_a, at {LINE} and train_b, at {LINE}"],
        ),
        (
            short_batch,
            {"a"},
            1,
            [
                f"run until its first training step, train, at {LINE}",
                "train is traced again for other arguments: not checked by the rules",
            ],
        ),
        (
            two_ways,
            {"a"},
            1,
            [
                f"run until its first training step, warm_up, at {LINE}",
                "train trains the same variables: not checked by the rules",
            ],
        ),
    ],
)
def test_the_selected_steps(
    program: Callable[[], None],
    updated: set[str],
    turns: int,
    notes: Sequence[str],
) -> None:
    with watch(2, eager=True) as code:
        program()
    placement = place(code).placement

    assert code.built is not None
    assert code.built.step_count == turns
    updates = [op for op in placement.ops.values() if op.type == "AssignSubVariableOp"]
    assert {op.inputs[0] for op in updates} == updated
    assert len(code.built.notes) == len(notes)
    for note, expected in zip(code.built.notes, notes, strict=True):
        assert re.fullmatch(expected, note)


def test_shared_variables_of_steps_are_one() -> None:
    with watch(2, eager=True) as code:
        adversaries()
    placement = place(code).placement

    names = {op.name for op in placement.ops.values() if op.type == "ReadVariableOp"}
    assert {variable.name for variable in placement.variables} == {"a", "b"}
    assert {name.partition("/")[0] for name in names} == {"train_a", "train_b"}
    assert placement.step.train_op == ("train_step",)
