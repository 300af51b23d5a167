"""The time that devices compute, alone and at once, compared with counts of whole seconds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks import Device
from placement_checks.analysis.step.schedule import overlaps
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.trace import OpSpan, Timeline, merge_spans

HOST, *GPUS = (
    Device.parse(name).over(LOCALHOST) for name in ("/cpu:0", "/gpu:0", "/gpu:1", "/gpu:2")
)

spans = st.lists(
    st.builds(lambda start, length: (start, start + length), st.integers(0, 30), st.integers(0, 6))
)
some_spans = spans.filter(lambda found: any(start < end for start, end in found))


def timeline(*lanes: Sequence[tuple[float, float]]) -> Timeline:
    """A timeline with the given spans of each GPU."""
    return Timeline(
        {
            gpu: [OpSpan("op", start, end) for start, end in lane]
            for gpu, lane in zip(GPUS, lanes, strict=False)
        }
    )


def seconds_in(lane: Sequence[tuple[int, int]]) -> set[int]:
    """The whole seconds within spans."""
    return {second for start, end in lane for second in range(start, end)}


def share(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """The share of time that two GPUs compute at once."""
    (pair,) = overlaps(timeline(one, other), [[GPUS[0]], [GPUS[1]]])
    return pair.share


@given(spans)
def test_merged_spans_cover_the_same_seconds(
    given_spans: Sequence[tuple[int, int]],
) -> None:
    seconds = seconds_in(given_spans)
    starts = sorted(second for second in seconds if second - 1 not in seconds)
    ends = sorted(second + 1 for second in seconds if second + 1 not in seconds)

    assert merge_spans(given_spans) == list(zip(starts, ends, strict=True))


def test_adjacent_spans_are_merged() -> None:
    assert merge_spans([(2, 3), (0, 1), (1, 2), (5, 6)]) == [(0, 3), (5, 6)]


@given(some_spans, some_spans)
def test_the_share_is_relative_to_the_group_with_less_work(
    one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]
) -> None:
    mine, its = seconds_in(one), seconds_in(other)

    assert share(one, other) == len(mine & its) / min(len(mine), len(its))


@given(some_spans, some_spans)
def test_the_share_is_symmetric_and_between_0_and_1(
    one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]
) -> None:
    assert 0 <= share(one, other) == share(other, one) <= 1


@given(some_spans)
def test_equal_lanes_overlap_completely(lane: Sequence[tuple[int, int]]) -> None:
    assert share(lane, lane) == 1


@given(some_spans, some_spans)
def test_lanes_in_sequence_do_not_overlap(
    one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]
) -> None:
    end = max(end for _, end in one)

    assert share(one, [(start + end, stop + end) for start, stop in other]) == 0


def test_every_pair_of_groups_is_compared() -> None:
    given_lanes = timeline([(0, 2)], [(1, 3)], [(2, 4)])

    assert overlaps(given_lanes, [[gpu] for gpu in GPUS]) == [(0, 1, 0.5), (0, 2, 0), (1, 2, 0.5)]


def test_a_group_that_does_not_compute_is_in_no_pair() -> None:
    given_lanes = timeline([(0, 2)], [], [(1, 3)])

    assert overlaps(given_lanes, [[gpu] for gpu in GPUS]) == [(0, 2, 0.5)]
    assert overlaps(given_lanes, [[GPUS[0]], [GPUS[1]], [HOST]]) == []


def test_a_group_is_busy_while_any_of_its_devices_is() -> None:
    given_lanes = timeline([(0, 2)], [(1, 3), (8, 9)], [(5, 6)])

    assert given_lanes.busy(GPUS[:2]) == [(0, 3), (8, 9)]
    assert given_lanes.computes(GPUS[:2]) == 4
    assert given_lanes.computes([HOST]) == 0
    assert overlaps(given_lanes, [GPUS[:1], GPUS[1:]]) == [(0, 1, 0.5)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/gpu", [(0, 1), (2, 3)]),
        ("/gpu:1", [(2, 3)]),
        ("/job:localhost/gpu:0", [(0, 1)]),
        ("/job:worker/gpu:0", []),
    ],
)
def test_a_partial_name_matches_any_device(pattern: str, found: Sequence[tuple[int, int]]) -> None:
    assert timeline([(0, 1)], [(2, 3)]).busy([Device.parse(pattern)]) == found


def test_a_step_takes_until_the_end_of_its_last_op() -> None:
    assert timeline([(0, 7), (1, 2)], [(3, 5)]).seconds == 7
    assert timeline().seconds == 0
