"""Runs a program in this child process until its first training step, and records the step.

The program is run like ``python train.py …`` or ``python -m package.train …``.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from placement_checks.capture.child_process import spawned
from placement_checks.capture.child_process.file_guard import guard_files
from placement_checks.capture.child_process.file_journal import Journal
from placement_checks.capture.child_process.held_effects import HeldEffects
from placement_checks.capture.child_process.notes import (
    BEFORE_STEP,
    session_notes,
    version_1_notes,
)
from placement_checks.capture.child_process.ranks import as_rank
from placement_checks.capture.child_process.request import CaptureRequest, send_and_exit
from placement_checks.capture.child_process.servers import record_servers
from placement_checks.capture.child_process.source_edits import SourceValues
from placement_checks.capture.child_process.source_errors import explain_outdated
from placement_checks.capture.child_process.source_tree import check_imports
from placement_checks.capture.child_process.supervisor import Channels
from placement_checks.capture.eager.calls import CallWatch
from placement_checks.capture.eager.errors import explain_refusals, no_traced_step_error
from placement_checks.capture.in_process.builder import (
    BuildRecorder,
    build,
    build_eagerly,
    record_build,
    record_eager_code,
)
from placement_checks.capture.in_process.sessions import SessionWatch
from placement_checks.core.cluster_spec import TF_CONFIG, RecordedServer
from placement_checks.core.errors import InputError, MissingTargetError, as_error
from placement_checks.core.missing import Missing
from placement_checks.core.program import CapturedProgram, Program, Step
from placement_checks.core.target import RowsToRead, Script
from placement_checks.core.user_code import users_code, users_line
from placement_checks.graph.details import RecordedDetails
from placement_checks.graph.reading import GraphSource
from placement_checks.graph.train_step import trainable_variables
from placement_checks.horovod.activate import RankWatch, stand_in_for_horovod
from placement_checks.targets.importing import import_program
from placement_checks.tf1.activate import as_tensorflow_1
from placement_checks.tf1.lazy_modules import UsedNames
from placement_checks.util.resources import gc_paused
from placement_checks.util.text import plural


def run_as_main(script: Script, values: SourceValues) -> None:
    """Run a program as the main module of this process, with the new values of ``--let``.

    Raises:
        InputError: the program does not exist, or is not valid Python 3.
    """
    target = script.target.path
    if target.endswith(".py"):
        file, spec = Path(target).resolve(), None
        sys.path.insert(0, str(file.parent))
    else:
        sys.path.insert(0, str(Path.cwd()))
        spec = _find_spec(target)
        file = Path(str(spec.origin))
    main = ModuleType("__main__")
    main.__file__ = str(file)
    main.__spec__ = spec
    main.__package__ = spec.parent if spec else None
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [target if spec is None else str(file), *script.settings.args]
    code = values.compile_main(file, file.read_bytes())
    with values.in_imports():
        exec(code, main.__dict__)


def _find_spec(module: str) -> ModuleSpec:
    """Find the module that ``python -m`` runs: for a package, its ``__main__``.

    Raises:
        InputError: there is no such module.
    """
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module}.__main__")
    if spec is None or spec.origin is None or not spec.has_location:
        raise MissingTargetError(
            module,
            "is not a program: there is no such module, or it is a package without a __main__",
            "name a file, path/to/train.py, or a module that python -m accepts",
            is_predicate=True,
        )
    return spec


def record_started_programs() -> Sequence[str]:
    """Return a list that receives the command of each Python program that this process starts."""
    started: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and isinstance(args[1], list | tuple):
            command = [os.fsdecode(word) for word in args[1]]
            if "python" in Path(command[0]).name and any(word.endswith(".py") for word in command):
                started.append(" ".join(["python", *command[1:]]))

    sys.addaudithook(hook)
    return started


_MIN_REST = 0.05  # seconds
_INTERVAL = 0.1  # seconds between checks for queries of the number of GPUs


class CapturedRun:
    """Runs a program until its first training step, and sends the answer."""

    def __init__(self, request: CaptureRequest, channels: Channels) -> None:
        self._script = request.script.for_gpus(request.gpus)
        self._gpus = request.gpus
        self._control = request.control
        self._temporary = Path(tempfile.gettempdir())
        self._journal = Journal(channels.journal, f".{request.control.name}", self._temporary)
        self._effects: HeldEffects | None = None
        if request.early is not None:
            self._effects = HeldEffects(request.early, self._temporary)
        self._channels = channels
        self._directory = Path.cwd()
        self._process = os.getpid()
        self._main_thread = threading.get_ident()
        self._surroundings = contextlib.ExitStack()
        self._files = contextlib.ExitStack()  # never closed: threads may still write files
        self._answering = threading.Lock()
        self._building: BuildRecorder | None = None
        self._servers: Sequence[RecordedServer] = ()
        self._version_1: UsedNames | None = None
        self._rank: RankWatch | None = None
        self._values = SourceValues(dict(self._script.settings.let))

    def run(self) -> CapturedProgram:
        """Run the program.

        Returns:
            The captured program, if a builder returned. If the program trains, its first training
            step sends the answer and exits the process.

        Raises:
            InputError: the program failed, or ended without a training step.
        """
        threading.Thread(target=self._time_out, daemon=True).start()
        threading.Thread(target=self._watch_processes, daemon=True).start()
        if self._effects is not None:
            self._files.enter_context(self._effects.hold())
        self._files.enter_context(guard_files(self._journal, self._control))
        with self._surroundings as surroundings:
            self._servers = surroundings.enter_context(record_servers())
            if self._script.settings.horovod:
                self._rank = surroundings.enter_context(stand_in_for_horovod())
            if self._script.settings.v1:
                self._version_1 = surroundings.enter_context(as_tensorflow_1())
            is_function = self._script.target.kind == "function"
            return self._run_function() if is_function else self._run_program()

    @property
    def _rows(self) -> RowsToRead:
        """Which rows to read from the input pipelines.

        The rows of a rank or worker are compared with the rows of other processes, so "of-towers"
        becomes "all".
        """
        is_one_of_several = self._script.settings.horovod or TF_CONFIG in os.environ
        rows = self._script.rows
        return "all" if rows == "of-towers" and is_one_of_several else rows

    def _run_program(self) -> NoReturn:
        program = Program(self._script.name, lambda: run_as_main(self._script, self._values))
        started = record_started_programs()
        eager = not self._script.settings.v1
        with record_build(program, self._gpus, self._answer, eager=eager) as building:
            self._building = building
            building.watch.rows = self._rows
            self._report_query(building)
            try:
                with (
                    explain_refusals(self._script.target.name),
                    users_code(self._script.target.name, BEFORE_STEP, None, is_whole=True),
                    _allow_exit(),
                ):
                    with explain_outdated(self._script.target.name, is_v1=not eager):
                        program.build()
            except InputError as error:
                if not building.has_step:
                    raise building.explain(error) from None
                building.watch.later_error = error
            if building.has_step:  # an optimizer of its graph never ran
                self._answer(building)
        self._values.check()
        if building.calls.means_eager and not building.watch.sessions:
            raise no_traced_step_error(self._script.target.name, building.calls)
        if not building.watch.sessions and spawned.has_started_processes():
            raise spawned.ended_error(self._script.target.name)
        raise _no_step_error(self._script.target.name, building.watch, started)

    def _run_function(self) -> CapturedProgram:
        """Run a function that trains, or that builds and returns its step."""
        path = self._script.target.path
        main = str(Path(path).resolve()) if path.endswith(".py") else path
        with self._values.in_imports(main):  # a function may import modules when it is called
            built = self._build_function()
        self._values.check()
        return self._record(built)

    def _build_function(self) -> CapturedProgram:
        if not self._script.eager:
            return build(self._load_function(), self._gpus, self._answer)
        placeholder = Program(self._script.name, lambda: None)
        with record_eager_code(placeholder, self._gpus, self._answer) as building:
            self._report_query(building)
            # The import of its module may already create variables and strategies.
            building.program = self._load_function()
            return build_eagerly(building)

    def _report_query(self, building: BuildRecorder) -> None:
        """Report to the parent as soon as the program asks for the number of GPUs."""

        def report() -> None:
            while not building.gpu_queries:
                time.sleep(_INTERVAL)
            with contextlib.suppress(OSError, InputError):
                self._journal.note_asked()

        threading.Thread(target=report, daemon=True).start()

    def _load_function(self) -> Program:
        return import_program(self._script.target, self._script.settings.args)

    def _answer(self, building: BuildRecorder) -> NoReturn:
        """Send the program that is about to train, and exit the process."""
        self._answering.acquire()  # never released: there is only one answer
        try:
            if os.getpid() != self._process:
                target = self._script.target.name
                raise InputError(
                    target,
                    "trains in a child process, which is not captured",
                    f"name the function that the child process calls: {target}:train",
                    is_predicate=True,
                )
            self._surroundings.close()
            os.chdir(self._directory)
            self._values.check()
            answer: object = self._record(
                building.capture_step(), session_notes(building.watch), building.calls
            )
        except BaseException as fault:
            answer = as_error(self._script.target.name, fault)
        send_and_exit(answer, self._channels)

    def _record(
        self,
        built: CapturedProgram,
        session_notes: Iterable[str] = (),
        calls: CallWatch | None = None,
    ) -> CapturedProgram:
        if self._script.tree is not None:
            check_imports(self._script.target.name, self._script.tree)
        notes = [*session_notes, *built.notes]
        if self._version_1 is not None:
            notes += version_1_notes(self._version_1, built.graph_def.node)
        server = built.server or (self._servers[-1] if self._servers else None)
        built = replace(built, notes=notes, server=server)
        if self._rank is not None:
            built = as_rank(built, self._rank, calls)
        return without_live_objects(built)

    def _time_out(self) -> None:
        """At the time limit, end the capture.

        The error names the current source line. The time that an early capture waited for its turn
        does not count.
        """
        rest, end = self._script.limit, time.monotonic() + self._script.limit
        while rest > _MIN_REST:
            threading.Event().wait(rest)
            waited = 0.0 if self._effects is None else self._effects.seconds
            rest = end + waited - time.monotonic()
        line = users_line(traceback.extract_stack(sys._current_frames()[self._main_thread]))
        limit = self._script.limit
        fix = f"raise the limit, --limit {2 * limit:g}, or do less before the first training step"
        if spawned.has_started_processes():
            fix = spawned.advice(self._script.target.name)
        self._give_up(
            f"did not reach a training step within {limit:g} s{line and f', and is at {line}'}",
            fix,
        )

    def _watch_processes(self) -> None:
        """Send an error if the program waits for processes that have failed."""
        message = spawned.wait_for_failure(self._main_thread)
        self._give_up(message, spawned.advice(self._script.target.name))

    def _give_up(self, message: str, fix: str) -> None:
        """Send the steps that were captured so far, or else an error, and exit the process."""
        if self._building is not None and self._building.has_step:
            self._answer(self._building)
        self._answering.acquire()
        name = self._script.target.name
        send_and_exit(InputError(name, message, fix, is_predicate=True), self._channels)


@gc_paused()
def without_live_objects(captured: CapturedProgram) -> CapturedProgram:
    """Replace TensorFlow's objects in a program of this process by values that can be pickled."""
    source = captured.source
    assert isinstance(source, GraphSource)
    return replace(
        captured,
        program=Missing("it was built in another process"),
        source=replace(source, details=RecordedDetails.from_live(source.details)),
        step=Step(
            inputs=_input_names(captured.step.inputs),
            config=source.step_ops.session,
            policy=captured.step.policy,
        ),
    )


def _input_names(inputs: Any) -> Any:
    """Replace the tensors in the inputs that a builder returned by their names."""
    if isinstance(inputs, Mapping):
        return {str(key): getattr(value, "name", value) for key, value in inputs.items()}
    return inputs and list(map(_input_names, inputs))


@contextlib.contextmanager
def _allow_exit() -> Iterator[None]:
    """Accept ``sys.exit`` without an error status, as ``tf.app.run`` calls it."""
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _no_step_error(target: str, watch: SessionWatch, started: Sequence[str]) -> InputError:
    if started and not watch.sessions:
        return InputError(
            target,
            f"opened no session, but started another program, which is not captured: {started[0]}",
            "check that program instead: placement-checks verify FILE -- ARGS",
            is_predicate=True,
        )
    return InputError(
        target,
        f"ended without a training step: it {_missing_part(watch)}",
        "pass the arguments for training after --, or name the function that builds its "
        f"graph, {target}:build",
        is_predicate=True,
    )


def _missing_part(watch: SessionWatch) -> str:
    """Describe why no run of a session was a training step."""
    if watch.sessions == 0:
        return "opened no session and called no tf.function"
    seen = f"opened {plural(watch.sessions, 'session')} with {plural(watch.runs, 'run')}"
    unrun = [op.name for runs in watch.graphs.values() for op in runs.optimizer_ops()]
    if unrun:
        return f"{seen}, but ran no op of an optimizer, such as {min(unrun)}"
    if any(trainable_variables(graph) for graph in watch.graphs):
        return f"{seen}, but updated no trainable variable"
    return f"{seen}, but its graphs have no trainable variables"
