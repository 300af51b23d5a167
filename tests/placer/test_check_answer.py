"""An answer that contradicts the request is refused."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest
import tensorflow as tf

from placement_checks import PlacementError, place
from placement_checks.placer import placing
from placement_checks.placer.worker.client import PlacerProcess, Request
from placement_checks.placer.worker.protocol import Failed, GraphRefused
from placement_checks.placer.worker.session import LocalSession

HOST = "/job:localhost/replica:0/task:0/device:"


def build() -> None:
    with tf.device("/gpu:1"):
        x = tf.ones([2, 2], name="x")
    tf.identity(x, name="unpinned")


def answer(monkeypatch: pytest.MonkeyPatch, placed: dict[str, str]) -> None:
    """Replace the answer of the placer."""

    class Answers(PlacerProcess):
        @contextlib.contextmanager
        def send(self, request: Request) -> Iterator[Callable[[], dict[str, str]]]:
            yield lambda: {name: HOST + device for name, device in placed.items()}

    monkeypatch.setattr(placing, "phantom", Answers("phantom", {}))


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ({"x": "GPU:0", "unpinned": "GPU:1"}, f"'x' requests {HOST}GPU:1 and is on {HOST}GPU:0"),
        (
            {"x": "GPU:1", "unpinned": "GPU:7"},
            f"'unpinned' is on {HOST}GPU:7, which is not in gpu*2",
        ),
        ({"x": "GPU:1"}, "'unpinned' has no device"),
    ],
)
def test_an_answer_that_does_not_fit_the_request_is_an_error(
    monkeypatch: pytest.MonkeyPatch, placed: dict[str, str], message: str
) -> None:
    answer(monkeypatch, placed)

    with pytest.raises(PlacementError) as caught:
        place(build)

    assert caught.value.message == f"the placer's answer for 1 of 2 ops cannot be right: {message}"
    assert caught.value.fix == (
        "report this graph as a bug: rules do not judge a graph with a wrong placement"
    )


def test_a_device_of_this_task_without_a_job_is_strictly_placed_and_refused() -> None:
    """Strategies of TensorFlow name their devices like this."""

    def build_some() -> None:
        with tf.device("/replica:0/task:0/device:GPU:1"):
            tf.ones([2, 2], name="x")
            tf.strings.lower("A", name="y")

    evidence = place(build_some)

    assert {refusal.op for refusal in evidence.placement.refusals} == {"y", "y/input"}
    assert str(evidence.ops["x"].assigned) == HOST + "GPU:1"


def test_soft_placement_allows_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {"x": "CPU:0", "unpinned": "GPU:1"})

    assert place(build, soft=True).ops["x"].fallback_reason


def in_a_session(monkeypatch: pytest.MonkeyPatch, output: bytes | Exception) -> bytes:
    """The placer's log from the output of a fake local session.

    A real session would fix this process's devices.

    It is compared with real ones where each node is looked at (`test_oracle`).
    """

    class Stands:
        def __init__(self, **_: object) -> None:
            if isinstance(output, Exception):
                raise output

        def __enter__(self) -> Stands:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, _probe: object) -> None:
            assert isinstance(output, bytes)
            os.write(1, output)

    monkeypatch.setattr(tf.compat.v1, "Session", Stands)
    with tf.Graph().as_default() as graph, tf.device(HOST + "CPU:0"):
        tf.ones([2, 2], name="x")
    data = graph.as_graph_def().SerializeToString()
    with LocalSession().place(data, [], [["localhost", 0, [["CPU", 1]]]], False, 1.0) as log:
        return log


RECORD = f"x: (Const): {HOST}CPU:0\n".encode()


def test_a_local_session_reports_the_device_of_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_a_session(monkeypatch, RECORD) == RECORD


def test_a_gpu_without_memory_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    full = tf.errors.ResourceExhaustedError(None, None, "no memory")

    with pytest.raises(Failed, match="no session could be run: no memory"):
        in_a_session(monkeypatch, full)


def test_an_error_of_a_session_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    no_kernel = tf.errors.InvalidArgumentError(None, None, "no kernel for x")

    with pytest.raises(GraphRefused, match="no kernel for x"):
        in_a_session(monkeypatch, no_kernel)
