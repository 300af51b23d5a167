"""Variables that lie otherwise to the towers than a program declares."""

from __future__ import annotations

import pytest
from snapshots import messages
from syrupy.assertion import SnapshotAssertion
from towers import objects_of, program, split

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
        (VariablesShared(layout="central"), split()),
        (VariablesShared(layout="mirrored"), split()),
    ],
    ids=str,
)
def test_as_declared(rule: VariablesShared, graph: Placement) -> None:
    """The step counter is no trainable variable, and a split model is neither."""
    assert objects_of(rule, graph) == []


def test_central_ones_in_a_mirrored_program(snapshot: SnapshotAssertion) -> None:
    verdict = VariablesShared(layout="mirrored").judge(CENTRAL)

    assert [finding.object for finding in verdict.findings] == ["w", "v"]
    assert messages(verdict) == snapshot


def test_copies_in_a_central_program(snapshot: SnapshotAssertion) -> None:
    verdict = VariablesShared(layout="central").judge(MIRRORED)

    assert [finding.object for finding in verdict.findings] == ["v1/w", "v2/w", "v1/v", "v2/v"]
    assert messages(verdict) == snapshot


def test_what_is_allowed() -> None:
    assert objects_of(VariablesShared(layout="mirrored", allow=("v",)), CENTRAL) == ["w"]
    assert objects_of(VariablesShared(layout="central", allow=("v*/v",)), MIRRORED) == [
        "v1/w",
        "v2/w",
    ]
