"""Variables with another layout than the program declares."""

from __future__ import annotations

from typing import Literal

import pytest
from support.snapshots import messages
from support.towers import objects_of, on, program, split
from syrupy.assertion import SnapshotAssertion

from placement_checks import Placement
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.rules.towers.variables_shared import VariablesShared

CENTRAL = program(
    variables=["w", "v"], collections={TRAINABLE: ["w", "v"], GLOBAL: ["w", "v", "step"]}
)
COPIES = [f"v{i}/{name}" for i in range(3) for name in ("w", "v")]
MIRRORED = program(
    gpus=range(3),
    variables=["w", "v"],
    mirrored=True,
    collections={TRAINABLE: COPIES, GLOBAL: [*COPIES, "step"]},
)


@pytest.mark.parametrize(
    ("rule", "graph"),
    [
        (VariablesShared(layout="central"), CENTRAL),
        (VariablesShared(layout="mirrored"), MIRRORED),
        (VariablesShared(), CENTRAL),
        (VariablesShared(), MIRRORED),
    ],
    ids=str,
)
def test_as_declared(rule: VariablesShared, graph: Placement) -> None:
    """The step counter is not trainable, and needs no copies."""
    assert objects_of(rule, graph) == []


def test_central_variables_where_mirrored_ones_are_declared(snapshot: SnapshotAssertion) -> None:
    verdict = VariablesShared(layout="mirrored").judge(CENTRAL)

    assert [finding.object for finding in verdict.findings] == ["w", "v"]
    assert messages(verdict) == snapshot


def test_copies_where_central_variables_are_declared(snapshot: SnapshotAssertion) -> None:
    verdict = VariablesShared(layout="central").judge(MIRRORED)

    assert [finding.object for finding in verdict.findings] == ["v1/w", "v2/w", "v1/v", "v2/v"]
    assert messages(verdict) == snapshot


def test_allowed_variables() -> None:
    assert objects_of(VariablesShared(layout="mirrored", allow=("v",)), CENTRAL) == ["w"]
    assert objects_of(VariablesShared(layout="central", allow=("v*/v",)), MIRRORED) == [
        "v1/w",
        "v2/w",
    ]


def test_a_saved_graph_is_judged_by_variables_that_gradients_update() -> None:
    """A saved graph lacks collections. All towers read the step counter, which is not a weight."""
    graph = program(
        *(on(i, f"tower_{i}/rate", "Mul", "step", f"tower_{i}/x") for i in (0, 1)),
        variables=["w", "v"],
    )

    assert objects_of(VariablesShared(layout="mirrored"), graph) == ["w", "v"]


@pytest.mark.parametrize("declared", ["central", "mirrored"])
def test_a_declared_layout_is_not_checked_without_two_towers(
    declared: Literal["central", "mirrored"],
) -> None:
    verdict = VariablesShared(layout=declared).judge(split())

    assert (verdict.state, verdict.reason) == (
        "not-checked",
        f"the layout is declared {declared}, but there are no two towers to judge",
    )
    assert VariablesShared().judge(split()).state == "kept"
