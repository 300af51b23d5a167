from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from support.graphs import op, placement
from support.towers import gradient, host, mixed_losses, on, program, split, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.placement import Details
from placement_checks.rules.devices.gradients_colocated import GradientsColocated

ADRIFT = "gradients/tower_1/w/MatMul_grad/MatMul"


def adrift(*names: str, **more: Any) -> list[Op]:
    """Backward ops that request no device and end on the first GPU."""
    return [op(name, "MatMul", "", "GPU:0", "tower_1/x", **more) for name in names]


def fallen(**more: Any) -> Op:
    """A backward op that requests the GPU of its tower and ends on the host."""
    return op(ADRIFT, "MatMul", "/gpu:1", "CPU:0", "tower_1/x", **more)


@dataclass
class Recorded(Details):
    """The forward op that the capture recorded for a backward op."""

    backward: str
    forward: str

    def forward_op(self, op: str) -> str:
        return self.forward if op == self.backward else ""


def recorded(*ops: Op, forward: str = "tower_1/w/MatMul", **more: Any) -> Placement:
    return replace(program(*ops, **more), details=Recorded(ADRIFT, forward))


def of_a_variable(type: str, colocated: Sequence[str]) -> Placement:
    """A backward op on the host, which takes a variable."""
    return recorded(host(ADRIFT, type, "w", colocated=colocated))


def of_an_input(type: str, requested: str, source: str) -> Placement:
    """A backward op on the host, where the labels are."""
    return recorded(
        host("labels", "IteratorGetNext"), op(ADRIFT, type, requested, "CPU:0", source)
    )


def of_a_lookup(gpu: int) -> Placement:
    """The table is on the first GPU, and the second tower looks rows up."""
    return program(
        variable("table", at="GPU:0"),
        on(0, "row", "ResourceGather", "table", "tower_1/x", colocated=["table"]),
        on(1, "tower_1/w/MatMul", "MatMul", "row", "tower_1/w/read"),
        on(gpu, "gradients/row_grad/Reshape", "Reshape", gradient(1)),
        gpus=range(3),
    )


def of_a_shared_op(gpu: int) -> Placement:
    return program(
        on(0, "kernel", "Mul", "tower_0/w/read", "scale"),
        *(on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", "kernel") for i in range(3)),
        on(gpu, "gradients/kernel_grad/Mul", "Mul", gradient(1), "scale"),
        gpus=range(3),
    )


TWO_ADRIFT = program(
    *adrift(ADRIFT), op("gradients/tower_1/loss_grad/Mul", "Mul", "", "GPU:0", "tower_1/x")
)

CASES = {
    # One tower is judged as well: its gradients may be on the host.
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (1, 2, 12)},
    "the backward pass of the second tower is on the first GPU": broken(
        program(
            *adrift(ADRIFT),
            device_lines={ADRIFT: "main.py:4"},
            lines={ADRIFT: "main.py:40 net.py:3", "tower_1/w/MatMul": "net.py:9"},
        )
    ),
    **{
        f"the backward pass of all {count} towers is on the first GPU": broken(
            program(*adrift(*map(gradient, range(count))), gpus=range(count))
        )
        for count in (2, 12)
    },
    "a recorded forward op is not explained by its name": broken(
        program(
            *adrift("any/name", colocated=["tower_1/w/MatMul"]), step={"backward": {"any/name"}}
        )
    ),
    "the recorded forward op precedes the name": kept(
        recorded(*adrift(ADRIFT), forward="tower_0/w/MatMul")
    ),
    "colocation with another backward op does not name a forward op": broken(
        program(*adrift(ADRIFT, colocated=[gradient(0)]))
    ),
    "colocation with a missing op does not name a forward op": broken(
        program(*adrift(ADRIFT, colocated=["gone"]))
    ),
    "the recorded forward op is missing": not_checked(
        recorded(forward="gone", step={"backward": (ADRIFT,)})
    ),
    **{
        f"a saved graph with gradients in {scope}": broken(
            program(*adrift(f"{scope}/tower_1/w/MatMul_grad/MatMul_1"))
        )
        for scope in ("gradients", "gradients_1", "train/gradients", "tower_1/gradients_12")
    },
    "a request for another GPU": broken(program(on(0, ADRIFT, "MatMul", "tower_1/x"))),
    "a tape of a traced function cannot colocate gradients": broken(
        program(*adrift(ADRIFT), step={"traced": True})
    ),
    "a backward op on the host": broken(program(host(ADRIFT, "MatMul", "tower_1/x"))),
    "the forward op is a lookup on the host": kept(
        program(
            host("table/lookup", "GatherV2", "w", "words"),
            on(1, "gradients/table/lookup_grad/Reshape", "Reshape", "tower_1/loss"),
        )
    ),
    "an op that keeps the order": kept(program(op(ADRIFT, "NoOp", "", "GPU:0", "^tower_1/x"))),
    "an op that passes on": kept(program(op(ADRIFT, "Identity", "", "CPU:0", "tower_1/x"))),
    "a branch, which passes on": kept(
        program(op(ADRIFT, "Switch", "", "CPU:0", "tower_1/x", "tower_1/loss"))
    ),
    "an op that has no kernel there": kept(program(fallen(fallback_reason="no GPU kernel"))),
    "an op bound to another device has a kernel": broken(
        program(fallen(fallback_reason="bound", fell_with_another=True))
    ),
    "an op that was not placed": kept(program(op(ADRIFT, "MatMul", "", "", "tower_1/x"))),
    "a forward op that was not placed": kept(
        program(op("tower_1/w/MatMul", "MatMul", "/gpu:1", "", "tower_1/x", "tower_1/w/read"))
    ),
    "an average is no backward op": kept(
        program(op("sum/w", "AddN", "", "GPU:0", gradient(0), gradient(1)))
    ),
    # As `VariableShape` is; TensorFlow makes a constant of a known shape, and casts it.
    **{
        f"the {type} of a variable is where the variable is": kept(of_a_variable(type, ["w"]))
        for type in ("Shape", "Const", "Cast")
    },
    "a product is not where the variable is": broken(of_a_variable("MatMul", ["w"])),
    "a shape that is not colocated with the variable": broken(of_a_variable("Shape", [])),
    "a shape that is colocated with examples": broken(of_a_variable("Shape", ["tower_1/x"])),
    "the placer puts a shape next to its input": kept(of_an_input("Shape", "", "labels")),
    "a shape that is not next to its input": broken(of_an_input("Shape", "", "tower_1/x")),
    "a shape that requests the host": broken(of_an_input("Shape", "/cpu:0", "labels")),
    "a computation next to its input": broken(of_an_input("Neg", "", "labels")),
    "the placer puts a shape on the GPU of its input": kept(
        split(op("gradients/second_grad/Shape", "Shape", "", "GPU:0", "first"))
    ),
    "a shape that requests the GPU of its input": broken(
        split(op("gradients/second_grad/Shape", "Shape", "GPU:0", "GPU:0", "first"))
    ),
    "nothing is allowed": broken(TWO_ADRIFT),
    "a type is allowed": broken(TWO_ADRIFT, allow=("MatMul",)),
    "a name and a type are allowed": kept(TWO_ADRIFT, allow=(ADRIFT, "Mul")),
    "neither types in lower case nor forward ops allow anything": broken(
        TWO_ADRIFT, allow=("matmul", "tower_1/w/MatMul")
    ),
    "a graph without gradients": not_checked(placement(on(0, "a", "MatMul"))),
    "a step without gradients": not_checked(program(step={"backward": ()})),
    "no forward op is known": not_checked(
        program(on(0, "g", "MatMul"), step={"backward": ("g",)})
    ),
    # The forward op of a gradient is known all the same.
    "mixed losses matter only if there is a finding": kept(mixed_losses()),
    "mixed losses may cause the finding": not_checked(
        program(on(1, "tower_1/loss", "AddN", "tower_0/loss", "tower_1/w/MatMul"), *adrift(ADRIFT))
    ),
    **{
        f"{type} computes nothing": kept(program(op(ADRIFT, type, "", "GPU:0", "tower_1/x")))
        for type in (
            *("NoOp", "Identity", "ReadVariableOp", "VariableShape", "Const", "IdentityN"),
            *("Enter", "Merge"),
        )
    },
    "the gradient of a lookup on the GPU of the table": kept(of_a_lookup(0)),
    "the gradient of a lookup on the GPU of its tower": kept(of_a_lookup(1)),
    "the gradient of a lookup on a third GPU": broken(of_a_lookup(2)),
    "the gradient of a shared op on the GPU of its tower": kept(of_a_shared_op(1)),
    "the gradient of a shared op on a third GPU": broken(of_a_shared_op(2)),
    "the layers of a split model are no towers": broken(
        split(op("gradients/second_grad/MatMul", "MatMul", "", "GPU:0", "first", "second"))
    ),
}

test_verdicts = verdicts(GradientsColocated, CASES)
