"""Loads the program or graph of a target.

A builder is called, a whole program is run in its own process, and a saved graph is read from its
file. Each program is built once for each number of GPUs.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from placement_checks.capture.child_process.notes import created_path
from placement_checks.capture.child_process.parent import expect_capture
from placement_checks.capture.child_process.ranks import capture_ranks
from placement_checks.capture.child_process.workers import (
    capture_only_worker,
    capture_workers,
    first_environment,
)
from placement_checks.capture.eager.errors import EagerOnlyError
from placement_checks.capture.in_process.builder import build
from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.program import (
    CapturedProgram,
    Loadable,
    Program,
    TargetLike,
    WatchedCode,
)
from placement_checks.core.target import Script, Target
from placement_checks.graph import files
from placement_checks.graph.reading import GraphSource, from_live_graph
from placement_checks.targets.forms import resolve
from placement_checks.targets.importing import import_program, script_from_function
from placement_checks.util.progress import step
from placement_checks.util.text import plural


def load(
    target: TargetLike,
    gpus: int,
    machine: Machine | None = None,
    *,
    expects_one_gpu: bool = False,
) -> CapturedProgram:
    """Build a program, or read a graph.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or the text of
            a target (``train.py:build_towers``).
        gpus: the number of GPUs to build the program for.
        machine: the cluster that a program in its own process finds in TF_CONFIG. A machine
            of one host empties TF_CONFIG; None leaves it unchanged.
        expects_one_gpu: whether the build for one GPU will be needed too. Its capture may then
            start at the same time (`capture.child_process.early`).

    Raises:
        UsageError: ``target`` has another type.
        InputError: the program cannot be built, or the graph cannot be read.
    """
    return _load(_resolve(target), gpus, machine, expects_one_gpu=expects_one_gpu)


def expect(
    target: TargetLike,
    gpus: int,
    machine: Machine | None = None,
    *,
    expects_one_gpu: bool = False,
) -> None:
    """Announce a later call of `load` with the same arguments, so that captures may start early.

    Only captures of whole programs start early.

    Raises:
        UsageError, InputError: ``target`` is not a target.
    """
    source = resolve(target)
    if isinstance(source, Script):
        expect_capture(source, gpus, first_environment(source, machine))
        if expects_one_gpu:
            _Builds(source, machine).expect_one_gpu(source, gpus)


def expect_reference(target: TargetLike, program: TargetLike) -> None:
    """Announce a later call of `load_reference`; ``program`` is the target of the program.

    Raises:
        UsageError, InputError: a target is not valid.
    """
    source = resolve(target)
    if isinstance(source, Script) and source != resolve(program):
        expect_capture(source, 1, first_environment(source, Machine.local(1)))


def load_reference(target: TargetLike, towers: CapturedProgram) -> CapturedProgram:
    """Build the reference of a program for one GPU.

    If program and reference are the same function, its build for one GPU is reused.

    Raises:
        UsageError: ``target`` is not a target.
        InputError: the reference cannot be built or read.
    """
    source, program = _resolve(target), towers.program
    if isinstance(source, Program) and isinstance(program, Program):
        is_same = source.is_same_function(program)
    else:
        is_same = isinstance(source, Script) and source == program
    if is_same:
        single = load_for_one_gpu(towers)
        if single:
            return single
    return _load(source, 1, Machine.local(1))


def load_for_one_gpu(program: CapturedProgram) -> CapturedProgram | Missing:
    """Return the build of a program for one GPU, or `Missing` if it cannot be built for one GPU.

    The program is built at the first call.
    """
    if isinstance(program.loader, Missing):
        return program.loader
    return program.loader.load_for_one_gpu()


def _resolve(target: TargetLike) -> Loadable:
    """Resolve a target, and import the function that it names."""
    source = resolve(target)
    if isinstance(source, Target) and source.kind == "function":
        return import_program(source)
    return source


def _load(
    source: Loadable, gpus: int, machine: Machine | None = None, *, expects_one_gpu: bool = False
) -> CapturedProgram:
    if isinstance(source, Target):
        reason = Missing("a saved graph cannot be built for one GPU")
        with step(f"reading {source.name}"):
            graph = files.load(Path(source.path), source.name)
            return _from_graph(source.name, graph, gpus, reason)
    if isinstance(source, Program | Script):
        return _Builds(source, machine, expects_one_gpu=expects_one_gpu).load(gpus)
    if isinstance(source, WatchedCode):
        if source.built is None:
            fix = "place it after the block, outside of its indentation"
            raise UsageError(source.name, "is still being captured", fix, is_predicate=True)
        return source.built
    reason = Missing("a graph cannot be built again for one GPU")
    return _from_graph("the graph", from_live_graph(source, "the graph"), gpus, reason)


def _from_graph(name: str, source: GraphSource, gpus: int, reason: Missing) -> CapturedProgram:
    """A program that consists of a graph; ``reason`` states why it cannot be built again."""
    program = CapturedProgram(name=name, program=reason, gpus=gpus, source=source, loader=reason)
    _ = program.requested  # raises the errors of the graph
    return program


class _Builds:
    """The builds of one program, by the number of GPUs.

    With ``as_only_worker``, the program is built as the only worker of a cluster. The other
    arguments are as in `load`.
    """

    def __init__(
        self,
        program: Program | Script,
        machine: Machine | None,
        *,
        expects_one_gpu: bool = False,
        as_only_worker: bool = False,
    ) -> None:
        self._program = program
        self._as_only_worker = as_only_worker
        self._machine = machine
        self._expects_one_gpu = expects_one_gpu
        self._by_gpus: dict[int, CapturedProgram] = {}
        # When each build began and ended, in seconds since the epoch.
        self._times: dict[int, tuple[float, float]] = {}
        self._failed_for_one_gpu: Missing | None = None
        self._asks = False  # whether a build has queried the number of GPUs
        self._eager: Script | None = None  # set if the program must run eagerly
        # For a program of several tasks: its builds as a single task, on one host.
        self._on_one_host: _Builds | Missing | None = None

    def load(self, gpus: int) -> CapturedProgram:
        """Build the program for a number of GPUs, or return the earlier build."""
        if gpus not in self._by_gpus:
            ranks = self._program.settings.horovod if isinstance(self._program, Script) else 0
            number = plural(ranks, "rank") if ranks else plural(gpus, "GPU")
            with step(f"building {self._program.name} for {number}"):
                began = time.time()
                program = self._with_loader(self._build(gpus))
                self._times[gpus] = (began, time.time())
                self._asks |= program.asked_for_gpus
                _ = program.requested  # raises the errors of the graph
                self._by_gpus[gpus] = program
        return self._by_gpus[gpus]

    def _build(self, gpus: int) -> CapturedProgram:
        if self._eager is not None:
            return self._capture(self._eager, gpus)
        try:
            if isinstance(self._program, Script):
                return self._capture(self._program, gpus)
            return build(self._program, gpus)
        except EagerOnlyError as error:
            reason = error
        if isinstance(self._program, Script):
            self._eager = replace(self._program, eager=True)
        else:
            self._eager = script_from_function(self._program, reason)
        try:
            return self._capture(self._eager, gpus)
        except InputError as error:
            raise reason.with_eager_error(error) from None

    def expect_one_gpu(self, script: Script, gpus: int) -> None:
        """Announce a capture for one GPU, which may follow the capture for ``gpus`` GPUs."""
        machine = self._machine
        is_local = TF_CONFIG not in os.environ if machine is None else machine.is_local
        if is_local and gpus > 1:
            is_certain = self._asks or _why_not_rebuilt(self._program) is None
            environment = first_environment(script, machine)
            expect_capture(script, 1, environment, if_queried_for=None if is_certain else gpus)

    def _capture(self, script: Script, gpus: int) -> CapturedProgram:
        if script.settings.horovod:
            return self._capture_ranks(script)
        if self._expects_one_gpu:
            self.expect_one_gpu(script, gpus)
        if self._as_only_worker:
            return capture_only_worker(script, gpus)
        captured = capture_workers(script, gpus, self._machine)
        if captured.is_worker and captured.on_one_host is None:
            reason = "a coordinator can only be built with its parameter servers"
            self._on_one_host = Missing(reason)
        elif captured.is_worker:
            self._on_one_host = _Builds(self._program, Machine.local(), as_only_worker=True)
            self._on_one_host._eager = self._eager
            self._on_one_host._asks = self._asks or captured.asked_for_gpus
        return captured

    def _capture_ranks(self, script: Script) -> CapturedProgram:
        captured = capture_ranks(script)
        if script.settings.horovod != 1:  # for one GPU, the program is built as its only rank
            assert isinstance(self._program, Script)
            self._on_one_host = _Builds(self._program.with_ranks(1), Machine.local())
            self._on_one_host._eager = self._eager and self._eager.with_ranks(1)
            self._on_one_host._asks = True
        return captured

    def _with_loader(self, captured: CapturedProgram) -> CapturedProgram:
        whole = captured.on_one_host
        return replace(
            captured,
            name=self._program.name,
            program=self._program,
            on_one_host=None if whole is None else self._with_loader(whole),
            loader=self,
        )

    def load_for_one_gpu(self) -> CapturedProgram | Missing:
        """Return the build for one GPU, or the reason why it is missing.

        Raises:
            InputError: the program gets the number of GPUs, but ignores it.
        """
        if isinstance(self._on_one_host, Missing):
            return self._on_one_host
        if self._on_one_host is not None:  # a cluster cannot be built for one GPU
            return self._on_one_host.load_for_one_gpu()
        if self._failed_for_one_gpu is not None:
            return self._failed_for_one_gpu
        reason = _why_not_rebuilt(self._program)
        if reason is not None and not self._asks:
            return reason
        before = dict(self._by_gpus)
        try:
            single = self.load(1)
        except InputError as error:
            self._failed_for_one_gpu = self._why_failed(error)
            return self._failed_for_one_gpu
        alike = [
            gpus
            for gpus, other in before.items()
            if single is not other and single.graph_def == other.graph_def
        ]
        if not alike or not isinstance(self._program, Script):
            return single
        same_graph = f"builds the same graph for 1 GPU as for {alike[0]}"
        fix = "--let NUM_GPUS={gpus} for a number in its source code"
        if self._program.takes_num_gpus:
            raise InputError(
                self._program.name,
                f"{same_graph}, so {{gpus}} has no effect",
                f"write {{gpus}} where the program reads the number, such as {fix}",
                is_predicate=True,
            )
        return Missing(
            f"the program {same_graph}",
            option=f"pass it the number: {{gpus}} in its arguments, or {fix}",
        )

    def _why_failed(self, error: InputError) -> Missing:
        """The reason for a failed build for one GPU, which may be a file of an earlier build."""
        subject = "the program " if error.is_predicate else ""
        reason = f"built for one GPU, {subject}{error.message}"
        if isinstance(self._program, Script):
            for gpus, (began, ended) in self._times.items():
                if created := created_path(self._program, began, ended):
                    path, argument = created
                    return Missing(
                        f"{reason}; the run for {plural(gpus, 'GPU')} created {path}",
                        f"if that is the cause, give each run its own path: {argument}",
                    )
        return Missing(reason)


def _why_not_rebuilt(program: Program | Script) -> Missing | None:
    """Return why a program cannot be built for another number of GPUs; None if it can."""
    if program.takes_num_gpus:
        return None
    if isinstance(program, Script):
        reason = "the program does not receive the number of GPUs"
        return Missing(reason, option="write {gpus} in its arguments, or --let NAME={gpus}")
    if "num_gpus" in program.given.names:
        return Missing("the target sets num_gpus", option="write num_gpus={gpus} there")
    return Missing("the builder has no argument num_gpus")
