from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

from support import steps
from support.steps import add_n, mean, split, square
from support.towers import gradient, host, on, program, variable
from support.verdicts import broken, doubtful, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import TRAINABLE
from placement_checks.core.program import CapturedProgram, Program, ProgramGraph
from placement_checks.rules.towers.trainables_trained import TrainablesTrained

WITHOUT_B = host("train", "NoOp", "^update/a", "^step/add")
NO_AVERAGE = [host(f"{name}/b", "NoOp") for name in ("sum", "mean")]
NO_UPDATE = host("update/b", "NoOp")


def two(*ops: Op, trainable: Sequence[str] = ("a", "b"), **more: Any) -> Placement:
    """Towers with two variables."""
    return program(
        *ops,
        variables=["a", "b"],
        collections={TRAINABLE: list(trainable)},
        outputs={gradient(i, name): (4,) for i in (0, 1) for name in "ab"},
        **more,
    )


def dropped(*ops: Op, **more: Any) -> Placement:
    """The gradient of b is averaged and not applied."""
    return two(WITHOUT_B, NO_UPDATE, *ops, **more)


def frozen(*ops: Op, **more: Any) -> Placement:
    """The gradient of b is not averaged."""
    return dropped(*NO_AVERAGE, *ops, **more)


def unused(*names: str) -> Placement:
    """A program that takes the gradients of these variables and applies only the gradient of a."""
    gone = [host(f"{part}/{name}", "NoOp") for part in ("sum", "mean", "update") for name in "bc"]
    return program(
        WITHOUT_B,
        *gone,
        variables=["a", "b", "c"],
        collections={TRAINABLE: ["a", "b", "c"]},
        step={"gradients_by_variable": {n: [gradient(i, n) for i in (0, 1)] for n in names}},
    )


def clipped(*ops: Op) -> Placement:
    """Gradients that are scaled by their global norm; the gradient of b is not applied."""
    return dropped(
        host("half/b", "L2Loss", "mean/b"),
        host("norm", "AddN", "half/a", "half/b"),
        host("half/a", "L2Loss", "mean/a"),
        *(host(f"clipped/{name}", "Mul", f"mean/{name}", "norm") for name in "ab"),
        host("update/a", "ResourceApplyGradientDescent", "a", "rate", "clipped/a"),
        *ops,
    )


def of_rows(kind: str) -> Placement:
    """The gradient of rows of b, which has its own shape, is not applied."""
    return program(
        WITHOUT_B,
        NO_UPDATE,
        *NO_AVERAGE,
        on(0, "tower_0/b/MatMul", kind, "b", "tower_0/x"),
        on(0, gradient(0, "b"), "Reshape", "tower_0/b/MatMul"),
        host("rows", "ConcatV2", gradient(0, "b")),
        variables=["a", "b"],
        collections={TRAINABLE: ["a", "b"]},
        outputs={gradient(0, "b"): (None,)},
    )


def taken(*ops: Op, trainable: str = "ab") -> Placement:
    """A program of one tower that takes the gradients of both variables."""
    return program(
        *ops,
        gpus=(0,),
        variables=["a", "b"],
        step={"gradients_by_variable": {name: [gradient(0, name)] for name in "ab"}},
        collections={TRAINABLE: [*trainable]},
    )


def stepped(*trained: str, towers: int = 2, variables: Sequence[str] = "ab") -> Placement:
    """A step of towers that trains some of the variables that the losses read."""
    made = steps.Program()
    handles = {name: made.variable(name, (3,)) for name in variables}
    losses = []
    for i, x in enumerate(split(made.placeholder("x", (None, 3)), towers)):
        with made.tower(i):
            losses.append(mean(square(add_n([x * each.read() for each in handles.values()]))))
    updates = []
    for name in trained:
        gradients = [made.gradient(loss, handles[name]) for loss in losses]
        updates.append(handles[name].descend(0.1, add_n(gradients) / towers))
    made.train(*updates)
    return made.placement()


def averaging(*in_step: str, is_function: bool = False) -> Evidence:
    """A step that averages w, and an update of w by the gradient, from a slot, that it may run."""
    made = program(
        variable("m"),
        variable("shadow"),
        host("m/set", "AssignVariableOp", "m", "mean/w"),
        host("m/read", "ReadVariableOp", "m", "^m/set"),
        host("update/w", "AssignSubVariableOp", "w", "m/read"),
        host("shadow/set", "AssignSubVariableOp", "shadow", "w/read"),
        host("w/read", "ReadVariableOp", "w"),
        host("train", "NoOp", "^shadow/set", *(f"^{op}" for op in in_step)),
        collections={TRAINABLE: ["w"]},
    )
    captured = CapturedProgram(
        name="p", program=Program("p", print), gpus=2, source=Mock(ProgramGraph)
    )
    return Evidence(made, captured) if is_function else Evidence(made)


ONLY_A = [WITHOUT_B, NO_UPDATE, *NO_AVERAGE]
BY_REFERENCE = Evidence(
    stepped("a"), reference=replace(stepped("a", "b", towers=1), program="train.py:single")
)

CASES = {
    "the step updates all variables": kept(two()),
    "a gradient that is averaged and not applied": broken(
        dropped(lines={"b": "main.py:30 net.py:7", "mean/b": "net.py:9", "update/a": "main.py:50"})
    ),
    "a variable that no loss reads": broken(
        two(
            variable("bias"),
            on(0, "tower_0/prediction", "AddV2", "tower_0/b/MatMul", "bias"),
            trainable=["a", "b", "bias"],
        )
    ),
    "two gradients that are averaged and not applied": broken(
        program(
            WITHOUT_B,
            *(host(f"update/{name}", "NoOp") for name in "bc"),
            variables=["a", "b", "c"],
            collections={TRAINABLE: list("abc")},
            outputs={gradient(i, name): (4,) for i in (0, 1) for name in "abc"},
        )
    ),
    "a gradient that is lost after a collective": broken(
        frozen(*(on(i, f"all/{i}", "NcclAllReduce", gradient(i, "b")) for i in (0, 1)))
    ),
    "a gradient that is lost, of a variable that is not to be trained": kept(
        dropped(trainable=["a"])
    ),
    **{
        f"a gradient that only a {kind} uses": broken(
            frozen(host("shown", kind, gradient(0, "b")))
        )
        for kind in ("HistogramSummary", "ScalarSummary")
    },
    # The norm scales the gradients of other variables.
    "a gradient that is only a part of the norm of all": broken(clipped()),
    "a gradient that is only used for its norm": broken(
        frozen(
            host("half", "L2Loss", gradient(0, "b")), host("shown", "ScalarSummary", "tag", "half")
        )
    ),
    "a clipped gradient that is only used for its norm": broken(
        clipped(
            host("half/after", "L2Loss", "clipped/b"),
            host("shown", "ScalarSummary", "tag", "half/after"),
        )
    ),
    "gradients that are clipped and applied": kept(
        clipped(
            host("update/b", "ResourceApplyGradientDescent", "b", "rate", "clipped/b"),
            host("train", "NoOp", "^update/a", "^update/b"),
        )
    ),
    # The loss has a penalty on the gradient of a frozen variable.
    "a gradient in a loss": kept(
        frozen(
            host("penalty", "L2Loss", gradient(0, "b")),
            host("loss", "AddN", "tower_0/loss", "tower_1/loss", "penalty"),
        )
    ),
    # TensorFlow computes the gradients of all inputs of an op.
    "a gradient that the program did not take": kept(frozen()),
    "a variable without gradients": kept(
        frozen(*(on(i, gradient(i, "b"), "NoOp") for i in (0, 1)))
    ),
    # Two networks are trained in turns.
    **{
        f"another step updates the variable by {kind}": kept(dropped(host("other", kind, "b", of)))
        for kind, of in (("ResourceApplyAdam", "mean/b"), ("AssignSubVariableOp", "mean/b"))
    },
    "an assignment does not train": broken(dropped(host("set", "AssignVariableOp", "b", "fed"))),
    "the gradient of rows is lost": broken(of_rows("Gather")),
    "a tensor of another shape is not the gradient": kept(of_rows("MatMul")),
    "a variable that the reference trains": broken(BY_REFERENCE),
    "a variable that another step and the reference train": kept(
        Evidence(
            dropped(host("other", "ResourceApplyAdam", "b", "rate", gradient(0, "b"))),
            reference=two(gpus=[0]),
        )
    ),
    "a variable that the same program trains on one GPU": broken(
        Evidence(stepped("a"), single_gpu=stepped("a", "b", towers=1))
    ),
    "a variable that the reference freezes, and the program on one GPU does not": kept(
        Evidence(
            stepped("a"),
            reference=stepped("a", towers=1),
            single_gpu=stepped("a", "b", towers=1),
        )
    ),
    **{
        f"the reference {what}": kept(Evidence(stepped("a"), reference=reference))
        for what, reference in {
            "freezes the variable too": stepped("a", towers=1),
            "has no known step": two(step={"train_op": ()}),
            "lacks the variable": stepped("a", towers=1, variables="a"),
        }.items()
    },
    **{
        f"a lost gradient, declared frozen: {name}": expected(dropped(), frozen=(name,))
        for name, expected in (("b", kept), ("*", kept), ("a", broken))
    },
    **{
        f"a variable that the reference trains, declared frozen: {name}": expected(
            BY_REFERENCE, frozen=(name,)
        )
        for name, expected in (("b", kept), ("*", kept), ("a", broken))
    },
    "without a placer and a machine": broken(
        dropped(placer=None, assigned=Missing("no wheel"), machine=None)
    ),
    "no variable is trainable": not_checked(two(trainable=[])),
    "no train op": not_checked(two(step={"train_op": ()})),
    "no gradients": not_checked(two(step={"backward": ()})),
    "a step without updates": not_checked(
        two(host("train", "NoOp", "^step/add"), NO_UPDATE, trainable=["b"])
    ),
    "an update that no step runs": doubtful(averaging()),
    "a step that adds up gradients, of a function": doubtful(averaging("m/set", is_function=True)),
    "an update that the step of a function does not run": broken(averaging(is_function=True)),
    "an update of a function that the step runs": kept(averaging("update/w", is_function=True)),
    "an unused gradient": doubtful(unused("b")),
    "two of three gradients are unused": doubtful(unused("a", "b", "c")),
    "an unused gradient of a variable that is declared frozen": kept(unused("b"), frozen=("b",)),
    "variables whose gradients the program did not take": kept(unused()),
    "a lost gradient, and a variable that no loss reads": broken(
        two(WITHOUT_B, NO_UPDATE, variable("c"), trainable=("a", "b", "c"))
    ),
    "one tower, and an unused gradient": doubtful(taken(*ONLY_A)),
    "one tower, and all gradients are applied": kept(taken()),
    "one tower, and an unused gradient of a variable that is not to be trained": kept(
        taken(*ONLY_A, trainable="a")
    ),
    "one tower, and a gradient for a norm": kept(
        taken(*ONLY_A, host("norm", "L2Loss", gradient(0, "b")))
    ),
    "one tower, and another step updates the variable": kept(
        taken(*ONLY_A, host("other", "ResourceApplyGradientDescent", "b", "share", "share"))
    ),
}

test_verdicts = verdicts(TrainablesTrained, CASES)
