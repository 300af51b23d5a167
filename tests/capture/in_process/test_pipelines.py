"""The tensors that a step reads from input pipelines, in hand-written graphs."""

from __future__ import annotations

from typing import NamedTuple

from placement_checks.capture.in_process.sessions import pipeline_outputs


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
