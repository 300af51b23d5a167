"""Collectives become sums that a session runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.capture.programs import load
from placement_checks.core.errors import CannotRun
from placement_checks.core.op_types import COLLECTIVES
from placement_checks.core.program import Program
from placement_checks.run import runnable
from placement_checks.run.graph_rewrites import replace_collectives
from placement_checks.run.runnable import make_runnable

tf1 = tf.compat.v1
GROUP = 7


def reduced(value: Any, gpu: int, size: int = 2, instance: int = 1, **attributes: Any) -> Any:
    with tf.device(f"/cpu:{gpu}"):
        made = tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=size,
            group_key=tf.identity(GROUP),
            instance_key=instance,
            ordering_token=[],
            **{"merge_op": "Add", "final_op": "Id", **attributes},
        )
        return tf.identity(made)


def gathered(value: Any, gpu: int, size: int = 2) -> Any:
    with tf.device(f"/cpu:{gpu}"):
        return tf.raw_ops.CollectiveGatherV2(
            input=value, group_size=size, group_key=GROUP, instance_key=1, ordering_token=[]
        )


def reduced_by_version_1(value: Any, gpu: int, instance: int = 1, **attributes: Any) -> Any:
    with tf.device(f"/cpu:{gpu}"):
        return tf.raw_ops.CollectiveReduce(
            input=value,
            group_key=GROUP,
            instance_key=instance,
            **{
                "group_size": 2,
                "merge_op": "Add",
                "final_op": "Id",
                "subdiv_offsets": [0],
                **attributes,
            },
        )


def gathered_by_version_1(value: Any, gpu: int) -> Any:
    with tf.device(f"/cpu:{gpu}"):
        return tf.raw_ops.CollectiveGather(
            input=value, group_size=2, group_key=GROUP, instance_key=1, shape=[4, 1]
        )


def by_nccl(value: Any, gpu: int, name: str = "c", **attributes: Any) -> Any:
    with tf.device(f"/cpu:{gpu}"):
        return tf.raw_ops.NcclAllReduce(
            input=value,
            **{"reduction": "sum", "num_devices": 2, "shared_name": name, **attributes},
        )


def ran(graph: tf.Graph, tensors: list[Any]) -> Any:
    """The values of some tensors, with sums for collectives."""
    graph_def = graph.as_graph_def()
    replace_collectives(graph_def, "program")
    with tf.Graph().as_default() as copied:
        tf.graph_util.import_graph_def(graph_def, name="")
        config = tf1.ConfigProto(device_count={"CPU": 4})
        with tf1.Session(graph=copied, config=config) as session:
            return session.run([tensor.name for tensor in tensors])


def refusal(*tensors: Any) -> str:
    with pytest.raises(CannotRun) as refused:
        replace_collectives(tensors[0].graph.as_graph_def(), "train")
    return str(refused.value)


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def test_each_device_has_the_sum_of_its_group_and_instance(graph: tf.Graph) -> None:
    values = {
        (gpu, instance): 10.0 ** (gpu + 2 * instance) for gpu in (1, 2) for instance in (0, 1)
    }
    results = {
        key: reduced(tf.constant([value]), key[0], instance=key[1])
        for key, value in values.items()
    }

    found = dict(zip(results, ran(graph, list(results.values())), strict=True))

    assert found[1, 0] == found[2, 0] == [10.0 + 100.0]
    assert found[1, 1] == found[2, 1] == [1000.0 + 10000.0]


def test_sums_of_version_1(graph: tf.Graph) -> None:
    results = [
        reduced_by_version_1(tf.constant([value]), gpu, instance)
        for gpu, instance, value in ((1, 1, 1.0), (1, 2, 5.0), (2, 1, 2.0), (2, 2, 6.0))
    ]

    assert ran(graph, results) == [[3.0], [11.0], [3.0], [11.0]]


def test_means_of_version_1(graph: tf.Graph) -> None:
    results = [
        reduced_by_version_1(tf.constant([value]), gpu, group_size=3, final_op="Div")
        for gpu, value in enumerate((1.0, 2.0, 6.0), start=1)
    ]

    assert ran(graph, results) == [[3.0]] * 3


def test_rows_of_version_1(graph: tf.Graph) -> None:
    last = gathered_by_version_1(tf.constant([[3], [4]]), 2)
    first = gathered_by_version_1(tf.constant([[1], [2]]), 1)

    for found in ran(graph, [last, first]):
        np.testing.assert_array_equal(found, [[1], [2], [3], [4]])


def test_version_1_keeps_control_inputs(graph: tf.Graph) -> None:
    value = tf.constant([1.0])
    with tf.control_dependencies([tf.no_op("before")]):
        results = [reduced_by_version_1(value, gpu) for gpu in (1, 2)]
    graph_def = graph.as_graph_def()

    replace_collectives(graph_def, "program")

    nodes = {node.name: node for node in graph_def.node}
    assert all(nodes[result.op.name].input[1:] == ["^before"] for result in results)


def test_refuses_other_reductions_of_version_1(graph: tf.Graph) -> None:
    made = reduced_by_version_1(tf.constant([1.0]), 1, merge_op="Max")

    assert "reduces by 'Max', not by a sum" in refusal(made)


def test_the_mean_is_divided_by_the_number_of_devices(graph: tf.Graph) -> None:
    results = [
        reduced(tf.constant([value]), gpu, 3, final_op="Div")
        for gpu, value in enumerate((1.0, 2.0, 6.0), start=1)
    ]

    assert ran(graph, results) == [[3.0]] * 3


def test_rows_are_joined_in_the_order_of_devices(graph: tf.Graph) -> None:
    last = gathered(tf.constant([[3], [4]]), 2)
    first = gathered(tf.constant([[1], [2]]), 1)

    for found in ran(graph, [last, first]):
        np.testing.assert_array_equal(found, [[1], [2], [3], [4]])


def test_a_group_with_one_device_has_its_value(graph: tf.Graph) -> None:
    """A program with several workers has such groups if it is built for one worker."""
    value = tf.constant([[1.0], [3.0]])
    results = [
        gathered(value, 1, 1),
        reduced(value, 1, 1),
        reduced(value, 1, 1, 2, final_op="Div"),
        reduced_by_version_1(value, 1, group_size=1),
    ]

    for found in ran(graph, results):
        np.testing.assert_array_equal(found, [[1], [3]])


def test_nccl_sums_are_matched_by_name(graph: tf.Graph) -> None:
    results = [
        by_nccl(tf.constant([value]), gpu, name)
        for name, gpu, value in (("a", 1, 1.0), ("b", 1, 5.0), ("a", 2, 2.0), ("b", 2, 6.0))
    ]

    assert ran(graph, results) == [[3.0], [11.0], [3.0], [11.0]]


def test_control_inputs_of_a_collective_stay(graph: tf.Graph) -> None:
    switch, value = tf1.placeholder(tf.bool, [], "switch"), tf.constant([1.0])
    with tf.control_dependencies([tf.debugging.assert_equal(switch, True)]):
        results = [reduced(value, gpu) for gpu in (1, 2)]
    graph_def = graph.as_graph_def()

    replace_collectives(graph_def, "program")

    nodes = {node.name: node for node in graph_def.node}
    for result in results:
        passes_on = nodes[result.op.inputs[0].op.name]
        assert any(source.startswith("^") for source in passes_on.input)


@pytest.mark.parametrize("gpus", [0, 2])
def test_collectives_are_replaced_on_cpus_and_on_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    def train() -> dict[str, Any]:
        with tf.device("/gpu:0"):
            w = tf1.get_variable("w", [1])
        sums = [reduced(w + value, 0) for value in (1.0, 2.0)]
        return {"train_op": [tf1.assign_sub(w, each) for each in sums]}

    monkeypatch.setattr(runnable, "usable_gpus", lambda: gpus)
    built = load(Program("train", train), 2)

    program = make_runnable(built, "auto")

    assert program.simulated == (gpus == 0)
    assert COLLECTIVES & {node.op for node in built.graph_def.node}
    assert not COLLECTIVES & {op.type for op in program.graph.get_operations()}


def test_refuses_unsupported_collectives(graph: tf.Graph) -> None:
    assert refusal(reduced(tf.constant([1.0]), 1)) == (
        "train cannot be run: CollectiveReduceV2 (CollectiveReduceV2) waits for 2 "
        "devices, but its group has 1 op"
    )


def test_refuses_other_reductions_than_sums(graph: tf.Graph) -> None:
    largest = reduced(tf.constant([1.0]), 1, merge_op="Max")
    assert "reduces by 'Max', not by a sum" in refusal(largest)


def test_refuses_another_kind_of_nccl(graph: tf.Graph) -> None:
    least = by_nccl(tf.constant([1.0]), 1, reduction="min")
    assert "reduces by 'min', not by a sum" in refusal(least)


def test_refuses_dynamic_keys(graph: tf.Graph) -> None:
    key = tf1.placeholder(tf.int32, [], "key")

    assert "a group size or key that is known only at run time" in refusal(
        reduced(tf.constant([1.0]), 1, instance=key)
    )


def test_refuses_collectives_in_a_branch(graph: tf.Graph) -> None:
    value = tf.constant([1.0])
    chosen = tf.cond(value[0] > 0, lambda: gathered(value, 1), lambda: value)

    assert "is inside a branch, loop or function" in refusal(chosen)


def test_uncalled_functions_are_ignored(graph: tf.Graph) -> None:
    value = tf.constant([1.0])
    result = tf.cond(value[0] > 0, lambda: gathered(value, 1), lambda: value)
    graph_def = result.graph.as_graph_def()
    kept = [node for node in graph_def.node if node.op not in ("If", "StatelessIf", "Identity")]
    del graph_def.node[:]
    graph_def.node.extend(kept)

    replace_collectives(graph_def, "program")

    assert [node.name for node in graph_def.node] == [node.name for node in kept]
