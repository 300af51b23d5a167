"""Gradients are recorded while programs build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks import Program, place
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.capture.child_process.runner import without_live_objects
from placement_checks.capture.in_process.builder import build as build_in_process
from placement_checks.core.placement import StepOps
from placement_checks.rules.registry import RULES

tf1 = tf.compat.v1


def trained(take: Callable[..., Any]) -> StepOps:
    """A builder of one linear layer with gradients from `take(loss, w)`."""

    def build() -> None:
        with tf.device("/gpu:0"):
            x = tf1.placeholder(tf.float32, [None, 4], name="x")
            w = tf1.get_variable("w", [4, 1])
            loss = tf.reduce_mean(tf.tanh(x @ w), name="loss")
            take(loss, w)

    return place(Program("train.py:build", build), gpus=1).placement.step


def by_tape(_loss: Any, w: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w, name="squares")
    tape.gradient(loss, w)


def test_objectives_and_backward_ops_of_calls_are_recorded() -> None:
    for take in (
        lambda loss, w: tf1.gradients(loss, w),
        lambda loss, w: tf1.gradients([loss], [w]),
        lambda loss, w: tf1.train.AdamOptimizer().compute_gradients(loss, [w]),
    ):
        training = trained(take)

        assert training.objectives == ["loss:0"]
        assert training.backward is not None
        assert "gradients/Tanh_grad/TanhGrad" in training.backward
        assert {"x", "w", "Tanh", "loss"}.isdisjoint(training.backward)


def test_gradients_of_a_tape_are_recorded() -> None:
    training = trained(by_tape)

    assert training.objectives == ["squares:0"]
    assert training.backward
    assert "squares" not in training.backward


def test_gradients_within_gradients_are_not_objectives() -> None:
    @tf.custom_gradient
    def recomputed(x: Any) -> tuple[Any, Callable[..., Any]]:
        y = tf.tanh(x)

        def grad(upstream: Any) -> list[Any]:
            slopes: list[Any] = tf1.gradients(y, x, grad_ys=upstream)
            return slopes

        return y, grad

    def build() -> None:
        x = tf1.get_variable("x", [3])
        tf1.gradients(tf.reduce_sum(recomputed(x), name="total"), x)

    assert place(Program("train.py:build", build), gpus=1).placement.step.objectives == ["total:0"]


def test_all_patches_are_removed() -> None:
    before = tf.GradientTape.gradient

    trained(by_tape)

    assert tf.GradientTape.gradient is before


def test_forward_ops_agree_with_tensorflow(fixtures: Path) -> None:
    placement = place(f"{fixtures}/programs/graph/mnist.py:build_towers").placement
    known = analyze(placement)
    names = known.flow.names

    forward = {names[one]: names[other] for one, (other, _) in known.backward.forward.items()}

    assert len(forward) > 300
    assert forward["tower_1/gradients/tower_1/Relu_grad/ReluGrad"] == "tower_1/Relu"
    for name, of in forward.items():
        assert f"{of}_grad/" in name
    assert {by for _, by in known.backward.forward.values()} == {"graph"}


def test_backward_ops_of_a_saved_graph_are_recognized_by_name(
    tmp_path: Path,
) -> None:
    with tf.Graph().as_default() as graph:
        losses = []
        w = tf1.get_variable("w", [4, 1])
        for i in range(2):
            with tf.device(f"/gpu:{i}"):
                x = tf1.placeholder(tf.float32, [None, 4])
                losses.append(tf.reduce_sum(tf.tanh(x @ w)))
        tf1.gradients(tf.add_n(losses), [w])
    tf.io.write_graph(graph, str(tmp_path), "graph.pb", as_text=False)

    verdict = RULES["gradients-colocated"]().judge(place(tmp_path / "graph.pb"))

    assert verdict.state == "broken"
    tanh = next(f for f in verdict.findings if f.object == "gradients/Tanh_1_grad/TanhGrad")
    assert tanh.message.startswith(
        "backward op gradients/Tanh_1_grad/TanhGrad is on /device:GPU:0, but its forward op "
        "Tanh_1 (found by name) is on /device:GPU:1"
    )


@pytest.mark.parametrize("read", ["live", "recorded", "file"])
def test_forward_ops_in_a_loop_are_in_the_same_body(read: str, tmp_path: Path) -> None:
    def build() -> None:
        w = tf1.get_variable("w", [4, 4])
        value = tf.identity(w)
        for _ in range(2):
            tf.while_loop(
                lambda total: tf.reduce_sum(total) < 1.0,
                lambda total: (
                    total + tf1.gradients(tf.reduce_sum(tf.tanh(total @ value)), value)[0]
                ),
                [value],
            )
        tf.tanh(value)

    program = build_in_process(Program("build", build), 1, lambda _: None)
    if read == "recorded":
        program = without_live_objects(program)
    placement = program.requested
    if read == "file":
        tf.io.write_graph(program.graph_def, str(tmp_path), "graph.pb", as_text=False)
        placement = place(tmp_path / "graph.pb").placement

    analysis = analyze(placement)
    names = analysis.flow.names
    pairs = [
        (placement.ops[names[op]], placement.ops[names[forward]])
        for op, (forward, _) in analysis.backward.forward.items()
    ]
    assert {forward.caller for _, forward in pairs} == {"while", "while_1"}
    assert all(backward.caller == forward.caller for backward, forward in pairs)
    slopes = [forward.type for backward, forward in pairs if backward.type == "TanhGrad"]
    assert slopes == ["Tanh", "Tanh"]


def test_a_tape_within_gradients_is_not_an_objective() -> None:
    """As in tf.recompute_grad."""

    @tf.custom_gradient
    def recomputed(x: Any) -> tuple[Any, Callable[..., Any]]:
        def grad(upstream: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                again = tf.tanh(x)
            return tape.gradient(again, x, output_gradients=upstream)

        return tf.tanh(x), grad

    def build() -> None:
        x = tf1.get_variable("x", [3])
        tf1.gradients(tf.reduce_sum(recomputed(x), name="total"), x)

    assert place(Program("train.py:build", build), gpus=1).placement.step.objectives == ["total:0"]


@pytest.mark.parametrize("use_resource", [True, False])
def test_gradients_are_recorded_by_variable(use_resource: bool) -> None:
    """For a sparse gradient, the op of its values is recorded; a missing gradient is not."""

    def build() -> None:
        table = tf1.get_variable("table", [8, 4], use_resource=use_resource)
        w = tf1.get_variable("w", [4, 1], use_resource=use_resource)
        tf1.get_variable("beside", [], use_resource=use_resource)
        rows = tf1.nn.embedding_lookup(table, tf1.placeholder(tf.int32, [None]))
        loss = tf.reduce_mean(tf.tanh(rows @ w))
        pairs = tf1.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        known.update(
            {
                variable.op.name: getattr(gradient, "values", gradient)
                for gradient, variable in pairs
            }
        )

    known: dict[str, Any] = {}
    step = place(Program("train.py:build", build), gpus=1).placement.step

    assert step.gradients_by_variable == {name: [known[name].op.name] for name in ("table", "w")}
    (call,) = step.gradient_calls
    assert call.sources == ["table", "w", "beside"]


def test_gradients_by_variable_of_a_tape() -> None:
    assert list(trained(by_tape).gradients_by_variable) == ["w"]


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_call_is_recorded_whole(use_resource: bool) -> None:
    def build() -> None:
        table, w, unused = (
            tf1.get_variable(name, shape, use_resource=use_resource)
            for name, shape in (("table", [8, 4]), ("w", [4, 1]), ("unused", []))
        )
        rows = tf1.nn.embedding_lookup(table, tf1.placeholder(tf.int32, [None]))
        first, second = tf.split(rows, 2, axis=1, name="halves")
        one = tf.reduce_sum(tf.tanh(rows @ w), name="one")
        other = tf.reduce_sum(first * second, axis=1, name="other")
        fixed = tf.identity(rows, name="fixed")
        last = tf.reduce_sum(fixed, name="last")
        weights = tf.unstack(tf1.placeholder(tf.float32, [2, None]), name="weights")
        slopes = tf1.gradients(
            [one, other, last],
            [table, w, unused, second],
            [None, weights[1], None],
            stop_gradients=[fixed, w],
        )
        known.extend(
            [[table.values.name, table.indices.name], [w.name], [], [second.name]]
            for table, w, _, second in [slopes]
        )

    known: list[Any] = []
    step = place(Program("train.py:build", build), gpus=1).placement.step

    (call,) = step.gradient_calls
    assert call.objectives == ["one:0", "other:0", "last:0"]
    assert call.weights == ["", "weights:1", ""]
    assert call.sources == ["table", "w", "unused", "halves:1"]
    assert list(map(list, call.gradients)) == known[0]
    assert call.stopped == ["fixed:0", "w"]
    assert call.ops == step.backward
    assert step.gradients_by_variable.keys() == {"table", "w", "halves"}


@pytest.mark.parametrize("given", [3.0, [3.0], np.float32(3), tf.Variable])
def test_weights_of_a_tape_that_are_no_tensors(given: Any) -> None:
    def take(_loss: Any, w: Any) -> None:
        weight = tf1.get_variable("weight", []) if given is tf.Variable else given
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w, name="squares")
        tape.gradient(loss, w, output_gradients=weight)

    (call,) = trained(take).gradient_calls

    (weight,) = call.weights
    assert weight.removesuffix(":0") in call.ops


def test_calls_are_recorded_in_order_with_their_own_ops() -> None:
    def take(loss: Any, w: Any) -> None:
        tf1.gradients(loss, w)
        tf.identity(loss, name="between")
        by_tape(loss, w)

    step = trained(take)

    first, second = step.gradient_calls
    assert [first.objectives, second.objectives] == [["loss:0"], ["squares:0"]]
    assert not set(first.ops) & set(second.ops)
    assert set(first.ops) | set(second.ops) == step.backward
    assert "between" not in set(step.backward or ())
    for call in (first, second):
        assert call.sources == ["w"]
        ((gradient,),) = call.gradients
        assert gradient.removesuffix(":0") in call.ops
