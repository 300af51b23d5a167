from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import (
    broken_mirror,
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
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.rules.devices.averaging_on_host import AveragingOnHost


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(AveragingOnHost(**parameters), graph)


def on_gpu(count: int = 2, **more: Any) -> Placement:
    """Towers with gradients that are added up on the first GPU."""
    total = on(0, "sum/w", "AddN", *(gradient(i) for i in range(count)))
    return program(total, gpus=range(count), **more)


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = AveragingOnHost().judge(program(gpus=range(count)))

    assert verdict == Verdict("averaging-on-host", "kept", "assigned", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    lines = {"sum/w": "main.py:50 net.py:3", gradient(1): "main.py:40"}
    graph = on_gpu(lines=lines, device_lines={"sum/w": "main.py:4"})

    verdict = AveragingOnHost().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="sum/w",
            op="AddN",
            evidence="assigned",
            expected="/device:CPU:0",
            found="/device:GPU:0",
            frames=("main.py:50", "net.py:3"),
            at="main.py:4",
            device_line="main.py:4",
            path=(
                "sum/w (AddN) net.py:3",
                "gradients/tower_0/w/MatMul_grad/MatMul (MatMul)",
                "gradients/tower_1/w/MatMul_grad/MatMul (MatMul) main.py:40",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_all_towers_are_named(count: int, snapshot: SnapshotAssertion) -> None:
    (finding,) = AveragingOnHost().judge(on_gpu(count)).findings

    assert messages(finding) == snapshot
    assert len(finding.path) == min(1 + count, 9)


def test_a_long_path_is_cut_in_the_middle() -> None:
    (finding,) = AveragingOnHost().judge(on_gpu(12)).findings

    assert finding.path[4] == "… 5 more"
    assert finding.path[-1] == "gradients/tower_11/w/MatMul_grad/MatMul (MatMul)"


def test_the_path_contains_only_the_gradients() -> None:
    graph = program(
        host("finite", "IsFinite", "tower_0/loss"),
        on(0, "sum/w", "SelectV2", "finite", gradient(0), gradient(1)),
    )

    (finding,) = AveragingOnHost().judge(graph).findings

    assert finding.path == (
        "sum/w (SelectV2)",
        "gradients/tower_0/w/MatMul_grad/MatMul (MatMul)",
        "gradients/tower_1/w/MatMul_grad/MatMul (MatMul)",
    )


def test_the_assigned_device_is_judged(snapshot: SnapshotAssertion) -> None:
    """Without a request, the placer puts the sum with the gradients."""
    total = op("sum/w", "AddN", "", "GPU:0", gradient(0), gradient(1))

    (finding,) = AveragingOnHost().judge(program(total)).findings

    assert messages(finding) == snapshot


def test_every_addition_of_a_chain_combines_gradients(
    snapshot: SnapshotAssertion,
) -> None:
    graph = program(
        on(0, "first", "AddV2", gradient(0), gradient(1)),
        on(0, "sum/w", "AddV2", "first", gradient(2)),
        gpus=[0, 1, 2],
    )

    verdict = AveragingOnHost().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["first", "sum/w"]
    assert messages(verdict) == snapshot


def test_only_the_stack_combines_stacked_gradients(
    snapshot: SnapshotAssertion,
) -> None:
    graph = program(
        host("stack", "Pack", gradient(0), gradient(1)), on(0, "sum/w", "Mean", "stack", "axes")
    )

    verdict = AveragingOnHost().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_the_gradients_of_each_variable_are_judged(snapshot: SnapshotAssertion) -> None:
    graph = program(
        on(1, "sum/b", "AddN", gradient(0, "b"), gradient(1, "b")), variables=["a", "b", "c"]
    )

    verdict = AveragingOnHost().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["sum/b"]
    assert messages(verdict) == snapshot


def test_a_sum_within_a_tower_combines_no_towers(
    snapshot: SnapshotAssertion,
) -> None:
    """Weights that are used twice have two gradients."""
    ops = []
    for i in (0, 1):
        twice = f"gradients/tower_{i}/twice_grad/MatMul"
        ops += [
            on(i, f"tower_{i}/twice", "MatMul", f"tower_{i}/w/MatMul", f"tower_{i}/w/read"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/twice"),
            on(i, twice, "MatMul", f"tower_{i}/x"),
            op(f"gradients/AddN_{i}", "AddN", "", f"GPU:{i}", gradient(i), twice),
        ]
    graph = program(*ops, host("sum/w", "AddN", "gradients/AddN_0", "gradients/AddN_1"))

    verdict = AveragingOnHost().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_gradients_are_scaled_and_clipped_in_their_towers() -> None:
    ops = [on(i, f"clipped_{i}", "ClipByValue", gradient(i)) for i in (0, 1)]
    graph = program(*ops, host("sum/w", "AddN", "clipped_0", "clipped_1"))

    assert objects(graph) == []


def test_the_norm_of_all_gradients_on_a_gpu_combines_none() -> None:
    """Clipping by the global norm scales every gradient by a scalar."""
    graph = program(
        on(0, "norm", "L2Loss", "sum/w"),
        host("clipped", "Mul", "mean/w", "norm"),
        host("update/w", "ResourceApplyGradientDescent", "w", "rate", "clipped"),
        outputs={"norm": ()},
    )

    assert objects(graph) == []


@pytest.mark.parametrize(("at", "broken"), [("GPU:0", ["gradients/AddN"]), ("CPU:0", [])])
def test_the_gradients_of_one_loss_of_all_towers_are_added_up_in_the_backward_pass(
    at: str, broken: Sequence[str]
) -> None:
    graph = program(
        op("gradients/AddN", "AddN", "", at, gradient(0), gradient(1)),
        host("update/w", "ResourceApplyGradientDescent", "w", "rate", "gradients/AddN"),
        step={"objectives": ("loss:0",)},
    )

    assert objects(graph) == broken


def test_a_sum_on_the_gpu_of_a_third_tower_does_not_name_that_tower(
    snapshot: SnapshotAssertion,
) -> None:
    graph = program(
        on(2, "gradients/AddN", "AddN", gradient(0), gradient(1)),
        host("sum/w", "AddN", "gradients/AddN", gradient(2)),
        gpus=[0, 1, 2],
    )

    (finding,) = AveragingOnHost().judge(graph).findings

    assert messages(finding) == snapshot


def test_kept_by_gradients_of_one_loss_that_are_averaged_on_the_host() -> None:
    assert AveragingOnHost().judge(joint()).state == "kept"


def test_ops_on_gradients_that_update_nothing_are_not_judged() -> None:
    """A summary of the gradients of all towers."""
    graph = program(on(0, "shown", "AddN", gradient(0), gradient(1)))

    assert objects(graph) == []


@pytest.mark.parametrize(
    ("device", "broken"),
    [
        ("/cpu:0", True),
        ("/gpu:0", False),
        ("/gpu:1", True),
        ("/gpu", False),
        (("/cpu:0", "/gpu:0"), False),
        (("/cpu:0", "/gpu:1"), True),
        ("/job:localhost", False),
    ],
)
def test_the_device_may_be_another_one_or_a_list(
    device: str | tuple[str, str], broken: bool
) -> None:
    assert bool(objects(on_gpu(), device=device)) == broken


def test_every_device_allowed_is_named(snapshot: SnapshotAssertion) -> None:
    (finding,) = AveragingOnHost(device=("/cpu:0", "/job:ps")).judge(on_gpu()).findings

    assert finding.expected == "/device:CPU:0 or /job:ps"
    assert messages(finding) == snapshot


@pytest.mark.parametrize("task", [0, 1])
def test_a_partial_name_matches_any_task(task: int) -> None:
    server = f"/job:ps/replica:0/task:{task}/cpu:0"
    graph = program(op("sum/w", "AddN", server, server, gradient(0), gradient(1)))

    assert objects(graph, device="/job:ps") == []
    assert objects(graph, device="/job:ps/task:0") == ["sum/w"] * task
    assert objects(graph, device="/job:worker") == ["sum/w"]


def test_an_invalid_device_is_refused() -> None:
    with pytest.raises(InputError, match="is not part of a device name"):
        AveragingOnHost(device="host")


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert AveragingOnHost().judge(graph) == Verdict(
        "averaging-on-host", "not-checked", None, reason
    )


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(program(placer=None), id="no placer"),
        pytest.param(program(assigned=Missing("it died")), id="unplaced"),
        pytest.param(mixed_losses(), id="mixed losses"),
        pytest.param(program(host("sum/w", "AddN", gradient(1))), id="one tower alone"),
        pytest.param(
            program(
                host("update/w", "ResourceApplyGradientDescent", "w", "rate", gradient(0)),
                host("update/w_1", "ResourceApplyGradientDescent", "w", "rate", gradient(1)),
            ),
            id="each tower applies its own",
        ),
        pytest.param(
            placement(
                variable("w"),
                *(on(i, f"predict_{i}", "MatMul", "x", "w") for i in (0, 1)),
            ),
            id="towers that only predict",
        ),
        pytest.param(
            program(op("sum/w", "AddN", "/cpu:0", "", gradient(0), gradient(1))), id="not placed"
        ),
        pytest.param(program(placer="log", machine="cpu*1"), id="log of a machine without GPUs"),
        pytest.param(
            program(host("train", "NoOp", "^step/add")), id="gradients that no step applies"
        ),
        pytest.param(
            program(host("update/w", "AssignSubVariableOp", "w", "mean/w"), step={"train_op": ()}),
            id="gradients, and no step is known",
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = AveragingOnHost().judge(graph)
    assert verdict == Verdict("averaging-on-host", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


# Copies of mirrored variables, and collective ops.


def on_first_gpu(name: str, *inputs: str) -> Op:
    return on(0, name, "AddN", *inputs)


def test_the_sum_that_updates_copies_may_be_on_a_gpu(snapshot: SnapshotAssertion) -> None:
    total = on_first_gpu("sum/w", gradient(0), gradient(1))

    verdict = AveragingOnHost().judge(program(total, mirrored=True))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_in_addition_to_copies_the_sums_of_other_variables_are_judged() -> None:
    """A table that all towers read."""
    ops = [
        variable("table"),
        *(on(i, f"tower_{i}/row", "ResourceGather", "table", f"tower_{i}/x") for i in (0, 1)),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/w/MatMul", f"row_{i}") for i in (0, 1)),
        *(on(i, f"row_{i}", "Tanh", f"tower_{i}/row") for i in (0, 1)),
        *(on(i, f"gradients/row_{i}_grad/Mul", "Mul", f"row_{i}") for i in (0, 1)),
        on_first_gpu("sum/w", gradient(0), gradient(1)),
        on_first_gpu("sum/table", *(f"gradients/row_{i}_grad/Mul" for i in (0, 1))),
        host("update/table", "ResourceApplyGradientDescent", "table", "rate", "sum/table"),
        host("train", "NoOp", "^update/v0/w", "^update/v1/w", "^update/table"),
    ]

    assert objects(program(*ops, mirrored=True)) == ["sum/table"]


@pytest.mark.parametrize("mirrored", [True, False])
def test_collective_ops_combine_gradients_on_no_device(
    mirrored: bool, snapshot: SnapshotAssertion
) -> None:
    graph = program(
        *(on(i, f"reduced_{i}", "NcclAllReduce", gradient(i)) for i in (0, 1)),
        host("mean/w", "Mul", "reduced_0", "share"),
        mirrored=mirrored,
    )

    verdict = AveragingOnHost().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_ops_on_the_result_of_a_collective_combine_nothing() -> None:
    graph = program(
        *(on(i, f"reduced_{i}", "CollectiveReduceV2", gradient(i)) for i in (0, 1)),
        on_first_gpu("sum/w", "reduced_0", "reduced_1"),
    )

    assert AveragingOnHost().judge(graph).state == "not-checked"


@pytest.mark.parametrize(
    ("changes", "follows"),
    [
        pytest.param([], "variables-shared", id="for the copy on its GPU"),
        pytest.param([on(1, "sum/w", "AddN", gradient(0), gradient(1))], None, id="on another"),
        pytest.param(
            [host("update/step", "ResourceApplyGradientDescent", "step", "rate", "sum/w")],
            None,
            id="for another variable too",
        ),
    ],
)
def test_the_sum_for_a_variable_of_a_broken_mirror(
    changes: Sequence[Op], follows: str | None
) -> None:
    read = on(0, "tower_0/step", "Mul", "tower_0/x", "step")
    train = host("train", "NoOp", "^update/v0/w", *(f"^{op.name}" for op in changes[:1]))

    (finding,) = AveragingOnHost().judge(broken_mirror(read, train, *changes)).findings

    assert (finding.object, finding.follows) == ("sum/w", follows)
