"""An answer that contradicts the request is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import tensorflow as tf

from placement_checks import PlacementError, place
from placement_checks.placer import placing
from placement_checks.placer.worker.client import PlacerProcess, Request

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

    monkeypatch.setattr(placing, "phantom", Answers({}))


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
