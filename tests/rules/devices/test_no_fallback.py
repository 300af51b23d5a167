from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.machines import GpuLimit, Machine
from placement_checks.core.missing import Missing
from placement_checks.rules.devices.no_fallback import NoFallback

NO_KERNEL = "Print has no GPU kernel"
BOUND = "it must be on the device of another op, with which it is colocated or which it uses"


def fallen(name: str, type: str, *inputs: str, **more: Any) -> Op:
    """An op that requests GPU:0 and ends on the CPU, for its own reason unless `bound`."""
    return op(name, type, "/gpu:0", "CPU:0", *inputs, **more)


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return [finding.object for finding in NoFallback(**parameters).judge(graph).findings]


def test_kept() -> None:
    graph = placement(op("a", "MatMul", "/gpu:0", "GPU:0"), op("b", "NoOp", "", "CPU:0"))
    assert NoFallback().judge(graph) == Verdict("no-fallback", "kept", "assigned", findings=[])


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        fallen("tower_0/print", "Print", fallback_reason=NO_KERNEL),
        lines={"tower_0/print": "main.py:30 main.py:9 net.py:3"},
    )
    verdict = NoFallback().judge(graph)
    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="tower_0/print",
            op="Print",
            evidence="assigned",
            expected="/device:GPU:0",
            found="/device:CPU:0",
            frames=("main.py:30", "main.py:9", "net.py:3"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("requested", "assigned", "broken"),
    [
        ("/gpu:0", "GPU:0", False),
        ("/gpu:1", "CPU:0", True),
        ("/gpu", "CPU:0", True),
        ("/gpu", "GPU:1", False),
        ("/gpu:7", "GPU:0", True),
        ("/gpu:7", "CPU:0", True),
        ("/job:worker/gpu:0", "GPU:0", True),
        ("/gpu:0", "", False),
    ],
)
def test_fallbacks(requested: str, assigned: str, broken: bool) -> None:
    """To a CPU, or to another GPU because the machine lacks the requested one."""
    graph = placement(op("a", "MatMul", requested, assigned), op("b", "NoOp", "/gpu:0", "GPU:0"))
    assert NoFallback().judge(graph).state == ("broken" if broken else "kept")


def test_ops_bound_to_a_fallen_op_are_in_its_finding(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        fallen("step", "VariableV2", fallback_reason="VariableV2 does not take int32"),
        fallen("step/read", "Identity", "step", fell_with_another=True),
        fallen(
            "step/Assign", "Assign", "step", "zero", fell_with_another=True, colocated=["step"]
        ),
        fallen("other", "Print", fallback_reason=NO_KERNEL),
    )
    step, other = NoFallback().judge(graph).findings
    assert (step.object, step.path) == ("step", ("step/read", "step/Assign"))
    assert messages(step) == snapshot
    assert (other.object, other.path) == ("other", ())


def test_a_variable_leads_ops_with_their_own_reasons() -> None:
    """Users know the variable, not the ops around it without a kernel."""
    graph = placement(
        fallen(
            "step/Assign", "Assign", "step", "zero", colocated=["step"], fallback_reason="no int32"
        ),
        fallen("step/read", "Identity", colocated=["step"], fell_with_another=True),
        fallen("step", "VariableV2", fallback_reason="no int32"),
    )
    (finding,) = NoFallback().judge(graph).findings
    assert (finding.object, finding.path) == ("step", ("step/Assign", "step/read"))


@pytest.mark.parametrize(
    ("follower", "leader"),
    [
        pytest.param({"colocated": ["print"]}, {}, id="asks to be with it"),
        pytest.param({}, {"colocated": ["add"]}, id="it asks to be there"),
        pytest.param({"colocated": ["c"]}, {"colocated": ["c"]}, id="both ask to be with a third"),
    ],
)
def test_colocation_binds_both_ways(
    follower: Mapping[str, Sequence[str]], leader: Mapping[str, Sequence[str]]
) -> None:
    graph = placement(
        op("c", "Const", "", "CPU:0"),
        fallen("add", "Add", "c", fell_with_another=True, **follower),
        fallen("print", "Print", "c", fallback_reason=NO_KERNEL, **leader),
    )
    (finding,) = NoFallback().judge(graph).findings
    assert (finding.object, finding.path) == ("print", ("add",))


def test_binding_is_followed_through_copies_and_loops() -> None:
    """From the body of a loop, through its second input and output, to a table."""
    graph = placement(
        fallen("table", "HashTableV2", fallback_reason="HashTableV2 has no GPU kernel"),
        op("switch", "Switch", "/gpu:0", "GPU:0", "table", "x"),
        op("loop", "While", "/gpu:0", "GPU:0", "i", "switch:1"),
        fallen("find", "LookupTableFindV2", "loop:1", fell_with_another=True),
        fallen("count", "LookupTableSizeV2", "loop", fell_with_another=True),
    )
    table, count = NoFallback().judge(graph).findings
    assert (table.object, table.path) == ("table", ("find",))
    assert (count.object, count.path) == ("count", ())


def test_control_edges_bind_nothing() -> None:
    graph = placement(
        fallen("step", "VariableV2", fallback_reason="no int32"),
        fallen("after", "Identity", "^step", fell_with_another=True),
    )
    assert objects(graph) == ["step", "after"]


def test_an_op_without_a_reason_is_reported(snapshot: SnapshotAssertion) -> None:
    (finding,) = NoFallback().judge(placement(fallen("a", "MatMul"))).findings
    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(
            [op("a", "Print", "/cpu:0", "CPU:0"), op("b", "MatMul", "/gpu:0", "GPU:0")],
            id="inner scope on the host",
        ),
        pytest.param(
            [
                op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
                fallen("w/read", "ReadVariableOp", "w", fell_with_another=True),
                fallen("w/IsInitialized", "VarIsInitializedOp", "w", fell_with_another=True),
            ],
            id="reads of a variable on the host",
        ),
        pytest.param(
            [
                op("w", "VariableV2", "/job:ps/cpu:0", "/job:ps/cpu:0"),
                fallen("step", "ApplyAdam", "w", fell_with_another=True, colocated=["w"]),
                fallen("slot", "VariableV2", fell_with_another=True, colocated=["w"]),
                fallen("slot/read", "Identity", "slot", fell_with_another=True),
            ],
            id="slots of a variable on a parameter server",
        ),
        pytest.param(
            [
                op("iterator", "IteratorV2", "/cpu:0", "CPU:0"),
                fallen("next", "IteratorGetNext", "iterator", fell_with_another=True),
            ],
            id="batches of an iterator on the host",
        ),
        pytest.param(
            [
                op("sum", "ConditionalAccumulator", "/cpu:0", "CPU:0"),
                fallen("take", "AccumulatorTakeGradient", "sum", fell_with_another=True),
            ],
            id="gradients of an accumulator on the host",
        ),
    ],
)
def test_kept_where_the_program_requests_the_host(ops: Sequence[Op]) -> None:
    assert NoFallback().judge(placement(*ops)).state == "kept"


@pytest.mark.parametrize(
    ("allow", "found"),
    [
        ((), ["step", "print", "other"]),
        (("Print",), ["step"]),
        (("print",), ["step", "other"]),
        (("VariableV2", "other"), ["print"]),
        (("Assign",), ["step", "print", "other"]),
        (("step*", "oth??"), ["print"]),
        (("Pr*",), ["step", "print", "other"]),
    ],
)
def test_allow_takes_types_and_names_of_ops_that_fell_first(
    allow: Sequence[str], found: Sequence[str]
) -> None:
    graph = placement(
        fallen("step", "VariableV2", fallback_reason="no int32"),
        fallen("step/Assign", "Assign", "step", fell_with_another=True),
        fallen("print", "Print", fallback_reason=NO_KERNEL),
        fallen("other", "Print", fallback_reason=NO_KERNEL),
    )
    assert objects(graph, allow=allow) == found


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(placement(fallen("a", "Print"), placer=None), id="no placer"),
        pytest.param(placement(fallen("a", "Print"), assigned=Missing("it died")), id="unplaced"),
        pytest.param(placement(op("a", "Print", "/cpu:0", "CPU:0")), id="a CPU requested"),
        pytest.param(placement(op("a", "Print", "", "GPU:0")), id="no device requested"),
        pytest.param(
            placement(op("a", "MatMul", "/gpu:0"), op("b", "NoOp", "/cpu:0", "CPU:0")),
            id="what requests a GPU was not placed",
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = NoFallback().judge(graph)
    assert verdict == Verdict("no-fallback", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_the_fix_for_a_device_that_the_machine_lacks(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:7", "GPU:0", fallback_reason="the machine has no GPU:7")
    )

    (finding,) = NoFallback().judge(graph).findings

    assert messages(finding) == snapshot


def test_the_body_of_a_loop_is_one_finding_that_names_the_fix(snapshot: SnapshotAssertion) -> None:
    """The loop itself got its GPU; its body went to the variable that the loop takes."""
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
        op("loop", "While", "/gpu:0", "GPU:0", "w"),
        *(
            fallen(
                f"loop/body/{name}",
                "MatMul",
                fallback_reason=BOUND,
                fell_with_another=True,
                caller="loop",
            )
            for name in ("one", "two")
        ),
    )

    (finding,) = NoFallback().judge(graph).findings

    assert finding.object == "loop"
    assert finding.path == ("loop/body/one", "loop/body/two")
    assert messages(finding) == snapshot


def test_kept_by_ops_that_follow_a_variable_of_a_job() -> None:
    """A device function of a parameter server: the reads request the worker's GPU."""
    server = "/job:ps/replica:0/task:0/cpu:0"
    graph = placement(
        op("w", "VarHandleOp", "/job:ps/task:0", server),
        op(
            "read",
            "ReadVariableOp",
            "/job:worker/gpu:0",
            server,
            "w",
            fallback_reason=BOUND,
            fell_with_another=True,
        ),
        machine="ps*1; worker*1: gpu*1",
    )

    assert NoFallback().judge(graph).state == "kept"


def test_kept_by_a_read_of_a_host_variable_in_a_body() -> None:
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
        op("call", "PartitionedCall", "/gpu:0", "GPU:0", "w"),
        fallen(
            "call/read",
            "ReadVariableOp",
            "w",
            fallback_reason=BOUND,
            fell_with_another=True,
            caller="call",
        ),
    )

    assert NoFallback().judge(graph).state == "kept"


@pytest.mark.parametrize(
    "kind",
    [
        "VarHandleOp",
        "VariableV2",
        "BoostedTreesEnsembleResourceHandleOp",
        "HashTable",
        "HashTableV2",
        "FIFOQueue",
        "FIFOQueueV2",
        "Iterator",
        "IteratorV2",
    ],
)
@pytest.mark.parametrize(
    "copy", ["Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "RefIdentity", "RefMerge"]
)
def test_kept_by_ops_that_use_a_copy_of_a_host_resource(kind: str, copy: str) -> None:
    graph = placement(
        op("state", kind, "/cpu:0", "CPU:0"),
        fallen("use", "Sum", "state", fallback_reason=BOUND, fell_with_another=True),
        op(
            "copy", copy, "/gpu:0", "CPU:0", "state", fallback_reason=BOUND, fell_with_another=True
        ),
        fallen("use/copy", "Sum", "copy", fallback_reason=BOUND, fell_with_another=True),
    )

    assert objects(graph) == []


@pytest.mark.parametrize(
    ("inputs", "colocated", "why"),
    [
        (["state"], [], "which it uses"),
        ([], ["state"], "with which it is colocated"),
    ],
)
def test_the_op_that_decides_the_device_is_named(
    inputs: Sequence[str], colocated: Sequence[str], why: str
) -> None:
    graph = placement(
        op("state", "VarHandleOp", "", "CPU:0"),
        fallen(
            "use",
            "Sum",
            *inputs,
            colocated=colocated,
            fallback_reason=BOUND,
            fell_with_another=True,
        ),
    )

    (finding,) = NoFallback().judge(graph).findings
    assert finding.message == (
        "use (Sum) requests /device:GPU:0 and ends on /device:CPU:0: it must be on the device of "
        f"state, {why}"
    )


def test_without_a_machine_another_gpu_is_no_fallback() -> None:
    """A log of assigned devices does not list the GPUs of the machine."""
    graph = placement(op("a", "MatMul", "/gpu:7", "GPU:0"), machine=None)

    assert NoFallback().judge(graph).state == "kept"


@pytest.mark.parametrize(
    "call",
    [
        "While",
        "StatelessWhile",
        "If",
        "Case",
        "StatelessCase",
        "StatelessIf",
        "PartitionedCall",
        "StatefulPartitionedCall",
    ],
)
def test_the_fix_for_a_call_with_a_variable(call: str, snapshot: SnapshotAssertion) -> None:
    graph = placement(fallen("call", call, fallback_reason=BOUND))

    (finding,) = NoFallback().judge(graph).findings

    assert messages(finding) == snapshot


def test_the_reason_is_from_the_named_op_in_any_order_of_building(
    snapshot: SnapshotAssertion,
) -> None:
    graph = placement(
        fallen("first", "Identity", "step", fallback_reason=BOUND, fell_with_another=True),
        fallen("step", "VariableV2", fallback_reason="no int32"),
    )

    (finding,) = NoFallback().judge(graph).findings

    assert messages(finding) == snapshot


@pytest.mark.parametrize("kind", ["While", "StatelessWhile"])
def test_each_output_of_a_loop_follows_its_own_input(kind: str) -> None:
    graph = placement(
        fallen("step", "VariableV2", fallback_reason="no int32"),
        fallen("table", "HashTableV2", fallback_reason="HashTableV2 has no GPU kernel"),
        op("loop", kind, "/gpu:0", "GPU:0", "step", "table"),
        fallen("first", "Sum", "loop", fell_with_another=True),
        fallen("second", "Sum", "loop:1", fell_with_another=True),
        fallen("third", "Sum", "loop:2", fell_with_another=True),
    )

    assert [(finding.object, finding.path) for finding in NoFallback().judge(graph).findings] == [
        ("step", ("first",)),
        ("table", ("second",)),
        ("third", ()),
    ]


def test_the_consumer_of_a_value_is_not_bound_to_its_producer() -> None:
    graph = placement(
        fallen("print", "Print", fallback_reason=NO_KERNEL),
        fallen("sum", "Sum", "print", fell_with_another=True),
    )

    assert objects(graph) == ["print", "sum"]


def test_one_op_in_the_body_of_a_function(snapshot: SnapshotAssertion) -> None:
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
        op("call", "PartitionedCall", "/gpu:0", "GPU:0", "w"),
        fallen("call/one", "MatMul", fallback_reason=BOUND, fell_with_another=True, caller="call"),
    )

    (finding,) = NoFallback().judge(graph).findings

    assert messages(finding) == snapshot


def test_an_op_in_a_body_with_its_own_reason_is_the_object() -> None:
    graph = placement(
        op("call", "PartitionedCall", "/gpu:0", "GPU:0"),
        fallen("call/print", "Print", fallback_reason=NO_KERNEL, caller="call"),
    )

    assert objects(graph) == ["call/print"]


def test_the_fix_where_the_machine_is_not_known(snapshot: SnapshotAssertion) -> None:
    (finding,) = NoFallback().judge(placement(fallen("a", "MatMul"), machine=None)).findings

    assert messages(finding) == snapshot


def test_the_consumer_of_a_computed_value_is_not_bound_to_the_variable() -> None:
    graph = placement(
        fallen("step", "VariableV2", fallback_reason="no int32"),
        op("double", "Add", "/gpu:0", "GPU:0", "step", "step"),
        fallen("print", "Print", "double", fell_with_another=True),
    )

    assert objects(graph) == ["step", "print"]


def test_an_op_bound_to_an_op_without_request_is_the_object() -> None:
    graph = placement(
        op("c", "Const", "", "CPU:0"),
        fallen("add", "Add", fell_with_another=True, colocated=["c"]),
    )

    assert objects(graph) == ["add"]


KINDS = [("a", "MatMul"), ("b", "Add")]


@pytest.mark.parametrize("assigned", ["GPU:0", "CPU:0"])
def test_the_consequence_of_a_tower_without_a_gpu(
    assigned: str, snapshot: SnapshotAssertion
) -> None:
    """All findings name the scope that has the wrong index."""
    reason = "the machine has no GPU:2"
    graph = placement(
        *(op(name, kind, "/gpu:2", assigned, fallback_reason=reason) for name, kind in KINDS),
        op("own", "MatMul", "/gpu:0", "GPU:0"),
        device_lines={"a": "main.py:4"},
    )

    one, other = NoFallback().judge(graph).findings

    assert (one.alike, one.fix) == (other.alike, other.fix)
    assert one.device_line == other.device_line == "main.py:4"
    assert messages(one) == snapshot


def test_fallbacks_of_several_towers_are_grouped_by_reason() -> None:
    graph = placement(
        *(op(f"{i}/print", "Print", f"/gpu:{i}", "CPU:0", fallback_reason="a") for i in (0, 1)),
        op("hash", "Hash", "/gpu:0", "CPU:0", fallback_reason="b"),
    )

    one, other, different = NoFallback().judge(graph).findings

    assert one.alike == other.alike != different.alike


def test_host_only_ops_may_be_on_the_host() -> None:
    graph = placement(
        fallen("shown", "ScalarSummary", "mean", fallback_reason="no kernel"),
        fallen("mean", "Where", fallback_reason="no kernel"),
        fallen("print", "Print", fallback_reason="no kernel"),
    )

    assert [finding.object for finding in NoFallback().judge(graph).findings] == ["print"]


def test_ops_on_a_hidden_gpu_are_one_finding(snapshot: SnapshotAssertion) -> None:
    ops = [op(name, "MatMul", "/gpu:1", "/gpu:0") for name in ("a", "b")]
    machine = Machine.local(2).limited([GpuLimit(1, "CUDA_VISIBLE_DEVICES='0'")])
    graph = placement(*ops, fallen("print", "Print", fallback_reason=NO_KERNEL))
    graph = graph.with_fields(machine=machine)

    assert messages(NoFallback().judge(graph)) == snapshot
    assert objects(graph) == ["print", "/device:GPU:1"]
    assert objects(graph, allow=("MatMul",)) == ["print"]
