"""Ranks of a Horovod program, watched in turn in the process of the tests."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placement_checks import Report, place, verify
from placement_checks.capture.child_process.ranks import as_rank, join_ranks
from placement_checks.capture.child_process.runner import without_live_objects
from placement_checks.capture.in_process.builder import build, record_eager_code
from placement_checks.capture.in_process.sessions import StopProgram
from placement_checks.core.missing import Missing
from placement_checks.core.program import CapturedProgram, Program, WatchedCode
from placement_checks.core.ranks import Rank
from placement_checks.horovod.activate import stand_in_for_horovod

FIXTURES = Path(__file__).parents[2] / "fixtures"


def judged_ranks(
    module: str, function: str, *, ranks: int = 2, eager: bool = False, only: Sequence[str] = ()
) -> Report:
    """The verdicts on a function of a fixture, called by each rank."""
    evidence = place(watched_ranks(module, function, ranks=ranks, eager=eager))
    return verify(evidence, only=only) if only else verify(evidence)


def watched_ranks(
    module: str, function: str, *, ranks: int = 2, eager: bool = False
) -> WatchedCode:
    """The first steps of a function of a fixture that all ranks call."""
    built = [
        captured_rank(module, function, Rank(number, ranks), eager=eager)
        for number in range(ranks)
    ]
    joined = join_ranks(built)
    program = Program(function, lambda: None)
    whole = joined.on_one_host and replace(joined.on_one_host, program=program)
    alone = Missing("ranks are not built for one GPU")
    return WatchedCode(
        function, replace(joined, program=program, on_one_host=whole, loader=alone)
    )


def captured_rank(
    module: str, function: str, rank: Rank, *, eager: bool = False
) -> CapturedProgram:
    """The first step of one rank; the modules of fixtures are imported for it alone."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("programs", "defects", "sound"):
            patch.syspath_prepend(str(FIXTURES / kind / "workers"))
        for name, value in rank.environment.items():
            patch.setenv(name, value)
        with stand_in_for_horovod() as watch:
            try:
                train = getattr(importlib.import_module(module), function)
                program = Program(function, train)
                record = _built_eagerly if eager else build
                return without_live_objects(as_rank(record(program, rank.size), watch))
            finally:
                for name in set(sys.modules) - before:
                    if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FIXTURES)):
                        del sys.modules[name]


def _built_eagerly(program: Program, gpus: int) -> CapturedProgram:
    run: Callable[[], Any] = program.build
    with record_eager_code(program, gpus) as building:
        with contextlib.suppress(StopProgram):
            run()
        return building.trained()
