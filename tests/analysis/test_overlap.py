"""The overlap of towers: in a simulated schedule, and in measured steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from placement_checks import Device
from placement_checks.analysis.step.schedule import observed_overlap, possible_overlap, simulate
from placement_checks.core.trace import OpSpan, TimedOp, Timeline, Trace

HOST, *GPUS = (Device.parse(name) for name in ("/cpu:0", "/gpu:0", "/gpu:1", "/gpu:2"))
TOWERS = [[gpu] for gpu in GPUS]


def step(*lanes: Sequence[tuple[float, float]]) -> Timeline:
    """A measured step: the busy times of each GPU, in milliseconds."""
    return Timeline(
        {
            gpu: [OpSpan("op", start / 1000, end / 1000) for start, end in lane]
            for gpu, lane in zip(GPUS, lanes, strict=False)
        }
    )


def did(*steps: Timeline, towers: int = 2) -> float | None:
    share = observed_overlap(Trace(16, steps, []), TOWERS[:towers])
    return None if share is None else round(share, 9)


def test_the_shortest_step_took_the_least_time() -> None:
    steps = [step([(0, 9)]), step([(5, 8)]), step([(0, 1), (8, 9)])]

    assert Trace(16, steps, []).shortest is steps[1]


def test_a_host_does_not_keep_towers_apart() -> None:
    """It delays the simulated step, but not the possible overlap."""
    tasks = [
        TimedOp("one", HOST, 5),
        TimedOp("other", HOST, 50),
        TimedOp("tower_0", GPUS[0], 2, [0]),
        TimedOp("tower_1", GPUS[1], 2, [1]),
    ]
    trace = Trace(16, [], tasks)

    assert possible_overlap(trace, TOWERS[:2]) == [(0, 1, 1.0)]
    timeline = simulate(trace.ops)
    assert timeline is not None
    assert timeline.seconds == 57


def test_a_tower_that_waits_for_another_cannot_overlap_with_it() -> None:
    tasks = [TimedOp("tower_0", GPUS[0], 2), TimedOp("tower_1", GPUS[1], 2, [0])]

    assert possible_overlap(Trace(16, [], tasks), TOWERS[:2]) == [(0, 1, 0.0)]


def test_ops_that_wait_for_each_other_have_no_schedule() -> None:
    trace = Trace(16, [], [TimedOp("a", GPUS[0], 1, [1]), TimedOp("b", GPUS[1], 1, [0])])

    assert simulate(trace.ops) is None
    assert possible_overlap(trace, TOWERS[:2]) == []


def test_the_observed_overlap_is_the_largest_of_any_step() -> None:
    half, all_of_it, nothing = (step([(0, 10)], [(start, start + 10)]) for start in (5, 0, 10))

    assert did(half, all_of_it, nothing) == 1
    assert did(half, nothing) == 0.5
    assert did(nothing) == 0


def test_the_least_overlap_of_two_towers_counts() -> None:
    assert did(step([(0, 10)], [(0, 10)], [(8, 18)]), towers=3) == 0.2


@pytest.mark.parametrize("lanes", [([(0, 4)], [(0, 90)]), ([(0, 90)], [(0, 4)]), ([(0, 90)], [])])
def test_towers_that_compute_for_less_than_5_ms_show_nothing(
    lanes: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]],
) -> None:
    assert did(step(*lanes)) is None
    assert did(step([(0, 10)], [(5, 15)]), step(*lanes)) == 0.5


def test_towers_that_compute_for_5_ms_show_something() -> None:
    assert did(step([(0, 5)], [(0, 5)])) == 1


def test_one_tower_has_no_overlap() -> None:
    assert did(step([(0, 10)]), towers=1) is None


def test_without_steps_there_is_no_overlap() -> None:
    assert did() is None
