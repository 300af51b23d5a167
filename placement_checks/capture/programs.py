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
from placement_checks.core.missing import FixedGpus, Missing
from placement_checks.core.program import (
    BuiltGraph,
    CapturedProgram,
    Program,
    WatchedCode,
)
from placement_checks.core.target import Loadable, Script, Target
from placement_checks.graph import files
from placement_checks.graph.reading import GraphSource, from_live_graph
from placement_checks.targets.importing import eager_script, import_program
from placement_checks.util.progress import step
from placement_checks.util.text import plural


def load(
    program: Loadable,
    gpus: int,
    machine: Machine | None = None,
    *,
    expects_one_gpu: bool = False,
) -> CapturedProgram:
    """Build a program, or read a graph.

    Args:
        program: the program or graph, from `targets.forms.resolve`.
        gpus: the number of GPUs to build the program for.
        machine: the cluster that a program in its own process finds in TF_CONFIG. A machine
            of one host empties TF_CONFIG; None leaves it unchanged.
        expects_one_gpu: whether the build for one GPU will be needed too. Its capture may then
            start at the same time (`capture.child_process.early`).

    Raises:
        InputError: the program cannot be built, or the graph cannot be read.
    """
    match program := _imported(program):
        case Program() | Script():
            return _Builds(program, machine, expects_one_gpu=expects_one_gpu).load(gpus)
        case Target():
            with step(f"reading {program.name}"):
                graph = files.load(Path(program.path), program.name)
                return _from_graph(program.name, graph, gpus, program.why_fixed)
        case BuiltGraph():
            name = "the graph"
            graph = from_live_graph(program.graph, name)
            return _from_graph(name, graph, gpus, program.why_fixed)
        case WatchedCode():
            if program.built is None:
                fix = "place it after the block, outside of its indentation"
                raise UsageError(program.name, "is still being captured", fix, is_predicate=True)
            return program.built
    raise AssertionError(program)


def expect(
    program: Loadable,
    gpus: int,
    machine: Machine | None = None,
    *,
    expects_one_gpu: bool = False,
) -> None:
    """Announce a later call of `load` with the same arguments, so that captures may start early.

    Only captures of whole programs start early.
    """
    if isinstance(program, Script):
        expect_capture(program, gpus, first_environment(program, machine))
        if expects_one_gpu:
            _Builds(program, machine).expect_one_gpu(program, gpus)


def expect_reference(reference: Loadable, program: Loadable) -> None:
    """Announce a later call of `load_reference` for the same program."""
    if isinstance(reference, Script) and not reference.is_same(program):
        expect_capture(reference, 1, first_environment(reference, Machine.local(1)))


def load_reference(reference: Loadable, towers: CapturedProgram) -> CapturedProgram:
    """Build the reference of a program for one GPU.

    If program and reference are the same, the program's build for one GPU is reused.

    Raises:
        InputError: the reference cannot be built or read.
    """
    reference = _imported(reference)
    if reference.is_same(towers.program):
        single = load_for_one_gpu(towers)
        if single:
            return single
    return load(reference, 1, Machine.local(1))


def load_for_one_gpu(program: CapturedProgram) -> CapturedProgram | Missing:
    """Return the build of a program for one GPU, or `Missing` if it cannot be built for one GPU.

    The program is built at the first call.
    """
    if isinstance(program.loader, Missing):
        return program.loader
    return program.loader.load_for_one_gpu()


def _imported(program: Loadable) -> Loadable:
    """Import a function that is only named."""
    if isinstance(program, Target) and program.kind == "function":
        return import_program(program)
    return program


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
        # What a process of its own runs, if the program does not run in this process.
        self._script = program if isinstance(program, Script) else None
        # For a program of several tasks: its builds as a single task, on one host.
        self._on_one_host: _Builds | Missing | None = None

    def load(self, gpus: int) -> CapturedProgram:
        """Build the program for a number of GPUs, or return the earlier build."""
        if gpus not in self._by_gpus:
            ranks = self._script.settings.horovod if self._script else None
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
        if self._script and self._script.eager:
            return self._capture(self._script, gpus)
        try:
            if self._script:
                return self._capture(self._script, gpus)
            assert isinstance(self._program, Program)
            return build(self._program, gpus)
        except EagerOnlyError as error:
            reason = error
        self._script = eager_script(self._program, reason)
        try:
            return self._capture(self._script, gpus)
        except InputError as error:
            raise reason.with_eager_error(error) from None

    def expect_one_gpu(self, script: Script, gpus: int) -> None:
        """Announce a capture for one GPU, which may follow the capture for ``gpus`` GPUs."""
        machine = self._machine
        is_local = TF_CONFIG not in os.environ if machine is None else machine.is_local
        if is_local and gpus > 1:
            is_certain = self._asks or self._program.why_fixed is None
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
            self._on_one_host._script = script
            self._on_one_host._asks = self._asks or captured.asked_for_gpus
        return captured

    def _capture_ranks(self, script: Script) -> CapturedProgram:
        captured = capture_ranks(script)
        if script.settings.horovod != 1:  # for one GPU, the program is built as its only rank
            assert isinstance(self._program, Script)
            self._on_one_host = _Builds(self._program.with_ranks(1), Machine.local())
            self._on_one_host._script = script.with_ranks(1)
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
        reason = self._program.why_fixed
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
        if not alike or not self._program.in_own_process:
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
        return FixedGpus(
            f"the program {same_graph}",
            option=f"pass it the number: {{gpus}} in its arguments, or {fix}",
        )

    def _why_failed(self, error: InputError) -> Missing:
        """The reason for a failed build for one GPU, which may be a file of an earlier build."""
        subject = "the program " if error.is_predicate else ""
        reason = f"built for one GPU, {subject}{error.message}"
        if self._script:
            for gpus, (began, ended) in self._times.items():
                if created := created_path(self._script, began, ended):
                    path, argument = created
                    return Missing(
                        f"{reason}; the run for {plural(gpus, 'GPU')} created {path}",
                        f"if that is the cause, give each run its own path: {argument}",
                    )
        return Missing(reason)
