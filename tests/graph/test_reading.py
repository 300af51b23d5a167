"""Live graphs are read into a placement, and sent to the placer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError

from placement_checks import Machine, PlacementError, place
from placement_checks.core.missing import Missing
from placement_checks.placer.placing import prepare_graph_def

tf1 = tf.compat.v1


def test_ops_of_bodies_are_placed_one_by_one() -> None:
    @tf.function
    def inner(x: Any) -> Any:
        with tf.device("/gpu:0"):
            return tf.matmul(x, x, name="product")

    def build() -> None:
        with tf.device("/gpu:1"):
            x = tf1.placeholder(tf.float32, [4, 4], name="x")
            y = inner(x)
            tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(s)), [0, y])
            tf.switch_case(tf.constant(0), [lambda: tf.exp(y), lambda: tf.sin(y)], name="switch")

    placement = place(build).placement
    assigned = {op.name: op.assigned.short for op in placement.ops.values() if op.assigned}
    types = {op.type: assigned[op.name] for op in placement.ops.values() if "/" in op.name}

    assert types["MatMul"] == "/device:GPU:0"
    assert [types[kind] for kind in ("Tanh", "Exp", "Sin")] == ["/device:GPU:1"] * 3
    assert assigned.keys() == placement.ops.keys()
    body = next(op for op in placement.ops.values() if op.type == "MatMul")
    assert list(body.inputs) == ["x", "x"]


def test_large_constants_are_sent_only_if_shapes_depend_on_them() -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(np.ones([1000, 1000], np.float32), name="weights")
        sizes = np.full(500, 2, np.int32)
        tf.split(tf1.placeholder(tf.float32, [1000]), sizes, name="parts")
    graph_def = graph.as_graph_def()

    graph_def = prepare_graph_def(graph_def, Machine.local())

    assert graph_def.ByteSize() < 100_000
    placement = place(graph).placement
    assert placement.refusals == ()
    assert placement.ops["weights"].assigned is not None


def test_a_graph_without_a_job_is_placed_on_the_local_host_only() -> None:
    with tf.Graph().as_default() as graph, tf.device("/gpu:1"):
        tf1.placeholder(tf.float32, name="x")
    graph_def = graph.as_graph_def()

    graph_def = prepare_graph_def(graph_def, Machine.local())

    assert graph_def.node[0].device == "/job:localhost/replica:0/task:0/device:GPU:1"


def test_refused_strict_placement_becomes_soft() -> None:
    def build() -> None:
        with tf.device("/gpu:0"):
            words = tf1.placeholder(tf.string, [None], name="words")
            for number in range(5):
                tf.strings.lower(words, name=f"lower_{number}")
            tf.sqrt(tf1.placeholder(tf.float32), name="root")
        with tf.device("/gpu:5"):
            tf.sqrt(tf1.placeholder(tf.float32), name="nowhere")

    placement = place(build).placement

    assert {refusal.op for refusal in placement.refusals} >= {
        *(f"lower_{number}" for number in range(5)),
        "nowhere",
    }
    assert placement.ops["lower_0"].fallback_reason == "StringLower has no GPU kernel"
    assert placement.ops["nowhere"].fallback_reason == "the machine (gpu*2) has no /device:GPU:5"
    assert not placement.ops["root"].fallback_reason


def test_the_reason_for_a_fallback_in_a_body() -> None:
    def build() -> None:
        ids = tf1.placeholder(tf.int64, [None], name="ids")
        with tf.device("/gpu:0"):
            tf.cond(tf.size(ids) > 3, lambda: tf.pad(ids, [[0, 1]], name="padded"), lambda: ids)

    ops = place(build, soft=True).placement.ops
    [fallen] = [op for op in ops.values() if op.type == "Pad"]

    assert fallen.caller
    assert fallen.fallback_reason == "the GPU kernel of Pad does not take int64"
    assert not fallen.fell_with_another


def test_a_graph_refused_even_softly_is_reported_as_unplaced() -> None:
    def build() -> None:
        with tf.device("/job:localhost/replica:1/task:0"):
            tf1.placeholder(tf.float32, name="x")

    placement = place(build, machine=Machine.local(2), soft=True).placement

    assert [refusal.op for refusal in placement.refusals] == ["x"]
    assert placement.assigned == Missing("the placer refused the graph")


def test_tasks_that_the_machine_lacks_are_refused_without_the_placer() -> None:
    def build() -> None:
        for device in ("/job:ps/task:0", "/job:worker/task:2", "/job:worker/task:1"):
            with tf.device(device):
                tf1.placeholder(tf.float32, name="x")

    placement = place(build, machine=Machine.parse("worker*2"), soft=True).placement

    assert placement.refusals == [
        ("x", "it requests /job:ps, but the machine has only /job:worker"),
        ("x_1", "it requests /job:worker/task:2, but the job worker has tasks 0 and 1"),
    ]
    assert placement.assigned == Missing(
        "the machine (worker*2: cpu*1) lacks tasks that the program names"
    )


@pytest.mark.parametrize(
    ("config", "soft"),
    [
        (None, False),
        ({"allow_soft_placement": True}, True),
        (tf1.ConfigProto(allow_soft_placement=True), True),
        (tf1.ConfigProto(), False),
    ],
)
def test_the_session_configuration_decides_soft_placement(config: object, soft: bool) -> None:
    def build() -> dict[str, object]:
        return {"train_op": tf1.placeholder(tf.float32), "config": config}

    assert place(build).placement.soft == soft
    assert place(build, soft=not soft).placement.soft != soft


def test_repeated_keras_builds_have_equal_names() -> None:
    def build(num_gpus: int = 2) -> None:
        with tf.device("/gpu:0"):
            tf.keras.layers.Dense(1)(tf1.placeholder(tf.float32, [None, 2]))

    first, second = place(build), place(build)

    assert [variable.name for variable in first.variables] == [
        variable.name for variable in second.variables
    ]
    assert first.single_gpu
    assert first.single_gpu.collections == first.placement.collections


def test_a_builder_may_fail_for_one_gpu() -> None:
    def build(num_gpus: int = 2) -> None:
        tf1.placeholder(tf.float32)
        if num_gpus == 1:
            raise ValueError("I want two")

    evidence = place(build)

    assert evidence.single_gpu == Missing(
        "built for one GPU, the builder raised ValueError: I want two"
    )


def test_custom_ops_leave_the_assigned_rules_unchecked(tmp_path: Path) -> None:
    """The placer process has not loaded them."""
    file = tmp_path / "graph.pbtxt"
    file.write_text('node { name: "own" op: "OpOfOnesOwn" device: "/device:GPU:0" }')

    placement = place(file).placement

    assert placement.refusals == ()
    assert placement.assigned == Missing(
        "the placer does not know the op type OpOfOnesOwn: ops of custom op libraries cannot be "
        "placed"
    )


@pytest.mark.parametrize("error", [DecodeError("corrupt"), ValueError("larger than 2GB")])
def test_a_graph_that_is_too_large_is_a_clear_error(error: Exception) -> None:
    """The errors of TensorFlow 2.21 and of other versions on 3 GB of constants."""

    class Large(tf.Graph):
        def as_graph_def(self, *_: object, **__: object) -> None:
            raise error

    with pytest.raises(PlacementError) as caught:
        place(Large())

    assert str(caught.value) == (
        "the graph: its graph is larger than the 2 GB that a GraphDef may have; "
        "feed large arrays through placeholders or variables instead of constants"
    )


def test_ops_on_a_missing_device_have_the_placers_message() -> None:
    def build() -> None:
        with tf.device("/gpu:7"):
            x = tf1.placeholder(tf.float32, name="x")
            for number in range(80):
                x = tf.sqrt(x, name=f"root_{number}")

    refusals = place(build).placement.refusals

    assert len(refusals) == 81
    assert all(
        f"{{{{node {refusal.op}}}}} was explicitly assigned to /device:GPU:7" in refusal.message
        for refusal in refusals
    )
