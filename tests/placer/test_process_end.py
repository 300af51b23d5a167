"""The placer process ends with its parent process, however the parent ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import psutil
import pytest
from placer.query import answer_of

from placement_checks.core.errors import PlacerError
from placement_checks.placer.worker import protocol
from placement_checks.placer.worker.client import PlacerProcess, Request
from placement_checks.placer.worker.protocol import GraphRefused

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0  # seconds; the process checks every second


def started(script: str, tmp_path: Path, tensorflow: str = "") -> tuple[int, int]:
    """Start a script that starts a placer, maybe with a stand-in for TensorFlow.

    Returns:
        The pid of the script, and the pid on its first line of output.
    """
    path = [str(ROOT)]
    if tensorflow:
        stand_in(tmp_path, tensorflow)
        path.insert(0, str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
    return process.pid, child


def stand_in(folder: Path, code: str) -> None:
    """A package that runs ``code`` as soon as TensorFlow is imported."""
    for module in ("__init__", "core/framework/graph_pb2", "python/platform/build_info"):
        file = folder / "tensorflow" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
    return holds()


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


START = """
    import time
    from placement_checks.placer.worker.client import phantom
    phantom._environment["PYTHONPATH"] = __import__("os").environ["PYTHONPATH"]
    phantom.start()
    print(phantom.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("tensorflow", ["", "import time; time.sleep(1000)"], ids=["", "hangs"])
def test_a_starting_process_ends_with_its_killed_parent(tmp_path: Path, tensorflow: str) -> None:
    parent, child = started(START, tmp_path, tensorflow)
    assert not is_gone(child)

    kill(parent)

    assert eventually(lambda: is_gone(child))


def test_the_process_ends_even_if_a_fork_holds_its_input(
    tmp_path: Path,
) -> None:
    parent, child = started(
        """
        import os
        import time
        from placement_checks.placer.worker.client import phantom
        phantom._environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        phantom.start()
        forked = os.fork()
        if not forked:
            time.sleep(100)
        print(phantom.pid, flush=True)
        time.sleep(100)
        """,
        tmp_path,
        "import time; time.sleep(1000)",
    )
    (forked,) = (
        process.pid for process in psutil.Process(parent).children() if process.pid != child
    )
    try:
        kill(parent)

        assert eventually(lambda: is_gone(child))
        assert not is_gone(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


@contextlib.contextmanager
def placing(graph: bytes, how: str) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """Start a placer process that runs the code ``how`` to place a graph.

    Its limit is zero, and the kernel ends it one second later.
    """
    code = (
        "import contextlib, ctypes, sys\n"
        "from placement_checks.placer.worker import main\n"
        "class StandIn:\n"
        "    @contextlib.contextmanager\n"
        f"    def place(self, graph, *_): {how}\n"
        "main._start, main._GRACE = lambda _: StandIn(), 1\n"
        f"sys.argv = ['child', '{os.getpid()}']\n"
        "main.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with cast(BinaryIO, process.stdin) as requests, cast(BinaryIO, process.stdout) as replies:
        protocol.read(replies)
        header = {"number": 1, "types": [], "tasks": [], "soft": False, "limit": 0.0}
        protocol.write(requests, header, graph)
        yield process, replies
    process.wait(timeout=PATIENCE)


def test_the_kernel_ends_a_process_that_holds_the_global_lock() -> None:
    """It holds Python's global lock while it hangs."""
    with placing(b"", "yield ctypes.PyDLL(None).sleep(1000)") as (process, _):
        assert process.wait(timeout=PATIENCE) == -signal.SIGALRM


def test_the_time_that_an_answer_waits_for_the_parent_does_not_count() -> None:
    log = b"log" * 100_000  # more than the size of a pipe
    with placing(log, "yield graph") as (process, replies):
        time.sleep(2)

        assert protocol.read(replies) == ({"number": 1}, [log])
    assert process.returncode == 0


def test_a_failing_start_is_an_error_with_its_output(tmp_path: Path) -> None:
    stand_in(tmp_path, "raise ImportError('libcudart.so.9: no such file')")
    placer = PlacerProcess({"PYTHONPATH": f"{tmp_path}:{ROOT}"})

    for _ in range(2):
        with pytest.raises(PlacerError, match="the placer ended with status 1") as caught:
            answer_of(placer, Request(b"", 1, [], [], soft=False))

        assert caught.value.details.endswith("ImportError: libcudart.so.9: no such file")
        assert placer.pid is None


def test_the_process_starts_if_sigchld_is_ignored() -> None:
    """Some supervisors and shells ignore SIGCHLD, and child processes inherit this."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    placer = PlacerProcess({})
    try:
        placer.start()
        time.sleep(1)  # it tries to create its own network
    finally:
        signal.signal(signal.SIGCHLD, before)
    try:
        with pytest.raises(GraphRefused):
            answer_of(placer, Request(b"no graph", 1, [], [], soft=False))
    finally:
        placer.stop()


def test_signals_of_a_terminal_do_not_reach_the_process() -> None:
    placer = PlacerProcess({})
    placer.start()
    try:
        assert placer.pid is not None
        assert os.getpgid(placer.pid) != os.getpgid(0)
    finally:
        placer.stop()


def test_no_temporary_directory_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", none)
    placer = PlacerProcess({})
    placer.start()
    placer.stop()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_shape_inference_ends_with_its_parent(tmp_path: Path, end: signal.Signals) -> None:
    """Shape inference of a file may take TensorFlow forever."""
    parent, child = started(
        """
        import signal
        import threading
        import time
        import psutil
        from placement_checks.graph import shape_inference

        class Graph:
            def SerializeToString(self):
                threading.Thread(target=tell, daemon=True).start()
                return b""

        def tell():
            time.sleep(2)
            print(psutil.Process().children()[0].pid, flush=True)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        shape_inference.infer_outputs(Graph())
        """,
        tmp_path,
        "import time; time.sleep(1000)",
    )
    try:
        os.kill(parent, end)

        assert eventually(lambda: is_gone(parent) and is_gone(child))
    finally:
        for pid in (child, parent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(parent, 0)
