"""New Python processes that have already loaded TensorFlow.

They are forked from one server process that has loaded it. A test that needs its own process saves
three CPU seconds. The settings that TensorFlow reads during its import are the server's;
otherwise, a process behaves like a new interpreter. Programs that the process captures are forked
from the same server.

``python -m forked DESCRIPTOR PARENT`` runs the server.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import placement_checks
from placement_checks.capture.child_process.fork_server import fork_this_process
from placement_checks.tf.startup import import_tensorflow
from placement_checks.util.child import end_group
from placement_checks.util.fork_server import ForkedProcess, ForkServer
from placement_checks.util.fork_worker import serve

if TYPE_CHECKING:
    import pytest

_TESTS = Path(__file__).parents[1]


@cache
def server() -> ForkServer:
    """The server process, started by the first call."""
    path = os.pathsep.join([str(_TESTS), str(_TESTS.parent), *_folders(os.environ)])
    started = ForkServer.from_module(__name__, {**os.environ, "PYTHONPATH": path})
    atexit.register(started.end)
    return started


def start_forked(
    arguments: Sequence[str | Path],
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    errors: int = subprocess.DEVNULL,
    typed: bytes = b"",
) -> ForkedProcess:
    """Start ``python ARGUMENTS``.

    Args:
        arguments: ``-c CODE``, ``-m MODULE`` or a file, followed by its arguments.
        folder: the working directory.
        environment: all environment variables.
        errors: the file descriptor for standard error.
        typed: the standard input, which a pipe can hold.
    """
    with contextlib.ExitStack() as stack:
        if errors == subprocess.DEVNULL:
            errors = stack.enter_context(open(os.devnull, "wb")).fileno()
        stack.enter_context(contextlib.chdir(folder or Path.cwd()))
        process = server().start(__name__, [*map(str, arguments)], environment, errors)
    with process.stdin as standard_input:
        standard_input.write(typed)
    return process


def run_forked(
    arguments: Sequence[str | Path],
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    limit: float = 600.0,
    typed: bytes = b"",
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS``, and kill it after ``limit`` seconds."""
    with tempfile.TemporaryFile() as errors:
        process = start_forked(arguments, folder, environment, errors.fileno(), typed)
        out = printed(process, limit)
        errors.seek(0)
        return subprocess.CompletedProcess(
            [*arguments], process.wait(), out, errors.read().decode()
        )


def printed(process: ForkedProcess, limit: float = 600.0) -> str:
    """Read the standard output of a process until it ends, and kill it after ``limit`` seconds."""
    watch = threading.Timer(limit, end_group, [process.pid])
    watch.start()
    try:
        with process.stdout:
            return process.stdout.read().decode()
    finally:
        watch.cancel()


def run_pytest_forked(
    pytester: pytest.Pytester, *arguments: str, typed: bytes = b""
) -> pytest.RunResult:
    """Like `pytest.Pytester.runpytest_subprocess`, in a forked process."""
    import pytest  # not in the process that is forked

    path = os.pathsep.join([str(pytester.path), *_folders(os.environ)])
    done = run_forked(
        [
            *("-m", "pytest", f"--basetemp={pytester.path / 'basetemp'}"),
            *arguments,
        ],
        pytester.path,
        {**os.environ, "HOME": str(pytester.path), "PYTHONPATH": path},
        typed=typed,
    )
    for stream, text in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.write(text)
    return pytest.RunResult(
        done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0
    )


def _folders(environment: Mapping[str, str]) -> list[str]:
    return [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]


_GIVEN = {*_folders(os.environ)}


def main() -> None:
    """Load TensorFlow and serve forks. In a fork, run the request."""
    if __name__ == "__main__":
        import_tensorflow()
        import_module(
            "support.forked"
        )  # as which a fork finds it, with the path that was given here
        serve(int(sys.argv[1]), int(sys.argv[2]))
    try:
        _run(sys.argv[1:-1])
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        raise
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _run(arguments: list[str]) -> None:
    import_tensorflow()  # already loaded, with the server's environment
    placement_checks.__doc__ = "PYTEST_DONT_REWRITE"  # pytest would warn that it is loaded
    fork_this_process(_leave_streams)
    given = next(number for number, folder in enumerate(sys.path) if folder not in _GIVEN)
    what, *rest = arguments
    if what == "-c":
        sys.path[:given] = ["", *_folders(os.environ)]
        code, *rest = rest
        sys.argv = ["-c", *rest]
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(module))
    elif what == "-m":
        sys.path[:given] = [str(Path.cwd()), *_folders(os.environ)]
        name, *rest = rest
        sys.argv = [name, *rest]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[:given] = [str(Path(what).resolve().parent), *_folders(os.environ)]
        sys.argv = arguments
        runpy.run_path(what, run_name="__main__")


def _leave_streams() -> None:
    """Redirect the standard streams of the server process, so that this fork does not hold them
    open."""
    with open(os.devnull, "r+b") as null:
        for number in range(3):
            os.dup2(null.fileno(), number)


if __name__ == "__main__":
    main()
