from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support import steps
from support.graphs import op
from support.towers import MIRRORED, gradient, host, joint, mixed_losses, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Evidence, Op, Placement
from placement_checks.core.missing import Missing
from placement_checks.rules.towers.every_tower_counts import EveryTowerCounts

APPLY = "ResourceApplyGradientDescent"


def without(number: int, count: int = 2, **more: Any) -> Placement:
    """Towers; the sum leaves out the gradients of one."""
    gradients = (gradient(i) for i in range(count) if i != number)
    return program(host("sum/w", "AddN", *gradients), gpus=range(count), **more)


def updated(gradients: str, *ops: Op, **more: Any) -> Placement:
    """The update of w takes one value, which `ops` compute."""
    return program(*ops, host("update/w", APPLY, "w", "rate", gradients), **more)


def with_weights(*weights: float) -> Evidence:
    """Towers with gradients that are multiplied by weights, and the program for one GPU."""

    def of(weights: Sequence[float]) -> Placement:
        made = steps.Program()
        w = made.variable("w", (3,))
        gradients = []
        for i, weight in enumerate(weights):
            with made.tower(i):
                x = made.placeholder("x", (None, 3), None if len(weights) == 1 else i)
                loss = steps.mean(steps.square(steps.total(x * w.read(), 1)))
                gradients.append(made.gradient(loss, w) * weight)
        made.train(w.descend(0.1, steps.add_n(gradients)))
        return made.placement()

    return Evidence(of(weights), single_gpu=of([1.0]))


def in_backward_pass(*towers: int, kind: str = "AddN", requested: str = "") -> Placement:
    """The backward pass adds up the gradients of these towers."""
    total = op("gradients/AddN", kind, requested, "GPU:0", *map(gradient, towers))
    return updated("gradients/AddN", total)


def summed_up(add: str) -> Placement:
    kind = "VarHandleOp" if add == "AssignAddVariableOp" else "VariableV2"
    return updated(
        "total/read",
        variable("total", kind),
        host("add_0", add, "total", gradient(0)),
        host("add_1", add, "total", gradient(1)),
        host("total/read", "ReadVariableOp" if kind == "VarHandleOp" else "Identity", "total"),
        host("train", "NoOp", "^update/w", "^add_0", "^add_1"),
    )


def shown(kind: str) -> Placement:
    return updated(
        "total/read",
        variable("total"),
        *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
        host("total/read", "ReadVariableOp", "total"),
        host("shown", kind, "total/read"),
        host("train", "NoOp", "^update/w", "^add_0", "^add_1"),
    )


def added_in_step(*adds: int) -> Placement:
    """The gradients of all towers can be added to a variable; the step adds these."""
    return updated(
        "total/read",
        variable("total"),
        *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
        host("total/read", "ReadVariableOp", "total"),
        host("train", "NoOp", "^update/w", *(f"^add_{i}" for i in adds)),
    )


def accumulated(kind: str, towers: Sequence[int]) -> Placement:
    return updated(
        "total",
        host("accumulator", kind),
        *(
            host(f"add_{i}", "AccumulatorApplyGradient", "accumulator", "step", gradient(i))
            for i in towers
        ),
        host("total", "AccumulatorTakeGradient", "accumulator", "one"),
        host("train", "NoOp", "^update/w", *(f"^add_{i}" for i in towers)),
    )


def clipped(kind: str, *inputs: str) -> Placement:
    """One tower's gradients are clipped by the norm of both."""
    return updated(
        "clipped",
        host("norm", "L2Loss", "sum/w"),
        host("clipped", kind, *inputs),
        outputs={"norm": (), gradient(0): (4,)},
    )


def reduced(key: str) -> Placement:
    return program(
        *(on(i, f"reduced_{i}", "NcclAllReduce", gradient(i)) for i in (0, 1)),
        host("mean/w", "Mul", "reduced_0", "share"),
        attributes={"reduced_0": {"shared_name": "same"}, "reduced_1": {"shared_name": key}},
    )


HEADS = program(
    *(host(f"sum/{name}", "AddN", gradient(0, name)) for name in ("head/a", "head/b")),
    variables=["head/a", "head/b", "w"],
)


CASES = {
    "gradients with the weights 0.25 and 0.75": kept(with_weights(0.25, 0.75)),
    "a gradient with the weight 0": broken(with_weights(1.0, 0.0)),
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (2, 12)},
    "the sum lacks the first tower": broken(
        without(0, lines={"update/w": "main.py:50 net.py:3", "w": "net.py:1"})
    ),
    "only the line of the variable is known": broken(without(0, lines={"w": "net.py:1"})),
    # Not the line of the update, which is the same for all sums.
    "the line brings gradients together": broken(
        without(
            0, 3, lines={"update/w": "main.py:50", "sum/w": "main.py:40", "mean/w": "main.py:41"}
        )
    ),
    "the line adds up gradients over steps": broken(
        updated(
            "total/read",
            variable("total"),
            host("total/add", "AssignAddVariableOp", "total", gradient(1)),
            host("total/read", "ReadVariableOp", "total", "^total/add"),
            lines={
                "update/w": "main.py:50",
                "total/add": "main.py:30",
                "total/read": "main.py:31",
            },
        )
    ),
    # A line that builds no op takes the first tower's gradient.
    "the line brings together the gradients of another variable": broken(
        program(
            host("update/b", APPLY, "b", "rate", gradient(0, "b")),
            variables=["w", "b"],
            lines={"update/b": "main.py:50", "sum/w": "main.py:40"},
        )
    ),
    "sparse gradients": broken(
        program(
            host("update/b", "ResourceScatterSub", "b", "rows", gradient(0, "b")),
            variables=["w", "b"],
            lines={"sum/w": "main.py:40"},
        )
    ),
    "two variables lose the same tower": broken(
        program(
            *(host(f"sum/{name}", "AddN", gradient(0, name)) for name in ("a", "b")),
            variables=["a", "b"],
        )
    ),
    **{
        f"{count} towers, and the sum lacks the {which}": broken(without(number, count))
        for count in (2, 12)
        for which, number in (("first", 0), ("last", count - 1))
    },
    **{
        f"{count} towers, and only the last counts": broken(
            updated(gradient(count - 1), gpus=range(count))
        )
        for count in (2, 12)
    },
    "one tower is added twice": broken(program(host("sum/w", "AddN", gradient(0), gradient(0)))),
    # The gradient is a constant: all towers lose it.
    "no tower counts": broken(updated("zeros", host("zeros", "Const"))),
    "zeros with the shape of a gradient": broken(
        program(
            host("zeros", "ZerosLike", gradient(0)), host("sum/w", "AddN", "zeros", gradient(1))
        )
    ),
    "one variable loses the gradients of one tower": broken(
        program(host("sum/b", "AddN", gradient(0, "b")), variables=["a", "b", "c"])
    ),
    "one loss of all towers": kept(joint()),
    # All gradients depend on every tower's values; only the tower that computed them counts.
    "one loss of all towers, and the sum lacks a tower": broken(
        program(
            *(
                on(i, f"gradients/tower_{i}/loss_grad/Mul", "Mul", f"tower_{i}/w/MatMul", "loss")
                for i in (0, 1)
            ),
            host("sum/w", "AddN", gradient(0)),
            step={"objectives": ("loss:0",)},
        )
    ),
    **{
        f"a {kind} in the backward pass adds up {len(towers)} gradients": expected(
            in_backward_pass(*towers, kind=kind)
        )
        for kind in ("AddN", "Add", "AddV2", "AccumulateNV2", "ConcatV2")
        for towers, expected in (((0, 1), kept), ((0,), broken))
    },
    **{
        f"a sum in the backward pass on {gpu}": kept(in_backward_pass(0, 1, requested=gpu))
        for gpu in ("/gpu:0", "/gpu:1")
    },
    # one-update judges the number of updates.
    "an update for each tower": kept(
        program(
            host("update/w", APPLY, "w", "rate", gradient(0)),
            host("update/w_1", APPLY, "w", "rate", gradient(1)),
            host("train", "NoOp", "^update/w", "^update/w_1"),
        )
    ),
    "two updates that lose the same tower": broken(
        program(
            host("update/w", APPLY, "w", "rate", gradient(0)),
            host("update/w_1", APPLY, "w", "rate", gradient(0)),
            host("train", "NoOp", "^update/w", "^update/w_1"),
            lines={"update/w": "main.py:40", "update/w_1": "main.py:41"},
        )
    ),
    "an update outside of the step": broken(
        program(
            host("update/w", APPLY, "w", "rate", gradient(0)),
            host("update/w_1", APPLY, "w", "rate", gradient(1)),
        )
    ),
    **{
        f"{add} sums up the gradients in a variable": kept(summed_up(add))
        for add in ("AssignAddVariableOp", "AssignAdd")
    },
    **{
        f"a {kind} uses the sum of gradients too": kept(shown(kind))
        for kind in ("HistogramSummary", "L2Loss")
    },
    "a gradient that is not added to the sum over steps": broken(
        updated(
            "total/read",
            variable("total"),
            host("add_0", "AssignAddVariableOp", "total", gradient(0)),
            host("total/read", "ReadVariableOp", "total"),
            host("train", "NoOp", "^update/w", "^add_0"),
        )
    ),
    "the step adds the gradients of both towers": kept(added_in_step(0, 1)),
    # If separate runs add all gradients, the step need not add them.
    "the step adds the gradients of one of two towers": broken(added_in_step(0)),
    **{
        f"a branch takes {len(towers)} of 2 gradients, by a condition on both": expected(
            updated(
                "taken",
                host("condition", "IsFinite", "sum/w"),
                *(host(f"switch_{i}", "Switch", gradient(i), "condition") for i in towers),
                host("taken", "AddN", *(f"switch_{i}:1" for i in towers)),
            )
        )
        for towers, expected in (((0, 1), kept), ((0,), broken))
    },
    # The condition reads the gradients of all towers; the sum takes one tower's.
    "the condition of a sum of gradients": broken(
        updated(
            "total/read",
            variable("total", "VariableV2"),
            host("finite", "IsFinite", "sum/w"),
            host("total/Switch", "RefSwitch", "total", "finite"),
            host("add_0", "AssignAdd", "total/Switch:1", gradient(0)),
            host("total/read", "Identity", "total"),
            host("train", "NoOp", "^update/w", "^add_0"),
        )
    ),
    # Several steps add up small batches; then a step applies the sum and clears it.
    "gradients that other steps add up": kept(
        updated(
            "total/read",
            variable("total"),
            *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
            host("total/read", "ReadVariableOp", "total"),
            host("zeros", "Const"),
            host("clear", "AssignVariableOp", "total", "zeros"),
            host("train", "NoOp", "^update/w", "^clear"),
        )
    ),
    # As tf.compat.v1.train.SyncReplicasOptimizer does.
    **{
        f"a {kind} takes {len(towers)} gradients": expected(accumulated(kind, towers))
        for kind in (
            "ConditionalAccumulator",
            "SparseConditionalAccumulator",
            "ResourceConditionalAccumulator",
        )
        for towers, expected in (((0, 1), kept), ((1,), broken))
    },
    "gradients that wait in a queue": kept(
        updated(
            "total",
            host("queue", "FIFOQueueV2"),
            *(host(f"put_{i}", "QueueEnqueueV2", "queue", gradient(i)) for i in (0, 1)),
            host("total", "QueueDequeueManyV2", "queue", "two"),
            host("train", "NoOp", "^update/w", "^put_0", "^put_1"),
        )
    ),
    "momentum": kept(
        program(host("update/w", "ResourceApplyMomentum", "w", "slot", "rate", "mean/w", "0.9"))
    ),
    "indexed slices": kept(
        program(
            host("values", "ConcatV2", gradient(0), gradient(1), "axis"),
            host("rows", "ConcatV2", "rows_0", "rows_1", "axis"),
            host("update/w", "ResourceScatterSub", "w", "rows", "values"),
        )
    ),
    "a step written out": kept(
        program(
            host("new", "Sub", "w", "mean/w"), host("update/w", "AssignVariableOp", "w", "new")
        )
    ),
    "a loss that is scaled": kept(
        program(
            on(0, "gradients/tower_0/loss_grad/Mul", "Mul", "tower_0/w/MatMul", "scale"),
            host("mean/w", "Mul", "sum/w", "unscale"),
        )
    ),
    "gradients that are passed over if they are not finite": kept(
        program(
            host("finite", "IsFinite", "sum/w"),
            host("mean/w", "SelectV2", "finite", "sum/w", "zeros"),
        )
    ),
    "towers of unequal size": kept(
        program(
            host("weighted_0", "Mul", gradient(0), "0.25"),
            host("weighted_1", "Mul", gradient(1), "0.75"),
            host("sum/w", "AddN", "weighted_0", "weighted_1"),
        )
    ),
    **{
        f"a {kind} of one gradient and the norm of all gradients": broken(
            clipped(kind, gradient(0), "norm")
        )
        for kind in ("Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan")
    },
    **{
        f"a {kind} of the norm of all gradients and one gradient": broken(
            clipped(kind, "norm", gradient(0))
        )
        for kind in ("Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan")
    },
    # It is the second output of an op with a scalar as its first output.
    "a tensor that is not known to be a scalar": kept(
        updated(
            "clipped",
            host("norms", "Pack", "sum/w"),
            host("clipped", "Mul", gradient(0), "norms:1"),
            outputs={"norms": (), gradient(0): (4,)},
        )
    ),
    # The step gives the accumulator one tower's gradient.
    "an accumulator gets a gradient outside of the step": broken(
        updated(
            "total",
            host("accumulator", "ConditionalAccumulator"),
            *(
                host(f"add_{i}", "AccumulatorApplyGradient", "accumulator", "step", gradient(i))
                for i in (0, 1)
            ),
            host("total", "AccumulatorTakeGradient", "accumulator", "one"),
            host("train", "NoOp", "^update/w", "^add_0"),
        )
    ),
    "a frozen variable": kept(
        program(host("train", "NoOp", "^update/b", "^step/add"), variables=["a", "b"])
    ),
    # Only the first tower has an auxiliary head.
    "a variable that only one tower reads": kept(
        program(
            variable("aux"),
            on(0, "tower_0/aux", "MatMul", "tower_0/w/MatMul", "aux"),
            on(0, "tower_0/loss", "Mean", "tower_0/aux"),
            on(0, "gradients/tower_0/aux_grad/MatMul", "MatMul", "tower_0/w/MatMul"),
            host("update/aux", "ResourceApplyAdam", "aux", "gradients/tower_0/aux_grad/MatMul"),
            host("train", "NoOp", "^update/w", "^update/aux"),
        )
    ),
    # One tower's batch updates the moving mean, on purpose.
    "statistics that one tower updates": kept(
        program(
            variable("mean"),
            *(on(i, f"tower_{i}/norm", "Sub", f"tower_{i}/w/MatMul", "mean") for i in (0, 1)),
            *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/norm") for i in (0, 1)),
            host("mean/update", "AssignSubVariableOp", "mean", "tower_0/w/MatMul"),
            host("train", "NoOp", "^update/w", "^mean/update"),
        )
    ),
    "two of three variables lose a tower, and are allowed": kept(HEADS, allow=("head/*",)),
    **{
        f"two of three variables lose a tower, allowed: {allow}": broken(HEADS, allow=allow)
        for allow in ((), ("head/a",), ("Head/*", "a"))
    },
    "without a placer and a train op": broken(
        without(1, placer=None, assigned=Missing("no wheel for this"), step={"train_op": ()})
    ),
    "mixed losses": not_checked(mixed_losses()),
    "no update": not_checked(program(host("train", "NoOp", "^step/add"))),
    "no step is known": not_checked(
        program(host("update/w", "AssignSubVariableOp", "w", "mean/w"), step={"train_op": ()})
    ),
    "an update without a gradient": not_checked(
        program(
            host("update/w", "AssignVariableOp", "w", "restored"),
            host("train", "NoOp", "^update/w"),
        )
    ),
    # NcclAllReduce: one op on each GPU; only ops with one shared name reduce together.
    "a collective combines all members": kept(reduced("same")),
    "two collectives": broken(reduced("other")),
    "a scalar that is added": kept(
        updated(
            "shifted",
            host("shift", "Mean", gradient(1)),
            host("shifted", "AddV2", gradient(0), "shift"),
            outputs={"shift": (), gradient(0): (4,)},
        )
    ),
    "the gradient of a scalar": kept(
        program(shapes={"w": ()}, outputs={"sum/w": (), "share": ()})
    ),
    **{
        f"the copies of {count} towers": kept(program(mirrored=True, gpus=range(count)))
        for count in (2, 12)
    },
    **{
        f"the copies of {count} towers, and the sum lacks the first": broken(
            without(0, count, mirrored=True)
        )
        for count in (2, 12)
    },
    "replicas, and the copies take the gradients of one": broken(
        program(
            *(on(i, f"update/v{i}/w", APPLY, f"v{i}/w", "rate", gradient(0)) for i in (0, 1)),
            mirrored=True,
            strategy=MIRRORED,
        )
    ),
}

test_verdicts = verdicts(EveryTowerCounts, CASES)
