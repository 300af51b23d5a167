"""Changes of single ops of a program that `support.steps` runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st
from support.steps import Program, StepOp

# Op types with equally many inputs, which mostly keep the shape.
OTHER_TYPES = {
    "AddV2": ("Sub", "Mul"),
    "Sub": ("AddV2",),
    "Mul": ("AddV2", "RealDiv", "Maximum"),
    "RealDiv": ("Mul", "Sub"),
    "Square": ("Abs", "Neg"),
    "Neg": ("Identity",),
    "Abs": ("Neg",),
    "Relu": ("Tanh", "Elu"),
    "Tanh": ("Relu",),
    "Sigmoid": ("Tanh",),
    "Sin": ("Tanh",),
    "Softplus": ("Relu",),
    "Softmax": ("LogSoftmax",),
    "Sqrt": ("Square", "Identity"),
    "Sum": ("Mean", "Max", "Min"),
    "Mean": ("Sum", "Max"),
    "Max": ("Min", "Sum"),
    "Minimum": ("Maximum",),
    "Greater": ("Less",),
    "StopGradient": ("Identity",),
    "SquaredDifference": ("Mul", "Sub"),
    "FloorDiv": ("Mul",),
    "Identity": ("StopGradient",),
    "AssignSubVariableOp": ("AssignAddVariableOp", "AssignVariableOp"),
    "AssignVariableOp": ("AssignAddVariableOp",),
    "ZerosLike": ("OnesLike",),
}
_FIXED = ("Placeholder", "VarHandleOp", "NoOp")


def _changed_constants(op: StepOp) -> Iterator[StepOp]:
    if op.value is None:
        return
    if op.value.dtype.kind == "f":
        yield op._replace(value=op.value * 1.5 + 0.01)
        yield op._replace(value=op.value * 1.001)
    elif op.value.dtype.kind == "i":
        yield op._replace(value=op.value + 1)
        yield op._replace(value=op.value - 1)


def _changed_inputs(program: Program, name: str) -> Iterator[StepOp]:
    """Ops that read other tensors of the same dtype and shape, or that wait for less."""
    op = program.ops[name]
    tensors: dict[object, list[str]] = {}
    for other in program.ops:
        if other == name:
            break
        if other in program.variables:
            tensors.setdefault(program.variables[other], []).append(other)
            continue
        for number, tensor in enumerate(program.outputs(other)):
            tensors.setdefault(tensor, []).append(f"{other}:{number}" if number else other)
    kinds = {source: kind for kind, sources in tensors.items() for source in sources}
    for number, source in enumerate(op.inputs):
        before, after = op.inputs[:number], op.inputs[number + 1 :]
        if source.startswith("^"):
            yield op._replace(inputs=(*before, *after))
            continue
        for other in tensors[kinds[source]]:
            if other != source:
                yield op._replace(inputs=(*before, other, *after))


def _changes(program: Program, name: str) -> list[StepOp]:
    op = program.ops[name]
    if name in program.gradients or op.type in _FIXED:
        return []
    others = [op._replace(type=kind) for kind in OTHER_TYPES.get(op.type, ())]
    return [*others, *_changed_constants(op), *_changed_inputs(program, name)]


def changed_program(program: Program, data: st.DataObject) -> tuple[Program, str]:
    """A program with a change of one op that its step runs, and the change in words.

    A graph that TensorFlow rejects is not drawn.
    """
    used = sorted(program.used_ops(), key=list(program.ops).index)
    name = data.draw(st.sampled_from(used))
    found = _changes(program, name)
    assume(found)
    op = data.draw(st.sampled_from(found))
    changed = replace(program, ops={**program.ops, name: op}, _sample_runs=[])
    try:
        for each in changed.used_ops():
            changed.outputs(each)
    except (ValueError, IndexError, TypeError):
        assume(False)
    return changed, f"{name}: {op}"
