"""A builder may build into a graph that it creates itself."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks import Program, Step, place
from placement_checks.capture.in_process.builder import build
from placement_checks.capture.programs import load
from placement_checks.core.errors import InputError

tf1 = tf.compat.v1


def model(name: str) -> tuple[Any, Any, Any]:
    x = tf1.placeholder(tf.float32, [None, 4], name=f"x_{name}")
    w = tf1.get_variable(f"w_{name}", [4, 1])
    loss = tf.reduce_mean(tf.tanh(x @ w), name=f"loss_{name}")
    train = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, name=f"train_{name}")
    return x, loss, train


def in_graph(name: str) -> tuple[Any, Any, Any]:
    with tf.Graph().as_default():
        return model(name)


def variables(builder: Callable[..., Any]) -> list[str]:
    evidence = place(Program("train.py:build", builder))
    return [variable.name for variable in evidence.placement.variables]


def returned_step() -> Step:
    x, loss, train = in_graph("own")
    return Step(train, loss, {"x": x})


def returned_mapping() -> dict[str, Any]:
    x, loss, train = in_graph("own")
    return {"train_op": train, "loss": [loss], "inputs": [{"x": x}]}


def returned_graph() -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        model("own")
    return graph


def left_behind() -> None:
    in_graph("scratch")
    in_graph("own")
    tf.Graph()


def with_an_open_session() -> Any:
    graph = tf.Graph()
    tf1.InteractiveSession(graph=graph)
    return model("own")


def in_a_second_graph() -> Any:
    tf.constant(1.0, name="other")
    return in_graph("own")


@pytest.mark.parametrize(
    "builder",
    [
        lambda: in_graph("own"),
        lambda: in_graph("own")[2],
        returned_step,
        returned_mapping,
        returned_graph,
        left_behind,
        with_an_open_session,
        in_a_second_graph,
    ],
)
def test_the_graph_of_a_builder(builder: Callable[..., Any]) -> None:
    step = load(Program("train.py:build", builder), 1).requested.step

    assert variables(builder) == ["w_own", "w_own/Momentum"]
    assert step.objectives == ["loss_own:0"]
    assert step.backward


def in_both_returning_the_default() -> Any:
    in_graph("other")
    return model("default")


def in_both_returning_nothing() -> None:
    in_graph("other")
    model("default")


def in_both_returning_some_of_both() -> Any:
    return {"train_op": model("default")[2], "else": in_graph("other")}


@pytest.mark.parametrize(
    "builder",
    [in_both_returning_the_default, in_both_returning_nothing, in_both_returning_some_of_both],
)
def test_the_default_graph_has_precedence(builder: Callable[..., Any]) -> None:
    built = build(Program("train.py:build", builder), 1)

    assert variables(builder) == ["w_default", "w_default/Momentum"]
    assert built.requested.step.objectives == ["loss_default:0"]
    assert [applied.variable for applied in built.applied] == ["w_default"]


def test_the_body_of_a_function_is_not_selected() -> None:
    def builder() -> None:
        tf.function(lambda: tf.constant(1.0)).get_concrete_function()

    with pytest.raises(InputError, match="the builder built no graph"):
        place(Program("train.py:build", builder))


def test_the_graph_outlives_the_builder() -> None:
    program = load(Program("train.py:build", left_behind), 1)
    gc.collect()

    with tf1.Session(graph=program.source.live) as session:
        session.run(list(program.initial.initializers.values()))
        loss = session.run("loss_own:0", {"x_own:0": np.zeros([2, 4])})
    assert loss == 0


def test_graphs_are_recorded_only_while_a_builder_runs() -> None:
    before = tf.Graph.__init__
    build(Program("train.py:build", left_behind), 1)
    assert tf.Graph.__init__ is before
