from __future__ import annotations

import pytest
from graphs import op, placement

from placement_checks import Finding, Verdict
from placement_checks.rules import NoIdleDevice


def busy(*gpus, machine="gpu*2"):
    """A MatMul on each of the GPUs."""
    ops = (op(f"op{number}", "MatMul", gpu, gpu) for number, gpu in enumerate(gpus))
    return placement(*ops, machine=machine)


def test_kept():
    assert NoIdleDevice().check(busy("/gpu:0", "/gpu:1", "/gpu:1", "/cpu:0")) == Verdict(
        "no-idle-device",
        "kept",
        "assigned",
        findings=[],
        note="/device:GPU:0 computes with 1 op, /device:GPU:1 computes with 2 ops",
    )


def test_broken():
    verdict = NoIdleDevice().check(busy("/gpu:0", "/gpu:0", "/cpu:0", "/cpu:0", "/cpu:0"))
    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="/device:GPU:1",
            op="",
            evidence="assigned",
            expected="ops that compute",
            found="none",
            message="/device:GPU:1 computes nothing, /device:GPU:0 has 2",
            cure="build a tower under tf.device('/device:GPU:1'), or say how many GPUs the "
            "program is meant for (--gpus)",
        )
    ]


def test_all_gpus_idle():
    verdict = NoIdleDevice().check(busy("/cpu:0"))
    assert [each.message for each in verdict.findings] == [
        "/device:GPU:0 computes nothing, no GPU computes at all",
        "/device:GPU:1 computes nothing, no GPU computes at all",
    ]


def test_gpus_of_a_cluster_are_told_apart_by_task():
    graph = busy("/job:worker/task:0/gpu:0", machine="ps*1; worker*2: gpu*1")
    (finding,) = NoIdleDevice().check(graph).findings
    assert finding.object == "/job:worker/replica:0/task:1/device:GPU:0"


@pytest.mark.parametrize(
    ("type", "computes"),
    [
        ("Add", True),
        ("ApplyGradientDescent", True),
        ("VarHandleOp", False),
        ("AssignVariableOp", False),
        ("Const", False),
        ("Placeholder", False),
        ("ReadVariableOp", False),
        ("NoOp", False),
    ],
)
def test_what_computing_is(type, computes):
    graph = placement(op("a", type, "/gpu:0", "GPU:0"), machine="gpu*1")
    assert NoIdleDevice().check(graph).state == ("kept" if computes else "broken")


def test_silent_where_ops_are_placed_on_gpus_that_they_did_not_ask_for():
    graph = placement(op("a", "MatMul", "", "GPU:0"), op("b", "MatMul", "/gpu:7", "GPU:1"))
    assert NoIdleDevice().check(graph).state == "kept"


def gpu(job, index):
    return f"/job:{job}/replica:0/task:0/device:GPU:{index}"


@pytest.mark.parametrize(
    ("idle", "found"),
    [
        (("/gpu:1",), [gpu("eval", 0), gpu("worker", 0)]),
        (("/job:eval",), [gpu("worker", 0), gpu("worker", 1)]),
        (("/job:worker/gpu:0", "/job:eval/gpu:1"), [gpu("eval", 0), gpu("worker", 1)]),
        (("/cpu:0",), [gpu(job, index) for job in ("eval", "worker") for index in (0, 1)]),
    ],
)
def test_idle_excuses_what_its_patterns_match(idle, found):
    graph = busy("/cpu:0", machine="eval*1: gpu*2; worker*1: gpu*2")
    assert [each.object for each in NoIdleDevice(idle).check(graph).findings] == found


def test_note_is_short_on_large_machines():
    note = NoIdleDevice().check(busy("/gpu:0", machine="gpu*16")).note
    assert note == "16 GPUs compute, with 0 to 1 ops each"


@pytest.mark.parametrize(
    ("graph", "idle", "reason"),
    [
        (placement(placer=None), (), "no placer was asked"),
        (placement(unplaced="it died"), (), "it died"),
        (busy("/cpu:0", machine="cpu*2"), (), "no GPU of the machine has to compute"),
        (busy("/cpu:0"), ("/gpu",), "no GPU of the machine has to compute"),
        (busy("/gpu:0", machine=None), (), "no GPU of the machine has to compute"),
    ],
)
def test_not_checked(graph, idle, reason):
    assert NoIdleDevice(idle).check(graph) == Verdict(
        "no-idle-device", "not-checked", None, reason
    )
