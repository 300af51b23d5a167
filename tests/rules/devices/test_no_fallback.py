from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support.graphs import op, placement
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.machines import GpuLimit, Machine
from placement_checks.core.placement import Details, Tensor
from placement_checks.rules.devices.no_fallback import NoFallback

NO_KERNEL = "Print has no GPU kernel"

BOUND = "it must be on the device of another op, with which it is colocated or which it uses"


def fallen(name: str, type: str, *inputs: str, **more: Any) -> Op:
    """An op that requests GPU:0 and ends on the CPU."""
    return op(name, type, "/gpu:0", "CPU:0", *inputs, **more)


def bound(name: str, type: str, *inputs: str, **more: Any) -> Op:
    """A fallen op that must be on the device of another op."""
    return fallen(name, type, *inputs, fallback_reason=BOUND, fell_with_another=True, **more)


def colocated(follower: Sequence[str], leader: Sequence[str]) -> Placement:
    """An op that fell with another one, and the ops with which they request to be colocated."""
    return placement(
        op("c", "Const", "", "CPU:0"),
        fallen("add", "Add", "c", fell_with_another=True, colocated=follower),
        fallen("print", "Print", "c", fallback_reason=NO_KERNEL, colocated=leader),
    )


def copied(kind: str = "VarHandleOp", copy: str = "Identity") -> Placement:
    """Ops that use a resource on the host and its copy."""
    return placement(
        op("state", kind, "/cpu:0", "CPU:0"),
        bound("use", "Sum", "state"),
        bound("copy", copy, "state"),
        bound("use/copy", "Sum", "copy"),
    )


def looped(kind: str) -> Placement:
    return placement(
        fallen("step", "VariableV2", fallback_reason="no int32"),
        fallen("table", "HashTableV2", fallback_reason="HashTableV2 has no GPU kernel"),
        op("loop", kind, "/gpu:0", "GPU:0", "step", "table"),
        fallen("first", "Sum", "loop", fell_with_another=True),
        fallen("second", "Sum", "loop:1", fell_with_another=True),
        fallen("third", "Sum", "loop:2", fell_with_another=True),
    )


def without_gpu(assigned: str) -> Placement:
    """Ops of a tower whose scope has the wrong index."""
    reason = "the machine has no GPU:2"
    return placement(
        *(
            op(name, type, "/gpu:2", assigned, fallback_reason=reason)
            for name, type in (("a", "MatMul"), ("b", "Add"))
        ),
        op("own", "MatMul", "/gpu:0", "GPU:0"),
        device_lines={"a": "main.py:4"},
    )


def hidden() -> Placement:
    """Two ops that request a GPU that the program hides, and one that fell for another reason."""
    ops = [op(name, "MatMul", "/gpu:1", "/gpu:0") for name in ("a", "b")]
    machine = Machine.local(2).limited([GpuLimit(1, "CUDA_VISIBLE_DEVICES='0'")])
    graph = placement(*ops, fallen("print", "Print", fallback_reason=NO_KERNEL))
    return graph.with_fields(machine=machine)


class Outputs(Details):
    """Output dtypes as in the name of the op."""

    def outputs(self, op: str) -> Sequence[Tensor]:
        return [Tensor(dtype, ()) for dtype in op.split("_")]


def with_outputs(*ops: Op) -> Placement:
    return replace(placement(*ops), details=Outputs())


def used(*ops: Op) -> Placement:
    """An op that fell, and ops that may use it."""
    return placement(fallen("a", "Where"), *ops)


def switched(*ops: Op, **more: Any) -> Placement:
    """A branch of a value that is on the host, and the ops that compute the value."""
    return placement(*ops, fallen("s", "Switch", "value", "p", **more))


def exchanged(dtype: str, *takers: str) -> Placement:
    """Replicas with different ids pad theirs, before they give them to the others."""
    return placement(
        fallen("padded", "Pad"),
        *(op(f"taker_{i}", kind, "/gpu:0", "GPU:0", "padded") for i, kind in enumerate(takers)),
        outputs={"padded": (8,)},
        dtypes={"padded": dtype},
    )


def counted(dtype: str, kind: str) -> Placement:
    """A part of what replicas exchange."""
    return with_outputs(op("sum", kind, "/gpu:0", "GPU:0"), fallen(dtype, "SplitV", "sum:0"))


FOUR = placement(
    fallen("step", "VariableV2", fallback_reason="no int32"),
    fallen("step/Assign", "Assign", "step", fell_with_another=True),
    fallen("print", "Print", fallback_reason=NO_KERNEL),
    fallen("other", "Print", fallback_reason=NO_KERNEL),
)

CASES = {
    "an op on its GPU": kept(
        placement(op("a", "MatMul", "/gpu:0", "GPU:0"), op("b", "NoOp", "", "CPU:0"))
    ),
    "an op that prints": broken(
        placement(
            fallen("tower_0/print", "Print", fallback_reason=NO_KERNEL),
            lines={"tower_0/print": "main.py:30 main.py:9 net.py:3"},
        )
    ),
    # To a CPU, or to another GPU because the machine lacks the requested one.
    **{
        f"{requested} requested, {assigned or 'none'} assigned": kept(
            placement(op("a", "MatMul", requested, assigned), op("b", "NoOp", "/gpu:0", "GPU:0"))
        )
        for requested, assigned in [("/gpu:0", "GPU:0"), ("/gpu", "GPU:1"), ("/gpu:0", "")]
    },
    **{
        f"{requested} requested, {assigned or 'none'} assigned": broken(
            placement(op("a", "MatMul", requested, assigned), op("b", "NoOp", "/gpu:0", "GPU:0"))
        )
        for requested, assigned in [
            ("/gpu:1", "CPU:0"),
            ("/gpu", "CPU:0"),
            ("/gpu:7", "GPU:0"),
            ("/gpu:7", "CPU:0"),
            ("/job:worker/gpu:0", "GPU:0"),
        ]
    },
    "ops bound to a fallen op are in its finding": broken(
        placement(
            fallen("step", "VariableV2", fallback_reason="VariableV2 does not take int32"),
            fallen("step/read", "Identity", "step", fell_with_another=True),
            fallen(
                "step/Assign", "Assign", "step", "zero", fell_with_another=True, colocated=["step"]
            ),
            fallen("other", "Print", fallback_reason=NO_KERNEL),
        )
    ),
    # Users know the variable, not the ops around it without a kernel.
    "a variable leads ops with their own reasons": broken(
        placement(
            fallen(
                "step/Assign",
                "Assign",
                "step",
                "zero",
                colocated=["step"],
                fallback_reason="no int32",
            ),
            fallen("step/read", "Identity", colocated=["step"], fell_with_another=True),
            fallen("step", "VariableV2", fallback_reason="no int32"),
        )
    ),
    "a follower is colocated with the fallen op": broken(colocated(["print"], [])),
    "the fallen op is colocated with a follower": broken(colocated([], ["add"])),
    "both are colocated with a third op": broken(colocated(["c"], ["c"])),
    # From the body of a loop, through its second input and output, to a table.
    "binding is followed through copies and loops": broken(
        placement(
            fallen("table", "HashTableV2", fallback_reason="HashTableV2 has no GPU kernel"),
            op("switch", "Switch", "/gpu:0", "GPU:0", "table", "x"),
            op("loop", "While", "/gpu:0", "GPU:0", "i", "switch:1"),
            fallen("find", "LookupTableFindV2", "loop:1", fell_with_another=True),
            fallen("count", "LookupTableSizeV2", "loop", fell_with_another=True),
        )
    ),
    "control edges bind nothing": broken(
        placement(
            fallen("step", "VariableV2", fallback_reason="no int32"),
            fallen("after", "Identity", "^step", fell_with_another=True),
        )
    ),
    "an op without a reason": broken(placement(fallen("a", "MatMul"))),
    "inner scope on the host": kept(
        placement(op("a", "Print", "/cpu:0", "CPU:0"), op("b", "MatMul", "/gpu:0", "GPU:0"))
    ),
    "reads of a variable on the host": kept(
        placement(
            op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
            fallen("w/read", "ReadVariableOp", "w", fell_with_another=True),
            fallen("w/IsInitialized", "VarIsInitializedOp", "w", fell_with_another=True),
        )
    ),
    "slots of a variable on a parameter server": kept(
        placement(
            op("w", "VariableV2", "/job:ps/cpu:0", "/job:ps/cpu:0"),
            fallen("step", "ApplyAdam", "w", fell_with_another=True, colocated=["w"]),
            fallen("slot", "VariableV2", fell_with_another=True, colocated=["w"]),
            fallen("slot/read", "Identity", "slot", fell_with_another=True),
        )
    ),
    "batches of an iterator on the host": kept(
        placement(
            op("iterator", "IteratorV2", "/cpu:0", "CPU:0"),
            fallen("next", "IteratorGetNext", "iterator", fell_with_another=True),
        )
    ),
    "gradients of an accumulator on the host": kept(
        placement(
            op("sum", "ConditionalAccumulator", "/cpu:0", "CPU:0"),
            fallen("take", "AccumulatorTakeGradient", "sum", fell_with_another=True),
        )
    ),
    **{
        f"allowed: {allow}": broken(FOUR, allow=allow)
        for allow in (
            *((), ("Print",), ("print",), ("VariableV2", "other"), ("Assign",)),
            *(("step*", "oth??"), ("Pr*",)),
        )
    },
    "no op requests a GPU": not_checked(placement(op("a", "Print", "/cpu:0", "CPU:0"))),
    "no op requests a device": not_checked(placement(op("a", "Print", "", "GPU:0"))),
    "the op that requests a GPU was not placed": not_checked(
        placement(op("a", "MatMul", "/gpu:0"), op("b", "NoOp", "/cpu:0", "CPU:0"))
    ),
    "the machine lacks the device": broken(
        placement(op("a", "MatMul", "/gpu:7", "GPU:0", fallback_reason="the machine has no GPU:7"))
    ),
    # The loop itself got its GPU; its body went to the variable that the loop takes.
    "the body of a loop is one finding": broken(
        placement(
            op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
            op("loop", "While", "/gpu:0", "GPU:0", "w"),
            *(bound(f"loop/body/{name}", "MatMul", caller="loop") for name in ("one", "two")),
        )
    ),
    # A device function of a parameter server: the reads request the worker's GPU.
    "ops that follow a variable of a job": kept(
        placement(
            op("w", "VarHandleOp", "/job:ps/task:0", "/job:ps/replica:0/task:0/cpu:0"),
            op(
                "read",
                "ReadVariableOp",
                "/job:worker/gpu:0",
                "/job:ps/replica:0/task:0/cpu:0",
                "w",
                fallback_reason=BOUND,
                fell_with_another=True,
            ),
            machine="ps*1; worker*1: gpu*1",
        )
    ),
    "a read of a host variable in a body": kept(
        placement(
            op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
            op("call", "PartitionedCall", "/gpu:0", "GPU:0", "w"),
            bound("call/read", "ReadVariableOp", "w", caller="call"),
        )
    ),
    **{
        f"a {kind} on the host": kept(copied(kind))
        for kind in (
            *("VariableV2", "BoostedTreesEnsembleResourceHandleOp", "HashTable", "HashTableV2"),
            *("FIFOQueue", "FIFOQueueV2", "Iterator", "IteratorV2"),
        )
    },
    **{
        f"a {copy} of a variable on the host": kept(copied(copy=copy))
        for copy in (
            *("Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "RefIdentity", "RefMerge"),
        )
    },
    "the op that it uses decides its device": broken(
        placement(op("state", "VarHandleOp", "", "CPU:0"), bound("use", "Sum", "state"))
    ),
    "the op with which it is colocated decides its device": broken(
        placement(
            op("state", "VarHandleOp", "", "CPU:0"), bound("use", "Sum", colocated=["state"])
        )
    ),
    # A log of assigned devices does not list the GPUs of the machine.
    "without a machine, another GPU is no fallback": kept(
        placement(op("a", "MatMul", "/gpu:7", "GPU:0"), machine=None)
    ),
    **{
        f"{call} with a variable": broken(placement(fallen("call", call, fallback_reason=BOUND)))
        for call in (
            *("While", "StatelessWhile", "If", "Case", "StatelessCase", "StatelessIf"),
            *("PartitionedCall", "StatefulPartitionedCall"),
        )
    },
    "the reason is from the named op in any order of building": broken(
        placement(
            bound("first", "Identity", "step"),
            fallen("step", "VariableV2", fallback_reason="no int32"),
        )
    ),
    **{
        f"each output of a {kind} follows its own input": broken(looped(kind))
        for kind in ("While", "StatelessWhile")
    },
    "the consumer of a value is not bound to its producer": broken(
        placement(
            fallen("print", "Print", fallback_reason=NO_KERNEL),
            fallen("sum", "Sum", "print", fell_with_another=True),
        )
    ),
    "one op of a function": broken(
        placement(
            op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
            op("call", "PartitionedCall", "/gpu:0", "GPU:0", "w"),
            bound("call/one", "MatMul", caller="call"),
        )
    ),
    "an op in a body with its own reason is the object": broken(
        placement(
            op("call", "PartitionedCall", "/gpu:0", "GPU:0"),
            fallen("call/print", "Print", fallback_reason=NO_KERNEL, caller="call"),
        )
    ),
    "the machine is not known": broken(placement(fallen("a", "MatMul"), machine=None)),
    "the consumer of a computed value is not bound to the variable": broken(
        placement(
            fallen("step", "VariableV2", fallback_reason="no int32"),
            op("double", "Add", "/gpu:0", "GPU:0", "step", "step"),
            fallen("print", "Print", "double", fell_with_another=True),
        )
    ),
    "an op bound to an op without request is the object": broken(
        placement(
            op("c", "Const", "", "CPU:0"),
            fallen("add", "Add", fell_with_another=True, colocated=["c"]),
        )
    ),
    "a tower without a GPU, on another GPU": broken(without_gpu("GPU:0")),
    "a tower without a GPU, on the host": broken(without_gpu("CPU:0")),
    "fallbacks of several towers are grouped by reason": broken(
        placement(
            *(
                op(f"{i}/print", "Print", f"/gpu:{i}", "CPU:0", fallback_reason="a")
                for i in (0, 1)
            ),
            op("hash", "Hash", "/gpu:0", "CPU:0", fallback_reason="b"),
        )
    ),
    "host-only ops may be on the host": broken(
        placement(
            fallen("shown", "ScalarSummary", "mean", fallback_reason="no kernel"),
            fallen("mean", "Where", fallback_reason="no kernel"),
            fallen("print", "Print", fallback_reason="no kernel"),
        )
    ),
    "ops on a hidden GPU are one finding": broken(hidden()),
    "ops on a hidden GPU are allowed": broken(hidden(), allow=("MatMul",)),
    "a log of a machine with GPUs": kept(
        placement(op("a", "MatMul", "/gpu:0", "GPU:0"), placer="log")
    ),
    **{
        f"{kind} needs no GPU": kept(placement(fallen("a", kind)))
        for kind in (
            *("ScalarSummary", "MergeSummary", "WriteScalarSummary", "Assert", "PrintV2"),
            *("SaveV2", "RestoreV2"),
        )
    },
    **{
        f"{kind} needs a GPU": broken(placement(fallen("a", kind)))
        for kind in ("Print", "MatMul", "Where")
    },
    "text needs no GPU": kept(with_outputs(fallen("string", "Const"))),
    "two texts need no GPU": kept(with_outputs(fallen("string_string", "Const"))),
    "text and a number": broken(with_outputs(fallen("string_int32", "Const"))),
    "outputs that are not known": broken(placement(fallen("string", "Const"))),
    "only a summary uses it": kept(used(fallen("shown", "ScalarSummary", "a"))),
    "only an assertion without a request uses it": kept(used(op("shown", "Assert", "", "", "a"))),
    "a summary and an op of the model use it": broken(
        used(fallen("shown", "ScalarSummary", "a"), op("used", "MatMul", "/cpu:0", "", "a"))
    ),
    "only a print uses what is computed from it": kept(
        used(fallen("b", "Unique", "a"), fallen("shown", "PrintV2", "b"))
    ),
    "a print waits for it": broken(used(fallen("shown", "PrintV2", "^a"))),
    "nothing uses it": broken(used()),
    "a branch of a predicate on the host": kept(
        switched(op("value", "Placeholder", "", "CPU:0"), fell_with_another=True)
    ),
    "a branch without a kernel": broken(switched(op("value", "Placeholder", "", "CPU:0"))),
    **{
        f"a branch of {what}": broken(switched(value, fell_with_another=True))
        for what, value in (
            ("a value that fell", op("value", "Greater", "/gpu:0", "CPU:0")),
            ("a value on a GPU", op("value", "Greater", "", "GPU:0")),
            ("a variable", op("value", "VariableV2", "", "CPU:0")),
            ("a missing value", op("other", "Greater", "", "CPU:0")),
        )
    },
    "replicas exchange numbers of rows": kept(exchanged("int64", "CollectiveGatherV2")),
    "two replicas exchange numbers of rows": kept(
        exchanged("int32", "CollectiveGatherV2", "CollectiveGatherV2")
    ),
    "replicas exchange values": broken(exchanged("float32", "CollectiveGatherV2")),
    "numbers that the model uses too": broken(exchanged("int64", "CollectiveGatherV2", "MatMul")),
    "numbers that replicas add up": broken(exchanged("int64", "CollectiveReduceV2")),
    "numbers that nothing uses": broken(exchanged("int64")),
    "a count of replicas needs no GPU": kept(counted("int64", "CollectiveReduceV2")),
    "a sum of values of replicas": broken(counted("float32", "CollectiveReduceV2")),
    "numbers of one replica": broken(counted("int64", "ConcatV2")),
}

test_verdicts = verdicts(NoFallback, CASES)
