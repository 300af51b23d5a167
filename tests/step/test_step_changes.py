"""What updates make of a variable, and which ops clip gradients, in a step that is read alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import op, placement

from placement_checks import Op
from placement_checks.step.changes import StepChanges

NUMBERS = st.sampled_from([-2.0, -0.5, 0.25, 1.0, 3.0])


class Affine(NamedTuple):
    """A tensor ``factor · w + term``, and the ops that compute it."""

    name: str
    factor: float
    term: float
    ops: Sequence[Op] = ()
    values: Sequence[tuple[str, float]] = ()


@st.composite
def affine(draw: st.DrawFn) -> Affine:
    """A random expression of w and constants."""
    numbers = count()

    def constant(value: float) -> Affine:
        name = f"const_{next(numbers)}"
        return Affine(name, 0.0, value, [op(name, "Const")], [(name, value)])

    def made(kind: str, *of: Affine, factor: float, term: float) -> Affine:
        name = f"op_{next(numbers)}"
        inner = {each.name: each for one in of for each in one.ops}
        values = [each for one in of for each in one.values]
        ops = [*inner.values(), op(name, kind, "", "", *(one.name for one in of))]
        return Affine(name, factor, term, ops, values)

    def grow(depth: int) -> Affine:
        kinds = ["w", "const", "AddV2", "Sub", "Mul", "RealDiv", "Neg", "Identity"]
        kind = draw(st.sampled_from(kinds[:2] if depth == 0 else kinds))
        if kind == "w":
            return Affine("read", 1.0, 0.0)
        if kind == "const":
            return constant(draw(NUMBERS))
        one = grow(depth - 1)
        if kind in ("Neg", "Identity"):
            sign = -1.0 if kind == "Neg" else 1.0
            return made(kind, one, factor=sign * one.factor, term=sign * one.term)
        if kind in ("Mul", "RealDiv"):
            other = constant(draw(NUMBERS))
            by = other.term if kind == "Mul" else 1 / other.term
            return made(kind, one, other, factor=one.factor * by, term=one.term * by)
        other, sign = grow(depth - 1), 1.0 if kind == "AddV2" else -1.0
        factor = one.factor + sign * other.factor
        return made(kind, one, other, factor=factor, term=one.term + sign * other.term)

    return grow(draw(st.integers(0, 4)))


def step(*ops: Op, shape: Sequence[int] = (), **more: Any) -> StepChanges:
    """A step that runs the ops ``update…``; the ops ``gradient…`` compute gradients."""
    graph = placement(
        op("w", "VarHandleOp"),
        op("read", "ReadVariableOp", "", "", "w"),
        *ops,
        op("train", "NoOp", "", "", *(f"^{each.name}" for each in ops if "update" in each.name)),
        shapes={"w": tuple(shape)},
        **more,
    )
    backward = {each.name for each in ops if each.name.startswith("gradient")}
    return StepChanges(graph, ["train"], backward, {"w"})


@given(affine(), st.sampled_from(["AssignVariableOp", "AssignAddVariableOp", "AssignSub"]))
def test_an_update_is_a_factor_of_the_old_value_and_a_term(value: Affine, kind: str) -> None:
    changes = step(
        *value.ops,
        op("update", kind, "", "", "w", value.name),
        values=dict(value.values),
        outputs={each.name: () for each in value.ops},
    )
    sign = {"AssignVariableOp": 1.0, "AssignAddVariableOp": 1.0, "AssignSub": -1.0}[kind]
    factor = sign * value.factor + (kind != "AssignVariableOp")
    term = sign * value.term

    change = changes.change("update")

    assert change.factor is not None
    assert changes.terms.constant(change.factor) == pytest.approx(factor)
    assert changes.terms.constant(change.term) == pytest.approx(term)
    assert changes.decays(change) == (not math.isclose(factor, 1.0) and factor != 0.0)
    increments = changes.increments(change)
    if math.isclose(factor, 1.0):
        assert increments is not None
        assert list(increments) == pytest.approx([term])
    else:
        assert increments is None


def test_another_function_of_the_old_value_has_no_factor() -> None:
    changes = step(
        op("tanh", "Tanh", "", "", "read"), op("update", "AssignVariableOp", "", "", "w", "tanh")
    )

    change = changes.change("update")

    assert change.factor is None
    assert changes.decays(change)
    assert changes.increments(change) is None


def test_the_same_term_added_and_subtracted_is_undone() -> None:
    changes = step(
        op("gradient", "MatMul"),
        op("scaled", "Mul", "", "", "gradient", "rate"),
        op("update/up", "AssignAddVariableOp", "", "", "w", "scaled"),
        op("update/down", "AssignSubVariableOp", "", "", "w", "scaled"),
        op("update/other", "AssignSubVariableOp", "", "", "w", "gradient"),
    )
    up, down, other = [changes.change(f"update/{name}") for name in ("up", "down", "other")]

    assert changes.is_undone(up, down)
    assert not changes.is_undone(up, other)
    assert not changes.is_undone(up, up)


def test_opposite_terms_of_decays_are_not_undone() -> None:
    changes = step(
        op("gradient", "MatMul"),
        op("decayed", "Mul", "", "", "read", "rate"),
        op("more", "AddV2", "", "", "decayed", "gradient"),
        op("less", "Sub", "", "", "decayed", "gradient"),
        op("update/more", "AssignVariableOp", "", "", "w", "more"),
        op("update/less", "AssignVariableOp", "", "", "w", "less"),
    )

    assert not changes.is_undone(changes.change("update/more"), changes.change("update/less"))


LINEAR = {
    "AddN": ("gradient_0", "gradient_1"),
    "Mul": ("gradient_0", "rate"),
    "RealDiv": ("gradient_0", "rate"),
    "Sub": ("gradient_0", "gradient_1"),
    "Neg": ("gradient_0",),
    "Identity": ("gradient_0",),
    "Reshape": ("gradient_0", "shape"),
    "ConcatV2": ("gradient_0", "gradient_1", "axis"),
    "Cast": ("gradient_0",),
    "Sum": ("gradient_0", "axis"),
}
CHANGED = [
    ("Minimum", ("gradient_0", "rate"), "bound"),
    ("ClipByValue", ("gradient_0", "low", "high"), "bound"),
    ("Mul", ("gradient_0", "gradient_1"), "scale"),
    ("RealDiv", ("gradient_0", "gradient_1"), "scale"),
    ("RealDiv", ("rate", "gradient_0"), "other"),
    ("Sign", ("gradient_0",), "other"),
    ("Square", ("gradient_0",), "other"),
    ("Unknown", ("gradient_0",), "other"),
    ("SelectV2", ("gradient_1", "gradient_0", "rate"), "other"),
]


def changed(kind: str, inputs: Sequence[str], *after: Op) -> StepChanges:
    """A step that subtracts a gradient after an op has changed it."""
    return step(
        op("gradient_0", "MatMul"),
        op("gradient_1", "MatMul"),
        op("changed", kind, "", "", *inputs),
        *after,
        op("update", "AssignSubVariableOp", "", "", "w", after[-1].name if after else "changed"),
        shape=(4,),
        outputs={f"gradient_{i}": (4,) for i in (0, 1)},
    )


@pytest.mark.parametrize("kind", LINEAR)
def test_linear_ops_do_not_clip(kind: str) -> None:
    changes = changed(kind, LINEAR[kind])

    assert list(changes.clips(changes.change("update").term)) == []
    gradients = {each for each in LINEAR[kind] if each.startswith("gradient")}
    assert {
        each.partition(":")[0] for each in changes.gradients_in([changes.change("update").term])
    } == gradients


@pytest.mark.parametrize(("kind", "inputs", "expected"), CHANGED)
@pytest.mark.parametrize("after", ["AddN", "Identity", "Reshape", "Sum"])
def test_other_ops_change_gradients(
    kind: str, inputs: Sequence[str], expected: str, after: str
) -> None:
    more = {"AddN": ["gradient_1"], "Reshape": ["shape"], "Sum": ["axis"]}.get(after, [])
    changes = changed(kind, inputs, op("after", after, "", "", "changed", *more))

    (clip, *inner) = changes.clips(changes.change("update").term)

    assert not inner
    assert (clip.op, clip.kind) == ("changed", expected)
    assert clip.gradients == {each for each in inputs if each.startswith("gradient")}
    assert clip.is_added_up == (after == "Sum")
