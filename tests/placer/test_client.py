"""The placer process: reused, replaced when it dies or hangs, closed to other machines."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from placer.query import answer_of

from placement_checks import PlacementError, place
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.placer import placing
from placement_checks.placer.worker import client as module
from placement_checks.placer.worker.client import (
    PlacerProcess,
    PlacerUnavailable,
    Request,
    phantom,
)


def build() -> None:
    with tf.device("/gpu:1"):
        tf.matmul(tf.ones([2, 2]), tf.ones([2, 2]), name="product")


def devices(placement: Evidence) -> set[str]:
    return {op.assigned.short for op in placement.ops.values() if op.assigned}


def pid_now() -> int:
    """The ID of the placer process."""
    assert phantom.pid is not None
    return phantom.pid


@pytest.mark.smoke
def test_one_process_serves_all_placements() -> None:
    place(build)
    first = pid_now()
    place(build)

    assert pid_now() == first


def test_a_killed_process_is_reported_and_replaced() -> None:
    place(build)
    os.kill(pid_now(), signal.SIGKILL)

    with pytest.raises(PlacementError) as caught:
        place(build)

    assert str(caught.value) == (
        "the placer was ended by SIGKILL, possibly because memory ran out; "
        "run it again, which starts a new process; if that fails too, report this graph"
    )
    assert devices(place(build)) == {"/device:GPU:1"}


def test_a_hanging_process_is_killed_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    place(build)
    pid = pid_now()
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "PLACE_LIMIT", -9.0)  # plus 10 s for the pipe
    begin = time.monotonic()

    with pytest.raises(PlacementError, match=r"gave no answer within \d s and was ended"):
        place(build)

    assert time.monotonic() - begin < 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_forked_child_starts_its_own_process() -> None:
    place(build)
    pid = pid_now()
    reader, writer = os.pipe()
    forked = os.fork()
    if forked == 0:
        phantom.start()
        os.write(writer, str(pid_now()).encode())
        phantom.stop()
        os._exit(0)
    os.waitpid(forked, 0)

    assert int(os.read(reader, 100)) != pid
    assert devices(place(build)) == {"/device:GPU:1"}


def test_concurrent_threads_place_one_after_the_other() -> None:
    found: list[set[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(devices(place(build)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [{"/device:GPU:1"}] * 4


def test_a_wheel_without_gpu_kernels_leaves_the_assigned_rules_unchecked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoKernels(PlacerProcess):
        def send(self, request: Request) -> Any:
            raise PlacerUnavailable("a build without GPU kernels", "install another")

    monkeypatch.setattr(placing, "phantom", NoKernels({}))

    evidence = place(build)

    assert evidence.placer is None
    assert evidence.placement.assigned == Missing("a build without GPU kernels", "install another")


def test_an_unavailable_process_is_started_once(
    tmp_path: Path,
) -> None:
    """A stand-in for TensorFlow reports a CPU build."""
    for name, code in {
        "tensorflow/__init__": "",
        "tensorflow/python/client/pywrap_tf_session": "__version__ = '2.99'",
        "tensorflow/python/platform/build_info": "build_info = {'is_cuda_build': False}",
    }.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
    process = PlacerProcess({"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"})
    for _ in range(2):
        with pytest.raises(
            PlacerUnavailable, match=r"tensorflow 2\.99 is a build without GPU kernels"
        ):
            answer_of(process, Request(b"", 1, [], [], soft=False))
        assert process.pid is None


def test_a_hundred_placements_leak_neither_memory_nor_files(fixtures: Path) -> None:
    def used() -> tuple[int, int]:
        status = Path(f"/proc/{pid_now()}/status").read_text()
        resident = int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
        return resident, len(os.listdir(f"/proc/{pid_now()}/fd")) + len(
            os.listdir("/proc/self/fd")
        )

    for _ in range(30):  # memory settles
        place(build)
    resident, files = used()
    for _ in range(100):
        place(build)

    assert used()[1] < files + 50  # 100 and more if each left one open
    assert used()[0] < resident * 1.1
