"""The tensors that a step reads from input pipelines, in hand-written graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import tensorflow as tf

from placement_checks.capture.in_process import sessions
from placement_checks.capture.in_process.sessions import pipeline_outputs

tf1 = tf.compat.v1


class Node(NamedTuple):
    name: str
    op: str
    input: tuple[str, ...] = ()


def outputs(*nodes: Node, roots: tuple[str, ...] = ("train",)) -> list[str]:
    return pipeline_outputs(nodes, roots)


QUEUE = Node("queue", "FIFOQueueV2")
DEQUEUE = Node("dequeue", "QueueDequeueManyV2", ("queue", "n"))


def test_outputs_are_found_along_any_edge() -> None:
    found = outputs(
        Node("loss", "Mean", ("dequeue:10", "dequeue:2", "dequeue")),
        QUEUE,
        DEQUEUE,
        Node("apply", "ApplyAdam", ("w", "loss")),
        Node("train", "NoOp", ("^apply",)),
    )

    assert found == ["dequeue:0", "dequeue:2", "dequeue:10"]


def test_only_the_last_of_chained_pipelines() -> None:
    found = outputs(
        Node("next", "IteratorGetNext", ("iterator",)),
        Node("prefetch", "QueueDequeueV2", ("queue", "next:1")),
        Node("train", "Mean", ("prefetch",)),
    )

    assert found == ["prefetch:0"]


def test_control_inputs_and_unused_pipelines_are_left_out() -> None:
    found = outputs(
        DEQUEUE,
        Node("unread", "Mean", ("dequeue:1",)),
        Node("train", "NoOp", ("^dequeue", "unknown:1")),
        roots=("train:0", "elsewhere"),
    )

    assert found == []


def test_a_loop_ends() -> None:
    found = outputs(
        Node("enter", "Enter", ("dequeue:1",)),
        DEQUEUE,
        Node("merge", "Merge", ("enter", "next")),
        Node("next", "NextIteration", ("merge",)),
        roots=("next",),
    )

    assert found == ["dequeue:1"]


def batches(shapes: Sequence[list[int | None]], cut: bool) -> list[tf.Tensor]:
    """Batches from queues; each is cut into the rows of towers, or read as a whole."""
    found = []
    for shape in shapes:
        batch = tf.ensure_shape(tf1.FIFOQueue(4, [tf.float32]).dequeue(), shape)
        found.append(batch)
        tf.split(batch, 2) if cut else tf.square(batch)
    return found


@pytest.mark.parametrize(
    ("shapes", "cut", "same"),
    [
        ([[4, 3]], False, False),
        ([[4, 3], [4, 1]], False, False),  # images and labels
        ([[4, 3], [4, 3]], False, True),
        ([[None, 3], [4, 3], [4, 1]], False, True),
        ([[4, 3], [4, 3]], True, False),  # the left and the right image of each row
    ],
)
def test_batches_that_two_towers_might_share(
    shapes: Sequence[list[int | None]], cut: bool, same: bool
) -> None:
    with tf.Graph().as_default():
        assert sessions._may_have_same_rows(batches(shapes, cut)) == same


def test_outputs_of_one_op_may_be_for_two_towers() -> None:
    with tf.Graph().as_default():
        one, other = tf1.FIFOQueue(4, [tf.float32] * 2, [[4, 3]] * 2).dequeue()
        for tensor in (one, other):
            tf.square(tensor)

        assert sessions._may_have_same_rows([one, other])
