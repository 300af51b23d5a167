from __future__ import annotations

from collections.abc import Sequence

import pytest
from graphs import op, placement

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


def test_broken() -> None:
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
            where="main.py:9",
            path=(
                "Identity: GPU CPU",
                "VariableV2: CPU",
                "step/Initializer/zeros (Const)",
                "step (VariableV2) /device:GPU:0",
            ),
            message="step cannot be placed: Could not satisfy explicit device specification "
            "'/device:GPU:0' because no supported kernel for GPU devices is available. "
            "(built at main.py:9 > net.py:3)",
            fix="build it under /cpu:0 instead of /device:GPU:0, or allow soft placement "
            "(allow_soft_placement=True, --soft)",
        )
    ]


def test_every_refusal_is_a_finding() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:7", "GPU:0"),
        op("b", "MatMul", "/gpu:8", "GPU:0"),
        refusals=[Refusal("a", "no such device"), Refusal("b", "no such device")],
    )
    assert [each.object for each in Placeable().judge(graph).findings] == ["a", "b"]


def test_soft_placement_that_is_refused_has_another_fix() -> None:
    graph = placement(
        op("v", "VarHandleOp", "/gpu:0"),
        soft=True,
        refusals=[Refusal("v", "bound to two devices")],
    )
    (finding,) = Placeable().judge(graph).findings
    assert finding.fix == "ask for one device for all ops that share this variable or resource"


@pytest.mark.parametrize(
    ("refusal", "object", "message"),
    [
        (Refusal("", "no devices at all"), "train.py:build", "the graph cannot be placed: no de"),
        (Refusal("body/op", "no kernel"), "body/op", "body/op cannot be placed: no kernel"),
        (Refusal("a", ""), "a", "a cannot be placed: the placer gives no reason"),
    ],
)
def test_refusal_that_tells_little(refusal: Refusal, object: str, message: str) -> None:
    (finding,) = Placeable().judge(placement(op("a", "NoOp"), refusals=[refusal])).findings
    assert (finding.object, finding.where, finding.path) == (object, None, ())
    assert finding.message.startswith(message)


def test_soft_placement_that_moved_an_op_is_silent() -> None:
    moved = op("step", "Variable", "/gpu:0", "CPU:0", fallback_reason="Variable has no GPU kernel")
    assert Placeable().judge(placement(moved, soft=True)).state == "kept"


def test_refusals_count_where_nothing_was_placed() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:7"),
        placer=None,
        assigned=Missing("the placer refused the graph"),
        refusals=[Refusal("a", "no such device")],
    )
    assert Placeable().judge(graph).state == "broken"


@pytest.mark.parametrize(
    ("unplaced", "reason"),
    [(NOT_ASKED, "no placer was asked"), (Missing("no wheel for this"), "no wheel for this")],
)
def test_not_checked_without_a_placer(unplaced: Missing, reason: str) -> None:
    graph = placement(op("a", "MatMul"), placer=None, assigned=unplaced)
    assert Placeable().judge(graph) == Verdict("placeable", "not-checked", None, reason)


@pytest.mark.parametrize(
    ("requested", "fix"),
    [
        ("/gpu:0", "build it under /cpu:0 instead of /device:GPU:0, or allow soft placement"),
        ("/gpu:7", "gpu*2 has no /device:GPU:7: mend the index, or ask for more"),
        (
            "/cpu:0",
            "let all ops that are bound to it ask for one device, or allow soft placement ",
        ),
    ],
)
def test_the_fix_fits_the_device_that_was_asked_for(requested: str, fix: str) -> None:
    graph = placement(op("a", "MatMul", requested), refusals=[Refusal("a", "no")])

    (finding,) = Placeable().judge(graph).findings

    assert finding.fix.startswith(fix)


CLUSTER = "ps*2; worker*4: gpu*1"
MEND = 'mend the name, or describe a machine that has it: --machine "ps*2; worker*8: gpu*4"'
SOFT = "or allow soft placement (allow_soft_placement=True, --soft)"


def no_gpu(task: str, job: str = "ps") -> str:
    return (
        f"{task} has no GPU, and a device scope or device function around it names one: give "
        f"replica_device_setter ps_device='/job:{job}/cpu:0', {SOFT}"
    )


@pytest.mark.parametrize(
    ("machine", "requested", "fix"),
    [
        pytest.param(CLUSTER, "/job:workers/gpu:0", "did you mean /job:worker?", id="job"),
        pytest.param(CLUSTER, "/job:zzz", MEND, id="job like no other"),
        pytest.param(CLUSTER, "/job:worker/task:4/gpu:0", MEND, id="task"),
        pytest.param("gpu*2", "/job:ps/task:0", MEND, id="job on one host"),
        pytest.param(CLUSTER, "/job:ps/task:1/gpu:0", no_gpu("/job:ps/task:1"), id="server's GPU"),
        pytest.param(CLUSTER, "/job:ps/gpu:0", no_gpu("/job:ps"), id="any server's GPU"),
        pytest.param(
            "worker*1; worker*1: gpu",
            "/job:worker/task:0/gpu:0",
            no_gpu("/job:worker/task:0", "worker"),
            id="a worker without GPUs",
        ),
        pytest.param(
            CLUSTER,
            "/job:worker/task:1/gpu:1",
            "ps*2: cpu*1; worker*4: gpu*1 has no /job:worker/task:1/device:GPU:1: mend the index, "
            "or ask for more",
            id="index",
        ),
        pytest.param(
            "ps*1; worker*1",
            "/job:ps/task:0/gpu:0",
            "ps*1: cpu*1; worker*1: cpu*1 has no /job:ps/task:0/device:GPU:0: mend the index, or "
            "ask for more",
            id="no GPU anywhere",
        ),
        pytest.param(
            "ps*1; worker*1: gpu",
            "/gpu:1",
            "ps*1: cpu*1; worker*1: gpu*1 has no /device:GPU:1: mend the index, or ask for more",
            id="no job named",
        ),
        pytest.param(
            CLUSTER,
            "/task:9/gpu:0",
            "ps*2: cpu*1; worker*4: gpu*1 has no /task:9/device:GPU:0: mend the index, or ask for "
            "more",
            id="a task of no job",
        ),
        pytest.param(
            CLUSTER,
            "/job:ps/task:1/cpu:1",
            "ps*2: cpu*1; worker*4: gpu*1 has no /job:ps/task:1/device:CPU:1: mend the index, or "
            "ask for more",
            id="another CPU of a server",
        ),
        pytest.param(
            CLUSTER,
            "/job:worker/task:1/gpu:0",
            f"build it under /cpu:0 instead of /job:worker/task:1/device:GPU:0, {SOFT}",
            id="a kernel",
        ),
        pytest.param(
            None,
            "/job:ps/gpu:0",
            f"build it under /cpu:0 instead of /job:ps/device:GPU:0, {SOFT}",
            id="no machine",
        ),
    ],
)
def test_the_fix_in_a_cluster(machine: str | None, requested: str, fix: str) -> None:
    graph = placement(op("a", "MatMul", requested), machine=machine, refusals=[Refusal("a", "no")])

    (finding,) = Placeable().judge(graph).findings

    assert finding.fix == fix


def members(*lines: str) -> Refusal:
    """A refusal of the op ``a`` that lists the members of its group."""
    return Refusal("a", "\n".join(["no", "Colocation members:", *(f"  {line}" for line in lines)]))


@pytest.mark.parametrize(
    ("lines", "requested", "fix"),
    [
        pytest.param(
            ["a (Identity)", "b (VariableV2) /job:ps/task:1/device:GPU:0"],
            "/job:ps/task:1/gpu:0",
            no_gpu("/job:ps/task:1"),
            id="a server's GPU",
        ),
        pytest.param(
            ["b (VariableV2) /job:worker/task:1/device:GPU:0"],
            "/job:worker/task:1/gpu:0",
            f"let all ops that are bound to it ask for one device, {SOFT}",
            id="a worker's GPU",
        ),
        pytest.param(
            ["b (VariableV2) /job:ps/task:1/device:CPU:0"],
            "/job:ps/task:1/cpu:0",
            f"let all ops that are bound to it ask for one device, {SOFT}",
            id="a server's CPU",
        ),
        pytest.param(
            ["b (VariableV2) /device:GPU:0"],
            "/gpu:0",
            f"let all ops that are bound to it ask for one device, {SOFT}",
            id="no job",
        ),
        pytest.param(
            ["Op: b", "c (Const)"],
            "/job:ps/task:1/gpu:0",
            f"let all ops that are bound to it ask for one device, {SOFT}",
            id="no member, and one that is not known",
        ),
    ],
)
def test_the_fix_where_an_op_is_bound_to_another(
    lines: Sequence[str], requested: str, fix: str
) -> None:
    graph = placement(
        op("a", "Identity", "/job:ps/task:0/cpu:0"),
        op("b", "VariableV2", requested),
        machine=CLUSTER,
        refusals=[members(*lines)],
    )

    (finding,) = Placeable().judge(graph).findings

    assert finding.fix == fix


def test_soft_placement_is_no_cure_where_it_is_allowed() -> None:
    graph = placement(
        op("a", "VarHandleOp", "/job:ps/task:0/gpu:0"),
        machine=CLUSTER,
        soft=True,
        refusals=[Refusal("a", "no")],
    )

    (finding,) = Placeable().judge(graph).findings

    assert "allow_soft_placement" not in finding.fix


def test_a_log_does_not_tell_what_the_placer_would_refuse() -> None:
    verdict = Placeable().judge(placement(op("a", "MatMul", "/gpu:0", "GPU:0"), placer="log"))

    assert verdict == Verdict(
        "placeable",
        "not-checked",
        None,
        "a log has what was placed, not what the placer would refuse; verify the program",
    )


@pytest.mark.parametrize("more", [0, 1])
def test_after_many_refusals_there_may_be_more(more: int) -> None:
    count = MAX_REFUSALS - 1 + more
    ops = [op(f"op{number}", "Print", "/gpu:0", "CPU:0") for number in range(count)]
    graph = placement(*ops, refusals=[Refusal(each.name, "no kernel") for each in ops])

    note = "the placer names one op at a time, and there may be more" if more else None
    assert Placeable().judge(graph).note == note


def test_a_refusal_of_an_op_that_the_placer_added_itself() -> None:
    graph = placement(op("a", "NoOp"), refusals=[Refusal("_recv_a", "no kernel")])

    (finding,) = Placeable().judge(graph).findings

    assert (finding.object, finding.op, finding.expected) == ("_recv_a", "", "?")
