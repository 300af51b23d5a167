"""Ranks that wait for each other before the first step."""

from __future__ import annotations

import pytest
from support.graphs import op, placement

from placement_checks.core.devices import Device
from placement_checks.core.frames import Frame
from placement_checks.core.ranks import HOROVOD, INIT, Rank, RankRecord
from placement_checks.core.strategies import Strategy
from placement_checks.rules.ranks import different_starts, shared_gpus, unmet_before_step


@pytest.mark.parametrize(
    ("collectives", "message"),
    [
        (
            (["start", "sum"], ["start"]),
            "before the first step, rank 0 runs sum, and rank 1 does not",
        ),
        (
            (["start"], ["sum", "start"], ["start", "sum"]),
            "before the first step, ranks 1 and 2 run sum, and rank 0 does not",
        ),
        (
            (["sum"], ["sum", "sum"]),
            "before the first step, rank 1 runs sum 2 times, and rank 0 fewer times",
        ),
    ],
)
def test_a_collective_that_a_rank_omits(collectives: list[list[str]], message: str) -> None:
    ranks = [Rank(number, len(collectives)) for number in range(len(collectives))]
    devices = [Device.parse(f"/job:rank/task:{rank.number}/gpu:0") for rank in ranks]
    records = [RankRecord(*each) for each in zip(ranks, collectives, strict=True)]

    (finding,) = unmet_before_step(Strategy(HOROVOD, devices, ranks=records))

    assert finding.message == message


def test_the_same_collectives_in_another_order() -> None:
    records = [RankRecord(Rank(0, 2), ["a", "b"]), RankRecord(Rank(1, 2), ["b", "a"])]

    assert list(unmet_before_step(Strategy(HOROVOD, [], ranks=records))) == []


def test_lines_of_runs_and_initialization() -> None:
    """The line that assigns a variable last, and the line that runs a collective."""
    frames = {
        name: (Frame("train.py", number, "main"),)
        for number, name in enumerate(["w", "sum", INIT], 1)
    }
    records = [
        RankRecord(
            Rank(number, 2), ["sum"][number:], starts={"w": str(number)}, gpus=[0], frames=frames
        )
        for number in (0, 1)
    ]
    devices = [Device.parse(f"/job:rank/task:{number}/gpu:0") for number in (0, 1)]
    strategy = Strategy(HOROVOD, devices, ranks=records)

    graph = placement(op("w", "VarHandleOp"))

    findings = [
        *different_starts(graph, strategy),
        *unmet_before_step(strategy),
        *shared_gpus(graph, strategy),
    ]
    assert [each.where for each in findings] == ["train.py:1", "train.py:2", "train.py:3"]
