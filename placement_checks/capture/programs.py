"""From a target to a built program, which is built once for each number of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from placement_checks.capture.child_process.snapshot import RecordedProgram
from placement_checks.capture.child_process.workers import watched_workers
from placement_checks.capture.eager.errors import EagerOnlyError
from placement_checks.capture.in_process.builder import build, built_program
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.program import (
    BuiltProgram,
    InitialState,
    Program,
    Step,
    Target,
    WatchedCode,
)
from placement_checks.core.script import Script
from placement_checks.graph import files
from placement_checks.graph.reading import GraphSource, from_live_graph, read_placement
from placement_checks.targets.importing import resolve, script_of_function
from placement_checks.util.progress import step
from placement_checks.util.text import plural


def load(target: Target | tf.Graph, gpus: int, machine: Machine | None = None) -> BuiltProgram:
    """Build a program, or read a graph.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or any of them
            as the command line names it (``train.py:build_towers``).
        gpus: how many GPUs it is built for.
        machine: the cluster of which eager code is a task; by default that of TF_CONFIG.

    Raises:
        UsageError: it is not a target.
        InputError: it cannot be built or read.
    """
    return _load(_resolved(target), gpus, machine)


def load_reference(target: Target, towers: BuiltProgram) -> BuiltProgram:
    """The reference of a program, built for one GPU.

    It may be the same function, which is then not called again.

    Raises:
        UsageError: it is not a target.
        InputError: it cannot be built or read.
    """
    source = _resolved(target)
    if _is_built_by(towers, source):
        single = towers.for_gpus(1)
        if single:
            return single
    return _load(source, 1, Machine.local(1))


def _is_built_by(built: BuiltProgram, source: Any) -> bool:
    if isinstance(source, Script):
        return source == built.program
    both = isinstance(source, Program) and isinstance(built.program, Program)
    return both and source.is_same_function(built.program)


def _resolved(target: Any) -> Any:
    """A program, the path of a graph or a live graph."""
    if isinstance(target, str):
        return resolve(target)
    if isinstance(target, Path | Program | Script | WatchedCode) or hasattr(
        target, "as_graph_def"
    ):
        return target
    return Program.of(target)


def _load(source: Any, gpus: int, machine: Machine | None = None) -> BuiltProgram:
    if isinstance(source, Path):
        reason = "a saved graph cannot be built for one GPU"
        with step(f"reading {source}"):
            return _without_program(files.load(source), gpus, Missing(reason))
    if isinstance(source, Program | Script):
        return _Builds(source, machine).built(gpus)
    if isinstance(source, WatchedCode):
        if source.built is None:
            fix = "place it behind the block, where its indentation ends"
            raise UsageError(source.name, "is still being watched", fix)
        return source.built
    reason = "a graph cannot be built again for one GPU"
    return _without_program(from_live_graph(source, "the graph"), gpus, Missing(reason))


def _without_program(source: GraphSource, gpus: int, reason: Missing) -> BuiltProgram:
    """The built program of a graph of which nothing else is known."""
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
        program: what is built.
        machine: the cluster of which eager code is a task; None for that of TF_CONFIG.
    """

    def __init__(self, program: Program | Script, machine: Machine | None) -> None:
        self._program = program
        self._machine = machine
        self._by_gpus: dict[int, BuiltProgram] = {}
        self._asks = False  # how many GPUs there are
        self._eager: Script | None = None  # the program, where it is to be run eagerly
        self._alone: _Builds | Missing | None = None  # on one host, where it is of several tasks

    def built(self, gpus: int) -> BuiltProgram:
        """The program for so many GPUs, built on first use."""
        if gpus not in self._by_gpus:
            with step(f"building {self._program.name} for {plural(gpus, 'GPU')}"):
                self._by_gpus[gpus] = self._build(gpus)
        return self._by_gpus[gpus]

    def _build(self, gpus: int) -> BuiltProgram:
        if self._eager is not None:
            return self._watched(self._eager, gpus)
        try:
            if isinstance(self._program, Script):
                return self._watched(self._program, gpus)
            built = build(self._program, gpus)
        except EagerOnlyError as error:
            reason = error
        else:
            self._asks |= built.asked_for_gpus
            return built_program(self._program, gpus, built, self._for_gpus)
        self._eager = _run_eagerly(self._program, reason)
        try:
            return self._watched(self._eager, gpus)
        except InputError as error:
            raise reason.with_eager_error(error) from None

    def _watched(self, script: Script, gpus: int) -> BuiltProgram:
        recorded = watched_workers(script, gpus, self._machine)
        self._asks |= recorded.asked_for_gpus
        if recorded.is_worker:
            self._alone = self._on_one_host(recorded)
        return recorded_program(self._program, gpus, recorded, self._for_gpus)

    def _on_one_host(self, recorded: RecordedProgram) -> _Builds | Missing:
        """The builds of a program that finds no cluster."""
        if recorded.on_one_host is None:
            return Missing("a coordinator is built for its parameter servers alone")
        alone = _Builds(self._program, Machine.local())
        alone._eager, alone._asks = self._eager, self._asks
        return alone

    def _for_gpus(self, gpus: int) -> BuiltProgram | Missing:
        if self._alone is not None:  # the workers together are not built for one GPU
            alone = self._alone
            return alone if isinstance(alone, Missing) else alone._for_gpus(gpus)
        reason = _is_told_no_number(self._program)
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
            return _is_the_same(self._program, gpus)
        return built


def recorded_program(
    program: Program | Script,
    gpus: int,
    recorded: RecordedProgram,
    for_gpus: Callable[[int], BuiltProgram | Missing],
) -> BuiltProgram:
    """The built program of what another process has built."""
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


def _run_eagerly(program: Program | Script, error: EagerOnlyError) -> Script:
    """A function as a program that is run eagerly.

    Raises:
        InputError: no other process can load it.
    """
    if isinstance(program, Script):
        return replace(program, eager=True)
    return script_of_function(program, error)


def _is_the_same(script: Script, gpus: int) -> Missing:
    """That a program builds the same graph for another number of GPUs.

    Raises:
        InputError: it is told the number.
    """
    reason = f"builds the same graph for {plural(gpus, 'GPU')}"
    fix = "--let NUM_GPUS={gpus} for a number that its source holds"
    if script.uses_gpus:
        raise InputError(
            script.name,
            f"{reason}: {{gpus}} changes nothing",
            f"write {{gpus}} where it reads the number, such as {fix}",
        )
    return Missing(f"it {reason}", f"tell it the number: {{gpus}} in its arguments, or {fix}")


def _is_told_no_number(program: Program | Script) -> Missing | None:
    """Why a program cannot be built for another number of GPUs; None if it can."""
    if isinstance(program, Script):
        if program.uses_gpus:
            return None
        reason = "it is not told the number of GPUs"
        return Missing(reason, "write {gpus} in its arguments, or --let NAME={gpus}")
    if program.takes_num_gpus:
        return None
    if "num_gpus" in program.given.names:
        return Missing("its target sets num_gpus", "write num_gpus={gpus} there")
    return Missing("its builder takes no num_gpus")
