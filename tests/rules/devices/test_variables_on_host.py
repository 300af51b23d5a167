from __future__ import annotations

from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import (
    GPUS,
    MIRRORED,
    accumulating,
    broken_mirror,
    gradient,
    on,
    program,
    split,
)
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.errors import ConfigError, InputError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE, StepOps
from placement_checks.core.strategies import Strategy
from placement_checks.rules.devices.variables_on_host import VariablesOnHost

CLUSTER = "ps*2; worker*2: gpu*2"


def variable(requested: str, assigned: str, type: str = "VarHandleOp", **more: Any) -> Op:
    return op("w", type, requested, assigned, **more)


def misplaced(machine: str = "ps*2; worker*2") -> Placement:
    """A variable on a worker, and one on a server."""
    return placement(
        variable("/job:worker/cpu:0", "/job:worker/task:1/cpu:0", "VariableV2"),
        op("v", "VariableV2", "/job:ps/task:1", "/job:ps/task:1/cpu:0"),
        machine=machine,
    )


def logged(*ops: Op, **more: Any) -> Placement:
    """A placement from the log of a machine with GPUs."""
    return placement(*ops, placer="log", requested=Missing("a log lacks requests"), **more)


LOCAL = {TRAINABLE: ["w"], GLOBAL: ["w", "step"]}


def cached(at: str) -> Placement:
    """The second tower's examples are kept in a variable."""
    return program(
        op("images", "VarHandleOp", at, at),
        on(1, "tower_1/w/MatMul", "MatMul", "images", "tower_1/w/read"),
        collections=LOCAL,
    )


def outside_scope(shape: tuple[int, ...]) -> Placement:
    """A variable that was created before the scope of a strategy."""
    return placement(
        op("rate", "VarHandleOp", "/gpu:0", "GPU:0"),
        op("a", "MatMul", "/gpu:0", "GPU:0", "rate"),
        shapes={"rate": shape},
        strategy=Strategy("MirroredStrategy", GPUS, outside=["rate"]),
    )


def read_by(towers: int) -> Placement:
    return placement(
        variable("/gpu:0", "GPU:0"),
        *(op(f"a{i}", "MatMul", f"/gpu:{i}", f"GPU:{i}", "w") for i in range(towers)),
        machine=f"gpu*{towers}",
    )


def unrequested(matmul: str) -> Placement:
    return placement(
        op("w", "VarHandleOp", "", "GPU:0"),
        op("x", "Placeholder", "", "GPU:0"),
        op("y", "MatMul", matmul, matmul or "GPU:0", "x", "w"),
    )


THREE = placement(
    variable("/gpu:0", "GPU:0"),
    op("v", "VarHandleOp", "", "CPU:0"),
    op("u", "VarHandleOp", "/gpu:0", "GPU:0"),
)
# A cluster with a variable that is in no collection.
SEEN = placement(
    op("w", "VarHandleOp", "/job:ps", "/job:ps/task:0/cpu:0"),
    op("seen", "VarHandleOp", "/job:ps", "/job:ps/task:1/cpu:0"),
    machine=CLUSTER,
    collections={GLOBAL: ["w"]},
)


ON_GPU = op("w", "VarHandleOp", "GPU:0", "GPU:0")


CASES = {
    "a variable on the host": kept(
        placement(variable("/cpu:0", "CPU:0"), op("a", "MatMul", "/gpu:0", "GPU:0", "w"))
    ),
    "the learning rate of an optimizer outside of the strategy's scope": kept(outside_scope(())),
    "a table outside of the strategy's scope": broken(outside_scope((8,))),
    "a variable on a GPU": broken(
        placement(
            variable("/gpu:1", "GPU:1", "VariableV2"),
            op("v", "VariableV2", "/cpu:0", "CPU:0"),
            lines={"w": "main.py:30 net.py:9 net.py:3"},
        )
    ),
    "a variable without request on the host": broken(
        placement(variable("", "CPU:0"), lines={"w": "main.py:9"})
    ),
    "a variable without request on a GPU": broken(placement(variable("", "GPU:0"))),
    **{
        f"a {type} on a GPU": broken(placement(variable("/gpu:0", "GPU:0", type)))
        for type in ("VarHandleOp", "Variable", "AutoReloadVariable")
    },
    "a device scope decides the device of a variable and its slot": broken(
        placement(
            variable("/gpu:0", "GPU:0"),
            op("w/Momentum", "VarHandleOp", "", "GPU:0", colocated=["w"]),
            device_lines={"w": "main.py:8"},
        )
    ),
    **{
        f"the device function {name} decides the device": broken(
            placement(variable("/gpu:0", "GPU:0"), device_lines={"w": f"main.py:5 in {name}"})
        )
        for name in ("chosen", "<lambda>")
    },
    **{f"{towers} GPUs read a variable on a GPU": broken(read_by(towers)) for towers in (2, 12)},
    "any task of a partial name": kept(
        placement(variable("/job:ps/task:1", "/job:ps/task:1/cpu:0"), machine=CLUSTER),
        device="/job:ps",
    ),
    "only a job is requested, and the assigned device counts": kept(
        placement(variable("/job:ps", "/job:ps/task:0/cpu:0"), machine=CLUSTER), device="/cpu:0"
    ),
    "one of several devices": kept(
        placement(variable("/gpu:1", "GPU:1")), device=("/cpu:0", "/gpu:1")
    ),
    "a slot that is colocated with its variable": kept(
        placement(
            op("v", "VarHandleOp", "/cpu:0", "CPU:0"), variable("", "CPU:0", colocated=["v"])
        ),
        device="/cpu:0",
    ),
    "one variable was not placed": kept(
        placement(variable("/cpu:0", "/cpu:0"), op("v", "VarHandleOp", "/gpu:0")), device="/cpu:0"
    ),
    "another job": broken(
        placement(variable("/job:worker/cpu:0", "/job:worker/task:1/cpu:0"), machine=CLUSTER),
        device=("/job:ps", "/job:chief/cpu:0"),
    ),
    "all variables are allowed": kept(THREE, allow=("*",)),
    **{
        f"allowed: {allow}": broken(THREE, allow=allow)
        for allow in (("w", "v"), ("[uw]",), ("W", "x*"))
    },
    "no variables": not_checked(placement(op("a", "NoOp", "", "CPU:0"))),
    "a host without GPUs": not_checked(placement(variable("", "CPU:0"), machine="cpu*2")),
    "a cluster without GPUs": not_checked(
        placement(variable("/job:worker", "/job:worker/cpu:0"), machine="ps*1; worker*2")
    ),
    "a cluster without GPUs is judged by its jobs": broken(misplaced(), device="/job:ps"),
    **{
        f"a cluster without GPUs, allowed on {device}": broken(misplaced(), device=device)
        for device in (
            "/job:ps/cpu:0",
            "/job:ps/task:0",
            "/job:worker",
            ("/job:ps/task:0", "/job:worker"),
        )
    },
    **{
        f"a cluster with only allowed devices, {device}": not_checked(misplaced(), device=device)
        for device in ("/cpu:0", "/cpu", ("/job:ps", "/job:worker"), "/task:*/cpu:0")
    },
    "a cluster with second CPUs": kept(misplaced("ps*2; worker*2: cpu*2"), device="/cpu:0"),
    "a host with two CPUs": not_checked(
        placement(variable("/cpu:1", "CPU:1"), machine="cpu*2"), device="/cpu:0"
    ),
    **{
        f"{machine} lacks {device}": broken(
            placement(variable("/cpu:0", "CPU:0", "VariableV2"), machine=machine), device=device
        )
        for machine, device in [
            ("pss*2; worker*2: gpu", "/job:ps"),
            ("ps*2; worker*2: gpu", "/job:ps/task:2/cpu:0"),
            ("gpu*2", ("/job:ps", "/gpu:1")),
            ("gpu*2", ("/cpu:1", "/job:ps")),
            (None, "/job:ps"),
        ]
    },
    "a resource variable, and the machine lacks the job": broken(
        placement(variable("", "CPU:0"), machine="pss*2; worker*2: gpu"), device="/job:ps"
    ),
    "a log has assigned devices and no requests": broken(
        logged(
            op("w", "VarHandleOp", "", "GPU:0"),
            op("v", "VarHandleOp", "", "CPU:0"),
            machine="gpu*2",
        )
    ),
    "variables missing in the log are counted": kept(
        logged(op("w", "VarHandleOp", "", "CPU:0"), op("v", "VarHandleOp"), op("u", "VarHandleOp"))
    ),
    "a log with a variable that was not placed": not_checked(logged(op("w", "VarHandleOp"))),
    "a log that names no variable": not_checked(logged(op("a", "MatMul", "", "GPU:0"))),
    "a log that names some types": not_checked(
        logged(op("a", "MatMul", "", "GPU:0"), op("b", ""))
    ),
    "a log that names no types": not_checked(logged(op("a", "", "", "GPU:0"))),
    "a log of a machine without GPUs": not_checked(
        logged(op("w", "VarHandleOp", "", "CPU:0"), machine="cpu*1")
    ),
    "variables without assigned devices": not_checked(placement(op("w", "VarHandleOp", "/cpu:0"))),
    **{
        f"{count} copies on the GPUs of their towers": kept(
            program(mirrored=True, gpus=range(count))
        )
        for count in (2, 12)
    },
    "a copy on the GPU of another tower": broken(
        program(op("v1/w", "VarHandleOp", "/gpu:0", "GPU:0"), mirrored=True)
    ),
    "a variable that only looks like a copy takes its own tower's gradients": broken(
        program(
            *(
                on(i, f"update/v{i}/w", "ResourceApplyGradientDescent", f"v{i}/w", gradient(i))
                for i in (0, 1)
            ),
            mirrored=True,
        )
    ),
    "examples on the GPU that reads them": kept(cached("GPU:1")),
    "examples on the host": kept(cached("CPU:0")),
    "examples on another GPU": broken(cached("GPU:0")),
    **{
        f"a local variable on GPU 1, allowed on {local or 'its own'}": kept(
            cached("GPU:1"), local=local
        )
        for local in ((), ("/gpu:1",), ("/cpu:0", "/gpu:1"))
    },
    **{
        f"a local variable on GPU 1, allowed on {local}": broken(cached("GPU:1"), local=local)
        for local in (("/gpu:0",), ("/cpu:0",))
    },
    "a local variable on a server": kept(SEEN, device="/job:ps"),
    "a local variable on a server instead of a worker": broken(
        SEEN, device="/job:ps", local=("/job:worker",)
    ),
    "without collections, no variable is local": broken(
        placement(variable("/gpu:0", "GPU:0")), local=("/gpu:0",)
    ),
    "an accumulator for a summary on the GPU of its tower": kept(
        accumulating(op("shown1", "VarHandleOp", "GPU:1", "GPU:1"))
    ),
    "an accumulator for a summary on the host": kept(
        accumulating(op("shown1", "VarHandleOp", "CPU:0", "CPU:0"))
    ),
    "an accumulator for a summary on another GPU": broken(
        accumulating(op("shown1", "VarHandleOp", "GPU:0", "GPU:0"))
    ),
    "the parts of a split model on their GPUs": kept(split()),
    "a split model, a variable on the GPU of another part": broken(
        split(op("a", "VarHandleOp", "/gpu:1", "GPU:1"))
    ),
    "a split model, a slot apart from its variable": broken(
        split(op("a/m", "VarHandleOp", "/gpu:1", "GPU:1"))
    ),
    "a split model, a variable that requests no device": broken(
        split(op("a", "VarHandleOp", "", "GPU:0"))
    ),
    "a split model, a variable of no part": broken(
        split(op("step", "VarHandleOp", "/gpu:0", "GPU:0"))
    ),
    "a split model, a variable that two parts read": broken(
        split(
            op("table", "VarHandleOp", "/gpu:0", "GPU:0"),
            on(0, "first", "MatMul", "x", "a", "table"),
            on(1, "second", "MatMul", "first", "b", "table"),
        )
    ),
    "variables and slots of a broken mirror": broken(
        broken_mirror(on(1, "v1/w/Momentum", "VarHandleOp", colocated=("v1/w",)))
    ),
    "a broken mirror with a variable on another GPU": broken(
        broken_mirror(on(0, "v1/w", "VarHandleOp"))
    ),
    "a broken mirror with variables of tf.Variable": broken(broken_mirror(named=False)),
    "a program that requests no device": broken(unrequested("")),
    "a program that requests the host for a computation": broken(unrequested("/cpu:0")),
    "a program that requests a GPU for a computation": broken(unrequested("/gpu:0")),
    "a variable of eager code": broken(placement(ON_GPU, step=StepOps(traced=True))),
    "a variable of a strategy that keeps variables on the host": broken(
        placement(ON_GPU, strategy=Strategy("CentralStorageStrategy", GPUS))
    ),
    "a slot that a replica creates, of a strategy that keeps variables on the host": broken(
        placement(
            op("w", "VarHandleOp", "CPU:0", "CPU:0"),
            op("w/m", "VarHandleOp", "GPU:0", "GPU:0"),
            strategy=Strategy("CentralStorageStrategy", GPUS),
        )
    ),
    "a variable of a strategy that keeps copies": broken(placement(ON_GPU, strategy=MIRRORED)),
    "a variable outside of the scope of a strategy that keeps variables on the host": broken(
        placement(ON_GPU, strategy=Strategy("CentralStorageStrategy", GPUS, outside=["w"]))
    ),
}

test_verdicts = verdicts(VariablesOnHost, CASES)


@pytest.mark.parametrize("device", ["host", ("/cpu:0", "/host:0")])
def test_device_must_be_a_device_name(device: str | tuple[str, str]) -> None:
    with pytest.raises(InputError, match="is not part of a device name"):
        VariablesOnHost(device)


def test_local_must_be_devices() -> None:
    with pytest.raises(ConfigError, match="local names no device"):
        VariablesOnHost(local=("",))
