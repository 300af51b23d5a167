"""Ranks of a Horovod program, watched in turn in the process of the tests."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from placement_checks import Report, place, verify
from placement_checks.capture.child_process.ranks import as_rank, join_ranks
from placement_checks.capture.child_process.runner import without_live_objects
from placement_checks.capture.in_process.builder import (
    BuildRecorder,
    build,
    record_eager_code,
)
from placement_checks.capture.in_process.sessions import StopProgram
from placement_checks.core.missing import Missing
from placement_checks.core.program import CapturedProgram, Program, WatchedCode
from placement_checks.core.ranks import Rank
from placement_checks.horovod.activate import RankWatch, stand_in_for_horovod
from placement_checks.tf.keras import comes_with_keras_2

FIXTURES = Path(__file__).parents[2] / "fixtures"


def judged_ranks(
    module: str, function: str, *, ranks: int = 2, eager: bool = False, only: Sequence[str] = ()
) -> Report:
    """The verdicts on a function of a fixture, called by each rank."""
    evidence = place(watched_ranks(module, function, ranks=ranks, eager=eager))
    return verify(evidence, only=only) if only else verify(evidence)


def watched_ranks(
    module: str,
    function: str,
    *,
    ranks: int = 2,
    eager: bool = False,
    with_single: bool = True,
) -> WatchedCode:
    """The first steps of a function of a fixture that all ranks call."""
    return watched_function(
        partial(_function_of, module, function),
        function,
        ranks=ranks,
        eager=eager,
        with_single=with_single,
    )


def watched_function(
    load: Callable[[], Callable[[], Any]],
    name: str,
    *,
    ranks: int = 2,
    eager: bool = False,
    with_single: bool = True,
) -> WatchedCode:
    """The first steps of a function that each rank loads and calls."""
    program = Program(name, lambda: None)

    def captured(number: int, size: int) -> CapturedProgram:
        built = _captured(load, name, Rank(number, size), eager=eager)
        return replace(built, program=program)

    joined = join_ranks([captured(number, ranks) for number in range(ranks)])
    whole = joined.on_one_host and replace(joined.on_one_host, program=program)
    single = _Single(captured(0, 1)) if with_single else Missing("it is not built for one GPU")
    built = replace(joined, program=program, on_one_host=whole, loader=single)
    return WatchedCode(name, built)


@dataclass(frozen=True)
class _Single:
    """Loads the program as its only rank."""

    built: CapturedProgram

    def load_for_one_gpu(self) -> CapturedProgram:
        return self.built


def captured_rank(
    module: str, function: str, rank: Rank, *, eager: bool = False
) -> CapturedProgram:
    """The first step of one rank; the modules of fixtures are imported for it alone."""
    return _captured(partial(_function_of, module, function), function, rank, eager=eager)


def _function_of(module: str, function: str) -> Callable[[], Any]:
    found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    return found


def _captured(
    load: Callable[[], Callable[[], Any]], name: str, rank: Rank, *, eager: bool
) -> CapturedProgram:
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("programs", "defects", "sound"):
            patch.syspath_prepend(str(FIXTURES / kind / "workers"))
        for variable, value in rank.environment.items():
            patch.setenv(variable, value)
        _forget_layer_names()
        with stand_in_for_horovod() as watch:
            try:
                program = Program(name, load())
                return (_eager_step if eager else _graph_step)(program, rank, watch)
            finally:
                for each in set(sys.modules) - before:
                    if str(getattr(sys.modules[each], "__file__", "")).startswith(str(FIXTURES)):
                        del sys.modules[each]


def _forget_layer_names() -> None:
    """Let each rank name its layers alike."""
    if comes_with_keras_2():
        tf.keras.backend.clear_session()
    else:
        tf.keras.utils.clear_session(free_memory=False)  # a collection takes a CPU second


def _graph_step(program: Program, rank: Rank, watch: RankWatch) -> CapturedProgram:
    steps: list[CapturedProgram] = []

    def record(building: BuildRecorder) -> None:  # while the session is open
        steps.append(without_live_objects(as_rank(building.capture_step(), watch, building.calls)))
        raise StopProgram

    build(program, rank.size, record)
    return steps[0]


def _eager_step(program: Program, rank: Rank, watch: RankWatch) -> CapturedProgram:
    with record_eager_code(program, rank.size) as building:
        with contextlib.suppress(StopProgram):
            run: Callable[[], Any] = program.build
            run()
        return without_live_objects(as_rank(building.capture_step(), watch, building.calls))
