"""Processes forked from a server that has loaded their modules; see also test_child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement_checks.util.child import Child
from placement_checks.util.fork_server import ForkedProcess, ForkServer

ROOT = Path(__file__).parents[2]
# The server has loaded a module, and so have its children.
SERVER = """
    import sys
    import textwrap
    from placement_checks.util.fork_worker import serve
    serve(int(sys.argv[1]), int(sys.argv[2]))
"""
FORKED = """
    import os
    import sys
    was_loaded = "textwrap" in sys.modules
    def main():
        os.write(1, repr(eval(sys.argv[1])).encode())
        os.close(1)
        sys.stdin.read()
        sys.exit(int(sys.argv[2]))
    if __name__ == "__main__":
        main()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
    (tmp_path / "forked.py").write_text(textwrap.dedent(FORKED))
    return os.pathsep.join([str(tmp_path), str(ROOT)])


@pytest.fixture
def server(path: str) -> Iterator[ForkServer]:
    server = ForkServer.from_module("server", {**os.environ, "PYTHONPATH": path})
    yield server
    server.end()


def start(server: ForkServer, code: str, status: int = 0) -> ForkedProcess:
    return server.start("forked", [code, str(status)], os.environ, errors=2)


def answer_of(process: ForkedProcess) -> object:
    with process.stdout:
        answer: object = eval(process.stdout.read())
    return answer


def test_children_have_loaded_modules_and_the_current_environment(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_of(start(server, "0"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEW", "variable")
    monkeypatch.delenv("HOME", raising=False)

    code = "was_loaded, os.getcwd(), os.getenv('NEW'), os.getenv('HOME'), __name__"
    process = start(server, code)

    assert answer_of(process) == (True, str(tmp_path), "variable", None, "forked")
    assert os.getpgid(process.pid) == process.pid


def test_the_end_of_each_child_is_reported(server: ForkServer) -> None:
    first, second = start(server, "1", status=3), start(server, "2", status=0)
    assert (answer_of(first), answer_of(second)) == (1, 2)

    second.stdin.close()
    assert second.wait(30.0) == 0
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.1)
    first.stdin.close()
    assert first.wait(30.0) == first.wait() == 3


def test_without_a_server_a_new_interpreter_starts(server: ForkServer, path: str) -> None:
    answer_of(start(server, "0"))
    os.kill(server._pid, signal.SIGKILL)

    with pytest.raises(ConnectionError):
        start(server, "0")
    with Child(
        "forked", "__name__", "0", environment={"PYTHONPATH": path}, forks=lambda _: server
    ) as child:
        assert child.replies.read() == b"'__main__'"


def test_children_count_as_ended_with_the_server(server: ForkServer) -> None:
    process = start(server, "0")
    answer_of(process)
    os.kill(server._pid, signal.SIGKILL)

    assert process.wait(30.0) == -signal.SIGKILL


def test_a_fork_of_the_owner_does_not_end_the_server(server: ForkServer) -> None:
    forked = os.fork()
    if forked == 0:
        server.end()
        os._exit(0 if not server.is_own else 1)

    assert os.waitpid(forked, 0)[1] == 0
    assert server.is_own
    assert answer_of(start(server, "6 * 7")) == 42


# A process forks itself, and prints the state of a fork of the fork.
OF_THIS_PROCESS = """
    import os
    import signal
    import sys
    import threading
    from placement_checks.util.fork_server import ForkServer
    signal.signal(signal.SIGTERM, lambda *_: None)
    import forked
    {}
    print("once")
    server = ForkServer.from_this_process(lambda: setattr(forked, "was_loaded", "let go"))
    if server is None:
        sys.exit("none")
    code = "was_loaded, {{'', os.getcwd()}} & {{*sys.path}}, __import__('signal').getsignal(15)"
    process = server.start("forked", [code, "0"], os.environ, 2)
    print(process.stdout.read().decode(), flush=True)
    process.stdin.close()
    process.wait()
    server.end()
"""
A_THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
A_THREAD_OF_C = """import ctypes
    c, new = ctypes.CDLL(None), ctypes.c_ulong()
    c.pthread_create(ctypes.byref(new), None, ctypes.cast(c.pause, ctypes.c_void_p), None)"""


def of_this_process(path: str, folder: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OF_THIS_PROCESS.format(before))],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("before", ["", A_THREAD])
def test_a_process_that_forks_itself_keeps_no_state(
    path: str, tmp_path: Path, before: str
) -> None:
    folder = tmp_path / "users"
    folder.mkdir()

    ran = of_this_process(path, folder, before)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"once\n('let go', set(), {signal.SIG_DFL!r})\n"


def test_a_process_with_a_c_thread_does_not_fork(path: str, tmp_path: Path) -> None:
    ran = of_this_process(path, tmp_path, A_THREAD_OF_C)

    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "once\n", "none\n")
