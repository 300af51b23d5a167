from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import (
    broken_mirror,
    gradient,
    host,
    joint,
    mixed_losses,
    on,
    program,
    variable,
)
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.errors import InputError
from placement_checks.rules.devices.averaging_on_host import AveragingOnHost


def on_gpu(count: int = 2, **more: Any) -> Placement:
    """Towers with gradients that are added up on the first GPU."""
    return program(on_first_gpu("sum/w", *map(gradient, range(count))), gpus=range(count), **more)


def on_first_gpu(name: str, *inputs: str) -> Op:
    return on(0, name, "AddN", *inputs)


def used_twice(i: int) -> Iterator[Op]:
    """A tower that uses weights twice: they have two gradients."""
    twice = f"gradients/tower_{i}/twice_grad/MatMul"
    yield on(i, f"tower_{i}/twice", "MatMul", f"tower_{i}/w/MatMul", f"tower_{i}/w/read")
    yield on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/twice")
    yield on(i, twice, "MatMul", f"tower_{i}/x")
    yield op(f"gradients/AddN_{i}", "AddN", "", f"GPU:{i}", gradient(i), twice)


def in_backward_pass(at: str) -> Placement:
    """One loss of all towers: its backward pass adds up the gradients."""
    return program(
        op("gradients/AddN", "AddN", "", at, gradient(0), gradient(1)),
        host("update/w", "ResourceApplyGradientDescent", "w", "rate", "gradients/AddN"),
        step={"objectives": ("loss:0",)},
    )


def on_server(task: int) -> Placement:
    server = f"/job:ps/replica:0/task:{task}/cpu:0"
    return program(op("sum/w", "AddN", server, server, gradient(0), gradient(1)))


def reduced(**more: Any) -> Placement:
    return program(
        *(on(i, f"reduced_{i}", "NcclAllReduce", gradient(i)) for i in (0, 1)),
        host("mean/w", "Mul", "reduced_0", "share"),
        **more,
    )


def mirror(*changes: Op) -> Placement:
    """The sum updates only the first copy. The step runs the first of the changes."""
    return broken_mirror(
        on(0, "tower_0/step", "Mul", "tower_0/x", "step"),
        host("train", "NoOp", "^update/v0/w", *(f"^{op.name}" for op in changes[:1])),
        *changes,
    )


CASES = {
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (2, 12)},
    "the sum is on the first GPU": broken(
        on_gpu(
            lines={"sum/w": "main.py:50 net.py:3", gradient(1): "main.py:40"},
            device_lines={"sum/w": "main.py:4"},
        )
    ),
    "all towers are named, and the middle of a long path is left out": broken(on_gpu(12)),
    "the path contains only the gradients": broken(
        program(
            host("finite", "IsFinite", "tower_0/loss"),
            on(0, "sum/w", "SelectV2", "finite", gradient(0), gradient(1)),
        )
    ),
    # Without a request, the placer puts the sum with the gradients.
    "the sum requests no device": broken(
        program(op("sum/w", "AddN", "", "GPU:0", gradient(0), gradient(1)))
    ),
    "every addition of a chain combines gradients": broken(
        program(
            on(0, "first", "AddV2", gradient(0), gradient(1)),
            on(0, "sum/w", "AddV2", "first", gradient(2)),
            gpus=[0, 1, 2],
        )
    ),
    "only the stack combines stacked gradients": kept(
        program(
            host("stack", "Pack", gradient(0), gradient(1)),
            on(0, "sum/w", "Mean", "stack", "axes"),
        )
    ),
    "the gradients of one of three variables": broken(
        program(
            on(1, "sum/b", "AddN", gradient(0, "b"), gradient(1, "b")), variables=["a", "b", "c"]
        )
    ),
    "a sum within a tower combines no towers": kept(
        program(
            *used_twice(0),
            *used_twice(1),
            host("sum/w", "AddN", "gradients/AddN_0", "gradients/AddN_1"),
        )
    ),
    "gradients are scaled and clipped in their towers": kept(
        program(
            *(on(i, f"clipped_{i}", "ClipByValue", gradient(i)) for i in (0, 1)),
            host("sum/w", "AddN", "clipped_0", "clipped_1"),
        )
    ),
    # Clipping by the global norm scales every gradient by a scalar.
    "the norm of all gradients on a GPU combines none": kept(
        program(
            on(0, "norm", "L2Loss", "sum/w"),
            host("clipped", "Mul", "mean/w", "norm"),
            host("update/w", "ResourceApplyGradientDescent", "w", "rate", "clipped"),
            outputs={"norm": ()},
        )
    ),
    "a sum in the backward pass on the host": kept(in_backward_pass("CPU:0")),
    "a sum in the backward pass on a GPU": broken(in_backward_pass("GPU:0")),
    "a sum on the GPU of a third tower does not name that tower": broken(
        program(
            on(2, "gradients/AddN", "AddN", gradient(0), gradient(1)),
            host("sum/w", "AddN", "gradients/AddN", gradient(2)),
            gpus=[0, 1, 2],
        )
    ),
    "the gradients of one loss of all towers": kept(joint()),
    "a summary of the gradients of all towers updates nothing": kept(
        program(on(0, "shown", "AddN", gradient(0), gradient(1)))
    ),
    **{
        f"allowed on {device}": kept(on_gpu(), device=device)
        for device in ("/gpu:0", "/gpu", ("/cpu:0", "/gpu:0"), "/job:localhost")
    },
    **{
        f"only allowed on {device}": broken(on_gpu(), device=device)
        for device in ("/gpu:1", ("/cpu:0", "/gpu:1"), ("/cpu:0", "/job:ps"))
    },
    **{f"on any server, task {task}": kept(on_server(task), device="/job:ps") for task in (0, 1)},
    "on the first server": kept(on_server(0), device="/job:ps/task:0"),
    "on the second server instead of the first": broken(on_server(1), device="/job:ps/task:0"),
    "on a server instead of a worker": broken(on_server(0), device="/job:worker"),
    "mixed losses": not_checked(mixed_losses()),
    "one tower trains": not_checked(program(host("sum/w", "AddN", gradient(1)))),
    "each tower applies its own gradients": not_checked(
        program(
            host("update/w", "ResourceApplyGradientDescent", "w", "rate", gradient(0)),
            host("update/w_1", "ResourceApplyGradientDescent", "w", "rate", gradient(1)),
        )
    ),
    "towers that only predict": not_checked(
        placement(variable("w"), *(on(i, f"predict_{i}", "MatMul", "x", "w") for i in (0, 1)))
    ),
    "the sum was not placed": not_checked(
        program(op("sum/w", "AddN", "/cpu:0", "", gradient(0), gradient(1)))
    ),
    "gradients that no step applies": not_checked(program(host("train", "NoOp", "^step/add"))),
    "gradients, and no step is known": not_checked(
        program(host("update/w", "AssignSubVariableOp", "w", "mean/w"), step={"train_op": ()})
    ),
    "the sum that updates copies may be on a GPU": not_checked(
        program(on_first_gpu("sum/w", gradient(0), gradient(1)), mirrored=True)
    ),
    "in addition to copies, a table that all towers read": broken(
        program(
            variable("table"),
            *(on(i, f"tower_{i}/row", "ResourceGather", "table", f"tower_{i}/x") for i in (0, 1)),
            *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/w/MatMul", f"row_{i}") for i in (0, 1)),
            *(on(i, f"row_{i}", "Tanh", f"tower_{i}/row") for i in (0, 1)),
            *(on(i, f"gradients/row_{i}_grad/Mul", "Mul", f"row_{i}") for i in (0, 1)),
            on_first_gpu("sum/w", gradient(0), gradient(1)),
            on_first_gpu("sum/table", *(f"gradients/row_{i}_grad/Mul" for i in (0, 1))),
            host("update/table", "ResourceApplyGradientDescent", "table", "rate", "sum/table"),
            host("train", "NoOp", "^update/v0/w", "^update/v1/w", "^update/table"),
            mirrored=True,
        )
    ),
    "a collective op combines gradients on no device": not_checked(reduced()),
    "a collective op, for copies": not_checked(reduced(mirrored=True)),
    "ops on the result of a collective combine nothing": not_checked(
        program(
            *(on(i, f"reduced_{i}", "CollectiveReduceV2", gradient(i)) for i in (0, 1)),
            on_first_gpu("sum/w", "reduced_0", "reduced_1"),
        )
    ),
    "a broken mirror, on the GPU of the updated copy": broken(mirror()),
    "a broken mirror, on another GPU": broken(
        mirror(on(1, "sum/w", "AddN", gradient(0), gradient(1)))
    ),
    "a broken mirror, for another variable too": broken(
        mirror(host("update/step", "ResourceApplyGradientDescent", "step", "rate", "sum/w"))
    ),
}

test_verdicts = verdicts(AveragingOnHost, CASES)


def test_an_invalid_device_is_refused() -> None:
    with pytest.raises(InputError, match="is not part of a device name"):
        AveragingOnHost(device="host")
