"""No change of a single op that changes what a proved program computes leaves it proved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from support.drawn_steps import FEEDS, Recipe, build, right_recipes
from support.fuzzing import examples
from support.steps import Program, StepOp, compare, differences

from placement_checks.step.comparison import State
from placement_checks.step.terms import Assumption

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
# Differences are fractions of the change of a variable. Constants have the precision of float32.
EQUAL = 1e-4
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


@given(right_recipes(), st.data())
@settings(max_examples=examples(15))
def test_changed_op(recipe: Recipe, data: st.DataObject) -> None:
    """If the verdict stays, NumPy computes the same."""
    towers, one = build(recipe, recipe.count), build(recipe, 1)
    used = sorted(towers.used_ops(), key=list(towers.ops).index)
    name = data.draw(st.sampled_from(used))
    changes = _changes(towers, name)
    assume(changes)
    op = data.draw(st.sampled_from(changes))
    changed = replace(towers, ops={**towers.ops, name: op}, _sample_runs=[])
    with np.errstate(all="ignore"):
        _check(recipe, changed, one, f"{name}: {op}")


def _check(recipe: Recipe, changed: Program, one: Program, text: str) -> None:
    try:
        for name in changed.used_ops():
            changed.outputs(name)
    except (ValueError, IndexError, TypeError):
        assume(False)  # a graph that TensorFlow rejects
    found = compare(changed, one)
    states = {answer.state for answer in found.variables.values()}
    if states != {State.PROVED}:
        event("no longer proved")
        return
    event("still proved")
    rows = [(12,) * recipe.count, (24,) * recipe.count]
    if recipe.cut == FEEDS and Assumption.EQUAL_ROWS not in found.assumed:
        rows.append((12, *[2] * (recipe.count - 1)))
    for seed, each in enumerate(rows):
        largest = max(differences(changed, one, found, each, seed).values())
        assert not np.isfinite(largest) or largest < EQUAL, text
