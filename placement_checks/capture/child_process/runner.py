"""A program that is watched in this process, which is its own.

Runs a program as ``python train.py …`` or ``python -m package.train …`` would run it.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

from placement_checks.capture.child_process.file_guard import files_kept
from placement_checks.capture.child_process.notes import notes_of, version_1_notes
from placement_checks.capture.child_process.request import CaptureRequest, end_with
from placement_checks.capture.child_process.servers import servers_recorded
from placement_checks.capture.child_process.snapshot import RecordedProgram
from placement_checks.capture.child_process.source_edits import SourceValues, explain_outdated
from placement_checks.capture.eager.errors import no_traced_step, refusals_told
from placement_checks.capture.in_process.builder import build, build_eagerly, noting_eager_code
from placement_checks.capture.in_process.recorder import BuildRecorder, Built, record_build
from placement_checks.capture.in_process.sessions import Watch
from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError, as_error
from placement_checks.core.program import Program
from placement_checks.core.script import Script
from placement_checks.core.user_code import users_code, users_frames
from placement_checks.graph.train_step import trainable_variables
from placement_checks.targets.importing import resolve
from placement_checks.tf1.activate import as_tensorflow_1
from placement_checks.tf1.lazy_modules import UsedNames
from placement_checks.util.text import plural


def run_as_main(script: Script, values: SourceValues) -> None:
    """Run a program as the main module of this process.

    Args:
        script: the program.
        values: those that it gets in place of its own.

    Raises:
        InputError: there is no such program, or it is no Python 3.
    """
    if script.target.endswith(".py"):
        file, spec = Path(script.target).resolve(), None
        sys.path.insert(0, str(file.parent))
    else:
        sys.path.insert(0, str(Path.cwd()))
        spec = _spec_of(script.target)
        file = Path(str(spec.origin))
    main = ModuleType("__main__")
    main.__file__ = str(file)
    main.__spec__ = spec
    main.__package__ = spec.parent if spec else None
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [script.target if spec is None else str(file), *script.args]
    code = values.compile_main(file, file.read_bytes())
    with values.in_imports():
        exec(code, main.__dict__)


def _spec_of(module: str) -> ModuleSpec:
    """The module that ``python -m`` runs: of a package that is its ``__main__``.

    Raises:
        InputError: there is no such module.
    """
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module}.__main__")
    if spec is None or spec.origin is None or not spec.has_location:
        raise InputError(
            module,
            "is no program: there is no such module, or it is a package without a __main__",
            "name a file, path/to/train.py, or a module as python -m takes it",
        )
    return spec


def programs_started() -> Sequence[str]:
    """The Python programs that this process starts from now on; the list grows."""
    started: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and isinstance(args[1], list | tuple):
            command = [os.fsdecode(word) for word in args[1]]
            if "python" in Path(command[0]).name and any(word.endswith(".py") for word in command):
                started.append(" ".join(["python", *command[1:]]))

    sys.addaudithook(hook)
    return started


_BEFORE = "before its first training step it"


class Watched:
    """A program, run until its first training step.

    Args:
        asked: which one, for how many GPUs.
        answers: where the answer goes.
    """

    def __init__(self, asked: CaptureRequest, answers: BinaryIO) -> None:
        self._script = asked.script.for_gpus(asked.gpus)
        self._gpus = asked.gpus
        self._journal = asked.journal
        self._answers = answers
        self._folder = Path.cwd()
        self._process = os.getpid()
        self._main = threading.get_ident()
        self._surroundings = contextlib.ExitStack()
        self._files = contextlib.ExitStack()  # never closed: threads may save what they have
        self._answering = threading.Lock()
        self._building: BuildRecorder | None = None
        self._servers: Sequence[RecordedServer] = ()
        self._version_1: UsedNames | None = None
        self._values = SourceValues(dict(self._script.let))

    def run(self) -> RecordedProgram:
        """Run it, unless it trains, which ends the process.

        Raises:
            InputError: it failed, or ended without a training step.
        """
        self._start_clock()
        self._files.enter_context(files_kept(self._journal))
        with self._surroundings as surroundings:
            self._servers = surroundings.enter_context(servers_recorded())
            if self._script.v1:
                self._version_1 = surroundings.enter_context(as_tensorflow_1())
            return self._function() if ":" in self._script.target else self._program()

    def _program(self) -> NoReturn:
        program = Program(self._script.name, lambda: run_as_main(self._script, self._values))
        started = programs_started()
        eager = not self._script.v1
        with record_build(program, self._gpus, self._trains, eager=eager) as building:
            self._building = building
            try:
                with (
                    refusals_told(self._script.target),
                    users_code(self._script.target, _BEFORE, None),
                    _normal_end(),
                ):
                    with explain_outdated(self._script.target, is_v1=self._script.v1):
                        program.build()
            except InputError as error:
                if not building.calls.steps:  # what fails later may fail as results are made up
                    raise building.refused(error) from None
            if building.has_step:  # and optimisers are left that it never runs
                self._trains(building)
        self._values.check()
        if building.calls.means_eager and not building.watch.sessions:
            raise no_traced_step(self._script.target, building.calls)
        raise _no_step(self._script.target, building.watch, started)

    def _function(self) -> RecordedProgram:
        """A function that trains, or builds and returns its step."""
        if not self._script.eager:
            return self._recorded(build(self._resolved(), self._gpus, self._trains), [])
        unknown = Program(self._script.name, lambda: None)
        with noting_eager_code(unknown, self._gpus, self._trains) as building:
            building.program = self._resolved()  # its module may make variables and strategies
            return self._recorded(build_eagerly(building, self._gpus), [])

    def _resolved(self) -> Program:
        program = resolve(self._script.target, self._script.args)
        assert isinstance(program, Program)
        return program

    def _trains(self, building: BuildRecorder) -> NoReturn:
        """Answer with the program that is about to train, and end the process."""
        self._answering.acquire()  # and keep it
        try:
            if os.getpid() != self._process:
                raise _forks(self._script.target)
            self._surroundings.close()
            os.chdir(self._folder)
            self._values.check()
            answer: object = self._recorded(building.trained(), notes_of(building))
        except BaseException as fault:
            answer = as_error(self._script.target, fault)
        end_with(answer, self._answers)

    def _recorded(self, built: Built, seen: Iterable[str]) -> RecordedProgram:
        notes = [*seen, *built.notes]
        if self._version_1 is not None:
            notes += version_1_notes(self._version_1, built.source.graph_def.node)
        server = self._servers[-1] if self._servers else None
        return RecordedProgram.of(built, notes, server)

    def _start_clock(self) -> None:
        clock = threading.Timer(self._script.limit, self._take_too_long)
        clock.daemon = True
        clock.start()

    def _take_too_long(self) -> None:
        """Answer with the steps that were seen, or with where the program stands."""
        if self._building is not None and self._building.has_step:
            self._trains(self._building)
        self._answering.acquire()
        end_with(self._too_long(), self._answers)

    def _too_long(self) -> InputError:
        frames = users_frames(traceback.extract_stack(sys._current_frames()[self._main]), None)
        stands = f", and stands at {frames[-1]}" if frames else ""
        limit = self._script.limit
        return InputError(
            self._script.target,
            f"came to no training step within {limit:g} s{stands}",
            f"give it more time, --limit {2 * limit:g}, or less to do before it trains",
        )


@contextlib.contextmanager
def _normal_end() -> Iterator[None]:
    """Let a program end itself, as ``tf.app.run`` does."""
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _forks(target: str) -> InputError:
    return InputError(
        target,
        "trains in a process that it starts",
        f"name the function which that process calls: {target}:train",
    )


def _no_step(target: str, watch: Watch, started: Sequence[str]) -> InputError:
    if started and not watch.sessions:
        return InputError(
            target,
            f"opened no session itself, and started another program, which is not watched: "
            f"{started[0]}",
            "watch that program: placement-checks verify FILE -- ARGS",
        )
    seen = f"{plural(watch.sessions, 'session')} and {plural(watch.runs, 'run')}"
    return InputError(
        target,
        f"ended without a training step: {seen}, {_nearest(watch)}",
        "give it the arguments with which it trains, behind --; or name the function that builds "
        f"its graph, {target}:build",
    )


def _nearest(watch: Watch) -> str:
    """What comes nearest to a training step."""
    if watch.sessions == 0:
        return "and no tf.function was called"
    unrun = [op.name for runs in watch.graphs.values() for op in runs.optimizer_ops()]
    if unrun:
        return f"none of which ran an optimiser's op, such as {min(unrun)}"
    if any(trainable_variables(graph) for graph in watch.graphs):
        return "none of which updates a trainable variable"
    return "and none of its graphs has trainable variables"
