from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from unittest.mock import ANY

import pytest
from support.snapshots import messages
from support.towers import (
    host,
    joint,
    mixed_losses,
    objects_of,
    on,
    program,
    variable,
    without_two_towers,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.rules.towers.losses_apart import LossesApart


def objects(graph: Placement) -> list[str]:
    return objects_of(LossesApart(), graph)


def collected(count: int) -> Placement:
    """Every tower adds up all losses built so far."""
    ops = []
    for i in range(count):
        ops.append(on(i, f"tower_{i}/own", "Mean", f"tower_{i}/w/MatMul"))
        ops.append(on(i, f"tower_{i}/loss", "AddN", *(f"tower_{k}/own" for k in range(i + 1))))
    return program(*ops, gpus=range(count))


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = LossesApart().judge(program(gpus=range(count)))

    assert verdict == Verdict("losses-apart", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = mixed_losses(lines={"tower_1/loss": "main.py:30 net.py:7", "tower_0/loss": "net.py:5"})

    verdict = LossesApart().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="tower_1/loss",
            op="AddN",
            evidence="requested",
            expected="only ops of the tower on /device:GPU:1",
            found="tower_0/w/MatMul of the tower on /device:GPU:0",
            frames=("main.py:30", "net.py:7"),
            path=(
                "tower_1/loss (AddN) net.py:7",
                "tower_0/loss (Mean) net.py:5",
                "tower_0/w/MatMul (MatMul)",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_the_line_is_where_the_other_towers_loss_is_added() -> None:
    """Ops that use the sum are not the cause."""
    scaled = on(1, "tower_1/loss", "Mul", "tower_1/sum", "scale")
    both = on(1, "tower_1/sum", "AddN", "tower_0/loss", "tower_1/own")
    own = on(1, "tower_1/own", "Mean", "tower_1/w/MatMul")
    lines = {"tower_1/loss": "main.py:31", "tower_1/sum": "main.py:30", "tower_0/loss": "net.py:5"}

    (finding,) = LossesApart().judge(program(own, both, scaled, lines=lines)).findings

    assert (finding.object, finding.where) == ("tower_1/loss", "main.py:30")


def test_a_part_of_the_tower_on_the_gpu_of_another(snapshot: SnapshotAssertion) -> None:
    """It serves no loss of the other tower, so nothing is mixed."""
    graph = program(
        on(1, "tower_0/v/read", "ReadVariableOp", "v"),
        on(1, "tower_0/v/MatMul", "MatMul", "tower_0/w/MatMul", "tower_0/v/read"),
        on(0, "gradients/tower_0/v/MatMul_grad/MatMul_1", "MatMul", "tower_0/v/read"),
        variables=["w", "v"],
        lines={"tower_0/v/MatMul": "main.py:9 net.py:4"},
        device_lines={"tower_0/v/MatMul": "net.py:3"},
    )

    verdict = LossesApart().judge(graph)

    (finding,) = verdict.findings
    assert finding.object == "tower_0/loss"
    assert (finding.where, finding.device_line) == ("net.py:4", "net.py:3")
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_every_tower_that_adds_previous_losses_is_found(count: int) -> None:
    assert objects(collected(count)) == [f"tower_{i}/loss" for i in range(1, count)]


def test_the_first_towers_loss_may_contain_another() -> None:
    graph = program(
        on(0, "tower_0/loss", "AddN", "tower_1/w/MatMul", "tower_0/w/MatMul"), gpus=[0, 1, 2]
    )

    (finding,) = LossesApart().judge(graph).findings

    assert finding.object == "tower_0/loss"
    assert finding.found == "tower_1/w/MatMul of the tower on /device:GPU:1"


def test_a_loss_on_the_host_belongs_to_the_tower_without_a_loss() -> None:
    """It depends on both towers, so it does not identify a tower by itself."""
    graph = program(
        host("total", "AddN", "tower_0/loss", "tower_1/loss"),
        step={"objectives": ("tower_0/loss:0", "total:0")},
    )

    (finding,) = LossesApart().judge(graph).findings

    assert finding.object == "total"
    assert finding.expected == "only ops of the tower on /device:GPU:1"


def test_each_of_several_losses_of_a_tower_is_looked_at() -> None:
    graph = program(
        on(1, "tower_1/fake", "AddN", "tower_1/w/MatMul", "tower_0/w/MatMul"),
        on(0, "tower_0/fake", "AddN", "tower_0/w/MatMul"),
        step={"objectives": [f"tower_{i}/{name}:0" for i in (0, 1) for name in ("loss", "fake")]},
    )

    assert objects(graph) == ["tower_1/fake"]


def test_regularization_of_a_shared_variable_belongs_to_its_tower() -> None:
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/data", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read"),
            on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/data", f"tower_{i}/l2"),
        ]

    assert objects(program(*ops)) == []


def test_regularization_that_the_host_computes_once_is_no_breach() -> None:
    ops = [host("w/l2", "L2Loss", "w")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/data", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/data", "w/l2"),
        ]

    assert LossesApart().judge(program(*ops)).state == "kept"


def test_a_loss_with_the_same_penalty_of_two_towers_is_reported(
    snapshot: SnapshotAssertion,
) -> None:
    """Each tower builds it, and the second adds both: weights decay more with every tower."""
    graph = program(
        *(on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read") for i in (0, 1)),
        *(on(i, f"tower_{i}/data", "Mean", f"tower_{i}/w/MatMul") for i in (0, 1)),
        on(0, "tower_0/loss", "AddN", "tower_0/data", "tower_0/l2"),
        on(1, "tower_1/loss", "AddN", "tower_1/data", "tower_0/l2", "tower_1/l2"),
    )

    verdict = LossesApart().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["tower_1/loss"]
    assert verdict.findings[0].found == "tower_0/l2 of the tower on /device:GPU:0"
    assert messages(verdict) == snapshot


def test_a_layer_that_one_gpu_computes_for_all_is_no_breach(snapshot: SnapshotAssertion) -> None:
    """A frozen network without a copy in each tower."""
    graph = program(
        variable("table"),
        on(0, "embedded", "ResourceGather", "table", "words"),
        on(0, "tower_0/w/MatMul", "MatMul", "embedded", "tower_0/w/read"),
        on(1, "tower_1/w/MatMul", "MatMul", "embedded", "tower_1/w/read"),
    )

    verdict = LossesApart().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_shape_of_another_tower_is_no_breach() -> None:
    graph = program(
        on(1, "tower_1/shape", "Shape", "tower_0/w/MatMul"),
        on(1, "tower_1/reshaped", "Reshape", "tower_1/w/MatMul", "tower_1/shape"),
        on(1, "tower_1/loss", "Mean", "tower_1/reshaped"),
    )

    assert LossesApart().judge(graph).state == "kept"


def test_waiting_for_another_tower_is_no_breach() -> None:
    graph = program(on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_0/loss"))

    assert LossesApart().judge(graph).state == "kept"


@pytest.mark.parametrize("count", [2, 3, 12])
def test_the_parts_of_one_loss_of_all_towers_are_looked_at(
    count: int, snapshot: SnapshotAssertion
) -> None:
    verdict = LossesApart().judge(joint(range(count)))

    assert verdict == Verdict(
        "losses-apart",
        "kept",
        "requested",
        findings=[],
        note=ANY,
    )
    assert messages(verdict) == snapshot


def test_reported_losses_are_judged_if_there_are_no_gradients() -> None:
    graph = mixed_losses(step={"objectives": (), "losses": ("tower_0/loss:0", "tower_1/loss:0")})

    assert objects(graph) == ["tower_1/loss"]


def test_needs_no_placer_and_no_train_op() -> None:
    graph = mixed_losses(placer=None, assigned=Missing("no wheel for this"), step={"train_op": ()})

    assert objects(graph) == ["tower_1/loss"]


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert LossesApart().judge(graph) == Verdict("losses-apart", "not-checked", None, reason)


@pytest.mark.parametrize(
    "step",
    [
        {"objectives": (), "losses": ()},
        {"objectives": ("gone:0",)},
        {"objectives": ("tower_1/loss:0",)},
    ],
    ids=["none", "not in the graph", "of one tower"],
)
def test_not_checked_without_the_losses(
    step: Mapping[str, Sequence[str]], snapshot: SnapshotAssertion
) -> None:
    verdict = LossesApart().judge(program(step=step))

    assert verdict == Verdict("losses-apart", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("allow", ["tower_1/loss", "tower_*/loss"])
def test_losses_that_read_other_towers_on_purpose(allow: str) -> None:
    assert LossesApart(allow=(allow,)).judge(mixed_losses()).state == "kept"
    assert LossesApart(allow=("another",)).judge(mixed_losses()).state == "broken"


def test_a_loss_of_the_other_tower_alone() -> None:
    """The other tower depends on this one, too, but this loss has no result of its own tower."""
    graph = program(
        on(0, "tower_0/odd", "Square", "tower_1/w/MatMul"),
        on(1, "tower_1/both", "Mul", "tower_1/w/MatMul", "tower_0/w/MatMul"),
        on(1, "tower_1/loss", "Mean", "tower_1/both"),
        step={"objectives": ("tower_0/loss", "tower_0/odd", "tower_1/loss")},
    )

    assert objects(graph) == ["tower_0/odd"]


def test_the_other_tower_is_named_whatever_lies_between() -> None:
    graph = program(
        host("sum", "AddN", "tower_0/loss"),
        on(2, "tower_2/loss", "AddN", "tower_2/w/MatMul", "sum"),
        gpus=[0, 1, 2],
    )

    (finding,) = LossesApart().judge(graph).findings

    assert finding.found == "tower_0/w/MatMul of the tower on /device:GPU:0"


def test_values_that_the_host_computes_from_a_shared_variable_are_no_towers() -> None:
    graph = mixed_losses()
    norm = host("norm", "L2Loss", "w")

    assert objects(replace(graph, ops={**graph.ops, "norm": norm})) == ["tower_1/loss"]


@pytest.mark.parametrize("count", [2, 3, 12])
def test_moments_that_all_towers_share_are_in_the_note(
    count: int, snapshot: SnapshotAssertion
) -> None:
    outputs = [f"tower_{i}/w/MatMul" for i in range(count)]
    graph = program(
        host("moments", "AddN", *outputs),
        *(
            on(i, f"tower_{i}/loss", "SquaredDifference", output, "moments")
            for i, output in enumerate(outputs)
        ),
        gpus=range(count),
    )

    verdict = LossesApart().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot
