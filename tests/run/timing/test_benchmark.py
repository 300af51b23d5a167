"""Loops that take steps in turn, on devices of one core each."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support import pairs

from placement_checks import Program
from placement_checks.capture.programs import load
from placement_checks.core.errors import CannotRun, UsageError
from placement_checks.core.timing import Loop
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.session import ProgramSession
from placement_checks.run.timing import benchmark
from placement_checks.run.timing.benchmark import TimedPair
from placement_checks.run.timing.thread_pools import ONEDNN, POOL, set_thread_pools


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions have run before in this process, and fixed the number of threads within an op.

    The machine has two cores, so that two towers have a core each, whatever runs the tests.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    monkeypatch.setattr(benchmark, "_MAX_CORES", math.inf)
    monkeypatch.setattr(benchmark, "MAX_TRACED", 3)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The opened sessions: program and number of threads."""
    found = []
    whole = ProgramSession.__init__

    def noting(
        self: ProgramSession, program: Any, seconds: float, *, threads: int, timed: bool
    ) -> None:
        assert timed
        found.append((program.name, threads))
        whole(self, program, seconds, threads=threads, timed=timed)

    monkeypatch.setattr(ProgramSession, "__init__", noting)
    return found


def pair(towers: Callable[..., Any] = pairs.towers, gpus: int = 2) -> ProgramPair:
    single = load(Program("single", pairs.single), 1)
    return ProgramPair.from_programs(load(Program("towers", towers), gpus), single, "auto")


def test_every_loop_takes_one_step_per_round_without_warm_up() -> None:
    with TimedPair(pair(), pairs.batch, rows=32) as timed_pair:
        for _ in range(4):
            timed_pair.run_others()
            timed_pair.run_towers()
        assert list(timed_pair.trace()) == [1, 2, 3]
        timed = timed_pair.timing()

    assert timed.rows == 32
    assert timed.contention is not None
    loops = (timed.single, timed.towers, timed.baseline, timed.contention)
    assert [len(loop.wall) for loop in loops] == [4, 4, 4, 4]
    assert [len(loop.cpu) for loop in loops] == [4, 4, 4, 4]
    assert all(seconds > 0 for loop in loops for seconds in loop.wall)
    assert timed.simulated is not None
    assert {str(device)[-5:] for device in timed.trace.shortest.lanes} == {
        "CPU:0", "GPU:0", "GPU:1",
    }  # fmt: skip


def test_each_loop_has_the_threads_that_make_it_comparable(
    opened: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))

    with TimedPair(pair(gpus=3), pairs.batch):
        pass

    assert opened == [("single", 1), ("towers", 3), ("towers", 1), ("single", 1), ("single", 1)]


def test_contention_is_not_timed_with_too_few_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))

    with TimedPair(pair(gpus=4), pairs.batch) as timed_pair:
        timed_pair.run_others()
        timed_pair.run_towers()
        next(timed_pair.trace())
        timed = timed_pair.timing()

    assert timed.contention is None
    assert timed.ratio is None
    assert timed.unmeasured == (
        "4 devices of one core each need as many cores, but this process has 2"
    )


def test_the_loops_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none of them always runs after the same one."""
    order: list[str] = []
    with TimedPair(pair(), pairs.batch) as timed_pair:
        for name in ("single", "towers", "baseline", "contention"):
            loop = getattr(timed_pair, f"_{name}")
            monkeypatch.setattr(loop, "_step", partial(order.append, name))
        for _ in range(2):
            timed_pair.run_others()
            timed_pair.run_towers()

    assert order == [
        "single", "baseline", "contention", "towers",
        "contention", "baseline", "single", "towers",
    ]  # fmt: skip


def test_a_program_without_a_train_op_is_not_timed() -> None:
    def towers(num_gpus: int = 2) -> Any:
        return {**pairs.towers(num_gpus), "train_op": None}

    with pytest.raises(CannotRun) as error:
        TimedPair(pair(towers), pairs.batch)

    assert str(error.value) == (
        "towers declares no train_op; return it from the function that builds the graph: "
        "{'train_op': train_op}"
    )


def test_ops_on_several_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "_MAX_CORES", 1.3)
    busy = Loop([0.1, 0.1], [0.19, 0.17])

    with pytest.raises(UsageError) as error:
        benchmark._check_single_threaded(busy)

    assert str(error.value) == (
        "timing needs ops that use one core, but they use 1.8: an earlier session of this "
        f"process fixed the number of threads of an op; set {POOL}=1 before "
        "TensorFlow starts, or time in a separate process"
    )
    benchmark._check_single_threaded(Loop([0.1, 0.1], [0.12, 0.1]))


def test_contention_is_several_steps_at_once() -> None:
    """Each step waits for the other one. If they took turns, the barrier would break."""
    with TimedPair(pair(), pairs.batch) as timed_pair:
        timed_pair._in_parallel([threading.Barrier(2, timeout=60.0).wait] * 2)


def test_settings_fixed_at_the_import_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POOL, "0")
    monkeypatch.delenv(ONEDNN, raising=False)

    set_thread_pools()

    assert os.environ[POOL] == "1"
    assert ONEDNN not in os.environ  # too late: TensorFlow has chosen
