"""A child process: messages to and from it, its end, and the error message about its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.descriptors import open_files

from placement_checks.util.child import Child, Ended, describe_exit
from placement_checks.util.fork_server import ForkServer

ROOT = Path(__file__).parents[2]
# Executes each line that it reads, and answers with the result.
OBEDIENT = """
    import os
    import sys
    import time
    from placement_checks.util import child
    def main():
        child.end_with_parent()
        replies = child.reserve_stdout()
        print("started", flush=True)
        for line in sys.stdin:
            replies.write(str(eval(line)).encode() + b"\\n")
            replies.flush()
    if __name__ == "__main__":
        main()
"""
SERVER = """
    import sys
    from placement_checks.util.fork_worker import serve
    serve(int(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture(params=["new", "forked"])
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], Child]]:
    """Starts a process, by a new interpreter or by a server; all else is the same."""
    (tmp_path / "obedient.py").write_text(textwrap.dedent(OBEDIENT))
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {"PYTHONPATH": path}
    if request.param == "new":
        yield lambda: Child("obedient", "argument", environment=environment)
        return
    with closing_end(ForkServer.from_module("server", {**os.environ, **environment})) as server:
        yield lambda: Child(
            "obedient", "argument", environment=environment, forks=lambda _: server
        )


@contextlib.contextmanager
def closing_end(server: ForkServer) -> Iterator[ForkServer]:
    try:
        yield server
    finally:
        server.end()


@pytest.fixture
def child(start: Callable[[], Child]) -> Iterator[Child]:
    with start() as child:
        yield child


def send(child: Child, code: str) -> None:
    child.requests.write(code.encode() + b"\n")
    child.requests.flush()


def ask(child: Child, code: str, limit: float = 30.0) -> str:
    with child.time_limit(limit):
        send(child, code)
        line = child.replies.readline()
        if not line:
            raise EOFError
    return line.decode().strip()


def test_answers_and_arguments(child: Child) -> None:
    assert ask(child, "print('not this') or 6 * 7") == "42"
    assert ask(child, "sys.argv[1:] == ['argument', str(os.getppid())]") == "True"


def test_ctrl_c_in_a_terminal_does_not_reach_the_child(child: Child) -> None:
    assert os.getpgid(child.pid) != os.getpgid(0)


def test_a_file_of_the_users_folder_is_not_imported(
    start: Callable[[], Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "users"
    folder.mkdir()
    (folder / "textwrap.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(folder)

    with start() as child:
        assert ask(child, "__import__('textwrap').__file__") != str(folder / "textwrap.py")


@pytest.mark.parametrize(
    ("code", "how", "returned"),
    [
        ("sys.exit(3)", "ended with status 3", 3),
        ("os.kill(os.getpid(), 11)", "was ended by SIGSEGV", -signal.SIGSEGV),
        (
            "os.kill(os.getpid(), 9)",
            "was ended by SIGKILL, possibly because memory ran out",
            -signal.SIGKILL,
        ),
    ],
)
def test_an_early_end_is_reported_with_the_last_output(
    child: Child, code: str, how: str, returned: int
) -> None:
    with pytest.raises(Ended) as caught:
        ask(child, f"sys.stderr.write('oh') and sys.stderr.flush() or {code}")

    assert (caught.value.how, caught.value.code) == (how, returned)
    assert caught.value.output.endswith("oh")


def test_a_late_child_is_killed(child: Child) -> None:
    ask(child, "1")
    with pytest.raises(Ended) as caught:
        ask(child, "time.sleep(100)", limit=0.2)

    assert caught.value.how == "gave no answer within 0 s and was ended"
    assert caught.value.code == -signal.SIGKILL
    assert not psutil.pid_exists(child.pid)


def test_output_before_an_answer_is_discarded(child: Child) -> None:
    ask(child, "sys.stderr.write('earlier') and sys.stderr.flush()")
    with child.time_limit(30.0):
        assert child.last_output() == ""

    ask(child, "sys.stderr.write('later') and sys.stderr.flush()")
    with pytest.raises(Ended) as caught:
        ask(child, "os._exit(1)")
    assert caught.value.output == ""


def test_other_errors_pass_and_keep_the_output(child: Child) -> None:
    def complain() -> None:
        with child.time_limit(30.0):
            send(child, "sys.stderr.write('why') and sys.stderr.flush()")
            child.replies.readline()
            raise KeyError

    with pytest.raises(KeyError):
        complain()

    assert child.last_output().endswith("why")
    assert ask(child, "2") == "2"


def test_any_exception_in_the_block_ends_the_child(start: Callable[[], Child]) -> None:
    def interrupted() -> None:
        with start() as child:
            pids.append(child.pid)
            ask(child, "1")
            raise KeyboardInterrupt

    pids: list[int] = []
    before = open_files()
    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert not psutil.pid_exists(pids[0])
    assert open_files() <= before


@pytest.mark.parametrize(
    ("code", "patience", "returned"), [("1", 30.0, 0), ("time.sleep(100)", 0.5, -signal.SIGKILL)]
)
def test_a_stopped_child_may_end_by_itself(
    child: Child, code: str, patience: float, returned: int
) -> None:
    ask(child, "1")
    send(child, code)

    child.stop(patience)

    assert child.wait() == returned


def test_a_forked_process_releases_the_child(child: Child) -> None:
    ask(child, "1")
    forked = os.fork()
    if forked == 0:
        child.stop(patience=30.0)
        os._exit(0 if child.requests.closed and not child.is_own else 1)

    assert os.waitpid(forked, 0)[1] == 0
    assert child.is_own
    assert ask(child, "2") == "2"


OWNER = """
    import os
    import time
    from placement_checks.util.child import Child
    from placement_checks.util.fork_server import ForkServer
    server = ForkServer.from_module("server", os.environ) if FORKS else None
    path = os.environ["PYTHONPATH"]
    child = Child("obedient", environment={"PYTHONPATH": path}, forks=lambda _: server)
    child.requests.write(b"1\\n")
    child.requests.flush()
    child.replies.readline()
    forked = os.fork()
    if forked:
        print(child.pid, forked, flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("forks", [False, True])
def test_the_child_ends_even_if_a_fork_holds_its_input(tmp_path: Path, forks: bool) -> None:
    (tmp_path / "obedient.py").write_text(textwrap.dedent(OBEDIENT))
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", f"FORKS = {forks}\n{textwrap.dedent(OWNER)}"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as owner:
        assert owner.stdout is not None
        pid, forked = (psutil.Process(int(word)) for word in owner.stdout.readline().split())
        try:
            owner.kill()

            assert psutil.wait_procs([pid], timeout=30.0)[1] == []
            assert forked.is_running()
        finally:
            forked.kill()


@pytest.mark.parametrize(
    ("code", "words"), [(0, "ended with status 0"), (-15, "was ended by SIGTERM")]
)
def test_messages_about_the_end(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_the_user_s_folder_is_not_searched_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current directory, for an empty part of PYTHONPATH."""
    (tmp_path / "obedient.py").write_text(textwrap.dedent(OBEDIENT))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:")
    folder = tmp_path / "of_the_user"
    folder.mkdir()
    monkeypatch.chdir(folder)

    with Child("obedient", environment={}) as child:
        assert ask(child, "__import__('os').getcwd() in sys.path") == "False"


def test_ctrl_c_during_stop_kills_the_child(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_patience: float | None = None) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    send(child, "time.sleep(100)")
    monkeypatch.setattr(child._process, "wait", interrupt)

    child.stop(30.0)

    assert not psutil.pid_exists(child.pid)
