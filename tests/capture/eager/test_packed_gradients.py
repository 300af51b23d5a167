"""Splitting the all-reduce of packed gradients: one for each gradient, with equal results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from placement_checks.capture.eager.packed_gradients import split_packed_sums
from placement_checks.core.placement import producer_of
from placement_checks.run.graph_rewrites import replace_collectives

tf1 = tf.compat.v1
SHAPES: Sequence[Sequence[int]] = ([2, 3], [], [4])


def added_up(vector: Any, gpu: int, instance: Any) -> Any:
    return tf.raw_ops.CollectiveReduceV2(
        input=vector,
        group_size=2,
        group_key=7,
        instance_key=instance,
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
        name=f"sum_{gpu}",
    )


def added_up_by_nccl(vector: Any, gpu: int, instance: Any) -> Any:
    (vector,) = tf.split(vector, [int(vector.shape[0])], name=f"pack_{gpu}")
    added = tf.raw_ops.NcclAllReduce(
        input=vector,
        reduction="sum",
        num_devices=2,
        shared_name=f"c{instance}",
        name=f"sum_{gpu}",
    )
    return tf.identity(added)


def packed(
    gpu: int,
    shapes: Sequence[Sequence[int]] = SHAPES,
    adding: Any = added_up,
    instance: Any = 1,
) -> list[Any]:
    """Gradients of a GPU: concatenated, all-reduced over the GPUs, and split."""
    with tf.device(f"/cpu:{gpu}"):
        parts = [
            tf.constant(np.arange(1 + number, 1 + number + np.prod(shape), dtype=np.float32))
            * (gpu + 1)
            for number, shape in enumerate(shapes)
        ]
        sizes = tf.stack([tf.size(part) for part in parts])
        total = adding(tf.concat(parts, 0), gpu, instance)
        with tf1.control_dependencies([total]):
            tf.no_op(name=f"after_{gpu}")
        cut = tf.split(total, sizes, num=len(parts))
        return [tf.reshape(part, shape) for part, shape in zip(cut, shapes, strict=True)]


def made_by_strategy(_name: str) -> bool:
    return True


def ran(graph_def: Any, names: Sequence[str]) -> Any:
    with tf.Graph().as_default() as copied:
        tf.graph_util.import_graph_def(graph_def, name="")
        config = tf1.ConfigProto(device_count={"CPU": 2})
        with tf1.Session(graph=copied, config=config) as session:
            return session.run(list(names))


def behind(graph_def: Any, name: str) -> set[str]:
    """The ops that an op depends on."""
    nodes = {node.name: node for node in graph_def.node}
    found, waiting = set(), [name]
    while waiting:
        for source in nodes[waiting.pop()].input:
            if not source.startswith("^") and producer_of(source) not in found:
                found.add(producer_of(source))
                waiting.append(producer_of(source))
    return found


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=2, max_size=4),
    st.sampled_from([added_up, added_up_by_nccl]),
)
def test_the_sums_are_unchanged(shapes: list[list[int]], adding: Any) -> None:
    with tf.Graph().as_default() as graph:
        results = [part.name for gpu in (0, 1) for part in packed(gpu, shapes, adding)]
    whole, apart = graph.as_graph_def(), graph.as_graph_def()

    made = split_packed_sums(apart, made_by_strategy)

    assert len(made) == 2 * len(shapes)
    replace_collectives(whole, "whole")
    replace_collectives(apart, "apart")
    for expected, found in zip(ran(whole, results), ran(apart, results), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_each_sum_depends_on_its_own_gradient_only() -> None:
    with tf.Graph().as_default() as graph:
        results = [packed(gpu) for gpu in (0, 1)]
    graph_def = graph.as_graph_def()

    made = split_packed_sums(graph_def, made_by_strategy)

    assert [name for name in made if name.startswith("sum_1/")] == [
        "sum_1/part_0",
        "sum_1/part_1",
        "sum_1/part_2",
    ]
    sources = behind(graph_def, results[1][2].op.name)
    assert sources & made.keys() == {"sum_1/part_2"}
    assert made["sum_1/part_2"] in sources
    assert made["sum_1/part_1"] not in sources


def test_consumers_of_the_sum_wait_for_all_parts() -> None:
    with tf.Graph().as_default() as graph:
        for gpu in (0, 1):
            packed(gpu)
    graph_def = graph.as_graph_def()
    split_packed_sums(graph_def, made_by_strategy)
    nodes = {node.name: node for node in graph_def.node}

    assert list(nodes["after_0"].input) == ["^sum_0/part_2"]
    assert nodes["sum_0/part_2"].input[-1] == "^sum_0/part_1"
    assert nodes["sum_0/part_1"].input[-1] == "^sum_0/part_0"


def test_ops_of_the_packed_tensor_are_removed() -> None:
    with tf.Graph().as_default() as graph:
        for gpu in (0, 1):
            packed(gpu)
    graph_def = graph.as_graph_def()

    split_packed_sums(graph_def, made_by_strategy)

    assert not {node.op for node in graph_def.node} & {"ConcatV2", "SplitV", "Pack", "Size"}
    assert len({node.name for node in graph_def.node}) == len(graph_def.node)


def unchanged(graph: tf.Graph) -> bool:
    graph_def = graph.as_graph_def()
    return not split_packed_sums(graph_def, made_by_strategy) and graph_def == graph.as_graph_def()


def test_differently_packed_replicas_are_unchanged() -> None:
    with tf.Graph().as_default() as graph:
        packed(0)
        packed(1, SHAPES[:2])

    assert unchanged(graph)


def test_a_packed_vector_with_other_users_is_unchanged() -> None:
    with tf.Graph().as_default() as graph:
        for gpu in (0, 1):
            packed(gpu)
        tf.norm(graph.get_tensor_by_name("sum_1:0"))

    assert unchanged(graph)


@pytest.mark.parametrize("known", [0, 1])
def test_dynamic_keys_are_unchanged(known: int) -> None:
    with tf.Graph().as_default() as graph:
        keys = [tf1.placeholder(tf.int32, []), 1]
        packed(0, instance=keys[known])
        packed(1, instance=keys[0])

    assert unchanged(graph)


def test_new_keys_of_two_sums_follow_from_the_old_keys() -> None:
    """Each worker has its own graph, and one may have an additional collective."""

    def keys_of(*instances: int) -> set[tuple[int, ...]]:
        with tf.Graph().as_default() as graph:
            for instance in instances:
                for gpu in (0, 1):
                    packed(gpu, instance=instance)
        graph_def = graph.as_graph_def()
        assert len(split_packed_sums(graph_def, made_by_strategy)) == 6 * len(instances)
        nodes = {node.name: node for node in graph_def.node}
        sums = [node for node in graph_def.node if node.op == "CollectiveReduceV2"]
        values = [
            tuple(int(tf.make_ndarray(nodes[key].attr["value"].tensor)) for key in node.input[2:4])
            for node in sums
        ]
        return set(values)

    assert len(keys_of(1)) == 3
    assert len(keys_of(1, 2)) == 6
    assert keys_of(2) < keys_of(1, 2)


def test_splits_of_the_program_are_unchanged() -> None:
    """The program may split at other positions than it concatenates."""
    with tf.Graph().as_default() as graph:
        for gpu in (0, 1):
            packed(gpu)
    graph_def = graph.as_graph_def()

    assert not split_packed_sums(graph_def, lambda _: False)
    assert graph_def == graph.as_graph_def()
