from __future__ import annotations

import pytest
from graphs import op, placement

from placement_checks import Finding, Verdict
from placement_checks.placement import Refusal
from placement_checks.rules import Placeable

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


def test_kept():
    verdict = Placeable().check(placement(op("a", "MatMul", "/gpu:0", "GPU:0")))
    assert verdict == Verdict("placeable", "kept", "assigned", findings=[])


def test_broken():
    graph = placement(
        op("step", "VariableV2", "/gpu:0", "CPU:0"),
        refusals=[Refusal("step", BOUND)],
        lines={"step": "main.py:9 net.py:3"},
    )
    verdict = Placeable().check(graph)
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
            cure="build it under /cpu:0 instead of /device:GPU:0, or allow soft placement "
            "(allow_soft_placement=True, --soft)",
        )
    ]


def test_every_refusal_is_a_finding():
    graph = placement(
        op("a", "MatMul", "/gpu:7", "GPU:0"),
        op("b", "MatMul", "/gpu:8", "GPU:0"),
        refusals=[Refusal("a", "no such device"), Refusal("b", "no such device")],
    )
    assert [each.object for each in Placeable().check(graph).findings] == ["a", "b"]


def test_soft_placement_that_is_refused_has_another_cure():
    graph = placement(
        op("v", "VarHandleOp", "/gpu:0"),
        soft=True,
        refusals=[Refusal("v", "bound to two devices")],
    )
    (finding,) = Placeable().check(graph).findings
    assert finding.cure == "ask for one device for all ops that share this variable or resource"


@pytest.mark.parametrize(
    ("refusal", "object", "message"),
    [
        (Refusal("", "no devices at all"), "train.py:build", "the graph cannot be placed: no de"),
        (Refusal("body/op", "no kernel"), "body/op", "body/op cannot be placed: no kernel"),
        (Refusal("a", ""), "a", "a cannot be placed: the placer gives no reason"),
    ],
)
def test_refusal_that_tells_little(refusal, object, message):
    (finding,) = Placeable().check(placement(op("a", "NoOp"), refusals=[refusal])).findings
    assert (finding.object, finding.where, finding.path) == (object, None, ())
    assert finding.message.startswith(message)


def test_soft_placement_that_moved_an_op_is_silent():
    moved = op("step", "Variable", "/gpu:0", "CPU:0", why_not="Variable has no GPU kernel")
    assert Placeable().check(placement(moved, soft=True)).state == "kept"


def test_refusals_count_where_nothing_was_placed():
    graph = placement(
        op("a", "MatMul", "/gpu:7"),
        placer=None,
        unplaced="the placer refused the graph",
        refusals=[Refusal("a", "no such device")],
    )
    assert Placeable().check(graph).state == "broken"


@pytest.mark.parametrize(
    ("unplaced", "reason"),
    [("", "no placer was asked"), ("no wheel for this", "no wheel for this")],
)
def test_not_checked_without_a_placer(unplaced, reason):
    graph = placement(op("a", "MatMul"), placer=None, unplaced=unplaced)
    assert Placeable().check(graph) == Verdict("placeable", "not-checked", None, reason)


@pytest.mark.parametrize(
    ("requested", "cure"),
    [
        ("/gpu:0", "build it under /cpu:0 instead of /device:GPU:0, or allow soft placement"),
        ("/gpu:7", "gpu*2 has no /device:GPU:7: mend the index, or ask for more"),
        (
            "/cpu:0",
            "let all ops that are bound to it ask for one device, or allow soft placement ",
        ),
    ],
)
def test_the_cure_fits_the_device_that_was_asked_for(requested, cure):
    graph = placement(op("a", "MatMul", requested), refusals=[Refusal("a", "no")])

    (finding,) = Placeable().check(graph).findings

    assert finding.cure.startswith(cure)
