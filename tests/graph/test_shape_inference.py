"""The shapes of a saved graph are inferred by a process that may fail."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.core.errors import PlacerError
from placement_checks.graph import shape_inference
from placement_checks.graph.details import GraphFile
from placement_checks.util import child


def saved_graph() -> Any:
    with tf.Graph().as_default() as graph:
        tf.ones([2, 3], name="x")
    return graph.as_graph_def()


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code that each new process runs instead of its module, in order."""
    codes: list[str] = []

    def command(_module: str) -> list[str]:
        code = f"import os, sys, time; sys.stdin.buffer.read(); {codes.pop(0)}"
        return [sys.executable, "-Sc", code]

    monkeypatch.setattr(child, "_command", command)
    return codes


def test_shapes_are_inferred() -> None:
    (output,) = shape_inference.infer_outputs(saved_graph())["x"]

    assert (output.dtype, output.shape) == ("float32", (2, 3))


@pytest.mark.parametrize("end", [signal.SIGABRT, signal.SIGSEGV])
def test_a_graph_that_contradicts_itself_has_no_shapes(
    code: list[str], end: signal.Signals
) -> None:
    code.append(f"os.kill(os.getpid(), {end.value})")

    assert shape_inference.infer_outputs(saved_graph()) == {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "os.kill(os.getpid(), 9)",
            "was ended by SIGKILL, possibly because memory ran out",
        ),
        ("sys.exit(3)", "ended with status 3"),
        ("time.sleep(100)", "gave no answer within 1 s and was ended"),
    ],
)
def test_a_failing_process_is_tried_once(
    code: list[str], monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    if "sleep" in fault:
        monkeypatch.setattr(shape_inference, "_LIMIT", 1.0)
    code.append(fault)
    file = GraphFile(saved_graph())

    for _ in range(2):
        with pytest.raises(PlacerError) as caught:
            file.outputs("x")

        assert str(caught.value) == (
            f"the process that infers shapes {message}; run it again, or deselect the rule"
        )
