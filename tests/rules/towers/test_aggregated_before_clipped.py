from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.towers import MIRRORED, gradient, host, on, program, recorded, variable
from support.verdicts import broken, doubtful, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.placement import StepOps
from placement_checks.rules.towers.aggregated_before_clipped import AggregatedBeforeClipped

TOTAL = host("sum/w", "AddN", "clip/0", "clip/1")

SHAPES = {f"clip/{i}": (4,) for i in (0, 1)}


def clipping(
    kind: str,
    *factors: str,
    clips: Sequence[Op] = (),
    total: Op = TOTAL,
    more: Sequence[Op] = (),
    **fields: Any,
) -> Placement:
    """Towers that each change their own gradient, by an op that also takes some factors."""
    clips = clips or [
        on(i, f"clip/{i}", kind, gradient(i), *(each.format(i) for each in factors))
        for i in (0, 1)
    ]
    norms = [on(i, f"norm/{i}", "Sum", gradient(i)) for i in (0, 1)]
    fields = {"strategy": MIRRORED, "outputs": SHAPES, **fields}
    return program(*norms, *clips, total, *more, **fields)


def backward_pass(line: str, variables: Sequence[str] = ("w",)) -> Placement:
    """Towers with a custom gradient on the path to `w`, whose backward pass is at a line."""
    made = recorded(variables)
    scaled = [f"gradients/tower_{i}/loss_grad/Mul" for i in (0, 1)]
    calls = [
        call._replace(ops=[scaled[i], *(tensor for (tensor,) in call.gradients)])
        for i, call in enumerate(made["step"]["gradient_calls"])
    ]
    lines = {gradient(i, "w"): f"train.py:9 {line}" for i in (0, 1)}
    return program(
        host("rate", "Placeholder"),
        **made | {"step": StepOps(**made["step"]).with_gradients(calls)._asdict()},
        attributes={f"tower_{i}/w/MatMul": {"_gradient_op_type": "Custom"} for i in (0, 1)},
        lines={**dict.fromkeys(scaled, "train.py:9"), **lines},
    )


CASES = {
    "a backward pass of the program": not_checked(backward_pass("train.py:3")),
    "a backward pass of the program for one of two variables": kept(
        backward_pass("train.py:3", ["w", "v"])
    ),
    "a custom gradient of a library": kept(backward_pass("")),
    **{
        f"each replica changes its gradient by a {kind} with {factor}": broken(
            clipping(kind, factor, lines={"clip/0": "train.py:7"})
        )
        for kind, factor in [
            ("Mul", "norm/{}"),
            ("RealDiv", "norm/{}"),
            ("Minimum", "rate"),
            ("ClipByValue", "rate"),
        ]
    },
    "an optimizer of Keras clips": broken(
        clipping(
            "Mul",
            "norm/{}",
            lines={"clip/0": "a.py:7"},
            keras_parts={"clip/0": "clipping of an optimizer"},
        )
    ),
    "clipping is allowed": kept(clipping("Mul", "norm/{}"), allow=("*",)),
    "each replica scales its gradient by the same factor": kept(clipping("Mul", "rate")),
    "gradients of single rows are clipped": kept(
        clipping(
            "Mul",
            "norm/{}",
            clips=[
                each
                for i in (0, 1)
                for each in (
                    on(i, f"rows/{i}", "Mul", gradient(i), f"norm/{i}"),
                    on(i, f"clip/{i}", "Sum", f"rows/{i}", "axis"),
                )
            ],
            outputs={f"rows/{i}": (8, 4) for i in (0, 1)},
        )
    ),
    "each replica clips its flat gradient": broken(
        clipping(
            "Mul",
            clips=[
                each
                for i in (0, 1)
                for each in (
                    on(i, f"flat/{i}", "Mul", gradient(i), f"norm/{i}"),
                    on(i, f"clip/{i}", "Reshape", f"flat/{i}", "shape"),
                )
            ],
            outputs={f"flat/{i}": (2, 2) for i in (0, 1)},
        )
    ),
    # As in tf.tensordot(shares, tf.stack(gradients), 1), which does not add up rows of a gradient.
    "each replica clips its gradient, and a product with the shares adds them up": broken(
        clipping(
            "Mul",
            "norm/{}",
            total=host("sum/w", "Reshape", "total", "shape"),
            more=[
                host("stack", "Pack", "clip/0", "clip/1"),
                host("shares", "Placeholder"),
                host("total", "MatMul", "shares", "stack"),
            ],
            outputs={**SHAPES, "shares": (1, 2), "stack": (2, 4), "total": (1, 4), "sum/w": (4,)},
        )
    ),
    "each replica scales its gradient by the norm of the sum": kept(
        clipping(
            "Mul",
            clips=[on(i, f"clip/{i}", "Mul", gradient(i), "norm") for i in (0, 1)],
            more=[
                host("raw", "AddN", gradient(0), gradient(1)),
                host("norm", "L2Loss", "raw"),
            ],
        )
    ),
    "each replica squares its gradient": kept(
        clipping("Mul", clips=[on(i, f"clip/{i}", "Square", gradient(i)) for i in (0, 1)])
    ),
    "each replica clips the gradient that it adds to a momentum": broken(
        clipping(
            "Minimum",
            "rate",
            more=[
                variable("m"),
                host("m/add", "AssignAddVariableOp", "m", "sum/w"),
                host("m/read", "ReadVariableOp", "m", "^m/add"),
                host("update/w", "AssignSubVariableOp", "w", "m/read"),
            ],
        )
    ),
    "a product in the backward pass": kept(
        program(
            *(
                on(i, gradient(i), "Mul", *[f"gradients/tower_{i}/loss_grad/Mul"] * 2)
                for i in (0, 1)
            ),
            strategy=MIRRORED,
            outputs={gradient(0): (4,)},
        )
    ),
    # The sum of the parts is not clipped.
    "gradients of parts are clipped in a loop": kept(
        clipping(
            "Mul",
            clips=[
                each
                for i in (0, 1)
                for each in (
                    on(i, f"loop/{i}", "While", gradient(i), f"norm/{i}"),
                    on(i, f"loop/{i}/body/Mul", "Mul", gradient(i), "norm", caller=f"loop/{i}"),
                    on(i, f"clip/{i}", "Identity", f"loop/{i}"),
                )
            ],
        )
    ),
    "one tower's gradient is clipped and not added up": kept(
        clipping("Mul", "norm/{}", total=host("sum/w", "AddN", "clip/0"))
    ),
    "the sum is clipped": kept(
        program(
            host("norm", "Sum", "sum/w"),
            host("mean/w", "Mul", "sum/w", "norm"),
            strategy=MIRRORED,
            outputs={"mean/w": (4,)},
        )
    ),
    "each replica clips the gradients of its copy": broken(
        clipping("Mul", "norm/{}", mirrored=True)
    ),
    "towers by hand clip": doubtful(clipping("Mul", "norm/{}", strategy=None)),
    "towers that clip nothing": kept(program()),
    "no update by gradients": not_checked(
        program(host("update/w", "AssignVariableOp", "w", "step/one"))
    ),
}

test_verdicts = verdicts(AggregatedBeforeClipped, CASES)
