"""A session run trains if and only if it updates a trainable variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.graph.gradients import GradientNotes, record_gradients
from placement_checks.graph.train_step import RunAnalyzer, RunEffect, trainable_variables

tf1 = tf.compat.v1

NAME = "w"


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def run_of(
    graph: tf.Graph, make: Callable[[Any, Any], Any], *, resource: bool = True
) -> RunEffect:
    """A run of the op that ``make`` creates, given a trainable variable and a loss."""
    with record_gradients() as notes:
        variable = tf1.get_variable(NAME, [3], use_resource=resource)
        loss = tf.reduce_sum(variable * [1.0, 2.0, 3.0])
        made = make(variable, loss)
    op = getattr(made, "op", made)
    return RunAnalyzer(graph, notes.get(graph, GradientNotes())).run_of([op])


def by_hand(variable: Any, loss: Any) -> Any:
    return variable.assign(variable * 0.9 - 0.1 * tf1.gradients(loss, variable)[0])


def in_a_branch(variable: Any, loss: Any) -> Any:
    step = tf1.train.GradientDescentOptimizer(0.1).compute_gradients(loss, [variable])
    return tf1.cond(
        loss < 1,
        lambda: tf.group(variable.assign_sub(step[0][0])),
        lambda: tf.group(variable.assign_add(step[0][0])),
    )


def in_one_of_several(variable: Any, loss: Any) -> Any:
    gradient = tf1.gradients(loss, variable)[0]
    return tf.switch_case(
        tf.cast(loss, tf.int32),
        [
            lambda: tf.group(variable.assign_sub(gradient)),
            lambda: tf.group(variable.assign_add(gradient)),
        ],
    )


def behind_a_handle_that_is_passed_on(variable: Any, loss: Any) -> Any:
    @tf.function
    def subtract(gradient: Any) -> Any:
        handle = tf.identity(tf.identity(variable.handle))
        tf.raw_ops.AssignSubVariableOp(resource=handle, value=gradient)
        return gradient

    return tf.group(subtract(tf1.gradients(loss, variable)[0]))


TRAINS: dict[str, Callable[[Any, Any], Any]] = {
    "optimizer": lambda _, loss: tf1.train.AdamOptimizer(0.1).minimize(loss),
    "behind a control edge": lambda _, loss: tf.group(
        tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    ),
    "by hand": by_hand,
    "subtracted by hand": lambda v, loss: tf1.assign_sub(v, tf1.gradients(loss, v)[0]),
    "rows added": lambda v, loss: tf1.scatter_add(v, [0], tf1.gradients(loss, v)[0][:1]),
    "in a branch": in_a_branch,
    "in one of several branches": in_one_of_several,
    "behind a handle that is passed on": behind_a_handle_that_is_passed_on,
}


@pytest.mark.parametrize("make", TRAINS.values(), ids=list(TRAINS))
def test_updates_by_gradients_train(graph: tf.Graph, make: Callable[[Any, Any], Any]) -> None:
    run = run_of(graph, make)

    assert run.updates
    assert run.changes


@pytest.mark.parametrize("name", ["optimizer", "by hand", "subtracted by hand", "rows added"])
def test_updates_of_ref_variables_train(graph: tf.Graph, name: str) -> None:
    assert run_of(graph, TRAINS[name], resource=False).updates


def averaged(variable: Any, _: Any) -> Any:
    return tf.train.ExponentialMovingAverage(0.9).apply([variable])


def of_another_network(variable: Any, loss: Any) -> Any:
    tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    copy = tf1.get_variable("copy", [3], trainable=True, use_resource=True)
    return copy.assign(0.9 * copy + 0.1 * variable)


DOES_NOT: dict[str, Callable[[Any, Any], Any]] = {
    "initializer": lambda *_: tf1.global_variables_initializer(),
    "initializer without gradients": lambda v, loss: (
        tf1.gradients(loss, v),
        tf1.global_variables_initializer(),
    )[1],
    "pretrained": lambda v, _: v.assign([1.0, 2.0, 3.0]),
    "pretrained rows": lambda v, _: tf1.scatter_update(v, [0], [1.0]),
    "restored": lambda *_: tf1.train.Saver().saver_def.restore_op_name,
    "moving average": averaged,
    "another network": of_another_network,
    "no trainable": lambda *_: tf1.assign_add(
        tf1.get_variable("n", [], trainable=False, use_resource=True), 1.0
    ),
}


@pytest.mark.parametrize("make", DOES_NOT.values(), ids=list(DOES_NOT))
def test_other_updates_do_not_train(graph: tf.Graph, make: Callable[[Any, Any], Any]) -> None:
    def op(variable: Any, loss: Any) -> Any:
        made = make(variable, loss)
        return graph.get_operation_by_name(made) if isinstance(made, str) else made

    run = run_of(graph, op)

    assert not run.updates
    assert run.changes


def test_a_loss_is_only_read(graph: tf.Graph) -> None:
    assert run_of(graph, lambda _, loss: loss) == RunEffect(frozenset(), changes=False, reads=True)


def test_a_run_without_the_model_does_not_read_it(graph: tf.Graph) -> None:
    assert run_of(graph, lambda *_: tf.constant(1.0)) == RunEffect(
        frozenset(), changes=False, reads=False
    )


def test_a_run_is_analyzed_once(graph: tf.Graph) -> None:
    op = tf.identity(tf1.get_variable(NAME, [3])).op
    runs = RunAnalyzer(graph, GradientNotes())

    assert runs.run_of([op]) is runs.run_of([op])


def test_an_optimizer_of_other_variables_is_ignored(graph: tf.Graph) -> None:
    w = tf1.get_variable(NAME, [3], trainable=False, use_resource=True)
    tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w), var_list=[w])

    assert not RunAnalyzer(graph, GradientNotes()).optimizer_ops()


def test_every_copy_of_a_variable_is_trainable(graph: tf.Graph) -> None:
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        tf1.get_variable(NAME, [3], use_resource=True)

    assert trainable_variables(graph) == {NAME, f"{NAME}/replica_1"}


def test_a_grown_graph_is_analyzed_again(graph: tf.Graph) -> None:
    w = tf1.get_variable(NAME, [3], use_resource=True)
    read = tf.identity(w)
    runs = RunAnalyzer(graph, GradientNotes())
    assert runs.run_of([read.op]).reads
    assert not runs.optimizer_ops()

    train = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(read))

    assert {op.type for op in runs.optimizer_ops()} == {"ResourceApplyGradientDescent"}
    assert runs.run_of([train]).updates == runs.optimizer_ops()
