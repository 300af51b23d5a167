from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.snapshots import messages
from support.towers import gradient, host, objects_of, on, program
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Op, Placement
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.towers.aggregated_before_clipped import AggregatedBeforeClipped

STRATEGY = Strategy("MirroredStrategy", [Device.parse(f"/gpu:{i}") for i in (0, 1)])
TOTAL = host("sum/w", "AddN", "clip/0", "clip/1")
SHAPES = {f"clip/{i}": (4,) for i in (0, 1)}


def clipping(
    kind: str, *factors: str, clips: Sequence[Op] = (), total: Op = TOTAL, **more: Any
) -> Placement:
    """Towers that each change their own gradient, by an op that also takes some factors."""
    clips = clips or [
        on(i, f"clip/{i}", kind, gradient(i), *(each.format(i) for each in factors))
        for i in (0, 1)
    ]
    norms = [on(i, f"norm/{i}", "Sum", gradient(i)) for i in (0, 1)]
    loop = host("loop", "While")
    fields = {"strategy": STRATEGY, "outputs": SHAPES, **more}
    return program(loop, *norms, *clips, total, **fields)


def found(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(AggregatedBeforeClipped(**parameters), graph)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("Mul", "norm/{}"), ("RealDiv", "norm/{}"), ("Minimum", "rate"), ("ClipByValue", "rate")],
)
def test_each_replica_clips_its_own(kind: str, factor: str, snapshot: SnapshotAssertion) -> None:
    graph = clipping(kind, factor, lines={"clip/0": "train.py:7"})
    verdict = AggregatedBeforeClipped().judge(graph)

    assert found(graph) == ["w"]
    assert verdict.findings[0].where == "train.py:7"
    assert messages(verdict) == snapshot


def test_clipping_by_a_keras_optimizer_is_a_limit_of_keras(snapshot: SnapshotAssertion) -> None:
    part = "clipping of an optimizer"
    verdict = AggregatedBeforeClipped().judge(
        clipping("Mul", "norm/{}", lines={"clip/0": "a.py:7"}, keras_parts={"clip/0": part})
    )

    assert messages(verdict) == snapshot
    assert [finding.known for finding in verdict.findings] == ["Keras 3"]
    assert verdict.findings[0].where is None


def test_clipping_can_be_allowed() -> None:
    assert found(clipping("Mul", "norm/{}"), allow=("*",)) == []


def test_a_gradient_that_each_replica_scales_by_the_same_is_not_clipped() -> None:
    assert found(clipping("Mul", "rate")) == []


def test_gradients_of_single_rows_may_be_clipped() -> None:
    assert found(clipping("Mul", "norm/{}", outputs={"clip/0": (8, 4), "clip/1": (8, 4)})) == []


def test_a_product_of_the_backward_pass_is_no_clipping() -> None:
    products = [
        on(i, gradient(i), "Mul", *[f"gradients/tower_{i}/loss_grad/Mul"] * 2) for i in (0, 1)
    ]

    assert found(program(*products, strategy=STRATEGY, outputs={gradient(0): (4,)})) == []


def test_gradients_of_parts_may_be_clipped_in_a_loop() -> None:
    """The sum of the parts is not clipped."""
    clips = [on(i, f"clip/{i}", "Mul", gradient(i), f"norm/{i}", caller="loop") for i in (0, 1)]

    assert found(clipping("Mul", "norm/{}", clips=clips)) == []


def test_a_gradient_of_one_tower_alone_is_not_added_up() -> None:
    total = host("sum/w", "AddN", "clip/0")

    assert found(clipping("Mul", "norm/{}", total=total)) == []


def test_the_sum_may_be_clipped() -> None:
    norm = host("norm", "Sum", "sum/w")
    clipped = host("mean/w", "Mul", "sum/w", "norm")

    assert found(program(norm, clipped, strategy=STRATEGY, outputs={"mean/w": (4,)})) == []


def test_the_first_copy_is_named() -> None:
    copies = {f"v{i}/w": Copy("v0/w", i) for i in (0, 1)}
    strategy = Strategy("MirroredStrategy", STRATEGY.replicas, copies)

    assert found(clipping("Mul", "norm/{}", mirrored=True, strategy=strategy)) == ["v0/w"]


def test_clipping_in_towers_by_hand_is_not_checked(snapshot: SnapshotAssertion) -> None:
    verdict = AggregatedBeforeClipped().judge(clipping("Mul", "norm/{}", strategy=None))

    assert messages(verdict) == snapshot


def test_towers_that_clip_nothing_are_kept(snapshot: SnapshotAssertion) -> None:
    assert messages(AggregatedBeforeClipped().judge(program())) == snapshot


def test_without_an_update_by_gradients_it_is_not_checked() -> None:
    update: Op = host("update/w", "AssignVariableOp", "w", "step/one")
    verdict = AggregatedBeforeClipped().judge(program(update))

    assert verdict.reason == "no variable that towers read is updated by a gradient"
