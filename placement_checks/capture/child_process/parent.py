"""Captures a program in a child process."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from placement_checks.capture.child_process import early
from placement_checks.capture.child_process.capture_files import CaptureFiles
from placement_checks.capture.child_process.fork_server import fork_server
from placement_checks.capture.child_process.notes import file_guard_note
from placement_checks.capture.child_process.request import CaptureRequest
from placement_checks.core.devices import VISIBLE_GPUS
from placement_checks.core.errors import InputError, PlacementError
from placement_checks.core.program import CapturedProgram
from placement_checks.core.target import Script
from placement_checks.tf1.renamed import environment as environment_of_version_1
from placement_checks.util.child import Child, Ended
from placement_checks.util.processes import children
from placement_checks.util.resources import gc_paused, peak_memory

# Seconds beyond the program's limit, to import TensorFlow and to record the graph.
_GRACE = 60.0
_INTERVAL = 0.2  # seconds between looks for an answer
_CHILD = "placement_checks.capture.child_process.child"
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def capture_program(
    script: Script, gpus: int, environment: Mapping[str, str] = NO_VARIABLES
) -> CapturedProgram:
    """Run a program in a child process until its first training step, and return what it built.

    After a call of `expect_capture`, the capture may have started already. The program finds
    ``gpus`` GPUs, and ``environment`` in addition to the environment variables of this process.

    Raises:
        InputError: the program failed before its first training step, ended without one, or
            exceeded its time limit.
    """
    task = _Task.now(script, gpus, environment)
    finished = early.take(task)
    if finished is None:
        finished = early.finish(task, _Capture(task))
    answer, restored = finished
    if isinstance(answer, PlacementError):
        raise answer
    assert isinstance(answer, CapturedProgram)
    return replace(answer, notes=[*answer.notes, *file_guard_note(restored)])


@contextlib.contextmanager
def name_process(name: str, ending: str = "") -> Iterator[None]:
    """Begin the messages of errors in this block with the name of one of several processes."""
    try:
        yield
    except InputError as error:
        subject = "it " if error.is_predicate else ""
        message = f"{name}, {subject}{error.message}{ending}"
        raise error.copy(InputError, message=message, is_predicate=False) from None


def expect_capture(
    script: Script,
    gpus: int,
    environment: Mapping[str, str] = NO_VARIABLES,
    *,
    if_queried_for: int | None = None,
) -> None:
    """Let a capture start early, if several captures may run at once (`early.early_captures`).

    A later call of `capture_program` must have the same arguments. With ``if_queried_for``, the
    capture is needed only if the program asks for the number of GPUs in another capture, for
    ``if_queried_for`` GPUs.
    """
    task = _Task.now(script, gpus, environment)
    asking = None if if_queried_for is None else task._replace(gpus=if_queried_for)
    early.expect(task, partial(_start_early, task), if_queried_by=asking)


class _Task(NamedTuple):
    """Everything that the result of a capture depends on, except files."""

    script: Script  # the program
    gpus: int  # the number of GPUs that the program finds
    variables: tuple[tuple[str, str], ...]  # further environment variables of the program
    inherited: frozenset[tuple[str, str]]  # the environment variables of this process
    directory: str  # the working directory
    path: tuple[str, ...]  # directories of modules, in addition to the directories of python

    @classmethod
    def now(cls, script: Script, gpus: int, variables: Mapping[str, str]) -> Self:
        """Describe a capture that starts in the present state of this process."""
        is_function = script.target.kind == "function"
        path = tuple(sys.path) if is_function or script.settings.horovod else ()
        inherited = frozenset(os.environ.items())
        return cls(script, gpus, tuple(variables.items()), inherited, str(Path.cwd()), path)


def _start_early(task: _Task) -> _Capture | None:
    """Start a capture early, if the environment has not changed since it was expected."""
    present = _Task.now(task.script, task.gpus, dict(task.variables))
    if present._replace(directory=task.directory) != task:
        return None
    return _Capture(task, is_early=True)


class _Capture:
    """A capture in a child process, which starts at once. Implements `early.Capture`.

    The child process exits without cleaning up, so this object creates and deletes its files. The
    output of an early capture is stored until its answer is needed.
    """

    def __init__(self, task: _Task, *, is_early: bool = False) -> None:
        self._script = script = task.script
        self._files = CaptureFiles.create()
        self._early = self._files.control / "early" if is_early else None
        self._has_ended = threading.Event()
        self._reader: threading.Thread | None = None
        self._received = io.BytesIO()
        self._output = b""
        self._restored: Sequence[Path] | InputError = ()
        environment = {
            VISIBLE_GPUS: "-1",  # TensorFlow must allocate no memory of real GPUs
            **dict(task.variables),
            "TMPDIR": str(self._files.read().temporary),
            **(environment_of_version_1() if script.settings.v1 else {}),
        }
        if self._early is not None:
            self._early.touch()
        request = CaptureRequest(
            script,
            task.gpus,
            python_path=os.environ.get("PYTHONPATH"),
            path=task.path,
            names_gpus=VISIBLE_GPUS in os.environ,
            control=self._files.control,
            early=self._early,
        )
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(self._files.close)
            unless_started.callback(self._files.delete)
            self._child = Child(
                _CHILD,
                environment=environment,
                is_shown=not is_early,
                directory=task.directory,
                forks=fork_server,
                is_supervised=True,
            )
            unless_started.callback(self._child.end)
            self._cleaner = threading.Thread(target=self._clean_up, daemon=True)
            self._cleaner.start()
            if is_early:
                self._reader = threading.Thread(target=self._receive, daemon=True)
                self._reader.start()
            with contextlib.suppress(OSError):  # the child has ended, which `answer` reports
                pickle.dump(request, self._child.requests)
                self._child.requests.close()
            unless_started.pop_all()

    @property
    def is_answered(self) -> bool:
        return self._has_ended.is_set()

    @property
    def has_renames(self) -> bool:
        try:
            return not self._has_ended.is_set() and self._files.read().has_files
        except OSError:  # the child has just ended, and the journal is closed
            return False

    @property
    def has_queried(self) -> bool:
        return self._files.read().has_asked

    @property
    def memory(self) -> int:
        supervisor = self._child.pid
        return max(map(peak_memory, (supervisor, *children(supervisor))))

    def let_continue(self) -> None:
        if self._early is not None:
            self._early.unlink(missing_ok=True)

    def answer(self, meanwhile: Callable[[], object]) -> object:
        """Wait for a `CapturedProgram` or a `PlacementError`.

        Raises:
            InputError: the child process ended without an answer.
        """
        child = self._child
        limit = self._script.limit + _GRACE
        try:
            with child.time_limit(limit), gc_paused():
                if self._reader is None:
                    while not select.select([child.replies], [], [], _INTERVAL)[0]:
                        meanwhile()
                    return pickle.load(child.replies)
                while self._reader.is_alive():
                    self._reader.join(_INTERVAL)
                    meanwhile()
                self._output = child.output()
                return pickle.loads(self._received.getbuffer())
        except Ended as ended:
            raise InputError(
                self._script.target.name,
                f"its process {ended.how}, before its first training step",
                "run the program with python to see why",
            ) from None

    def show_output(self) -> None:
        while self._output:
            self._output = self._output[os.write(2, self._output) :]

    def kill(self) -> None:
        self._child.kill()

    def end(self) -> Sequence[Path]:
        """End all processes of the program, and return the paths of the restored files.

        Raises:
            InputError: a file cannot be restored.
        """
        self.kill()
        self._cleaner.join()
        if self._reader is not None:
            self._reader.join()
        self._child.end()
        if isinstance(self._restored, InputError):
            raise self._restored
        return self._restored

    def _clean_up(self) -> None:
        """Clean up as soon as the child process has ended, even if its answer is needed later."""
        with contextlib.suppress(OSError):
            self._child.wait()  # also ends if the server of forks is killed
            self._child.kill()
        self._has_ended.set()
        try:
            self._restored = self._files.put_back()
            self._files.delete()
        except InputError as error:  # the next run tries again
            self._restored = error
            self._files.delete_temporary()
        finally:
            self._files.close()

    def _receive(self) -> None:
        """Store the answer of the child process, so that the child can end."""
        replies = self._child.replies.fileno()
        while True:
            is_last = self._has_ended.is_set()
            if select.select([replies], [], [], _INTERVAL)[0]:
                data = os.read(replies, 1 << 20)
                if not data:
                    return
                self._received.write(data)
            elif is_last:
                return
