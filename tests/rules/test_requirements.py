"""The evidence that each rule requires: its answers to programs that lack a part."""

from __future__ import annotations

from collections import defaultdict

import pytest
from support.graphs import placement
from support.towers import host, mixed_losses, program
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Evidence, Placement
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Strategy
from placement_checks.rules.registry import NAMES, RULES

GPU = Device.parse("/gpu:0")
NO_TRAIN_OP = {"train_op": ()}
NO_LOSS = {"objectives": (), "losses": ()}
TWO_LOSSES = {"objectives": (), "losses": ("tower_0/loss", "tower_1/loss")}
NO_GRADIENT = host("update/w", "NoOp")
PROGRAMS: dict[str, Evidence | Placement] = {
    "a complete program": program(),
    "not placed by request": program(placer=None),
    "not placed because of an error": program(assigned=Missing("the placer failed")),
    "log": program(placer="log", requested=Missing("a log lacks requested devices")),
    "log of a machine without GPUs": program(placer="log", machine="cpu*1"),
    "log of an unknown machine": program(placer="log", machine=None),
    "no machine": program(machine=None),
    "no variable": placement(host("a", "NoOp")),
    "no tower": program(gpus=[]),
    "one tower": program(gpus=[0]),
    "two towers on one GPU": program(gpus=[0, 0]),
    "two losses on one GPU": program(gpus=[0, 0], step=TWO_LOSSES),
    "no loss": program(step=NO_LOSS),
    "a loss that is not in the graph": program(step={"objectives": ("gone:0",)}),
    "the loss of one tower": program(step={"objectives": ("tower_1/loss:0",)}),
    "a loss with the loss of another tower": mixed_losses(),
    "no train op": program(step=NO_TRAIN_OP),
    "no gradient": program(step={"backward": ()}),
    "no update by a gradient": program(NO_GRADIENT),
    "two replicas": program(strategy=Strategy("MirroredStrategy", [GPU, Device.parse("/gpu:1")])),
    "one replica": program(strategy=Strategy("OneDeviceStrategy", [GPU])),
    "a traced step": program(step={"traced": True}),
    "no comparison": Evidence(
        program(),
        single_gpu=Missing("the builder lacks the argument num_gpus"),
        reference=Missing("the reference cannot be built"),
        measurement=Missing("the program cannot run"),
        trace=Missing("the program cannot be traced"),
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_required_evidence(name: str, snapshot: SnapshotAssertion) -> None:
    programs: dict[str, list[str]] = defaultdict(list)
    for lacking, graph in PROGRAMS.items():
        verdict = RULES[name]().judge(graph)
        state = f"{verdict.state} (one tower)" if verdict.one_tower else verdict.state
        programs[f"{state}: {verdict.reason}" if verdict.reason else state].append(lacking)

    answers = [f"{answer}\n  {'; '.join(lacking)}" for answer, lacking in programs.items()]
    assert "\n".join(answers) == snapshot
