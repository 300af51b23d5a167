from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op
from support.snapshots import messages
from support.towers import (
    gradient,
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

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.rules.towers.every_tower_counts import EveryTowerCounts
from placement_checks.util.text import range_text


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(EveryTowerCounts(**parameters), graph)


def without(number: int, count: int = 2, **more: Any) -> Placement:
    """Towers; the sum leaves out the gradients of one."""
    gradients = (gradient(i) for i in range(count) if i != number)
    return program(host("sum/w", "AddN", *gradients), gpus=range(count), **more)


def updated(gradients: str, *ops: Op, **more: Any) -> Placement:
    """The update of w takes one value, which `ops` compute."""
    return program(
        *ops, host("update/w", "ResourceApplyGradientDescent", "w", "rate", gradients), **more
    )


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = EveryTowerCounts().judge(program(gpus=range(count)))

    assert verdict == Verdict("every-tower-counts", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = without(0, lines={"update/w": "main.py:50 net.py:3", "w": "net.py:1"})

    verdict = EveryTowerCounts().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="w",
            op="VarHandleOp",
            evidence="requested",
            expected="an update by the gradients of all towers that read it",
            found="an update by the gradients of the tower on /device:GPU:1",
            frames=("main.py:50", "net.py:3"),
            path=(
                "update/w (ResourceApplyGradientDescent) net.py:3",
                "the tower on /device:GPU:0 reads it: tower_0/w/MatMul",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_the_line_of_the_variable_replaces_an_unknown_line_of_the_update() -> None:
    (finding,) = EveryTowerCounts().judge(without(0, lines={"w": "net.py:1"})).findings

    assert finding.where == "net.py:1"


def test_the_line_is_where_gradients_are_brought_together() -> None:
    """Not the line of the update, which is the same for all sums."""
    lines = {"update/w": "main.py:50", "sum/w": "main.py:40", "mean/w": "main.py:41"}

    (finding,) = EveryTowerCounts().judge(without(0, 3, lines=lines)).findings

    assert finding.where == "main.py:40"


def test_the_line_is_where_gradients_are_added_up_over_steps(snapshot: SnapshotAssertion) -> None:
    graph = updated(
        "total/read",
        variable("total"),
        host("total/add", "AssignAddVariableOp", "total", gradient(1)),
        host("total/read", "ReadVariableOp", "total", "^total/add"),
        lines={"update/w": "main.py:50", "total/add": "main.py:30", "total/read": "main.py:31"},
    )

    (finding,) = EveryTowerCounts().judge(graph).findings

    assert finding.where == "main.py:30"
    assert messages(finding) == snapshot


def test_the_line_is_where_other_variables_gradients_meet(snapshot: SnapshotAssertion) -> None:
    """A line that builds no op takes the first tower's gradient."""
    update = host("update/b", "ResourceApplyGradientDescent", "b", "rate", gradient(0, "b"))
    lines = {"update/b": "main.py:50", "sum/w": "main.py:40"}

    (finding,) = (
        EveryTowerCounts().judge(program(update, variables=["w", "b"], lines=lines)).findings
    )

    assert (finding.object, finding.where) == ("b", "main.py:40")
    assert messages(finding) == snapshot


def test_sparse_gradients_have_another_fix() -> None:
    update = host("update/b", "ResourceScatterSub", "b", "rows", gradient(0, "b"))

    (finding,) = (
        EveryTowerCounts()
        .judge(program(update, variables=["w", "b"], lines={"sum/w": "main.py:40"}))
        .findings
    )

    assert "IndexedSlices" in finding.fix


def test_variables_that_miss_the_same_tower_are_alike() -> None:
    sums = [host(f"sum/{name}", "AddN", gradient(0, name)) for name in ("a", "b")]

    one, other = EveryTowerCounts().judge(program(*sums, variables=["a", "b"])).findings

    assert one.alike is not None
    assert (one.alike, one.fix, one.consequence) == (other.alike, other.fix, other.consequence)


@pytest.mark.parametrize("count", [2, 3, 4, 12])
@pytest.mark.parametrize("number", [0, -1], ids=["the first", "the last"])
def test_one_tower_of_many_is_left_out(
    count: int, number: int, snapshot: SnapshotAssertion
) -> None:
    missing = range(count)[number]

    (finding,) = EveryTowerCounts().judge(without(missing, count)).findings

    others = range_text(f"/device:GPU:{i}" for i in range(count) if i != missing)
    towers = "tower" if count == 2 else "towers"
    assert finding.found == f"an update by the gradients of the {towers} on {others}"
    assert finding.path[1:] == (
        f"the tower on /device:GPU:{missing} reads it: tower_{missing}/w/MatMul",
    )
    assert messages(finding) == snapshot


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_the_last_tower_counts_alone(count: int, snapshot: SnapshotAssertion) -> None:
    last = count - 1

    (finding,) = EveryTowerCounts().judge(updated(gradient(last), gpus=range(count))).findings

    assert finding.found == f"an update by the gradients of the tower on /device:GPU:{last}"
    assert messages(finding) == snapshot
    assert len(finding.path) == count


def test_one_tower_is_taken_twice() -> None:
    graph = program(host("sum/w", "AddN", gradient(0), gradient(0)))

    (finding,) = EveryTowerCounts().judge(graph).findings

    assert finding.found == "an update by the gradients of the tower on /device:GPU:0"


def test_no_tower_counts(snapshot: SnapshotAssertion) -> None:
    """The gradient is a constant: all towers lose it."""
    (finding,) = EveryTowerCounts().judge(updated("zeros", host("zeros", "Const"))).findings

    assert finding.found == "an update by the gradients of no tower"
    assert messages(finding) == snapshot


def test_the_shape_of_a_gradient_is_no_gradient() -> None:
    """Zeros with the shape of a gradient replace a missing gradient."""
    zeros = host("zeros", "ZerosLike", gradient(0))

    assert objects(program(zeros, host("sum/w", "AddN", "zeros", gradient(1)))) == ["w"]


def test_one_variable_loses_the_gradients_of_one_tower(snapshot: SnapshotAssertion) -> None:
    graph = program(host("sum/b", "AddN", gradient(0, "b")), variables=["a", "b", "c"])

    verdict = EveryTowerCounts().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["b"]
    assert messages(verdict) == snapshot


def test_gradients_of_one_loss_of_all_towers() -> None:
    """All gradients depend on every tower's values; only the tower that computed them counts."""
    through = [
        on(i, f"gradients/tower_{i}/loss_grad/Mul", "Mul", f"tower_{i}/w/MatMul", "loss")
        for i in (0, 1)
    ]

    assert objects(joint()) == []
    assert objects(
        program(*through, host("sum/w", "AddN", gradient(0)), step={"objectives": ("loss:0",)})
    ) == ["w"]


@pytest.mark.parametrize("requested", ["", "/gpu:0", "/gpu:1"])
@pytest.mark.parametrize("kind", ["AddN", "Add", "AddV2", "AccumulateNV2", "ConcatV2"])
def test_the_gradients_are_added_up_in_the_backward_pass(kind: str, requested: str) -> None:
    total = op("gradients/AddN", kind, requested, "GPU:0", gradient(0), gradient(1))
    half = op("gradients/AddN", kind, requested, "GPU:0", gradient(0))

    assert objects(updated("gradients/AddN", total)) == []
    assert objects(updated("gradients/AddN", half)) == ["w"]


def test_an_update_for_each_tower_takes_all_of_them_together() -> None:
    """one-update judges the number of updates."""
    graph = program(
        host("update/w", "ResourceApplyGradientDescent", "w", "rate", gradient(0)),
        host("update/w_1", "ResourceApplyGradientDescent", "w", "rate", gradient(1)),
        host("train", "NoOp", "^update/w", "^update/w_1"),
    )

    assert objects(graph) == []


def test_the_first_of_several_updates_that_leave_a_tower_out_is_named() -> None:
    graph = program(
        host("update/w", "ResourceApplyGradientDescent", "w", "rate", gradient(0)),
        host("update/w_1", "ResourceApplyGradientDescent", "w", "rate", gradient(0)),
        host("train", "NoOp", "^update/w", "^update/w_1"),
        lines={"update/w": "main.py:40", "update/w_1": "main.py:41"},
    )

    (finding,) = EveryTowerCounts().judge(graph).findings

    assert finding.where == "main.py:40"
    assert finding.path[0] == "update/w (ResourceApplyGradientDescent) main.py:40"


def test_an_update_that_is_no_part_of_the_step_does_not_count() -> None:
    graph = program(
        host("update/w", "ResourceApplyGradientDescent", "w", "rate", gradient(0)),
        host("update/w_1", "ResourceApplyGradientDescent", "w", "rate", gradient(1)),
    )

    assert objects(graph) == ["w"]


@pytest.mark.parametrize("ways", ["AssignAddVariableOp", "AssignAdd"])
def test_gradients_that_are_summed_up_in_a_variable_count(ways: str) -> None:
    kind = "VarHandleOp" if ways == "AssignAddVariableOp" else "VariableV2"
    graph = updated(
        "total/read",
        variable("total", kind),
        host("add_0", ways, "total", gradient(0)),
        host("add_1", ways, "total", gradient(1)),
        host("total/read", "ReadVariableOp" if kind == "VarHandleOp" else "Identity", "total"),
        host("train", "NoOp", "^update/w", "^add_0", "^add_1"),
    )

    assert objects(graph) == []


@pytest.mark.parametrize("kind", ["HistogramSummary", "L2Loss"])
def test_a_sum_of_gradients_counts_though_a_summary_shows_it(kind: str) -> None:
    graph = updated(
        "total/read",
        variable("total"),
        *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
        host("total/read", "ReadVariableOp", "total"),
        host("shown", kind, "total/read"),
        host("train", "NoOp", "^update/w", "^add_0", "^add_1"),
    )

    assert objects(graph) == []


def test_a_gradient_that_is_not_added_does_not_count() -> None:
    graph = updated(
        "total/read",
        variable("total"),
        host("add_0", "AssignAddVariableOp", "total", gradient(0)),
        host("total/read", "ReadVariableOp", "total"),
        host("train", "NoOp", "^update/w", "^add_0"),
    )

    assert objects(graph) == ["w"]


@pytest.mark.parametrize(("also", "broken"), [("", ["w"]), ("^add_1", [])])
def test_a_gradient_that_the_step_does_not_add_counts_only_if_it_adds_none(
    also: str, broken: Sequence[str]
) -> None:
    """If separate runs add all gradients, the step need not add them."""
    run = ["^update/w", "^add_0", also] if also else ["^update/w", "^add_0"]
    graph = updated(
        "total/read",
        variable("total"),
        *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
        host("total/read", "ReadVariableOp", "total"),
        host("train", "NoOp", *run),
    )

    assert objects(graph) == broken


def test_the_condition_of_a_sum_of_gradients_is_no_part_of_it() -> None:
    """The condition reads the gradients of all towers; the sum takes one tower's."""
    graph = updated(
        "total/read",
        variable("total", "VariableV2"),
        host("finite", "IsFinite", "sum/w"),
        host("total/Switch", "RefSwitch", "total", "finite"),
        host("add_0", "AssignAdd", "total/Switch:1", gradient(0)),
        host("total/read", "Identity", "total"),
        host("train", "NoOp", "^update/w", "^add_0"),
    )

    assert objects(graph) == ["w"]


def test_gradients_that_are_added_up_by_steps_of_their_own_count() -> None:
    """Several steps add up small batches; then a step applies the sum and clears it."""
    graph = updated(
        "total/read",
        variable("total"),
        *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
        host("total/read", "ReadVariableOp", "total"),
        host("zeros", "Const"),
        host("clear", "AssignVariableOp", "total", "zeros"),
        host("train", "NoOp", "^update/w", "^clear"),
    )

    assert objects(graph) == []


@pytest.mark.parametrize(
    "kind",
    ["ConditionalAccumulator", "SparseConditionalAccumulator", "ResourceConditionalAccumulator"],
)
@pytest.mark.parametrize(("towers", "broken"), [((0, 1), []), ((1,), ["w"])])
def test_gradients_that_are_summed_up_in_an_accumulator_count(
    kind: str, towers: Sequence[int], broken: Sequence[str]
) -> None:
    """tf.compat.v1.train.SyncReplicasOptimizer."""
    graph = updated(
        "total",
        host("accumulator", kind),
        *(
            host(f"add_{i}", "AccumulatorApplyGradient", "accumulator", "step", gradient(i))
            for i in towers
        ),
        host("total", "AccumulatorTakeGradient", "accumulator", "one"),
        host("train", "NoOp", "^update/w", *(f"^add_{i}" for i in towers)),
    )

    assert objects(graph) == broken


def test_gradients_that_wait_in_a_queue_count() -> None:
    graph = updated(
        "total",
        host("queue", "FIFOQueueV2"),
        *(host(f"put_{i}", "QueueEnqueueV2", "queue", gradient(i)) for i in (0, 1)),
        host("total", "QueueDequeueManyV2", "queue", "two"),
        host("train", "NoOp", "^update/w", "^put_0", "^put_1"),
    )

    assert objects(graph) == []


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(
            [host("update/w", "ResourceApplyMomentum", "w", "slot", "rate", "mean/w", "0.9")],
            id="momentum",
        ),
        pytest.param(
            [
                host("values", "ConcatV2", gradient(0), gradient(1), "axis"),
                host("rows", "ConcatV2", "rows_0", "rows_1", "axis"),
                host("update/w", "ResourceScatterSub", "w", "rows", "values"),
            ],
            id="indexed slices",
        ),
        pytest.param(
            [
                host("new", "Sub", "w", "mean/w"),
                host("update/w", "AssignVariableOp", "w", "new"),
            ],
            id="a step written out",
        ),
        pytest.param(
            [
                on(0, "gradients/tower_0/loss_grad/Mul", "Mul", "tower_0/w/MatMul", "scale"),
                host("mean/w", "Mul", "sum/w", "unscale"),
            ],
            id="a loss that is scaled",
        ),
        pytest.param(
            [
                host("finite", "IsFinite", "sum/w"),
                host("mean/w", "SelectV2", "finite", "sum/w", "zeros"),
            ],
            id="gradients that are passed over if they are not finite",
        ),
        pytest.param(
            [
                host("weighted_0", "Mul", gradient(0), "0.25"),
                host("weighted_1", "Mul", gradient(1), "0.75"),
                host("sum/w", "AddN", "weighted_0", "weighted_1"),
            ],
            id="towers of unequal size",
        ),
    ],
)
def test_silent(ops: Sequence[Op], snapshot: SnapshotAssertion) -> None:
    verdict = EveryTowerCounts().judge(program(*ops))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("kind", ["Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan"])
@pytest.mark.parametrize("order", [1, -1], ids=["norm last", "norm first"])
def test_a_norm_of_all_gradients_does_not_make_a_tower_count(kind: str, order: int) -> None:
    """One tower's gradients are clipped by the norm of both."""
    ops = [
        host("norm", "L2Loss", "sum/w"),
        host("clipped", kind, *[gradient(0), "norm"][::order]),
    ]

    assert objects(updated("clipped", *ops, outputs={"norm": (), gradient(0): (4,)})) == ["w"]


def test_a_tensor_that_is_not_known_to_be_a_scalar_counts() -> None:
    """It is the second output of an op with a scalar as its first output."""
    ops = [host("norms", "Pack", "sum/w"), host("clipped", "Mul", gradient(0), "norms:1")]

    assert objects(updated("clipped", *ops, outputs={"norms": (), gradient(0): (4,)})) == []


def test_a_gradient_that_an_accumulator_gets_outside_of_the_step_does_not_count() -> None:
    """The step gives the accumulator one tower's gradient."""
    graph = updated(
        "total",
        host("accumulator", "ConditionalAccumulator"),
        *(
            host(f"add_{i}", "AccumulatorApplyGradient", "accumulator", "step", gradient(i))
            for i in (0, 1)
        ),
        host("total", "AccumulatorTakeGradient", "accumulator", "one"),
        host("train", "NoOp", "^update/w", "^add_0"),
    )

    assert objects(graph) == ["w"]


def test_a_frozen_variable_is_not_judged(snapshot: SnapshotAssertion) -> None:
    graph = program(host("train", "NoOp", "^update/b", "^step/add"), variables=["a", "b"])

    verdict = EveryTowerCounts().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_variable_is_judged_by_the_towers_that_read_it(snapshot: SnapshotAssertion) -> None:
    """Only the first tower has an auxiliary head."""
    graph = program(
        variable("aux"),
        on(0, "tower_0/aux", "MatMul", "tower_0/w/MatMul", "aux"),
        on(0, "tower_0/loss", "Mean", "tower_0/aux"),
        on(0, "gradients/tower_0/aux_grad/MatMul", "MatMul", "tower_0/w/MatMul"),
        host("update/aux", "ResourceApplyAdam", "aux", "gradients/tower_0/aux_grad/MatMul"),
        host("train", "NoOp", "^update/w", "^update/aux"),
    )

    verdict = EveryTowerCounts().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_statistics_are_not_trained(snapshot: SnapshotAssertion) -> None:
    """One tower's batch updates the moving mean, on purpose."""
    graph = program(
        variable("mean"),
        *(on(i, f"tower_{i}/norm", "Sub", f"tower_{i}/w/MatMul", "mean") for i in (0, 1)),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/norm") for i in (0, 1)),
        host("mean/update", "AssignSubVariableOp", "mean", "tower_0/w/MatMul"),
        host("train", "NoOp", "^update/w", "^mean/update"),
    )

    verdict = EveryTowerCounts().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), ["head/a", "head/b"]),
        (("head/a",), ["head/b"]),
        (("head/*",), []),
        (("Head/*", "a"), ["head/a", "head/b"]),
    ],
)
def test_variables_that_not_all_towers_train_on_purpose(
    allow: Sequence[str], left: Sequence[str]
) -> None:
    names = ["head/a", "head/b", "w"]
    sums = [host(f"sum/{name}", "AddN", gradient(0, name)) for name in names[:2]]

    assert objects(program(*sums, variables=names), allow=allow) == left


def test_needs_no_placer_and_no_train_op() -> None:
    graph = without(1, placer=None, assigned=Missing("no wheel for this"), step={"train_op": ()})

    assert objects(graph) == ["w"]


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert EveryTowerCounts().judge(graph) == Verdict(
        "every-tower-counts", "not-checked", None, reason
    )


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(mixed_losses(), id="mixed losses"),
        pytest.param(program(host("train", "NoOp", "^step/add")), id="no update"),
        pytest.param(
            program(host("update/w", "AssignSubVariableOp", "w", "mean/w"), step={"train_op": ()}),
            id="no step is known",
        ),
        pytest.param(
            program(
                host("update/w", "AssignVariableOp", "w", "restored"),
                host("train", "NoOp", "^update/w"),
            ),
            id="an update without a gradient",
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = EveryTowerCounts().judge(graph)

    assert verdict == Verdict("every-tower-counts", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(("key", "state"), [("same", "kept"), ("other", "broken")])
def test_a_collective_combines_all_members(key: str, state: str) -> None:
    """NcclAllReduce: one op on each GPU; only ops with one shared name reduce together."""
    graph = program(
        *(on(i, f"reduced_{i}", "NcclAllReduce", gradient(i)) for i in (0, 1)),
        host("mean/w", "Mul", "reduced_0", "share"),
        attributes={"reduced_0": {"shared_name": "same"}, "reduced_1": {"shared_name": key}},
    )

    assert EveryTowerCounts().judge(graph).state == state


def test_a_scalar_that_is_added_counts() -> None:
    ops = [host("shift", "Mean", gradient(1)), host("shifted", "AddV2", gradient(0), "shift")]

    assert objects(updated("shifted", *ops, outputs={"shift": (), gradient(0): (4,)})) == []


def test_the_gradient_of_a_scalar_counts() -> None:
    assert objects(program(shapes={"w": ()}, outputs={"sum/w": (), "share": ()})) == []


@pytest.mark.parametrize("count", [2, 4])
def test_the_copies_of_a_variable_take_every_tower(
    count: int, snapshot: SnapshotAssertion
) -> None:
    gradients = (gradient(i) for i in range(1, count))
    graph = program(host("sum/w", "AddN", *gradients), gpus=range(count), mirrored=True)

    verdict = EveryTowerCounts().judge(graph)

    assert objects(program(mirrored=True, gpus=range(count))) == []
    assert [finding.object for finding in verdict.findings] == [f"v{i}/w" for i in range(count)]
    assert verdict.findings[-1].path[1:] == (
        "the tower on /device:GPU:0 reads its copy: tower_0/w/MatMul",
    )
    assert messages(verdict.findings[0]) == snapshot
