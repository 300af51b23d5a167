"""What all rules have in common."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import program
from syrupy.assertion import SnapshotAssertion

from placement_checks.core.missing import Missing
from placement_checks.core.results import Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.devices.no_fallback import NoFallback
from placement_checks.rules.towers.towers_alike import TowersAlike


def test_an_explanation_is_the_docstring_and_the_parameters() -> None:
    text = NoFallback.explanation()

    assert text.startswith("No op that requests a GPU is placed on a CPU, or on another GPU")
    assert text.endswith("\n\nParameters and their defaults:\n  no-fallback.allow = ()")


def test_an_explanation_of_a_rule_without_docstring_and_parameters_is_empty() -> None:
    @dataclass(frozen=True)
    class Bare(Rule):
        name = "bare"

    Bare.__doc__ = None

    assert Bare.explanation() == ""


@pytest.mark.parametrize(
    ("placer", "machine", "state"),
    [
        ("log", "gpu*2", "kept"),
        ("log", "cpu*2", "not-checked"),
        ("log", None, "not-checked"),
        ("phantom", "gpu*2", "kept"),
    ],
)
def test_not_checked_on_a_log_of_a_machine_without_gpus(
    placer: str, machine: str | None, state: str, snapshot: SnapshotAssertion
) -> None:
    graph = placement(op("a", "MatMul", "/gpu:0", "GPU:0"), placer=placer, machine=machine)

    verdict = NoFallback().judge(graph)

    assert verdict.state == state
    assert messages(verdict) == snapshot


def test_not_checked_without_requests() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:0", "GPU:0"), requested=Missing("a log lacks requested devices")
    )

    assert NoFallback().judge(graph) == Verdict(
        "no-fallback", "not-checked", None, "a log lacks requested devices"
    )


def test_towers_on_one_gpu_are_recognized_by_reported_losses(
    snapshot: SnapshotAssertion,
) -> None:
    losses = ["tower_0/loss", "tower_1/loss"]
    graph = program(gpus=[0, 0], step={"objectives": (), "losses": losses})

    assert messages(TowersAlike().judge(graph)) == snapshot
