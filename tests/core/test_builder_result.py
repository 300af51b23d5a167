from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.program import Step

tf1 = tf.compat.v1


class Model:
    """The ops and tensors that builders of a small model return."""

    def __init__(self) -> None:
        self.x = tf1.placeholder(tf.float32, [None, 2], name="x")
        self.rate = tf1.placeholder_with_default(0.1, [], name="rate")
        self.w = tf1.get_variable("w", [2, 1])
        self.v = tf1.get_variable("v", [], initializer=tf1.zeros_initializer())
        self.logits = tf.matmul(self.x, self.w, name="logits")
        self.losses = [tf.reduce_mean(self.logits, name=f"loss_{n}") for n in range(2)]
        self.loss = tf.add_n(self.losses, name="loss")
        self.correct = tf.reduce_sum(tf.cast(self.logits > 0, tf.int32), name="correct")
        optimizer = tf1.train.GradientDescentOptimizer(self.rate)
        self.train = optimizer.minimize(self.loss, name="train")
        self.second = optimizer.minimize(self.v, name="second")
        with tf.control_dependencies([self.train]):
            self.train_and_loss = tf.identity(self.loss, name="train_and_loss")
        with tf1.name_scope("moved"):
            self.moved = tf1.assign_sub(self.v, 0.5)
        with tf.control_dependencies([self.moved]):
            self.loss_with_statistics = tf.identity(self.loss, name="loss_with_statistics")
        self.init = tf1.global_variables_initializer()
        self.summary = tf1.summary.scalar("summary", self.loss)
        self.saver = tf1.train.Saver()
        self.no_update = tf.group(self.logits, name="no_update")


Pair = namedtuple("Pair", "train loss")

RETURNED: dict[str, tuple[Callable[[Model], Any], list[str], list[str]]] = {
    "train, loss": (lambda m: (m.train, m.loss), ["train"], ["loss"]),
    "loss, train": (lambda m: (m.loss, m.train), ["train"], ["loss"]),
    "a list": (lambda m: [m.train, m.loss], ["train"], ["loss"]),
    "a named tuple": (lambda m: Pair(m.train, m.loss), ["train"], ["loss"]),
    "two optimizers": (
        lambda m: ([m.train, m.second], m.loss),
        ["train", "second"],
        ["loss"],
    ),
    "one loss a tower": (lambda m: (m.train, m.losses), ["train"], ["loss_0", "loss_1"]),
    "more than asked for": (
        lambda m: (m.x, m.train, m.rate, m.logits, m.correct, m.v, m.loss, m.summary, m.saver, 3),
        ["train"],
        ["loss"],
    ),
    "an initializer": (lambda m: (m.init, m.train, m.loss), ["train"], ["loss"]),
    "an initializer alone": (lambda m: (m.init, m.loss), [], ["loss"]),
    "an assignment": (lambda m: (m.moved, m.loss), ["moved"], ["loss"]),
    "a tensor that trains": (
        lambda m: (m.train_and_loss, m.loss),
        ["train_and_loss"],
        ["loss"],
    ),
    "a loss that moves statistics": (
        lambda m: (m.train, m.loss_with_statistics),
        ["train"],
        ["loss_with_statistics"],
    ),
    "such a loss alone": (lambda m: (m.loss_with_statistics,), [], ["loss_with_statistics"]),
    "an op that updates nothing": (lambda m: (m.no_update, m.loss), ["no_update"], ["loss"]),
    "placeholders": (lambda m: (m.x, m.rate), [], []),
}


@pytest.mark.parametrize("which", RETURNED)
@pytest.mark.parametrize("resource", [False, True])
def test_the_step_and_the_losses_of_a_tuple(which: str, resource: bool) -> None:
    returned, train_ops, losses = RETURNED[which]
    with tf.Graph().as_default() as graph, tf1.variable_scope("", use_resource=resource):
        model = Model()
        built = graph.version
        step = Step.from_result(returned(model), "p")

    assert graph.version == built  # comparing tensors would add ops
    assert [_op_name(op) for op in step.train_op or ()] == train_ops
    assert [_op_name(loss) for loss in step.loss or ()] == losses


def _op_name(item: Any) -> str:
    return str(getattr(item, "op", item).name).partition("/")[0]


@pytest.mark.parametrize("returned", [(3, "x"), [None, {"loss": 1}], ([],)])
def test_a_tuple_without_ops_or_tensors_is_refused(returned: Any) -> None:
    with pytest.raises(InputError) as caught:
        Step.from_result(returned, "train.py:build")
    assert str(caught.value) == (
        f"train.py:build: the builder returned {returned!r}, which does not describe a step; "
        "return nothing, the train op, or a mapping such as {'train_op': …, 'loss': …}"
    )
