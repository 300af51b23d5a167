"""Workers of a strategy over several processes, captured one by one in the process of the
tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from placement_checks.capture.child_process.runner import without_live_objects
from placement_checks.capture.child_process.workers import join_workers, place_on_servers
from placement_checks.capture.in_process.builder import record_eager_code
from placement_checks.capture.in_process.sessions import StopProgram
from placement_checks.core.cluster_spec import environment_of
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.program import CapturedProgram, Program, WatchedCode


def watched_workers(train: Callable[[], Any], machine: str, gpus: int = 1) -> WatchedCode:
    """The first steps of a function that all workers of a machine call."""
    jobs = Machine.parse(machine).jobs
    workers = [
        recorded_task(train, jobs, job, index, gpus)
        for job in sorted({"chief", "worker"} & jobs.keys())
        for index in jobs[job]
    ]
    return _code(train, gpus, join_workers(workers))


def watched_coordinator(train: Callable[[], Any], machine: str, gpus: int = 1) -> WatchedCode:
    """The first step that a function schedules as the coordinator of parameter servers."""
    coordinator = recorded_task(train, Machine.parse(machine).jobs, "chief", 0, gpus)
    return _code(train, gpus, place_on_servers(coordinator))


def _code(train: Callable[[], Any], gpus: int, recorded: CapturedProgram) -> WatchedCode:
    program, alone = Program(train.__name__, train), Missing("workers are not built for one GPU")
    whole = recorded.on_one_host and replace(recorded.on_one_host, program=program)
    built = replace(recorded, program=program, gpus=max(1, gpus), on_one_host=whole, loader=alone)
    return WatchedCode(train.__name__, built)


def recorded_task(
    train: Callable[[], Any], jobs: Mapping[str, Sequence[int]], job: str, index: int, gpus: int
) -> CapturedProgram:
    """The first step of a function that one task of a cluster with these jobs calls."""
    cluster = {
        name: {number: f"{name}-{number}:2222" for number in numbers}
        for name, numbers in jobs.items()
    }
    environment = environment_of(cluster, job, index)
    program = Program(train.__name__, train)
    with pytest.MonkeyPatch.context() as patch, record_eager_code(program, gpus) as building:
        for name, value in environment.items():
            patch.setenv(name, value)
        with contextlib.suppress(StopProgram):
            train()
        built = building.capture_step()
    return without_live_objects(built)
