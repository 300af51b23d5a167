"""A correct program with towers, written by hand. Tests change parts of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.graphs import op, placement

from placement_checks import Device, Op, Placement
from placement_checks.core.placement import GradientCall, StepOps, producer_of
from placement_checks.core.strategies import Copy, Strategy

_APPLY = "ResourceApplyGradientDescent"

GPUS = [Device.parse(f"/gpu:{i}") for i in (0, 1)]
# The strategy of `program(mirrored=True)`.
MIRRORED = Strategy("MirroredStrategy", GPUS, {f"v{i}/w": Copy("v0/w", i) for i in (0, 1)})


def program(
    *changes: Op,
    gpus: Sequence[int] = (0, 1),
    variables: Sequence[str] = ("w",),
    step: Mapping[str, Any] | None = None,
    outputs: Mapping[str, tuple[int | None, ...] | None] | None = None,
    values: Mapping[str, Any] | None = None,
    mirrored: bool = False,
    **more: Any,
) -> Placement:
    """A tower on each of `gpus`, averaged on the host: x, a MatMul with each variable, a loss.

    With `mirrored`, each tower has a copy of each variable: v0/w, v1/w. Otherwise, variables are
    on the host. `changes` are ops: an op with the name of an existing op replaces it. A new op is
    added before the first op that uses it, or at the end. `step` replaces fields of the step.
    """
    ops = [*_ops(gpus, variables, mirrored)]
    changed = {op.name: op for op in changes}
    ops = [changed.pop(op.name, op) for op in ops]
    whole_step = StepOps(
        train_op=("train",),
        losses=("loss:0",),
        objectives=tuple(f"tower_{i}/loss:0" for i in range(len(gpus))),
        counters=("step",),
    )
    return placement(
        *_ordered(ops, changed),
        step=whole_step._replace(**(step or {})),
        outputs={"share": (), **(outputs or {})},
        values={"step/one": 1, **(values or {})},
        **{"machine": f"gpu*{max(gpus, default=0) + 1}", **more},
    )


def _ordered(ops: Sequence[Op], new: dict[str, Op]) -> Iterator[Op]:
    """The ops in a possible order of building: a new op comes before the first op that uses it."""

    def with_new(op: Op) -> Iterator[Op]:
        for source in (*op.inputs, *op.colocated):
            if (name := producer_of(source)) in new:
                yield from with_new(new.pop(name))
        yield op

    for built in ops:
        yield from with_new(built)
    while new:
        yield from with_new(new.pop(next(iter(new))))


def _ops(gpus: Sequence[int], variables: Sequence[str], mirrored: bool) -> Iterator[Op]:
    copies = [(i, gpu, name) for i, gpu in enumerate(gpus) for name in variables if mirrored]
    for i, gpu, name in copies:
        yield variable(f"v{i}/{name}", at=f"GPU:{gpu}")
    for name in (*(() if mirrored else variables), "step"):
        yield variable(name)
    for i, gpu in enumerate(gpus):
        yield from _tower(i, f"/gpu:{gpu}", variables, f"v{i}/" if mirrored else "")
    yield host("loss", "AddN", *(f"tower_{i}/loss" for i in range(len(gpus))))
    yield host("share", "Const")
    for name in variables:
        yield host(f"sum/{name}", "AddN", *(gradient(i, name) for i in range(len(gpus))))
        yield host(f"mean/{name}", "Mul", f"sum/{name}", "share")
        if not mirrored:
            yield host(f"update/{name}", _APPLY, name, "rate", f"mean/{name}")
    for i, gpu, name in copies:
        yield on(gpu, f"update/v{i}/{name}", _APPLY, f"v{i}/{name}", "rate", f"mean/{name}")
    yield host("step/one", "Const")
    yield host("step/add", "AssignAddVariableOp", "step", "step/one")
    updated = [f"v{i}/{name}" for i, _, name in copies] or variables
    yield host("train", "NoOp", *(f"^update/{name}" for name in updated), "^step/add")


def _tower(i: int, gpu: str, variables: Sequence[str], copies: str) -> Iterator[Op]:
    yield op(f"tower_{i}/x", "Placeholder", gpu, gpu)
    before = f"tower_{i}/x"
    for name in variables:
        at = gpu if copies else "CPU:0"
        yield op(f"tower_{i}/{name}/read", "ReadVariableOp", gpu, at, f"{copies}{name}")
        yield op(f"tower_{i}/{name}/MatMul", "MatMul", gpu, gpu, before, f"tower_{i}/{name}/read")
        before = f"tower_{i}/{name}/MatMul"
    yield op(f"tower_{i}/loss", "Mean", gpu, gpu, before)
    scaled = f"gradients/tower_{i}/loss_grad/Mul"
    yield op(scaled, "Mul", gpu, gpu, before, f"tower_{i}/loss")
    before = f"tower_{i}/x"
    for name in variables:
        yield op(gradient(i, name), "MatMul", gpu, gpu, before, scaled)
        before = f"tower_{i}/{name}/MatMul"


def recorded(
    variables: Sequence[str] = ("w",),
    gpus: Sequence[int] = (0, 1),
    scalars: Sequence[str] = (),
) -> dict[str, Any]:
    """Arguments of `program` for recorded gradients, and for shapes: rows with 3 columns.

    The program also needs the op ``rate``, a scalar like the ops in ``scalars``.
    """
    calls = [
        GradientCall(
            [f"tower_{i}/loss:0"],
            [""],
            list(variables),
            [[gradient(i, name)] for name in variables],
        )
        for i in range(len(gpus))
    ]
    products = [f"{name}/MatMul" for name in variables]
    outputs = {f"tower_{i}/{op}": (None, 3) for i in range(len(gpus)) for op in ("x", *products)}
    step = StepOps(train_op=("train",), losses=("loss:0",), counters=("step",))
    return {
        "gpus": gpus,
        "variables": variables,
        "step": step.with_gradients(calls)._asdict(),
        "outputs": {
            **outputs,
            **dict.fromkeys([f"tower_{i}/loss" for i in range(len(gpus))], ()),
            **dict.fromkeys(("rate", *scalars), ()),
        },
        "shapes": dict.fromkeys(variables, (3, 3)),
    }


def gradient(i: int, variable: str = "w") -> str:
    """The op that computes the gradient of a variable in tower i."""
    return f"gradients/tower_{i}/{variable}/MatMul_grad/MatMul"


def host(name: str, type: str, *inputs: str, **more: Any) -> Op:
    """An op that requests the host and is assigned to it."""
    return op(name, type, "/cpu:0", "CPU:0", *inputs, **more)


def on(gpu: int, name: str, type: str, *inputs: str, **more: Any) -> Op:
    """An op that requests a GPU and is assigned to it."""
    return op(name, type, f"/gpu:{gpu}", f"GPU:{gpu}", *inputs, **more)


def variable(name: str, type: str = "VarHandleOp", at: str = "CPU:0", **more: Any) -> Op:
    """A variable that is assigned to its requested device, by default the host."""
    return op(name, type, at, at, **more)


def mixed_losses(**more: Any) -> Placement:
    """Towers; the second adds the loss of the first to its own."""
    own = on(1, "tower_1/own", "Mean", "tower_1/w/MatMul")
    both = on(1, "tower_1/loss", "AddN", "tower_0/loss", "tower_1/own")
    return program(own, both, **more)


def split(*changes: Op, **more: Any) -> Placement:
    """One model of two layers, each on its own GPU with its weights (a, b) and their slots (a/m,
    b/m)."""
    names = [(0, "a"), (1, "b")]
    ops = [
        host("x", "Placeholder"),
        *(variable(name, at=f"/gpu:{i}") for i, name in names),
        *(variable(f"{name}/m", at=f"/gpu:{i}") for i, name in names),
        on(0, "first", "MatMul", "x", "a"),
        on(1, "second", "MatMul", "first", "b"),
        on(1, "gradients/second_grad/MatMul", "MatMul", "first", "second"),
        on(0, "gradients/first_grad/MatMul", "MatMul", "x", "gradients/second_grad/MatMul"),
        on(0, "update/a", "ResourceApplyMomentum", "a", "a/m", "gradients/first_grad/MatMul"),
        on(1, "update/b", "ResourceApplyMomentum", "b", "b/m", "gradients/second_grad/MatMul"),
        host("train", "NoOp", "^update/a", "^update/b"),
    ]
    changed = {op.name: op for op in changes}
    ops = [changed.pop(op.name, op) for op in ops]
    step = StepOps(train_op=("train",), losses=("second:0",), objectives=("second:0",))
    return placement(*_ordered(ops, changed), **{"step": step, **more})


def accumulating(*changes: Op, **more: Any) -> Placement:
    """Towers that add up their metrics, each in its own variable on its GPU."""
    own = [variable(f"shown{i}", at=f"GPU:{i}") for i in (0, 1)]
    adds = [
        on(i, f"tower_{i}/add", "AssignAddVariableOp", f"shown{i}", f"tower_{i}/w/MatMul")
        for i in (0, 1)
    ]
    new = {op.name: op for op in (*own, *adds)} | {op.name: op for op in changes}
    return program(*new.values(), **more)


def joint(gpus: Sequence[int] = (0, 1), **more: Any) -> Placement:
    """Towers with one joint loss, and its gradients."""
    return program(gpus=gpus, **{"step": {"objectives": ("loss:0",)}, **more})


def broken_mirror(*changes: Op, named: bool = True) -> Placement:
    """A variable for each tower, and one sum, which updates the first variable on its GPU.

    With ``named``, the variables come from get_variable.
    """
    return program(
        *(op(f"v{i}/w/Initializer/zeros", "Const") for i in (0, 1) if named),
        on(0, "sum/w", "AddN", gradient(0), gradient(1)),
        host("train", "NoOp", "^update/v0/w", "^step/add"),
        *changes,
        mirrored=True,
    )
