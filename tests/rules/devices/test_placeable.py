from __future__ import annotations

from typing import Any

from support.graphs import op, placement
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Placement
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

NO_KERNEL = "Could not satisfy '/device:GPU:{}' because no supported kernel is available."

CLUSTER = "ps*2; worker*4: gpu*1"


def members(*lines: str) -> Refusal:
    """A refusal of the op ``a`` that lists the members of its group."""
    return Refusal("a", "\n".join(["no", "Colocation members:", *(f"  {line}" for line in lines)]))


def two_refusals(kinds: str, gpus: tuple[int, int]) -> Placement:
    return placement(
        *[
            op(name, kind, f"/gpu:{gpu}", "CPU:0")
            for name, kind, gpu in zip("ab", kinds.split(), gpus, strict=True)
        ],
        refusals=[
            Refusal(name, NO_KERNEL.format(gpu)) for name, gpu in zip("ab", gpus, strict=True)
        ],
        device_lines=dict.fromkeys("ab", "main.py:4"),
    )


def bound_to(requested: str, *lines: str) -> Placement:
    """A refusal that lists the members of a colocation group: b requests another device."""
    return placement(
        op("a", "Identity", "/job:ps/task:0/cpu:0"),
        op("b", "VariableV2", requested),
        machine=CLUSTER,
        refusals=[members(*lines)],
    )


def in_cluster(requested: str, machine: str | None = CLUSTER, **more: Any) -> Placement:
    """A refusal of an op that requests a device of a cluster."""
    refusals = [Refusal("a", "no")]
    return placement(op("a", "MatMul", requested), machine=machine, refusals=refusals, **more)


def refused(count: int) -> Placement:
    ops = [op(f"op{number}", "Print", "/gpu:0", "CPU:0") for number in range(count)]
    return placement(*ops, refusals=[Refusal(failing.name, "no kernel") for failing in ops])


def bound_to_lookup() -> Placement:
    """The gradient of a lookup in a variable on the host, in two towers."""
    towers = [
        (
            op(f"rows_{i}", "ResourceGather", f"/gpu:{i}", "CPU:0", "table"),
            op(f"shape_{i}", "Const", f"/gpu:{i}"),
        )
        for i in (0, 1)
    ]
    reason = (
        "Cannot assign a device for operation shape_{0}: Cannot colocate nodes "
        "{{{{colocation_node shape_{0}}}}} and {{{{colocation_node rows_{0}}}}}: Cannot merge "
        "devices with incompatible types: '/device:CPU:0' and '/device:GPU:{0}'"
    )
    return placement(
        op("table", "VarHandleOp", "/cpu:0", "CPU:0"),
        *(each for tower in towers for each in tower),
        refusals=[Refusal(f"shape_{i}", reason.format(i)) for i in (0, 1)],
        lines={f"rows_{i}": "main.py:4" for i in (0, 1)},
    )


CASES = {
    "the gradients of a lookup on another device": broken(bound_to_lookup()),
    "nothing is refused": kept(placement(op("a", "MatMul", "/gpu:0", "GPU:0"))),
    "the kernel is missing": broken(
        placement(
            op("step", "VariableV2", "/gpu:0", "CPU:0"),
            refusals=[Refusal("step", BOUND)],
            lines={"step": "main.py:9 net.py:3"},
        )
    ),
    "every refusal is a finding": broken(
        placement(
            op("a", "MatMul", "/gpu:7", "GPU:0"),
            op("b", "MatMul", "/gpu:8", "GPU:0"),
            refusals=[Refusal("a", "no such device"), Refusal("b", "no such device")],
        )
    ),
    # They are alike, with one fix and one line.
    "no kernel in two towers": broken(two_refusals("Print Print", (0, 1))),
    "no kernel for two ops": broken(two_refusals("Print Hash", (0, 0))),
    "one missing GPU": broken(two_refusals("Print Hash", (7, 7))),
    "two missing GPUs": broken(two_refusals("Print Print", (7, 8))),
    "a refusal despite soft placement": broken(
        placement(
            op("v", "VarHandleOp", "/gpu:0"),
            soft=True,
            refusals=[Refusal("v", "bound to two devices")],
        )
    ),
    "a refusal without an op": broken(
        placement(op("a", "NoOp"), refusals=[Refusal("", "no devices at all")])
    ),
    "a refusal of an op in a body": broken(
        placement(op("a", "NoOp"), refusals=[Refusal("body/op", "no kernel")])
    ),
    "a refusal without a reason": broken(placement(op("a", "NoOp"), refusals=[Refusal("a", "")])),
    "soft placement moved an op": kept(
        placement(
            op(
                "step", "Variable", "/gpu:0", "CPU:0", fallback_reason="Variable has no GPU kernel"
            ),
            soft=True,
        )
    ),
    "refusals count without assigned devices": broken(
        placement(
            op("a", "MatMul", "/gpu:7"),
            placer=None,
            assigned=Missing("the placer refused the graph"),
            refusals=[Refusal("a", "no such device")],
        )
    ),
    "devices were not requested from the placer": not_checked(
        placement(op("a", "MatMul"), placer=None, assigned=NOT_ASKED)
    ),
    "there is no placer": not_checked(
        placement(op("a", "MatMul"), placer=None, assigned=Missing("no wheel for this"))
    ),
    **{
        f"refused on {requested}": broken(
            placement(op("a", "MatMul", requested), refusals=[Refusal("a", "no")])
        )
        for requested in ("/gpu:0", "/gpu:7", "/cpu:0")
    },
    "in a cluster, a job that is almost right": broken(in_cluster("/job:workers/gpu:0")),
    "in a cluster, an unknown job": broken(in_cluster("/job:zzz")),
    "in a cluster, an unknown task": broken(in_cluster("/job:worker/task:4/gpu:0")),
    "a job on one host": broken(in_cluster("/job:ps/task:0", "gpu*2")),
    "in a cluster, a server's GPU": broken(in_cluster("/job:ps/task:1/gpu:0")),
    "in a cluster, any server's GPU": broken(in_cluster("/job:ps/gpu:0")),
    "in a cluster, a worker without GPUs": broken(
        in_cluster("/job:worker/task:0/gpu:0", "worker*1; worker*1: gpu")
    ),
    "in a cluster, an unknown index": broken(in_cluster("/job:worker/task:1/gpu:1")),
    "in a cluster, no GPU anywhere": broken(in_cluster("/job:ps/task:0/gpu:0", "ps*1; worker*1")),
    "in a cluster, no job named": broken(in_cluster("/gpu:1", "ps*1; worker*1: gpu")),
    "in a cluster, a task of no job": broken(in_cluster("/task:9/gpu:0")),
    "in a cluster, another CPU of a server": broken(in_cluster("/job:ps/task:1/cpu:1")),
    "in a cluster, a kernel": broken(in_cluster("/job:worker/task:1/gpu:0")),
    "a job without a machine": broken(in_cluster("/job:ps/gpu:0", None)),
    "bound to an op on a server's GPU": broken(
        bound_to(
            "/job:ps/task:1/gpu:0", "a (Identity)", "b (VariableV2) /job:ps/task:1/device:GPU:0"
        )
    ),
    "bound to an op on a worker's GPU": broken(
        bound_to("/job:worker/task:1/gpu:0", "b (VariableV2) /job:worker/task:1/device:GPU:0")
    ),
    "bound to an op on a server's CPU": broken(
        bound_to("/job:ps/task:1/cpu:0", "b (VariableV2) /job:ps/task:1/device:CPU:0")
    ),
    "bound to an op without a job": broken(bound_to("/gpu:0", "b (VariableV2) /device:GPU:0")),
    "bound to no op that is known": broken(bound_to("/job:ps/task:1/gpu:0", "Op: b", "c (Const)")),
    "a server's GPU despite soft placement": broken(
        placement(
            op("a", "VarHandleOp", "/job:ps/task:0/gpu:0"),
            machine=CLUSTER,
            soft=True,
            refusals=[Refusal("a", "no")],
        )
    ),
    "just under the limit of refusals": broken(refused(MAX_REFUSALS - 1)),
    "at the limit of refusals, there may be more": broken(refused(MAX_REFUSALS)),
    "a refusal of an op that the placer added itself": broken(
        placement(op("a", "NoOp"), refusals=[Refusal("_recv_a", "no kernel")])
    ),
}

test_verdicts = verdicts(Placeable, CASES)


def test_several_refused_ops_are_counted_in_the_headline() -> None:
    graph = placement(
        op("a", "Assert", "/gpu:0"),
        op("b", "Assert", "/gpu:0"),
        refusals=[Refusal("a", "a long reason"), Refusal("b", "a long reason")],
    )
    findings = Placeable().judge(graph).findings

    assert Placeable().headline(findings) == (
        "2 ops cannot be placed, and no step runs: the first is a (Assert)"
    )
    assert Placeable().headline(findings[:1]) == ""
