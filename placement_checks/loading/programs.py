"""From a target to a built program, which is built once for each number of GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.program import BuiltProgram, InitialState, Program, Step, Target
from placement_checks.loading import graph_files
from placement_checks.loading.building import build
from placement_checks.loading.graph_reading import GraphSource, from_live_graph, requested
from placement_checks.loading.initial_state import initial_state
from placement_checks.loading.targets import resolve
from placement_checks.util.progress import doing
from placement_checks.util.text import plural


def load(target: Target | tf.Graph, gpus: int) -> BuiltProgram:
    """Build a program, or read a graph.

    Args:
        target: a builder, a `Program`, a ``tf.Graph``, the path of a saved graph, or any of them
            as the command line names it (``train.py:build_towers``).
        gpus: how many GPUs it is built for.

    Raises:
        UsageError: it is not a target.
        InputError: it cannot be built or read.
    """
    return _load(_resolved(target), gpus)


def load_reference(target: Target, towers: BuiltProgram) -> BuiltProgram:
    """The reference of a program, built for one GPU.

    It may be the same function, which is then not called again.

    Raises:
        UsageError: it is not a target.
        InputError: it cannot be built or read.
    """
    source = _resolved(target)
    if isinstance(source, Program) and _is_built_by(towers, source):
        single = towers if towers.gpus == 1 else towers.for_gpus(1)
        if single:
            return single
    return _load(source, 1)


def _is_built_by(built: BuiltProgram, program: Program) -> bool:
    return isinstance(built.program, Program) and program.is_same_function(built.program)


def _resolved(target: Any) -> Any:
    """A program, the path of a graph or a live graph."""
    if isinstance(target, str):
        return resolve(target)
    if isinstance(target, Path | Program) or hasattr(target, "as_graph_def"):
        return target
    return Program.of(target)


def _load(source: Any, gpus: int) -> BuiltProgram:
    if isinstance(source, Path):
        reason = "a saved graph cannot be built for one GPU"
        with doing(f"reading {source}"):
            return _without_program(graph_files.load(source), gpus, Missing(reason))
    if isinstance(source, Program):
        return _Builds(source).built(gpus)
    reason = "a graph cannot be built again for one GPU"
    return _without_program(from_live_graph(source, "the graph"), gpus, Missing(reason))


def _without_program(source: GraphSource, gpus: int, reason: Missing) -> BuiltProgram:
    """The built program of a graph of which nothing else is known."""
    return BuiltProgram(
        program=reason,
        gpus=gpus,
        requested=requested(source),
        step=Step(),
        graph_def=source.graph_def,
        graph=source.live,
        initial=InitialState(),
        applied=(),
        for_gpus=lambda _: reason,
    )


class _Builds:
    """The builds of one program, by the number of GPUs."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._by_gpus: dict[int, BuiltProgram] = {}

    def built(self, gpus: int) -> BuiltProgram:
        """The program for so many GPUs, built on first use."""
        if gpus not in self._by_gpus:
            with doing(f"building {self._program.name} for {plural(gpus, 'GPU')}"):
                self._by_gpus[gpus] = self._build(gpus)
        return self._by_gpus[gpus]

    def _build(self, gpus: int) -> BuiltProgram:
        source, step, applied = build(self._program, gpus)
        placement = replace(requested(source), soft=step.soft)
        assert source.live is not None
        return BuiltProgram(
            program=self._program,
            gpus=gpus,
            requested=placement,
            step=step,
            graph_def=source.graph_def,
            graph=source.live,
            initial=initial_state(
                source.live, {variable.name for variable in placement.variables}
            ),
            applied=applied,
            for_gpus=self._for_gpus,
        )

    def _for_gpus(self, gpus: int) -> BuiltProgram | Missing:
        if not self._program.takes_num_gpus:
            if "num_gpus" in self._program.given.names:
                return Missing("its target sets num_gpus", "write num_gpus={gpus} there")
            return Missing("its builder takes no num_gpus")
        try:
            return self.built(gpus)
        except InputError as error:
            number = "one GPU" if gpus == 1 else f"{gpus} GPUs"
            return Missing(f"built for {number}, {error.message}")
