from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.snapshots import messages
from support.towers import (
    accumulating,
    gradient,
    host,
    joint,
    objects_of,
    on,
    program,
    without_two_towers,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Finding, Op, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Strategy
from placement_checks.rules.towers.loss_of_all_towers import LossOfAllTowers
from placement_checks.util.text import range_text


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(LossOfAllTowers(**parameters), graph)


def reported(*losses: str, gpus: Sequence[int] | range = (0, 1), **more: Any) -> Placement:
    return program(gpus=gpus, step={"losses": losses}, **more)


def summaries(
    kind: str,
    of: str,
    *ops: Op,
    gpus: tuple[int, int] | range = (0, 1),
    lines: bool = True,
    **more: Any,
) -> Placement:
    """A summary of one op in each tower; one line builds all of them, unless `lines` is empty."""
    return program(
        *ops,
        *(on(i, f"tower_{i}/shown", kind, "tag", f"tower_{i}/{of}") for i in range(len(gpus))),
        gpus=gpus,
        lines={f"tower_{i}/shown": "main.py:30 net.py:7" for i in range(len(gpus)) if lines},
        **more,
    )


@pytest.mark.parametrize("count", [2, 3, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = LossOfAllTowers().judge(program(gpus=range(count)))

    assert verdict == Verdict(
        "loss-of-all-towers",
        "kept",
        "requested",
        findings=[],
        note=ANY,
    )
    assert messages(verdict) == snapshot


def test_broken_by_the_last_towers_loss(snapshot: SnapshotAssertion) -> None:
    graph = reported(
        "tower_1/loss:0",
        lines={
            "tower_1/loss": "main.py:30 net.py:7",
            "tower_1/w/MatMul": "net.py:5",
            "loss": "main.py:40",
        },
    )

    verdict = LossOfAllTowers().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="tower_1/loss",
            op="Mean",
            evidence="requested",
            expected="a loss of all towers",
            found="the loss of the tower on /device:GPU:1",
            frames=("main.py:30", "net.py:7"),
            at="main.py:30",
            path=("tower_1/loss (Mean) net.py:7", "tower_1/w/MatMul (MatMul) net.py:5"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [3, 4, 12])
@pytest.mark.parametrize("left_out", [0, -1], ids=["the first", "the last"])
def test_a_list_that_leaves_one_tower_out(
    count: int, left_out: int, snapshot: SnapshotAssertion
) -> None:
    towers = list(range(count))
    towers.pop(left_out)
    graph = reported(*(f"tower_{i}/loss:0" for i in towers), gpus=range(count))

    (finding,) = LossOfAllTowers().judge(graph).findings
    others = range_text(f"/device:GPU:{i}" for i in towers)
    assert finding.object == f"tower_{towers[-1]}/loss"
    assert finding.path[0] == f"tower_{towers[-1]}/loss (Mean)"
    assert finding.found == f"the loss of the towers on {others}"
    assert messages(finding) == snapshot


def test_a_list_counts_as_one_loss(snapshot: SnapshotAssertion) -> None:
    verdict = LossOfAllTowers().judge(reported("tower_0/loss:0", "tower_1/loss:0"))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_mean_that_leaves_one_tower_out() -> None:
    graph = program(host("loss", "AddN", "tower_0/loss", "tower_2/loss"), gpus=[0, 1, 2])

    (finding,) = LossOfAllTowers().judge(graph).findings

    assert finding.object == "loss"
    assert finding.found == "the loss of the towers on /device:GPU:0 and /device:GPU:2"


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(joint(), id="one loss of all towers"),
        pytest.param(
            program(host("shown", "ScalarSummary", "tag", "rate")),
            id="a summary of something else",
        ),
        pytest.param(
            program(host("l2", "L2Loss", "w"), step={"losses": ("l2:0",)}),
            id="a loss of no tower",
        ),
        pytest.param(
            program(host("shown", "ScalarSummary", "tag", "loss")), id="a summary of the mean"
        ),
        pytest.param(
            program(host("shown", "HistogramSummary", "tag", "tower_1/w/MatMul")),
            id="a histogram of one tower",
        ),
        pytest.param(
            program(
                on(1, "tower_1/accuracy", "InTopKV2", "tower_1/w/MatMul"),
                host("shown", "ScalarSummary", "tag", "tower_1/accuracy"),
            ),
            id="an accuracy of one tower",
        ),
        pytest.param(
            program(host("shown", "HistogramSummary", "tag", "tower_1/loss")),
            id="a histogram of one tower's loss",
        ),
        pytest.param(
            program(lines={"tower_0/w/MatMul": "net.py:5", "tower_1/w/MatMul": "net.py:5"}),
            id="layers that one line builds in every tower",
        ),
        pytest.param(
            program(
                on(0, "shown", "HistogramSummary", "tag", "tower_0/w/MatMul"),
                host("shown_1", "HistogramSummary", "tag", "rate"),
                lines={"shown": "net.py:7", "shown_1": "net.py:7"},
            ),
            id="a line that summarizes one tower and something else",
        ),
        pytest.param(
            program(host("shown", "ScalarSummary", "tag", "loss"), step={"losses": ()}),
            id="a summary of the mean and no loss reported",
        ),
        pytest.param(
            summaries("HistogramSummary", "w/MatMul", lines=False), id="summaries of a saved graph"
        ),
    ],
)
def test_silent(graph: Placement) -> None:
    assert LossOfAllTowers().judge(graph).state == "kept"


def test_a_summary_of_one_towers_loss(snapshot: SnapshotAssertion) -> None:
    graph = program(
        host("shown", "ScalarSummary", "tag", "tower_1/loss"), lines={"shown": "main.py:50"}
    )

    verdict = LossOfAllTowers().judge(graph)

    (finding,) = verdict.findings
    assert (finding.object, finding.op, finding.where) == ("shown", "ScalarSummary", "main.py:50")
    assert messages(verdict) == snapshot
    assert finding.path == (
        "shown (ScalarSummary) main.py:50",
        "tower_1/loss (Mean)",
        "tower_1/w/MatMul (MatMul)",
    )


def test_a_summary_of_a_value_computed_from_one_towers_loss() -> None:
    """An example is the loss's moving average."""
    graph = program(
        host("smooth", "Mul", "tower_1/loss", "decay"),
        host("shown", "ScalarSummary", "tag", "smooth"),
    )

    assert objects(graph) == ["shown"]


def test_a_summary_of_one_towers_loss_that_is_written_without_a_merge() -> None:
    graph = program(
        host("shown", "WriteScalarSummary", "writer", "step", "tag", "tower_1/loss"),
        host("mean", "ScalarSummary", "tag", "loss"),
        host("merged", "MergeSummary", "mean"),
    )

    assert objects(graph) == ["shown"]


def test_summaries_of_losses_on_different_lines_are_each_of_one_tower() -> None:
    graph = summaries("ScalarSummary", "loss", lines=False)

    assert objects(graph) == ["tower_0/shown", "tower_1/shown"]


def test_broken_by_summaries_that_one_line_builds_in_every_tower(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = LossOfAllTowers().judge(summaries("HistogramSummary", "w/MatMul"))

    assert verdict.findings == [
        Finding(
            object="tower_1/shown",
            op="HistogramSummary",
            evidence="requested",
            expected="one summary for all towers",
            found="one for the tower on /device:GPU:1",
            frames=("main.py:30", "net.py:7"),
            path=(
                "tower_0/shown (HistogramSummary) net.py:7",
                "tower_1/shown (HistogramSummary) net.py:7",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "kind",
    [
        "ScalarSummary",
        "HistogramSummary",
        "ImageSummary",
        "AudioSummary",
        "AudioSummaryV2",
        "TensorSummaryV2",
        "WriteSummary",
    ],
)
@pytest.mark.parametrize("count", [2, 3, 12])
def test_summaries_of_every_kind_once_a_tower(kind: str, count: int) -> None:
    graph = summaries(kind, "x", gpus=range(count))

    assert objects(graph) == [f"tower_{i}/shown" for i in range(1, count)]


def test_a_summary_on_the_host_is_of_the_tower_that_it_reads() -> None:
    graph = program(
        *(host(f"shown_{i}", "ScalarSummary", "tag", f"tower_{i}/x") for i in (0, 1)),
        *(on(i, f"tower_{i}/x", "IteratorGetNext", "iterator") for i in (0, 1)),
        lines={"shown_0": "net.py:7", "shown_1": "net.py:7"},
    )

    assert objects(graph) == ["shown_1"]


def test_one_line_may_build_many_summaries_of_one_tower() -> None:
    """The first tower alone writes the weights of every layer."""
    graph = program(
        *(on(0, f"shown_{k}", "HistogramSummary", "tag", "tower_0/w/MatMul") for k in (1, 2)),
        lines={"shown_1": "net.py:7", "shown_2": "net.py:7"},
    )

    assert objects(graph) == []


def test_lines_that_are_reached_in_different_ways_are_different() -> None:
    graph = program(
        *(on(i, f"shown_{i}", "HistogramSummary", "tag", f"tower_{i}/x") for i in (0, 1)),
        lines={"shown_0": "main.py:3 net.py:7", "shown_1": "main.py:4 net.py:7"},
    )

    assert objects(graph) == []


def test_only_the_first_replica_writes_summaries() -> None:
    """TensorFlow writes the first replica's summaries only: the curve is one replica's loss."""
    replicas = [Device.parse(f"/gpu:{i}") for i in (0, 1)]
    strategy = Strategy("MirroredStrategy", replicas)
    pictures = summaries("WriteImageSummary", "x", strategy=strategy)
    losses = summaries("WriteScalarSummary", "loss", strategy=strategy)

    assert objects(pictures) == []
    assert objects(summaries("WriteImageSummary", "x")) == ["tower_1/shown"]
    assert objects(losses) == ["tower_0/shown"]


def test_a_step_that_returns_no_loss() -> None:
    graph = program(step={"losses": (), "traced": True})

    assert "the training step returns no number" in str(LossOfAllTowers().judge(graph).reason)


def test_a_metric_of_the_loss_is_not_judged() -> None:
    graph = accumulating(
        *(
            on(i, f"tower_{i}/add", "AssignAddVariableOp", f"shown{i}", f"tower_{i}/loss")
            for i in (0, 1)
        ),
        step={"losses": (), "traced": True},
    )
    verdict = LossOfAllTowers().judge(graph)

    assert "it adds the loss to shown0, and metrics are not judged" in str(verdict.reason)
    assert not verdict.fix


def test_summaries_of_all_towers_on_one_line_of_a_loop_over_variables() -> None:
    """A loop after the towers writes the averaged gradients."""
    graph = program(
        *(host(f"shown_{name}", "HistogramSummary", "tag", f"mean/{name}") for name in "ab"),
        variables=["a", "b"],
        lines={"shown_a": "main.py:60", "shown_b": "main.py:60"},
    )

    assert objects(graph) == []


def test_summaries_once_a_tower_are_found_though_no_loss_is_reported() -> None:
    graph = summaries("ImageSummary", "x", step={"losses": ()})

    assert objects(graph) == ["tower_1/shown"]


def test_one_finding_an_object() -> None:
    """Each tower writes a summary of its loss; only one finding is reported."""
    findings = LossOfAllTowers().judge(summaries("ScalarSummary", "loss")).findings

    assert [(finding.object, finding.expected) for finding in findings] == [
        ("tower_1/shown", "one summary for all towers"),
        ("tower_0/shown", "a loss of all towers"),
    ]


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), ["tower_1/loss", "tower_1/seen", "tower_0/seen"]),
        (("tower_0/seen",), ["tower_1/loss", "tower_1/seen"]),
        (("*/seen",), ["tower_1/loss"]),
        (("tower_1/*", "tower_0/*"), []),
        (("seen", "loss", "Tower_*"), ["tower_1/loss", "tower_1/seen", "tower_0/seen"]),
    ],
)
def test_summaries_that_show_one_tower_on_purpose(
    allow: Sequence[str], left: Sequence[str]
) -> None:
    graph = program(
        *(on(i, f"tower_{i}/seen", "ScalarSummary", "tag", f"tower_{i}/loss") for i in (0, 1)),
        lines={f"tower_{i}/seen": "net.py:7" for i in (0, 1)},
        step={"losses": ("tower_1/loss:0",)},
    )

    assert sorted(objects(graph, allow=allow)) == sorted(left)


def test_needs_no_placer_and_no_train_op() -> None:
    graph = program(
        placer=None,
        assigned=Missing("no wheel"),
        step={"train_op": (), "losses": ("tower_1/loss:0",)},
    )

    assert objects(graph) == ["tower_1/loss"]


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert LossOfAllTowers().judge(graph) == Verdict(
        "loss-of-all-towers", "not-checked", None, reason
    )


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(program(step={"losses": ()}), id="no loss and no summary"),
        pytest.param(
            program(host("shown", "ScalarSummary", "tag", "rate"), step={"losses": ()}),
            id="a summary of something else",
        ),
        pytest.param(
            program(
                host("shown", "ScalarSummary", "tag", "tower_1/loss"),
                step={"losses": (), "objectives": ()},
            ),
            id="it is not known which ops are losses",
        ),
    ],
)
def test_not_checked_without_a_reported_loss(
    graph: Placement, snapshot: SnapshotAssertion
) -> None:
    verdict = LossOfAllTowers().judge(graph)

    assert verdict == Verdict("loss-of-all-towers", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(("merged", "found"), [(["1"], []), (["0", "1"], ["tower_1/decay"])])
def test_only_merged_summaries_are_written(merged: Sequence[str], found: Sequence[str]) -> None:
    """As in the CIFAR-10 tutorial, every tower builds summaries; the last tower's are merged."""
    graph = program(
        *(on(i, f"tower_{i}/decay", "HistogramSummary", f"tower_{i}/w/MatMul") for i in (0, 1)),
        host("merged", "MergeSummary", *(f"tower_{i}/decay" for i in merged)),
        lines={f"tower_{i}/decay": "train.py:7" for i in (0, 1)},
    )

    assert [finding.object for finding in LossOfAllTowers().judge(graph).findings] == found


def test_a_penalty_on_the_gradients_is_part_of_a_loss_of_all_towers() -> None:
    penalized = host("loss", "AddN", "tower_0/loss", "tower_1/loss", gradient(0))

    assert objects(program(penalized)) == []


def test_the_last_of_losses_of_several_types_is_named(snapshot: SnapshotAssertion) -> None:
    graph = reported("tower_0/loss:0", "shown:0", gpus=(0, 1, 2))
    shown = on(1, "shown", "Sum", "tower_1/w/MatMul")

    (finding,) = (
        LossOfAllTowers().judge(replace(graph, ops={**graph.ops, "shown": shown})).findings
    )

    assert (finding.object, finding.op) == ("shown", "Sum")
    assert messages(finding) == snapshot


@pytest.mark.parametrize(("merged", "found"), [("all", []), ("last", ["last"])])
def test_summary_writes_count_even_if_others_are_merged(merged: str, found: Sequence[str]) -> None:
    graph = program(
        host("all", "ScalarSummary", "tag", "loss"),
        host("last", "ScalarSummary", "tag", "tower_1/loss"),
        host("merge", "MergeSummary", merged),
    )

    assert objects(graph) == found


def test_summaries_of_losses_that_one_line_builds_are_alike() -> None:
    """Each shows one tower's loss because one line builds them in every tower."""
    findings = LossOfAllTowers().judge(summaries("ScalarSummary", "loss", gpus=range(3))).findings

    assert sorted(finding.object for finding in findings) == [f"tower_{i}/shown" for i in range(3)]
    assert len({(each.alike, each.fix, each.consequence) for each in findings}) == 1


@pytest.mark.parametrize(("shown", "found"), [("w", 0), ("tower_{}/w/MatMul", 1)])
def test_summaries_of_a_shared_variable_are_equal_in_all_towers(shown: str, found: int) -> None:
    names = [f"tower_{i}/histogram" for i in (0, 1)]
    graph = program(
        *(on(i, names[i], "HistogramSummary", shown.format(i)) for i in (0, 1)),
        lines=dict.fromkeys(names, "train.py:7"),
    )

    assert len(LossOfAllTowers().judge(graph).findings) == found
