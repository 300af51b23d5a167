from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.snapshots import messages
from support.towers import gradient, host, objects_of, on, program, variable
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import TRAINABLE
from placement_checks.rules.towers.trainables_trained import TrainablesTrained

WITHOUT_B = host("train", "NoOp", "^update/a", "^step/add")


def two(*ops: Op, trainable: Sequence[str] = ("a", "b"), **more: Any) -> Placement:
    """Towers with two variables."""
    return program(
        *ops,
        variables=["a", "b"],
        collections={TRAINABLE: list(trainable)},
        outputs={gradient(i, name): (4,) for i in (0, 1) for name in "ab"},
        **more,
    )


def dropped(**more: Any) -> Placement:
    """The gradient of b is averaged and not applied."""
    return two(WITHOUT_B, host("update/b", "NoOp"), **more)


def frozen(**more: Any) -> Placement:
    """No op outside of the backward pass uses a gradient of b."""
    gone = [host(f"{name}/b", "NoOp") for name in ("sum", "mean", "update")]
    return two(WITHOUT_B, *gone, **more)


def objects(graph: Evidence | Placement, **parameters: Any) -> list[str]:
    return objects_of(TrainablesTrained(**parameters), graph)


def test_kept(snapshot: SnapshotAssertion) -> None:
    verdict = TrainablesTrained().judge(two())

    assert verdict == Verdict("trainables-trained", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = dropped(
        lines={"b": "main.py:30 net.py:7", "mean/b": "net.py:9", "update/a": "main.py:50"}
    )

    verdict = TrainablesTrained().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="b",
            op="VarHandleOp",
            evidence="requested",
            expected="an update in each step",
            found="a gradient that ends at mean/b",
            frames=("main.py:50",),
            path=("mean/b (Mul) net.py:9",),
            message=ANY,
            consequence="it keeps its initial value",
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_a_variable_that_no_loss_reads(snapshot: SnapshotAssertion) -> None:
    graph = two(
        variable("bias"),
        on(0, "tower_0/prediction", "AddV2", "tower_0/b/MatMul", "bias"),
        trainable=["a", "b", "bias"],
    )

    (finding,) = TrainablesTrained().judge(graph).findings

    assert finding.object == "bias"
    assert messages(finding) == snapshot


def test_variables_with_lost_gradients_are_grouped() -> None:
    graph = program(
        host("train", "NoOp", "^update/a", "^step/add"),
        *(host(f"update/{name}", "NoOp") for name in "bc"),
        variables=["a", "b", "c"],
        collections={TRAINABLE: list("abc")},
        outputs={gradient(i, name): (4,) for i in (0, 1) for name in "abc"},
    )

    one, other = TrainablesTrained().judge(graph).findings

    assert one.alike == other.alike


def test_a_gradient_that_is_lost_after_a_collective() -> None:
    reduced = (on(i, f"all/{i}", "NcclAllReduce", gradient(i, "b")) for i in (0, 1))
    gone = [host(f"{name}/b", "NoOp") for name in ("sum", "mean", "update")]

    assert objects(two(WITHOUT_B, *gone, *reduced)) == ["b"]


def test_a_variable_that_is_frozen_on_purpose_is_no_finding() -> None:
    assert objects(frozen()) == []


def test_a_variable_that_the_reference_trains_is_not_frozen(snapshot: SnapshotAssertion) -> None:
    single = two(gpus=[0], program="train.py:single")

    verdict = TrainablesTrained().judge(Evidence(frozen(), reference=single))

    assert [finding.object for finding in verdict.findings] == ["b"]
    assert messages(verdict) == snapshot


def test_a_variable_that_another_step_trains_is_not_frozen() -> None:
    other = host("other", "ResourceApplyAdam", "b", "rate", gradient(0, "b"))
    graph = two(WITHOUT_B, host("update/b", "NoOp"), other)

    assert objects(Evidence(graph, reference=two(gpus=[0]))) == []


@pytest.mark.parametrize(
    "single",
    [
        pytest.param(frozen(gpus=[0, 1]), id="freezes it as well"),
        pytest.param(two(step={"train_op": ()}), id="has no known step"),
        pytest.param(program(), id="does not have it"),
    ],
)
def test_a_reference_that_does_not_train_it(single: Placement) -> None:
    assert objects(Evidence(frozen(), reference=single)) == []


@pytest.mark.parametrize(("pattern", "found"), [("b", []), ("*", []), ("a", ["b"])])
def test_declared_frozen_variables(pattern: str, found: Sequence[str]) -> None:
    assert objects(dropped(), frozen=(pattern,)) == found
    assert objects(Evidence(frozen(), reference=two()), frozen=(pattern,)) == found


def test_needs_no_placer_and_no_towers() -> None:
    graph = dropped(placer=None, assigned=Missing("no wheel"), machine=None)

    assert objects(graph) == ["b"]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(two(requested=Missing("a log lacks requested devices")), id="log"),
        pytest.param(two(trainable=[]), id="nothing trainable"),
        pytest.param(two(step={"train_op": ()}), id="no step"),
        pytest.param(two(step={"backward": ()}), id="no gradients"),
        pytest.param(
            two(host("train", "NoOp", "^step/add"), trainable=["b"]), id="no update at all"
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = TrainablesTrained().judge(graph)

    assert verdict == Verdict("trainables-trained", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def unused(*names: str, **parameters: Any) -> Verdict:
    """A program that takes three gradients and uses only the first."""
    variables = ["a", "b", "c"]
    gone = [host(f"{part}/{name}", "NoOp") for part in ("sum", "mean", "update") for name in "bc"]
    gradients = {name: [gradient(0, name), gradient(1, name)] for name in names}
    collections = {TRAINABLE: variables}
    graph = program(
        WITHOUT_B,
        *gone,
        variables=variables,
        collections=collections,
        step={"gradients_by_variable": gradients},
    )
    return TrainablesTrained(**parameters).judge(graph)


@pytest.mark.parametrize("names", [("b",), ("a", "b", "c")])
def test_not_checked_if_a_gradient_is_unused(
    names: Sequence[str], snapshot: SnapshotAssertion
) -> None:
    verdict = unused(*names)

    assert verdict == Verdict("trainables-trained", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_a_declared_frozen_variable_may_have_an_unused_gradient() -> None:
    assert unused("b", frozen=("b",)).state == "kept"
    assert unused().state == "kept"


def test_findings_come_before_unused_gradients() -> None:
    graph = two(WITHOUT_B, host("update/b", "NoOp"), variable("c"), trainable=("a", "b", "c"))

    assert objects_of(TrainablesTrained(), graph) == ["b", "c"]
