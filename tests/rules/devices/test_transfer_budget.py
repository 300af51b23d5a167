from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.errors import ConfigError
from placement_checks.core.placement import Details, StepOps, Tensor
from placement_checks.rules.devices.transfer_budget import TransferBudget

STEP = StepOps(train_op=("train",))


def sent(
    shape: tuple[int | None, ...] | None = (4, 2),
    *,
    to: Sequence[str] = ("GPU:0", "GPU:1"),
    **more: Any,
) -> Placement:
    """A tensor of the host that an op on each of these devices takes."""
    takers = [op(f"take_{i}", "Neg", "", device, "x") for i, device in enumerate(to)]
    return placement(
        host("x", "Placeholder"),
        *takers,
        host("train", "NoOp", *(f"^{taker.name}" for taker in takers)),
        outputs={} if shape is None else {"x": shape},
        **{"step": STEP, **more},
    )


def towers(*ops: Op, outputs: Mapping[str, tuple[int | None, ...]], **more: Any) -> Placement:
    """Towers with losses that go to the host: the only copies are the `outputs`."""
    return program(*ops, outputs=outputs, step={"train_op": ("loss",), **more})


CLUSTER = "ps*2; worker*2: gpu*2"

LARGE = 1 << 18  # floats, of a constant as large as is allowed


def gpu(worker: int, index: int = 0) -> str:
    return f"/job:worker/replica:0/task:{worker}/device:GPU:{index}"


def ps(server: int) -> str:
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"


def linked(
    *sends: tuple[str, tuple[int | None, ...] | None, Sequence[str]],
    kind: str = "Placeholder",
    **more: Any,
) -> Placement:
    """Tensors x0, x1, …, each given as its device, its shape, and the devices that take it."""
    ops = []
    for number, (source, _, takers) in enumerate(sends):
        ops.append(op(f"x{number}", kind, source, source))
        ops += [
            op(f"take{number}/{i}", "Neg", to, to, f"x{number}") for i, to in enumerate(takers)
        ]
    shapes = {f"x{number}": shape for number, (_, shape, _) in enumerate(sends) if shape}
    step = host("train", "NoOp", *(f"^{taker.name}" for taker in ops if taker.type == "Neg"))
    return placement(*ops, step, **{"step": STEP, "machine": CLUSTER, "outputs": shapes, **more})


BOTH = (ps(0), (10,), [gpu(0), gpu(0, 1), gpu(1)])  # 80 bytes to one worker, 40 to the other


@dataclass
class Typed(Details):
    """Each op has one output of this type."""

    tensor: Tensor

    def outputs(self, op: str) -> tuple[Tensor, ...]:
        return (self.tensor,)


def of_dtype(dtype: str) -> Placement:
    return replace(sent(to=["GPU:0"]), details=Typed(Tensor(dtype, (5, 2))))


def handle() -> Placement:
    """A read of a variable takes its handle."""
    graph = placement(
        variable("w"),
        on(0, "read", "ReadVariableOp", "w"),
        host("train", "NoOp", "^read"),
        step=STEP,
    )
    return replace(graph, details=Typed(Tensor("resource", ())))


def all_to_all() -> Placement:
    """Each of three GPUs sends to the two others."""
    ops = []
    for i in range(3):
        ops.append(on(i, f"x_{i}", "Neg"))
        ops += [on(k, f"take_{i}_{k}", "Neg", f"x_{i}") for k in range(3) if k != i]
    return placement(*ops, machine="gpu*3", outputs={f"x_{i}": (i + 1,) for i in range(3)})


def partly_sized() -> Placement:
    """Two copies of 32 bytes, and one of unknown size."""
    return placement(
        *sent().ops.values(),
        on(0, "more", "Neg", "unknown"),
        host("unknown", "Placeholder"),
        outputs={"x": (4, 2)},
    )


def sliced(kind: str) -> Placement:
    return towers(
        host("images", "Placeholder"),
        host("part", kind, "images"),
        on(0, "tower_0/x", "Relu", "part"),
        outputs={"part": (None, 2)},
    )


def to_workers(*workers: int) -> Placement:
    """A server sends 80 bytes to the first worker, 44 to these, and 40 to the last."""
    return linked(
        (ps(0), (20,), [gpu(0)]),
        *((ps(0), (11,), [gpu(worker)]) for worker in workers),
        (ps(0), (10,), [gpu(3)]),
        machine="ps*1; worker*4: gpu*1",
    )


def unread() -> Placement:
    graph = linked((ps(0), (10,), [gpu(0)]))
    idle = [op("c", "Const", ps(0), ps(0)), op("other", "Neg", gpu(1), gpu(1), "c")]
    return placement(
        *graph.ops.values(),
        *idle,
        machine=CLUSTER,
        step=STEP,
        outputs={"x0": (10,), "c": (LARGE * 2,)},
    )


def to_gpus(gpus: int) -> Placement:
    return placement(
        op("a", "MatMul", "/cpu:0", "CPU:0"),
        *(op(f"b{i}", "Neg", f"/gpu:{i}", f"GPU:{i}", "a") for i in range(gpus)),
        outputs={"a": (4,)},
        machine=f"gpu*{gpus}",
    )


def shaped(shape: tuple[int | None, ...]) -> Placement:
    return placement(
        op("a", "Neg", "/cpu:0", "CPU:0"),
        op("b", "Neg", "/gpu:0", "GPU:0", "a"),
        outputs={"a": shape},
    )


UNSIZED = linked((ps(0), None, [gpu(0), gpu(1)]), (gpu(0), None, [gpu(0, 1)]))
CONSTANT = linked((ps(0), (10,), [gpu(0)]), kind="Const")
NO_LARGE_CONSTANT = {
    "the largest constant that is allowed": linked((ps(0), (LARGE,), [gpu(0)]), kind="Const"),
    "a large constant within a task": linked((gpu(0), (LARGE * 2,), [gpu(0, 1)]), kind="Const"),
    "a large tensor on one host": sent((LARGE * 2,)),
    "a large variable": linked((ps(0), (LARGE * 2,), [gpu(0)]), kind="VariableV2"),
    "a large input": linked((ps(0), (LARGE * 2,), [gpu(0)])),
}
SHOWN = program(
    host("shown", "Mean", "tower_1/w/MatMul"),
    host("train", "NoOp", "^update/w", "^step/add", "^shown"),
    outputs={"tower_1/w/MatMul": (None, 4)},
)


CASES = {
    "far over the budget of bytes": broken(
        sent((1000, 2), lines={"x": "main.py:9 net.py:3"}), bytes=15999
    ),
    **{
        f"within {budget}": kept(sent(), **budget)
        for budget in ({"bytes": 64}, {"copies": 2}, {"bytes": 64, "copies": 2})
    },
    **{
        f"over {budget}": broken(sent(), **budget)
        for budget in (
            *({"bytes": 63}, {"copies": 1}, {"bytes": 0}, {"copies": 0}),
            *({"bytes": 64, "copies": 1}, {"bytes": 63, "copies": 2}),
        )
    },
    **{
        f"nothing is copied within a device, {budget}": kept(sent(to=["CPU:0", "CPU:0"]), **budget)
        for budget in ({"bytes": 0}, {"copies": 0})
    },
    # The price of towers: each weight out and each gradient back, for every tower.
    "towers take the weights and give the gradients": kept(
        program(
            outputs={
                "tower_0/w/read": (10,),
                "tower_1/w/read": (10,),
                "gradients/tower_0/w/MatMul_grad/MatMul": (10,),
                "gradients/tower_1/w/MatMul_grad/MatMul": (10,),
            },
            step={"train_op": ("update/w",)},
        ),
        bytes=160,
    ),
    "two ops on one device take the same tensor": kept(
        sent(to=["GPU:0", "GPU:0", "GPU:1"]), copies=1000
    ),
    "two outputs of an op": kept(
        placement(
            host("split", "Split"),
            on(0, "one", "Neg", "split"),
            on(0, "again", "Neg", "split:0"),
            on(0, "two", "Neg", "split:1"),
            host("train", "NoOp", "^one", "^again", "^two"),
            step=STEP,
        ),
        copies=1000,
    ),
    "a control edge copies nothing": kept(
        placement(
            host("x", "Placeholder"),
            on(0, "after", "Neg", "^x"),
            host("train", "NoOp", "^after"),
            step=STEP,
        ),
        copies=1000,
    ),
    "ops outside of the step": kept(
        placement(*sent().ops.values(), on(0, "other", "Neg", "train"), step=STEP), copies=1000
    ),
    "without a train op, all ops count": broken(sent(step=StepOps()), bytes=63),
    "a handle of a variable": kept(handle(), copies=1000),
    **{
        f"ten values of {dtype}": kept(of_dtype(dtype), bytes=1000)
        for dtype in ("float32", "float64", "bfloat16", "int8", "bool", "int4")
    },
    **{
        f"ten values of {dtype}": not_checked(of_dtype(dtype), bytes=1000)
        for dtype in ("string", "variant")
    },
    "the note has the largest pairs, and counts the others": not_checked(all_to_all()),
    "the path has the largest copies": broken(
        placement(
            *[host(f"x_{i}", "Const") for i in range(10)],
            *[on(0, f"take_{i}", "Neg", f"x_{i}") for i in range(10)],
            outputs={f"x_{i}": (i,) for i in range(1, 10)},
        ),
        bytes=0,
    ),
    "copies of unknown size": broken(sent(None), copies=1),
    "over the budget without the unknown size": broken(partly_sized(), bytes=63),
    "within the budget without the unknown size": not_checked(partly_sized(), bytes=64),
    # The whole batch, which both towers take.
    **{
        f"a batch of {rows} rows": kept(sent((None, 2)), bytes=10000, rows=rows)
        for rows in (7, 8, 100)
    },
    "the second dimension is open": not_checked(sent((None, None)), bytes=1000, rows=8),
    # Of 9 rows, five.
    "the rows of a tower are its part of the batch": kept(
        towers(
            on(0, "tower_0/loss", "Softmax", "tower_0/w/MatMul"),
            outputs={
                "tower_0/loss": (None, 3),
                "tower_1/loss": (1,),
                "tower_0/w/read": (1,),
                "tower_1/w/read": (1,),
            },
        ),
        bytes=1000,
        rows=9,
    ),
    **{
        f"rows of a tower from a {kind} on the host": not_checked(sliced(kind), bytes=1000, rows=8)
        for kind in (
            *("Split", "SplitV", "StridedSlice", "Slice", "Unpack", "DynamicPartition"),
            "Identity",
        )
    },
    "the rows of a placeholder that is listed for a tower are a part": not_checked(
        towers(
            *(host(f"x_{i}", "Placeholder") for i in (0, 1)),
            *(on(i, f"tower_{i}/x", "Relu", f"x_{i}") for i in (0, 1)),
            outputs={"x_0": (None, 2), "x_1": (None, 2)},
            inputs=(("x_0:0",), ("x_1:0",)),
        ),
        bytes=1000,
        rows=8,
    ),
    "one list of inputs for all towers is the whole batch": not_checked(
        towers(
            host("x", "Placeholder"),
            *(on(i, f"tower_{i}/x", "Relu", "x") for i in (0, 1)),
            outputs={"x": (None, 2)},
            inputs=(("x:0",),),
        ),
        bytes=1000,
        rows=8,
    ),
    "without a budget": not_checked(sent()),
    "rows alone are no budget": not_checked(sent(), rows=8),
    "the size is not known": not_checked(sent((None, 2)), bytes=1000),
    "a budget of copies needs no sizes": kept(sent(None), copies=2),
    "a link over its bytes": broken(
        linked(BOTH, lines={"x0": "main.py:9 net.py:3"}), link_bytes=79
    ),
    **{
        f"a link within {budget}": kept(linked(BOTH), **budget)
        for budget in ({"link_bytes": 80}, {"link_copies": 2}, {"link_bytes": 80, "bytes": 120})
    },
    **{
        f"a link over {budget}": broken(linked(BOTH), **budget)
        for budget in (
            *({"link_bytes": 79}, {"link_copies": 1}, {"link_bytes": 0}, {"link_copies": 0}),
            *({"link_bytes": 80, "link_copies": 1}, {"link_bytes": 79, "link_copies": 2}),
            {"link_bytes": 80, "bytes": 119},
        )
    },
    "a task that sends too much to two others": broken(to_workers(1), link_bytes=40),
    "a task that sends too much to three others": broken(to_workers(1, 2), link_bytes=40),
    "every task over the budget is a finding": broken(
        linked(
            (ps(0), (11,), [gpu(0)]),
            (ps(1), (12,), [gpu(0)]),
            (gpu(0), (30,), [ps(0), ps(1)]),
            (gpu(1), (10,), [ps(0)]),
        ),
        link_bytes=40,
    ),
    "a link over its bytes, without a train op": broken(
        linked(BOTH, step=StepOps()), link_bytes=79
    ),
    "the step and a link are over their budgets": broken(linked(BOTH), copies=2, link_copies=1),
    **{
        f"nothing goes over a link within a task, {budget}": kept(
            linked((gpu(0), (10,), [gpu(0, 1), "/job:worker/task:0/cpu:0"])), **budget
        )
        for budget in ({"link_bytes": 0}, {"link_copies": 0})
    },
    **{
        f"one host has no links, {budget}": not_checked(sent((10,)), **budget)
        for budget in ({"link_bytes": 0}, {"link_copies": 0})
    },
    **{
        f"one host has no links, {budget} and a budget of copies": kept(
            sent((10,)), copies=9, **budget
        )
        for budget in ({"link_bytes": 0}, {"link_copies": 0})
    },
    "a constant that breaks two budgets is one finding": broken(
        linked((ps(0), (20,), [gpu(0)]), kind="Const"), bytes=0, constant_bytes=0
    ),
    "copies within a task": kept(
        linked((gpu(0), (10,), [gpu(0, 1), gpu(1)])), link_bytes=40, link_copies=1
    ),
    "copies within a task only": kept(linked((gpu(0), (10,), [gpu(0, 1)])), link_bytes=0),
    "the note has the largest links, and counts the others": kept(
        linked(*((ps(0), (i + 1,), [gpu(i)]) for i in range(5)), machine="ps*1; worker*5: gpu*1"),
        link_copies=1,
    ),
    **{
        f"no size is known, {budget}": not_checked(UNSIZED, **budget)
        for budget in ({"link_bytes": 10}, {"bytes": 10}, {"bytes": 10, "link_bytes": 10})
    },
    "no size is known, and a budget of copies": kept(UNSIZED, link_copies=1),
    "an unknown size within a task": kept(
        linked((ps(0), (10,), [gpu(0)]), (gpu(0), None, [gpu(0, 1)])), link_bytes=40
    ),
    "a link over its bytes, and another size is not known": broken(
        linked((ps(0), (11,), [gpu(0)]), (ps(1), None, [gpu(0)])), link_bytes=40
    ),
    "8 rows over a link within the budget": kept(
        linked((ps(0), (None, 2), [gpu(0)])), link_bytes=64, rows=8
    ),
    "8 rows over a link over the budget": broken(
        linked((ps(0), (None, 2), [gpu(0)])), link_bytes=63, rows=8
    ),
    **{
        f"a large constant goes to {what}": broken(
            linked((ps(0), (LARGE + 1,), takers), kind="Const", lines={"x0": "main.py:9 net.py:3"})
        )
        for what, takers in {
            "another task": [gpu(0)],
            "several devices": [gpu(0), gpu(0, 1), gpu(1), "/job:ps/task:0/gpu:0"],
        }.items()
    },
    "a constant of unknown size may be a large one": not_checked(
        linked((ps(0), None, [gpu(0)]), kind="Const"), link_copies=100
    ),
    "every large constant is a finding": broken(
        linked(
            (ps(0), (LARGE + 1,), [gpu(0)]),
            (ps(1), (LARGE,), [gpu(0)]),
            (gpu(1), (LARGE + 2,), [gpu(0)]),
            kind="Const",
        ),
        link_bytes=1 << 30,
    ),
    **{what: not_checked(graph) for what, graph in NO_LARGE_CONSTANT.items()},
    **{
        f"{what}, and a budget of copies": kept(graph, copies=9)
        for what, graph in NO_LARGE_CONSTANT.items()
    },
    "a constant of 40 bytes": kept(CONSTANT, constant_bytes=40, copies=1),
    **{
        f"a constant of more than {most} bytes": broken(CONSTANT, constant_bytes=most, copies=1)
        for most in (39, 0)
    },
    "a constant that the step does not read does not travel": kept(unread(), link_bytes=40),
    "a constant of unknown size, and none is allowed": not_checked(
        placement(
            op("table", "Const", "/job:ps/cpu:0", "/job:ps/cpu:0"),
            op("use", "MatMul", "/job:worker/cpu:0", "/job:worker/cpu:0", "table"),
            machine="ps*1; worker*1",
        ),
        constant_bytes=0,
    ),
    "values per row without a number of rows": not_checked(SHOWN),
    "values per row": not_checked(SHOWN, rows=8),
    **{
        f"the note lists four of {gpus} pairs of devices": not_checked(to_gpus(gpus))
        for gpus in (4, 5)
    },
    "no machine": kept(
        placement(op("a", "MatMul", "/cpu:0", "CPU:0"), machine=None), link_bytes=1
    ),
    "pairs with equal bytes": not_checked(
        placement(
            op("whole", "Neg", "/cpu:0", "CPU:0"),
            *(op(name, "Neg", "/cpu:0", "CPU:0") for name in ("half", "other")),
            op("one", "Neg", "/gpu:0", "GPU:0", "whole"),
            op("two", "Add", "/gpu:1", "GPU:1", "half", "other"),
            outputs={"whole": (4,), "half": (2,), "other": (2,)},
        )
    ),
    **{
        f"a tensor of shape {shape}": not_checked(shaped(shape), rows=100)
        for shape in ((), (2,), (None,))
    },
    "an op that was not placed sends nothing": not_checked(
        placement(op("a", "Neg"), op("b", "Neg", "/gpu:0", "GPU:0", "a"), outputs={"a": (4,)})
    ),
}

test_verdicts = verdicts(TransferBudget, CASES)


@pytest.mark.parametrize(
    "field", ["bytes", "copies", "link_bytes", "link_copies", "constant_bytes", "rows"]
)
def test_a_number_below_zero_is_refused(field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TransferBudget(**{field: -1})

    assert str(refused.value) == f"{field}: -1 is below 0; give a number of 0 or more"
