from __future__ import annotations

from typing import Any

from support.graphs import op
from support.towers import gradient, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.devices import Device
from placement_checks.core.strategies import Strategy
from placement_checks.rules.devices.slots_with_variables import SlotsWithVariables


def momentum(at: str = "CPU:0", *changes: Op, **more: Any) -> Placement:
    """The slot of an optimizer of TensorFlow."""
    return program(
        *changes,
        variable("w/Momentum", at=at),
        host("update/w", "ResourceApplyMomentum", "w", "w/Momentum", "rate", "mean/w", "momentum"),
        **more,
    )


def velocity(at: str = "CPU:0", **more: Any) -> Placement:
    """Momentum written out op by op."""
    return program(
        variable("velocity", at=at),
        host("velocity/read", "ReadVariableOp", "velocity"),
        host("velocity/slower", "Mul", "velocity/read", "momentum"),
        host("velocity/new", "AddV2", "velocity/slower", "mean/w"),
        host("velocity/set", "AssignVariableOp", "velocity", "velocity/new"),
        host("change", "Mul", "velocity/new", "rate"),
        host("update/w", "AssignSubVariableOp", "w", "change"),
        host("train", "NoOp", "^update/w", "^velocity/set"),
        **more,
    )


def average(at: str = "CPU:0", kind: str = "ReadVariableOp", **more: Any) -> Placement:
    """A moving average of w."""
    return program(
        variable("w/average", at=at),
        host("average/read", kind, "w/average"),
        host("average/w", kind, "w", "^update/w"),
        host("average/away", "Sub", "average/read", "average/w"),
        host("average/step", "Mul", "average/away", "decay"),
        host("average/set", "AssignSubVariableOp", "w/average", "average/step"),
        host("train", "NoOp", "^update/w", "^average/set"),
        **more,
    )


def copied(*ops: Op, **more: Any) -> Placement:
    """Towers with another variable on a GPU, and a step with these ops on it."""
    return program(
        variable("other", at="GPU:0"), *ops, host("train", "NoOp", "^update/w", "^copy"), **more
    )


READ = host("w/value", "ReadVariableOp", "w", "^update/w")

COPY = host("copy", "AssignVariableOp", "other", "w/value")


def read_by(reader: Op) -> Placement:
    return program(*average("GPU:0").ops.values(), reader)


def apart(slot: str, primary: str) -> Placement:
    return momentum(slot, variable("w", at=primary))


def shared_slot(at: str) -> Placement:
    """Each GPU keeps the optimizer state of a part of the variables, for all copies."""
    return program(
        variable("v0/w/m", at=at),
        *(
            on(i, f"update/v{i}/w", "ResourceApplyMomentum", f"v{i}/w", "v0/w/m", "rate", "mean/w")
            for i in (0, 1)
        ),
        mirrored=True,
        machine="gpu*3",
    )


SERVER = "/job:ps/replica:0/task:1/cpu:0"
SLOW = program(
    *(variable(f"{name}/slow", at="GPU:0") for name in "ab"),
    *(host(f"update/{n}", "ResourceApplyMomentum", n, f"{n}/slow", f"mean/{n}") for n in "ab"),
    variables=["a", "b"],
)


CASES = {
    "an optimizer's slot": kept(momentum()),
    "momentum by hand": kept(velocity()),
    "a moving average": kept(average()),
    "an optimizer's slot on a GPU": broken(
        momentum(
            "GPU:0",
            lines={"w/Momentum": "main.py:50 net.py:3"},
            device_lines={"w/Momentum": "main.py:4"},
        )
    ),
    "a slot that a replica creates": broken(
        momentum(
            "GPU:0",
            strategy=Strategy("CentralStorageStrategy", [Device.parse("/gpu:0")]),
        )
    ),
    "momentum by hand on a GPU": broken(velocity("GPU:1")),
    "a moving average on a GPU": broken(average("GPU:1")),
    **{f"{count} towers": kept(momentum(gpus=range(count))) for count in (1, 12)},
    **{
        f"{count} towers, a slot on a GPU": broken(momentum("GPU:1", gpus=range(count)))
        for count in (2, 12)
    },
    "one tower, a slot on a GPU": broken(momentum("GPU:0", gpus=range(1))),
    "a slot on the host of a variable on a GPU": broken(apart("CPU:0", "GPU:0")),
    # No update takes it: the program only restores it.
    "a slot is recognized by its colocation": broken(
        program(variable("w/slot", at="GPU:0", colocated=["w"]))
    ),
    "all slots of all variables are counted": kept(
        program(
            *(variable(f"{name}/{slot}") for name in "ab" for slot in ("m", "v")),
            *(
                host(f"update/{n}", "ResourceApplyAdam", n, f"{n}/m", f"{n}/v", f"mean/{n}")
                for n in "ab"
            ),
            variables=["a", "b"],
        )
    ),
    "slots by reference are known": broken(
        program(
            variable("w", "VariableV2"),
            variable("w/Momentum", "VariableV2", at="GPU:0"),
            host("update/w", "ApplyMomentum", "w", "w/Momentum", "rate", "mean/w", "momentum"),
        )
    ),
    "averages by reference are known": broken(average("GPU:0", kind="Identity")),
    "a summary reads an average": broken(
        read_by(host("shown", "HistogramSummary", "tag", "average/read"))
    ),
    "an evaluation on the host reads an average": broken(
        read_by(host("evaluated", "MatMul", "pictures", "average/read"))
    ),
    "an evaluation without a request reads an average": broken(
        read_by(op("evaluated", "MatMul", "", "CPU:0", "pictures", "average/read"))
    ),
    "slots of an optimizer are known without a train op": broken(
        momentum("GPU:0", step={"train_op": ()})
    ),
    "one slot on the server of its variable, and one on another": broken(
        program(
            op("w", "VariableV2", SERVER, SERVER),
            op("near", "VariableV2", SERVER, SERVER),
            op("far", "VariableV2", "/job:ps/task:0", "/job:ps/replica:0/task:0/cpu:0"),
            host("update/w", "ApplyAdam", "w", "near", "far", "mean/w"),
            machine="ps*2; worker*1: gpu*2",
        )
    ),
    "a copy of a trained variable is found as its average": broken(copied(READ, COPY)),
    "a copy of another shape": not_checked(copied(READ, COPY, shapes={"other": (9,)})),
    "a copy that a tower reads": not_checked(
        copied(READ, COPY, on(0, "tower_0/aside", "MatMul", "tower_0/x", "other"))
    ),
    "a copy of something else": not_checked(
        copied(host("copy", "AssignVariableOp", "other", "tower_0/x"))
    ),
    "a copy outside of the step": not_checked(program(variable("other", at="GPU:0"), READ, COPY)),
    "a copy of the shape": not_checked(
        copied(
            READ,
            host("copy", "AssignVariableOp", "other", "size"),
            host("size", "Shape", "w/value"),
        )
    ),
    # Powers of beta may be anywhere; they are read and written on their own.
    "the scalars of an optimizer are no slots of a larger variable": kept(
        program(
            variable("w/m"),
            variable("power", at="GPU:0"),
            host("update/w", "ResourceApplyAdam", "w", "w/m", "power/read", "mean/w"),
            host("power/read", "ReadVariableOp", "power"),
            host("power/new", "Mul", "power/read", "beta"),
            host("power/set", "AssignVariableOp", "power", "power/new"),
            host("train", "NoOp", "^update/w", "^power/set"),
            shapes={"power": ()},
        )
    ),
    "a scalar that the update takes by reference is no slot": kept(
        program(
            variable("power", "VariableV2", at="GPU:0"),
            variable("w/m", "VariableV2"),
            variable("w", "VariableV2"),
            host("update/w", "ApplyAdam", "w", "w/m", "power", "mean/w"),
            shapes={"power": ()},
        )
    ),
    # Weights that are kept orthogonal to others of one shape, written out op by op.
    "trained variables with mutual updates are no slots": kept(
        program(
            variable("b", at="GPU:0"),
            variable("b/m", at="GPU:0"),
            host("b/value", "ReadVariableOp", "b"),
            host("apart", "AddV2", "mean/a", "b/value"),
            host("update/a", "AssignSubVariableOp", "a", "apart"),
            host("moved", "ResourceApplyMomentum", "b", "b/m", "rate", "mean/b"),
            host("train", "NoOp", "^update/a", "^moved"),
            variables=["a", "b"],
        )
    ),
    # By the update written out; its shape and use are a slot's.
    "an accumulator of gradients is a slot": broken(
        program(
            variable("total", at="GPU:0"),
            host("total/add", "AssignAddVariableOp", "total", "mean/w"),
            host("total/read", "ReadVariableOp", "total"),
            host("update/w", "AssignSubVariableOp", "w", "total/read"),
            host("train", "NoOp", "^update/w", "^total/add"),
        )
    ),
    # A mask of weights to prune is read and never written.
    "a variable that is only fed into the update is no slot": not_checked(
        program(
            variable("mask", at="GPU:0"),
            host("mask/read", "ReadVariableOp", "mask"),
            host("masked", "Mul", "mean/w", "mask/read"),
            host("update/w", "AssignSubVariableOp", "w", "masked"),
        )
    ),
    "all slots are allowed": kept(SLOW, allow=("*/slow",)),
    **{
        f"allowed: {allow}": broken(SLOW, allow=allow)
        for allow in ((), ("a/slow",), ("*/Slow", "a", "slow"))
    },
    "a log of a machine without GPUs": not_checked(momentum(placer="log", machine="cpu*1")),
    "plain gradient descent": not_checked(program()),
    "no train op": not_checked(average(step={"train_op": ()})),
    "each update takes a gradient": not_checked(
        program(host("update/w", "ResourceApplyGradientDescent", "w", gradient(0)))
    ),
    "a variable that is colocated with other ops is no slot": kept(
        momentum("CPU:0", variable("w", colocated=["step/one", "gone"]))
    ),
    # It is updated in the step and has a part in the gradient, as a velocity has.
    "a scale of the loss is no slot of a scalar variable": not_checked(
        program(
            variable("scale", at="GPU:0"),
            host("scale/read", "ReadVariableOp", "scale"),
            host("unscaled", "RealDiv", "mean/w", "scale/read"),
            host("update/w", "ResourceApplyGradientDescent", "w", "rate", "unscaled"),
            host("scale/grow", "AssignAddVariableOp", "scale", "growth"),
            host("train", "NoOp", "^update/w", "^scale/grow"),
            shapes={"w": (), "scale": ()},
        )
    ),
    "a slot that was not placed": broken(apart("", "CPU:0")),
    "a variable that was not placed": broken(apart("CPU:0", "")),
    "a slot of several copies, on the first copy's GPU": kept(shared_slot("GPU:0")),
    "a slot of several copies, on the second copy's GPU": kept(shared_slot("GPU:1")),
    "a slot of several copies, on another GPU": broken(shared_slot("GPU:2")),
}

test_verdicts = verdicts(SlotsWithVariables, CASES)
