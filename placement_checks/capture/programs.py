"""Loads targets: calls the builder, starts the process or reads the graph that a target names.

Each program is built once for each number of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from placement_checks.capture.child_process.snapshot import RecordedProgram
from placement_checks.capture.child_process.workers import capture_workers
from placement_checks.capture.eager.errors import EagerOnlyError
from placement_checks.capture.in_process.builder import build, built_program
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.program import (
    BuiltProgram,
    InitialState,
    Loadable,
    Program,
    Step,
    TargetLike,
    WatchedCode,
)
from placement_checks.core.target import Script, Target
from placement_checks.graph import files
from placement_checks.graph.reading import GraphSource, from_live_graph, read_placement
from placement_checks.targets.forms import resolve
from placement_checks.targets.importing import import_program, script_from_function
from placement_checks.util.progress import step
from placement_checks.util.text import plural


def load(target: TargetLike, gpus: int, machine: Machine | None = None) -> BuiltProgram:
    """Build a program, or read a graph.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or the text of
            a target (``train.py:build_towers``).
        gpus: the number of GPUs to build the program for.
        machine: the cluster of eager code, which runs as one of its tasks; by default the
            cluster of TF_CONFIG.

    Raises:
        UsageError: ``target`` is none of these.
        InputError: the program cannot be built, or the graph cannot be read.
    """
    return _load(_imported(target), gpus, machine)


def load_reference(target: TargetLike, towers: BuiltProgram) -> BuiltProgram:
    """Build the reference of a program for one GPU.

    If program and reference are the same function, its build for one GPU is reused.

    Raises:
        UsageError: ``target`` is not a target.
        InputError: the reference cannot be built or read.
    """
    source = _imported(target)
    if _is_built_by(towers, source):
        single = towers.for_gpus(1)
        if single:
            return single
    return _load(source, 1, Machine.local(1))


def _is_built_by(built: BuiltProgram, source: Loadable) -> bool:
    if isinstance(source, Program) and isinstance(built.program, Program):
        return source.is_same_function(built.program)
    return source == built.program


def _imported(target: TargetLike) -> Loadable:
    """Resolve a target, and import the function that it names."""
    source = resolve(target)
    if isinstance(source, Target) and source.kind == "function":
        return import_program(source)
    return source


def _load(source: Loadable, gpus: int, machine: Machine | None = None) -> BuiltProgram:
    if isinstance(source, Target):
        reason = "a saved graph cannot be built for one GPU"
        with step(f"reading {source.name}"):
            return _from_graph(files.load(Path(source.path), source.name), gpus, Missing(reason))
    if isinstance(source, Program | Script):
        return _Builds(source, machine).built(gpus)
    if isinstance(source, WatchedCode):
        if source.built is None:
            fix = "place it after the block, outside of its indentation"
            raise UsageError(source.name, "is still being captured", fix)
        return source.built
    reason = "a graph cannot be built again for one GPU"
    return _from_graph(from_live_graph(source, "the graph"), gpus, Missing(reason))


def _from_graph(source: GraphSource, gpus: int, reason: Missing) -> BuiltProgram:
    """The built program of a graph without a builder."""
    return BuiltProgram(
        program=reason,
        gpus=gpus,
        requested=replace(read_placement(source), gpus=gpus),
        step=Step(),
        graph_def=source.graph_def,
        graph=source.live,
        initial=InitialState(),
        applied=(),
        for_gpus=lambda _: reason,
    )


class _Builds:
    """The builds of one program, by the number of GPUs.

    Args:
        program: the program.
        machine: the cluster of eager code, which runs as one of its tasks; None for TF_CONFIG.
    """

    def __init__(self, program: Program | Script, machine: Machine | None) -> None:
        self._program = program
        self._machine = machine
        self._by_gpus: dict[int, BuiltProgram] = {}
        self._asks = False  # whether the program asks for the number of GPUs
        self._eager: Script | None = None  # set if the program must run eagerly
        self._on_one_host: _Builds | Missing | None = None  # set for a program of several tasks

    def built(self, gpus: int) -> BuiltProgram:
        """Build the program for a number of GPUs, or return the earlier build."""
        if gpus not in self._by_gpus:
            with step(f"building {self._program.name} for {plural(gpus, 'GPU')}"):
                self._by_gpus[gpus] = self._build(gpus)
        return self._by_gpus[gpus]

    def _build(self, gpus: int) -> BuiltProgram:
        if self._eager is not None:
            return self._capture(self._eager, gpus)
        try:
            if isinstance(self._program, Script):
                return self._capture(self._program, gpus)
            built = build(self._program, gpus)
        except EagerOnlyError as error:
            reason = error
        else:
            self._asks |= built.asked_for_gpus
            return built_program(self._program, gpus, built, self._for_gpus)
        if isinstance(self._program, Script):
            self._eager = replace(self._program, eager=True)
        else:
            self._eager = script_from_function(self._program, reason)
        try:
            return self._capture(self._eager, gpus)
        except InputError as error:
            raise reason.with_eager_error(error) from None

    def _capture(self, script: Script, gpus: int) -> BuiltProgram:
        recorded = capture_workers(script, gpus, self._machine)
        self._asks |= recorded.asked_for_gpus
        if recorded.is_worker:
            self._on_one_host = self._without_cluster(recorded)
        return recorded_program(self._program, gpus, recorded, self._for_gpus)

    def _without_cluster(self, recorded: RecordedProgram) -> _Builds | Missing:
        """The builds of a program that finds no cluster in TF_CONFIG."""
        if recorded.on_one_host is None:
            return Missing("a coordinator can only be built with its parameter servers")
        builds = _Builds(self._program, Machine.local())
        builds._eager, builds._asks = self._eager, self._asks
        return builds

    def _for_gpus(self, gpus: int) -> BuiltProgram | Missing:
        if self._on_one_host is not None:  # a cluster cannot be built for one GPU
            builds = self._on_one_host
            return builds if isinstance(builds, Missing) else builds._for_gpus(gpus)
        reason = _why_not_rebuilt(self._program)
        if reason is not None and not self._asks:
            return reason
        before = list(self._by_gpus.values())
        try:
            built = self.built(gpus)
        except InputError as error:
            number = "one GPU" if gpus == 1 else f"{gpus} GPUs"
            return Missing(f"built for {number}, {error.message}")
        same = any(built is not other and built.graph_def == other.graph_def for other in before)
        if same and isinstance(self._program, Script):
            return _same_graph(self._program, gpus)
        return built


def recorded_program(
    program: Program | Script,
    gpus: int,
    recorded: RecordedProgram,
    for_gpus: Callable[[int], BuiltProgram | Missing],
) -> BuiltProgram:
    """Convert a program that another process built and recorded."""
    source = recorded.source(program.name)
    folded = recorded.on_one_host
    return BuiltProgram(
        program=program,
        gpus=gpus,
        requested=replace(read_placement(source), soft=recorded.soft, gpus=gpus),
        step=recorded.step,
        graph_def=source.graph_def,
        graph=None,
        initial=recorded.initial,
        applied=recorded.applied,
        for_gpus=for_gpus,
        fed=recorded.fed,
        turns=recorded.turns,
        notes=recorded.notes,
        gradients_inside=recorded.gradients_inside,
        machine=recorded.machine(gpus),
        on_one_host=None
        if folded is None or folded.strategy is None
        else recorded_program(program, len(folded.strategy.replicas), folded, for_gpus),
    )


def _same_graph(script: Script, gpus: int) -> Missing:
    """Return why a program was not built for another number of GPUs: its graph did not change.

    Raises:
        InputError: ``{gpus}`` is passed to the program, but has no effect.
    """
    reason = f"builds the same graph for {plural(gpus, 'GPU')}"
    fix = "--let NUM_GPUS={gpus} for a number in its source code"
    if script.takes_num_gpus:
        raise InputError(
            script.name,
            f"{reason}: {{gpus}} has no effect",
            f"write {{gpus}} where the program reads the number, such as {fix}",
        )
    return Missing(f"it {reason}", f"pass it the number: {{gpus}} in its arguments, or {fix}")


def _why_not_rebuilt(program: Program | Script) -> Missing | None:
    """Return why a program cannot be built for another number of GPUs; None if it can."""
    if program.takes_num_gpus:
        return None
    if isinstance(program, Script):
        reason = "it does not receive the number of GPUs"
        return Missing(reason, "write {gpus} in its arguments, or --let NAME={gpus}")
    if "num_gpus" in program.given.names:
        return Missing("its target sets num_gpus", "write num_gpus={gpus} there")
    return Missing("its builder takes no num_gpus")
