from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import gradient, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import GpuLimit
from placement_checks.core.missing import Missing
from placement_checks.core.placement import TRAINABLE, StepOps
from placement_checks.core.strategies import Strategy
from placement_checks.rules.devices.no_idle_device import NoIdleDevice

APPLY = "ResourceApplyGradientDescent"


def busy(*gpus: str, machine: str | None = "gpu*2") -> Placement:
    """A MatMul on each of the GPUs."""
    ops = (op(f"op{number}", "MatMul", gpu, gpu) for number, gpu in enumerate(gpus))
    return placement(*ops, machine=machine)


WORKERS = "ps*1; worker*3: gpu*2"


def between(*ops: Op, variables: str = "ps", machine: str = WORKERS, **more: Any) -> Placement:
    """A graph that one worker builds for itself, with a variable on a job."""
    at = f"/job:{variables}/task:0/cpu:0"
    return placement(op("w", "VarHandleOp", at, at), *ops, machine=machine, **more)


def of_task(number: int, *gpus: int, job: str = "worker", named: bool = True) -> list[Op]:
    """A MatMul on each of the GPUs of a task, which the request names or leaves open."""
    return [
        op(
            f"{job}{number}/{gpu}",
            "MatMul",
            f"/job:{job}/task:{number}/gpu:{gpu}" if named else f"/job:{job}/gpu:{gpu}",
            f"/job:{job}/task:{number}/gpu:{gpu}",
            "w",
        )
        for gpu in gpus
    ]


def hiding(placement: Placement, gpus: int) -> Placement:
    """The placement on a machine of which a setting leaves a number of GPUs."""
    assert placement.machine is not None
    limited = placement.machine.limited([GpuLimit(gpus, "CUDA_VISIBLE_DEVICES='0'")])
    return replace(placement, machine=limited)


def on_one_gpu() -> Placement:
    """Two towers on one GPU; the outer scope also has updates and a model that is not trained."""
    towers = [
        on(0, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/w/read") for i in (0, 1)
    ]
    unused = [on(0, f"serial/{i}", "MatMul", "tower_0/x", "tower_0/w/read") for i in range(9)]
    return program(
        *unused,
        *towers,
        *(on(0, f"tower_{i}/loss", "Mean", f"tower_{i}/w/MatMul") for i in (0, 1)),
        on(0, "update/w", APPLY, "w", "rate", "mean/w"),
        device_lines={
            **dict.fromkeys(["update/w", *(each.name for each in unused)], "main.py:1"),
            **{each.name: "net.py:2" for each in towers},
        },
    )


def replicated(name: str, *gpus: int) -> Placement:
    """A strategy that computes on the first GPU."""
    replicas = [Device.parse(f"/device:GPU:{index}") for index in gpus]
    return replace(busy("/gpu:0"), strategy=Strategy(name, replicas))


def working(*ops: int) -> Placement:
    """A machine with this number of ops on each GPU."""
    return busy(
        *(f"/gpu:{index}" for index, count in enumerate(ops) for _ in range(count)),
        machine=f"gpu*{len(ops)}",
    )


def mastered(task: int) -> Placement:
    """An op that leaves the task open, in a program that makes a server of a task."""
    ops = [*of_task(0, 0), *of_task(0, 1, named=False)]
    return between(*ops, machine=f"{WORKERS}; master=worker/task:{task}")


def serving(held: int) -> Placement:
    """As many towers as GPUs, which take turns on the first GPU; the second updates variables."""
    return program(
        *(variable(name, at="GPU:1") for name in ["a", "b"][:held]),
        *(on(1, f"update/{name}", APPLY, name, "rate", f"mean/{name}") for name in ["a", "b"]),
        gpus=(0, 0),
        variables=["a", "b"],
        machine="gpu*2",
    )


ONE = program(gpus=(0,), collections={TRAINABLE: ["w"]}, machine="gpu*1")
TWO_LOSSES = program(gpus=(0, 0), collections={TRAINABLE: ["w"]}, machine="gpu*1")
SINGLE = {"": None, ", compared with the program for one GPU": ONE}


def with_single(graph: Placement, single: Placement | None) -> Evidence:
    """A program, and the same program for one GPU."""
    return Evidence(graph) if single is None else Evidence(graph, single_gpu=single)


def crowded(*changes: Op, gpus: Sequence[int] = (0, 0), **more: Any) -> Placement:
    """Towers on GPU 0 of two; GPU 1 holds the variable and updates it."""
    held = [
        variable("w", at="GPU:1"),
        on(1, "sum/w", "AddN", *(gradient(i) for i in range(len(gpus)))),
        on(1, "update/w", APPLY, "w", "rate", "mean/w"),
    ]
    collected = {TRAINABLE: ["w"]}
    return program(*held, *changes, gpus=gpus, machine="gpu*2", collections=collected, **more)


def with_losses(*towers: int, single: Placement = ONE) -> Evidence:
    """Towers on two GPUs; the step minimizes only the losses of some towers."""
    losses = tuple(f"tower_{i}/loss:0" for i in towers)
    graph = program(step={"objectives": losses, "losses": losses}, collections={TRAINABLE: ["w"]})
    return Evidence(graph, single_gpu=single)


CASES = {
    "two GPUs that compute": kept(busy("/gpu:0", "/gpu:1", "/gpu:1", "/cpu:0")),
    "a GPU that computes nothing": broken(busy("/gpu:0", "/gpu:0", "/cpu:0", "/cpu:0", "/cpu:0")),
    "ops of several types": kept(
        placement(
            *[op(f"op{type}", type, "/gpu:0", "/gpu:0") for type in ("Add", "MatMul", "Mul")],
            machine="gpu*1",
        )
    ),
    "all GPUs are idle": broken(busy("/cpu:0")),
    # The finding lists the other losses.
    "all losses are on one GPU": broken(
        placement(
            op("x", "Placeholder", "/gpu:0", "GPU:0"),
            *(op(f"tower_{i}/loss", "Mean", "/gpu:0", "GPU:0", "x") for i in (0, 1)),
            machine="gpu*3",
            step=StepOps(objectives=["tower_0/loss:0", "tower_1/loss:0"]),
            lines={f"tower_{i}/loss": "main.py:9 net.py:3" for i in (0, 1)},
            device_lines={"tower_1/loss": "main.py:7"},
        )
    ),
    # The line is the scope of the towers, not the scope around the loop.
    "towers on one GPU, in the same scope": broken(on_one_gpu()),
    "the program requests no GPU": broken(
        placement(
            op("a", "MatMul", "", "GPU:0"),
            step=StepOps(objectives=["a"]),
            lines={"a": "main.py:9"},
        )
    ),
    "a GPU of another task": broken(
        busy("/job:worker/task:0/gpu:0", machine="ps*1; worker*2: gpu*1")
    ),
    **{
        f"{type} computes": kept(placement(op("a", type, "/gpu:0", "GPU:0"), machine="gpu*1"))
        for type in ("Add", "ApplyGradientDescent", "AssignAdd", "Cast")
    },
    **{
        f"{type} computes nothing": broken(
            placement(op("a", type, "/gpu:0", "GPU:0"), machine="gpu*1")
        )
        for type in (
            *("VarHandleOp", "VariableV2", "Assign", "AssignVariableOp", "Const", "Identity"),
            *("IdentityN", "IsVariableInitialized", "Placeholder", "PlaceholderWithDefault"),
            *("ReadVariableOp", "VarIsInitializedOp", "NoOp", "PlaceholderV2", "VariableShape"),
            *("RefIdentity", "Enter", "Switch", "Merge", "NextIteration"),
        )
    },
    "GPUs that ops did not request": kept(
        placement(op("a", "MatMul", "", "GPU:0"), op("b", "MatMul", "/gpu:7", "GPU:1"))
    ),
    **{
        f"allowed: {allow}": broken(
            busy("/cpu:0", machine="eval*1: gpu*2; worker*1: gpu*2"), allow=allow
        )
        for allow in (
            *(("/gpu:1",), ("/job:eval",), ("/job:worker/gpu:0", "/job:eval/gpu:1")),
            ("/cpu:0",),
        )
    },
    "an allowed GPU that computes is named": broken(busy("/gpu:0"), allow=("/gpu:0",)),
    **{
        f"{name} with one replica": broken(replicated(name, 0))
        for name in (
            *("MirroredStrategy", "CentralStorageStrategy", "OneDeviceStrategy"),
            "MultiWorkerMirroredStrategy",
        )
    },
    "a strategy with a replica on the idle GPU": broken(replicated("MirroredStrategy", 0, 1)),
    "a large machine": broken(busy("/gpu:0", machine="gpu*16")),
    "four GPUs, listed one by one": kept(working(1, 1, 1, 2)),
    "five GPUs with an op each": kept(working(1, 1, 1, 1, 1)),
    "five GPUs with two ops each": kept(working(2, 2, 2, 2, 2)),
    "five GPUs, with the fewest and the most ops": kept(working(3, 1, 2, 1, 1)),
    "five GPUs, and the first has the fewest ops": kept(working(1, 3, 3, 3, 3)),
    "five idle GPUs": broken(working(0, 0, 0, 0, 0)),
    "no GPU": not_checked(busy("/cpu:0", machine="cpu*2")),
    "all GPUs are allowed": not_checked(busy("/cpu:0"), allow=("/gpu",)),
    "no machine": not_checked(busy("/gpu:0", machine=None)),
    "the GPUs of other tasks are left to their graphs": kept(between(*of_task(1, 0, 1))),
    "one GPU of another task": kept(between(*of_task(0, 0), machine="ps*1; worker*2: gpu*1")),
    "an idle GPU of the own task": broken(between(*of_task(1, 1))),
    "ops leave the task open": broken(between(*of_task(0, 0, 1, named=False))),
    "one op leaves the task open": broken(between(*of_task(0, 0), *of_task(0, 1, named=False))),
    "tasks without a parameter server": broken(between(*of_task(0, 0, 1), variables="worker")),
    "tasks without variables": broken(placement(*of_task(0, 0, 1), machine=WORKERS)),
    "tasks without a variable that was placed": broken(
        placement(op("w", "VarHandleOp", "/job:ps"), *of_task(0, 0, 1), machine=WORKERS)
    ),
    "further variables on the worker": kept(
        between(
            op("local", "VarHandleOp", "/job:worker/task:0/cpu:0", "/job:worker/task:0/cpu:0"),
            *of_task(0, 0, 1),
        )
    ),
    "an op without a task, in the program of the first task": kept(mastered(0)),
    "an op without a task, in the program of another task": broken(mastered(1)),
    "a graph for two of three tasks": broken(between(*of_task(0, 0, 1), *of_task(1, 0, 1))),
    # A chief that computes on all its tasks, and a worker that names one.
    "every job has its own task": broken(
        between(
            *of_task(0, 0, job="chief", named=False),
            *of_task(1, 0),
            machine="ps*1; chief*2: gpu*1; worker*2: gpu*1",
        )
    ),
    # An op that is not on a GPU names none either.
    "ops without computation name no task": kept(
        between(
            *of_task(1, 0, 1),
            op("c", "Const", "/job:worker/gpu:0", "/job:worker/task:0/gpu:0"),
            op("d", "MatMul", "/job:worker", "/job:worker/task:0/cpu:0"),
        )
    ),
    "only a server computes": broken(
        between(*of_task(0, 0, job="ps"), machine="ps*1; worker*2: gpu*1")
    ),
    "allowed GPUs name no task": kept(
        between(*of_task(0, 0), *of_task(1, 0, 1)), allow=("/job:worker/task:0",)
    ),
    "a log that names only devices with ops": not_checked(
        between(*of_task(1, 0, 1), all_devices=Missing("a log names only devices with ops"))
    ),
    "a log that was cut, with an idle GPU": broken(
        placement(
            op("a", "MatMul", "/gpu:0", "GPU:0"),
            machine="gpu*2",
            all_devices=Missing("the log was cut"),
        )
    ),
    "a log that was cut, without an idle GPU": not_checked(
        placement(
            op("a", "MatMul", "/gpu:0", "GPU:0"),
            machine="gpu*1",
            all_devices=Missing("the log was cut"),
        )
    ),
    **{
        f"a GPU that only updates {held} of its own variables": broken(serving(held))
        for held in (0, 1, 2)
    },
    **{
        f"an allowed GPU that only updates {held} of its own variables": kept(
            serving(held), allow=("/gpu:1",)
        )
        for held in (0, 1, 2)
    },
    "a GPU that only updates a variable of towers on several GPUs": broken(
        program(on(2, "update/w", APPLY, "w", "rate", "mean/w"), gpus=(0, 1, 1), machine="gpu*3")
    ),
    "a hidden GPU is idle": broken(hiding(busy("/gpu:0"), 1)),
    "a hidden GPU is allowed": kept(hiding(busy("/gpu:0"), 1), allow=("/gpu:1",)),
    "all GPUs are hidden": broken(hiding(busy("/cpu:0"), 0)),
    "all GPUs are hidden and allowed": not_checked(hiding(busy("/cpu:0"), 0), allow=("/gpu",)),
    "the other tower requests a missing GPU": broken(
        placement(
            op("own", "MatMul", "/gpu:0", "/gpu:0"), op("other", "MatMul", "/gpu:7", "/gpu:0")
        )
    ),
    # Towers on the first GPU of two; the second holds the variable and updates it.
    **{
        f"a GPU that only holds variables{compared}": broken(with_single(crowded(), single))
        for compared, single in SINGLE.items()
    },
    "towers with one loss, compared with the program for one GPU": broken(
        with_single(crowded(step={"objectives": ("loss:0",)}), ONE)
    ),
    # Without the program for one GPU, they may be layers of one model.
    "towers with one loss": kept(crowded(step={"objectives": ("loss:0",)})),
    **{
        f"a GPU for variables, and one tower{compared}": kept(
            with_single(crowded(gpus=(0,)), single)
        )
        for compared, single in SINGLE.items()
    },
    # Two networks that are trained in turns, on one GPU of any number.
    "the program for one GPU has as many losses": kept(with_single(crowded(), TWO_LOSSES)),
    # One network for two tasks.
    "two losses with shared computation are no towers": kept(
        crowded(on(0, "tower_1/w/MatMul", "MatMul", "tower_0/w/MatMul", "tower_1/w/read"))
    ),
    "a lookup on the GPU of a table works for its tower": broken(
        crowded(on(1, "tower_1/w/read", "GatherV2", "w", "tower_1/x", colocated=("w",)))
    ),
    **{
        f"the second GPU computes {part}": kept(with_single(crowded(*changes), ONE))
        for part, changes in {
            "a loss": [on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul")],
            "a layer": [
                on(1, "own", "MatMul", "tower_1/x", "tower_1/w/read"),
                on(0, "tower_1/loss", "Mean", "own"),
            ],
            "an evaluation": [
                on(1, "read", "ReadVariableOp", "w"),
                on(1, "eval", "MatMul", "rows", "read"),
            ],
            "an op that requests no device": [
                op("half", "Mul", "", "GPU:1", "tower_1/w/MatMul"),
                on(0, "tower_1/loss", "Mean", "half"),
            ],
            "an op that requests a missing GPU": [
                op("tower_1/loss", "Mean", "/gpu:2", "GPU:1", "tower_1/w/MatMul")
            ],
        }.items()
    },
    "each GPU has its own model": kept(with_single(program(), ONE)),
    "no loss depends on the first copy of the model": broken(with_losses(1)),
    "both towers take the gradient of the last loss": broken(with_losses(1, 1)),
    "losses depend on all copies of the model": kept(with_losses(0, 1)),
    "a copy that the program for one GPU has too, which evaluates": kept(
        with_losses(1, single=TWO_LOSSES)
    ),
}

test_verdicts = verdicts(NoIdleDevice, CASES)


def test_allow_must_name_devices() -> None:
    with pytest.raises(InputError, match="'gpu0' is not part of a device name"):
        NoIdleDevice(allow=("gpu0",))
