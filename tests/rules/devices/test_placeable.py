from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Verdict
from placement_checks.core.missing import Missing
from placement_checks.core.placement import MAX_REFUSALS, NOT_ASKED, Refusal
from placement_checks.rules.devices.placeable import Placeable

# As TensorFlow's placer words it.
BOUND = "\n".join(
    (
        "Cannot assign a device for operation step: Could not satisfy explicit device "
        "specification '/device:GPU:0' because no supported kernel for GPU devices is available.",
        "Colocation Debug Info:",
        "Colocation group had the following types and supported devices: ",
        "Root Member(assigned_device_name_index_=-1 requested_device_name_='/device:GPU:0' "
        "supported_device_types_=[CPU] possible_devices_=[]",
        "Identity: GPU CPU ",
        "VariableV2: CPU ",
        "",
        "Colocation members, user-requested devices, and framework assigned devices, if any:",
        "  step/Initializer/zeros (Const) ",
        "  step (VariableV2) /device:GPU:0",
        "",
        "Op: VariableV2",
        'Node attrs: shared_name="", dtype=DT_INT32, shape=[], container=""',
        "Registered kernels:",
        "  device='GPU'; dtype in [DT_INT64]",
        "  device='CPU'",
        "",
        "\t [[{{node step}}]]",
    )
)


def test_kept() -> None:
    verdict = Placeable().judge(placement(op("a", "MatMul", "/gpu:0", "GPU:0")))
    assert verdict == Verdict("placeable", "kept", "assigned", findings=[])


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        op("step", "VariableV2", "/gpu:0", "CPU:0"),
        refusals=[Refusal("step", BOUND)],
        lines={"step": "main.py:9 net.py:3"},
    )
    verdict = Placeable().judge(graph)
    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="step",
            op="VariableV2",
            evidence="assigned",
            expected="/device:GPU:0",
            found="refused by the placer",
            frames=("main.py:9", "net.py:3"),
            path=(
                "Identity: GPU CPU",
                "VariableV2: CPU",
                "step/Initializer/zeros (Const)",
                "step (VariableV2) /device:GPU:0",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_every_refusal_is_a_finding() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:7", "GPU:0"),
        op("b", "MatMul", "/gpu:8", "GPU:0"),
        refusals=[Refusal("a", "no such device"), Refusal("b", "no such device")],
    )
    assert [finding.object for finding in Placeable().judge(graph).findings] == ["a", "b"]


NO_KERNEL = "Could not satisfy '/device:GPU:{}' because no supported kernel is available."


@pytest.mark.parametrize(
    ("kinds", "gpus", "same"),
    [
        pytest.param("Print Print", (0, 1), True, id="no kernel, in two towers"),
        pytest.param("Print Hash", (0, 0), False, id="no kernel, for two reasons"),
        pytest.param("Print Hash", (7, 7), True, id="no such device"),
        pytest.param("Print Print", (7, 8), False, id="two that there are not"),
    ],
)
def test_refusals_of_one_cause(kinds: str, gpus: tuple[int, int], same: bool) -> None:
    """They are alike, with one fix and one line."""
    ops = [
        op(name, kind, f"/gpu:{gpu}", "CPU:0")
        for name, kind, gpu in zip("ab", kinds.split(), gpus, strict=True)
    ]
    graph = placement(
        *ops,
        refusals=[
            Refusal(name, NO_KERNEL.format(gpu)) for name, gpu in zip("ab", gpus, strict=True)
        ],
        device_lines=dict.fromkeys("ab", "main.py:4"),
    )

    one, other = Placeable().judge(graph).findings

    assert ((one.alike, one.fix) == (other.alike, other.fix)) == same
    assert one.device_line == other.device_line == "main.py:4"


def test_soft_placement_that_is_refused_has_another_fix(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        op("v", "VarHandleOp", "/gpu:0"),
        soft=True,
        refusals=[Refusal("v", "bound to two devices")],
    )
    (finding,) = Placeable().judge(graph).findings
    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    ("refusal", "object"),
    [
        (Refusal("", "no devices at all"), "train.py:build"),
        (Refusal("body/op", "no kernel"), "body/op"),
        (Refusal("a", ""), "a"),
    ],
)
def test_refusal_without_details(
    refusal: Refusal, object: str, snapshot: SnapshotAssertion
) -> None:
    (finding,) = Placeable().judge(placement(op("a", "NoOp"), refusals=[refusal])).findings
    assert (finding.object, finding.where, finding.path) == (object, None, ())
    assert messages(finding) == snapshot


def test_kept_by_soft_placement_that_moved_an_op() -> None:
    moved = op("step", "Variable", "/gpu:0", "CPU:0", fallback_reason="Variable has no GPU kernel")
    assert Placeable().judge(placement(moved, soft=True)).state == "kept"


def test_refusals_count_without_assigned_devices() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:7"),
        placer=None,
        assigned=Missing("the placer refused the graph"),
        refusals=[Refusal("a", "no such device")],
    )
    assert Placeable().judge(graph).state == "broken"


@pytest.mark.parametrize(
    "unplaced",
    [NOT_ASKED, Missing("no wheel for this")],
)
def test_not_checked_without_a_placer(unplaced: Missing, snapshot: SnapshotAssertion) -> None:
    graph = placement(op("a", "MatMul"), placer=None, assigned=unplaced)
    verdict = Placeable().judge(graph)
    assert verdict == Verdict("placeable", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "requested",
    [
        "/gpu:0",
        "/gpu:7",
        "/cpu:0",
    ],
)
def test_the_fix_fits_the_device_that_was_asked_for(
    requested: str, snapshot: SnapshotAssertion
) -> None:
    graph = placement(op("a", "MatMul", requested), refusals=[Refusal("a", "no")])

    (finding,) = Placeable().judge(graph).findings

    assert messages(finding) == snapshot


CLUSTER = "ps*2; worker*4: gpu*1"


@pytest.mark.parametrize(
    ("machine", "requested"),
    [
        pytest.param(CLUSTER, "/job:workers/gpu:0", id="job"),
        pytest.param(CLUSTER, "/job:zzz", id="job like no other"),
        pytest.param(CLUSTER, "/job:worker/task:4/gpu:0", id="task"),
        pytest.param("gpu*2", "/job:ps/task:0", id="job on one host"),
        pytest.param(CLUSTER, "/job:ps/task:1/gpu:0", id="server's GPU"),
        pytest.param(CLUSTER, "/job:ps/gpu:0", id="any server's GPU"),
        pytest.param(
            "worker*1; worker*1: gpu", "/job:worker/task:0/gpu:0", id="a worker without GPUs"
        ),
        pytest.param(CLUSTER, "/job:worker/task:1/gpu:1", id="index"),
        pytest.param("ps*1; worker*1", "/job:ps/task:0/gpu:0", id="no GPU anywhere"),
        pytest.param("ps*1; worker*1: gpu", "/gpu:1", id="no job named"),
        pytest.param(CLUSTER, "/task:9/gpu:0", id="a task of no job"),
        pytest.param(CLUSTER, "/job:ps/task:1/cpu:1", id="another CPU of a server"),
        pytest.param(CLUSTER, "/job:worker/task:1/gpu:0", id="a kernel"),
        pytest.param(None, "/job:ps/gpu:0", id="no machine"),
    ],
)
def test_the_fix_in_a_cluster(
    machine: str | None, requested: str, snapshot: SnapshotAssertion
) -> None:
    graph = placement(op("a", "MatMul", requested), machine=machine, refusals=[Refusal("a", "no")])

    (finding,) = Placeable().judge(graph).findings

    assert messages(finding) == snapshot


def members(*lines: str) -> Refusal:
    """A refusal of the op ``a`` that lists the members of its group."""
    return Refusal("a", "\n".join(["no", "Colocation members:", *(f"  {line}" for line in lines)]))


@pytest.mark.parametrize(
    ("lines", "requested"),
    [
        pytest.param(
            ["a (Identity)", "b (VariableV2) /job:ps/task:1/device:GPU:0"],
            "/job:ps/task:1/gpu:0",
            id="a server's GPU",
        ),
        pytest.param(
            ["b (VariableV2) /job:worker/task:1/device:GPU:0"],
            "/job:worker/task:1/gpu:0",
            id="a worker's GPU",
        ),
        pytest.param(
            ["b (VariableV2) /job:ps/task:1/device:CPU:0"],
            "/job:ps/task:1/cpu:0",
            id="a server's CPU",
        ),
        pytest.param(["b (VariableV2) /device:GPU:0"], "/gpu:0", id="no job"),
        pytest.param(
            ["Op: b", "c (Const)"],
            "/job:ps/task:1/gpu:0",
            id="no member, and one that is not known",
        ),
    ],
)
def test_the_fix_where_an_op_is_bound_to_another(
    lines: Sequence[str], requested: str, snapshot: SnapshotAssertion
) -> None:
    graph = placement(
        op("a", "Identity", "/job:ps/task:0/cpu:0"),
        op("b", "VariableV2", requested),
        machine=CLUSTER,
        refusals=[members(*lines)],
    )

    (finding,) = Placeable().judge(graph).findings

    assert messages(finding) == snapshot


def test_soft_placement_is_no_fix_if_it_is_allowed(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        op("a", "VarHandleOp", "/job:ps/task:0/gpu:0"),
        machine=CLUSTER,
        soft=True,
        refusals=[Refusal("a", "no")],
    )

    (finding,) = Placeable().judge(graph).findings

    assert messages(finding) == snapshot


def test_not_checked_for_a_log(snapshot: SnapshotAssertion) -> None:
    verdict = Placeable().judge(placement(op("a", "MatMul", "/gpu:0", "GPU:0"), placer="log"))

    assert verdict == Verdict("placeable", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("more", [0, 1])
def test_after_many_refusals_there_may_be_more(more: int, snapshot: SnapshotAssertion) -> None:
    count = MAX_REFUSALS - 1 + more
    ops = [op(f"op{number}", "Print", "/gpu:0", "CPU:0") for number in range(count)]
    graph = placement(*ops, refusals=[Refusal(failing.name, "no kernel") for failing in ops])

    verdict = Placeable().judge(graph)

    assert len(verdict.findings) == count
    assert messages(replace(verdict, findings=())) == snapshot


def test_a_refusal_of_an_op_that_the_placer_added_itself() -> None:
    graph = placement(op("a", "NoOp"), refusals=[Refusal("_recv_a", "no kernel")])

    (finding,) = Placeable().judge(graph).findings

    assert (finding.object, finding.op, finding.expected) == ("_recv_a", "", "?")
