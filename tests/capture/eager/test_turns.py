"""The selection of alternating steps, and the remarks on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from placement_checks import place, watch
from placement_checks.util.walks import walk

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


def rare_generator(of_each: int, calls: int = 100) -> Callable[[], None]:
    """Calls the first step several times for each call of the second step."""

    def program() -> None:
        a, b = variables("ab")

        @tf.function
        def train_critic(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(a * b * x)
            return descend(tape, loss, [a])

        def generator_loss(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(a * b * x)
            return descend(tape, loss, [b])

        @tf.function
        def train_generator(x: tf.Tensor) -> tf.Tensor:
            return generator_loss(x)  # names a function that takes gradients

        for number in range(1, calls):
            train_critic(tf.ones([3]))
            if number % of_each == 0:
                train_generator(tf.ones([3]))

    return program


def models_by_batch(first: int, calls: int = 40) -> Callable[[], None]:
    """Two Keras models; the first one trains on several batches for each of the second one."""

    def program() -> None:
        models = []
        for name in ("critic", "generator"):
            layers = [tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1, use_bias=False)]
            models.append(tf.keras.Sequential(layers, name=name))
            models[-1].compile("sgd", "mse")
        batch = np.ones([2, 3], "float32"), np.ones([2, 1], "float32")
        for number in range(1, calls):
            models[0].train_on_batch(*batch)
            if number % first == 0:
                models[1].train_on_batch(*batch)

    return program


@pytest.mark.parametrize(
    ("first", "steps", "note"),
    [
        (3, 2, "run until 2 alternating training steps: the step of model.train_on_batch"),
        (39, 1, "the model generator was not called in the first 21 training steps"),
    ],
)
def test_models_that_train_on_batches(first: int, steps: int, note: str) -> None:
    with watch(2, eager=True) as code:
        models_by_batch(first)()

    assert code.built is not None
    assert code.built.step_count == steps
    assert any(each.startswith(note) for each in code.built.notes)


def accumulated() -> None:
    """One function adds up gradients, and another one applies them."""
    (a,) = variables("a")
    total = tf.Variable(tf.zeros([3]), trainable=False, name="total")
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(RATE)

    @tf.function
    def add_up(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * x)
        total.assign_add(tape.gradient(loss, a))

    @tf.function
    def apply() -> None:
        optimizer.apply_gradients([(total.read_value(), a)])
        total.assign(tf.zeros([3]))

    for number in range(1, 12):
        add_up(tf.ones([3]))
        if number % 4 == 0:
            apply()


def accumulated_by_hand() -> None:
    """The second function computes the update itself, without a call that shows it."""
    (a,) = variables("a")
    total = tf.Variable(tf.zeros([3]), trainable=False, name="total")

    @tf.function
    def add_up(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * x)
        total.assign_add(tape.gradient(loss, a))

    @tf.function
    def apply() -> None:
        a.assign_sub(RATE * total)
        total.assign(tf.zeros([3]))

    for number in range(1, 12):
        add_up(tf.ones([3]))
        if number % 4 == 0:
            apply()


def applied_eagerly() -> None:
    """No function applies the gradients that a function adds up."""
    (a,) = variables("a")
    total = tf.Variable(tf.zeros([3]), trainable=False, name="total")

    @tf.function
    def add_up(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * x)
        total.assign_add(tape.gradient(loss, a))

    for _ in range(4):
        add_up(tf.ones([3]))
    a.assign_sub(RATE * total)


def clipped() -> None:
    """A function that changes weights after each step applies no gradients."""
    (a,) = variables("a")
    count = tf.Variable(0.0, trainable=False, name="count")

    @tf.function
    def train(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * x)
        count.assign_add(1.0)
        return descend(tape, loss, [a])

    @tf.function
    def clip() -> None:
        a.assign(tf.clip_by_value(a, -count, count))

    for _ in range(3):
        train(tf.ones([3]))
        clip()


def evaluated() -> None:
    """A function that takes no gradients is called after training."""
    (a,) = variables("a")
    trained: list[int] = []

    @tf.function
    def train(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a * x)
        return descend(tape, loss, [a])

    @tf.function
    def evaluate(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(a * x)

    for number in range(5):
        trained.append(number)
        train(tf.ones([3]))
    evaluate(tf.ones([3]))
    assert len(trained) == 2


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
            rare_generator(5),
            {"a", "b"},
            2,
            [
                f"run until 2 alternating training steps: train_critic, at {LINE} and "
                f"train_generator, at {LINE}"
            ],
        ),
        (
            rare_generator(50),
            {"a"},
            1,
            [
                f"run until its first training step, train_critic, at {LINE}",
                rf"train_generator \({LINE}\) was not called in the first 21 training steps: not "
                "checked by the rules",
            ],
        ),
        (
            accumulated,
            {"a"},
            2,
            [f"run until 2 alternating training steps: add_up, at {LINE} and apply, at {LINE}"],
        ),
        (
            accumulated_by_hand,
            {"a"},
            2,
            [f"run until 2 alternating training steps: add_up, at {LINE} and apply, at {LINE}"],
        ),
        (
            applied_eagerly,
            set(),
            1,
            [
                f"run until its first training step, add_up, at {LINE}",
                "the gradients of add_up are applied by code that the rules do not check",
            ],
        ),
        (clipped, {"a"}, 1, [f"run until its first training step, train, at {LINE}"]),
        (evaluated, {"a"}, 1, [f"run until its first training step, train, at {LINE}"]),
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
    types = {"AssignSubVariableOp", "ResourceApplyGradientDescent"}
    updates = [op for op in placement.ops.values() if op.type in types]
    assert {op.inputs[0] for op in updates} == updated
    assert len(code.built.notes) == len(notes)
    for note, expected in zip(code.built.notes, notes, strict=True):
        assert re.fullmatch(expected, note)


@pytest.mark.parametrize("program", [accumulated, accumulated_by_hand])
def test_gradients_are_added_up_before_they_are_applied(program: Callable[[], None]) -> None:
    with watch(2, eager=True) as code:
        program()

    assert code.built is not None
    nodes = {node.name: node for node in code.built.graph_def.node}
    (reset,) = (name for name, node in nodes.items() if node.op == "AssignVariableOp")

    def inputs(name: str) -> list[str]:
        return [source.lstrip("^").partition(":")[0] for source in nodes[name].input]

    assert "AssignAddVariableOp" in {nodes[name].op for name in walk([reset], inputs)}


def test_shared_variables_of_steps_are_one() -> None:
    with watch(2, eager=True) as code:
        adversaries()
    placement = place(code).placement

    names = {op.name for op in placement.ops.values() if op.type == "ReadVariableOp"}
    assert {variable.name for variable in placement.variables} == {"a", "b"}
    assert {name.partition("/")[0] for name in names} == {"train_a", "train_b"}
    assert placement.step.train_op == ("train_step",)
