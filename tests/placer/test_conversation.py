"""The messages to and from the placer process; a stand-in returns the requested answer."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from placer.query import answer_of
from support.descriptors import open_files

from placement_checks.core.errors import PlacerError
from placement_checks.placer.worker import client, protocol
from placement_checks.placer.worker.client import PlacerProcess, Request
from placement_checks.placer.worker.protocol import GraphRefused
from placement_checks.util import child

# Places the op x on the device that the "graph" contains.
ECHO = """
    import os
    import sys
    import time
    from placement_checks.placer.worker import protocol
    requests, replies = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    protocol.write(replies, {"number": 0, "isolation": "own-network"})
    while True:
        header, (graph,) = protocol.read(requests)
        time.sleep(0.01)
        number, device = header["number"], graph.decode()
        if device == "refused":
            protocol.write(replies, {"number": number, "refused": "no such device"})
        elif device == "failed":
            sys.stderr.write("the pipe of the master burst\\n")
            sys.stderr.flush()
            failed = {"number": number, "failed": "TensorFlow's master is gone", "fix": ""}
            protocol.write(replies, failed)
        elif device == "late":
            protocol.write(replies, {"number": number - 1}, b"x: (Const): /GPU:0")
        elif device == "twice":
            log = b"x: (Const): /GPU:0\\nx: (Const): /GPU:1\\n"
            protocol.write(replies, {"number": number}, log)
        elif device == "cut":
            replies.write(b"\\x10\\0\\0")
            replies.flush()
            sys.exit(3)
        else:
            protocol.write(replies, {"number": number}, f"x: (Const): {device}\\n".encode())
"""


@pytest.fixture
def placer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PlacerProcess]:
    script = tmp_path / "echo.py"
    script.write_text(textwrap.dedent(ECHO))

    monkeypatch.setattr(child, "_command", lambda _module: [sys.executable, "-S", str(script)])
    process = PlacerProcess({})
    yield process
    process.stop()


def request(graph: str) -> Request:
    return Request(graph.encode(), 1, {"Const"}, [], soft=False)


def ask(placer: PlacerProcess, graph: str) -> str:
    return answer_of(placer, request(graph))["x"]


class Interrupted(Exception):
    """Raised like the exception of pytest-timeout's signal method."""


@pytest.mark.parametrize("raised", [Interrupted, KeyboardInterrupt])
def test_an_interruption_does_not_mix_up_answers(
    placer: PlacerProcess, raised: type[BaseException]
) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise raised

    before = signal.signal(signal.SIGALRM, interrupt)
    moments = random.Random(7)
    interrupted = 0
    try:
        for _ in range(15):
            ask(placer, "/started")
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0001, 0.016))
                ask(placer, "/GPU:0")
            except raised:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

            assert ask(placer, "/GPU:1") == "/GPU:1"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 3


def test_an_interrupted_request_ends_its_process(
    placer: PlacerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    ask(placer, "/GPU:0")
    pid = placer.pid
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(placer, "/GPU:1")

    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert placer.pid is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("failed", ": TensorFlow's master is gone"),
        ("late", " answered request 1 instead of 2"),
        ("twice", ": placed 'x' on /GPU:0 and on /GPU:1"),
        ("cut", " ended with status 3"),
    ],
)
def test_a_wrong_answer_is_an_error_and_replaces_the_process(
    placer: PlacerProcess, answer: str, message: str
) -> None:
    ask(placer, "/GPU:0")
    first = placer.pid

    with pytest.raises(PlacerError) as caught:
        ask(placer, answer)

    assert str(caught.value) == (
        f"the placer{message}; run it again, which starts a new process; "
        "if that fails too, report this graph"
    )
    assert caught.value.details == ("the pipe of the master burst" if answer == "failed" else "")
    assert ask(placer, "/GPU:1") == "/GPU:1"
    assert placer.pid != first


def test_a_refused_graph_does_not_end_the_process(
    placer: PlacerProcess,
) -> None:
    ask(placer, "/GPU:0")
    first = placer.pid

    with pytest.raises(GraphRefused, match="no such device"):
        ask(placer, "refused")

    assert ask(placer, "/GPU:1") == "/GPU:1"
    assert placer.pid == first


def test_a_failing_start_is_an_error_each_time(placer: PlacerProcess, tmp_path: Path) -> None:
    reply = '{"number": 0, "failed": "found that another process had connected", "fix": ""}'
    script = ECHO.replace('{"number": 0, "isolation": "own-network"}', reply)
    (tmp_path / "echo.py").write_text(textwrap.dedent(script))

    for _ in range(2):
        with pytest.raises(PlacerError, match="found that another process had connected"):
            ask(placer, "/GPU:0")


def test_no_descriptors_stay_open(placer: PlacerProcess) -> None:
    before = open_files()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for answer in ("/GPU:0", "cut", "/GPU:1", "failed"):
            with contextlib.suppress(PlacerError):
                ask(placer, answer)
        placer.stop()
        after = open_files()

    assert after <= before


def test_a_graph_too_large_for_memory_is_refused_before_placing(
    placer: PlacerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "available_memory", lambda: 3_000_000_000)

    with pytest.raises(PlacerError) as caught:
        answer_of(placer, request("/GPU:0")._replace(ops=1_000_000))

    assert str(caught.value) == (
        "the placer needs at least 4.0 GB of memory for 1,000,000 ops, but only 3.0 GB "
        "are free; place it on a machine with more memory, or with fewer GPUs"
    )
    assert placer.pid is None
    assert answer_of(placer, request("/GPU:0")._replace(ops=700_000)) == {"x": "/GPU:0"}


@pytest.mark.parametrize("free", [10_000_000, None])
def test_a_small_graph_is_placed_with_any_free_memory(
    placer: PlacerProcess, monkeypatch: pytest.MonkeyPatch, free: int | None
) -> None:
    monkeypatch.setattr(client, "available_memory", lambda: free)

    assert answer_of(placer, request("/GPU:0")._replace(ops=100_000)) == {"x": "/GPU:0"}


def test_an_unread_answer_ends_its_process(placer: PlacerProcess) -> None:
    with placer.send(request("/GPU:0")):
        pass

    assert placer.pid is None
    assert ask(placer, "/GPU:1") == "/GPU:1"


def test_a_builder_may_place_another_graph_before_reading_an_answer(
    placer: PlacerProcess,
) -> None:
    with placer.send(request("/GPU:0")) as answer:
        other = ask(placer, "/GPU:1")
        ended = placer.pid

        assert answer() == {"x": "/GPU:0"}

    assert other == "/GPU:1"
    assert ended is not None
    assert not psutil.pid_exists(ended)
    assert ask(placer, "/GPU:0") == "/GPU:0"
