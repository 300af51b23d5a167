"""Weights of gradients, compared with numbers: random linear ops between towers and an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import op
from support.towers import gradient, host, program

from placement_checks import Op, Placement
from placement_checks.analysis.objective.gradient_weights import Gradient, Unread
from placement_checks.analysis.objective.objective import objective

_TOWERS = 3
_APPLY = "ResourceApplyGradientDescent"


class Expression:
    """Ops that combine the gradients of towers, with the value of each op for given gradients."""

    def __init__(self, gradients: np.ndarray) -> None:
        self.ops: list[Op] = []
        self.constants: dict[str, float] = {}
        self.values: dict[str, Any] = {gradient(i): gradients[i] for i in range(_TOWERS)}

    def add(self, kind: str, value: Any, *inputs: str) -> str:
        name = f"op_{len(self.ops)}"
        self.ops.append(host(name, kind, *inputs))
        self.values[name] = value
        return name

    def constant(self, value: float) -> str:
        name = self.add("Const", value)
        self.constants[name] = value
        return name


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Expression, str]:
    """A random expression that is linear in the gradients, and its last op."""
    expression = Expression(np.eye(_TOWERS))
    tensors = [gradient(i) for i in range(_TOWERS)]
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["AddN", "Sub", "Neg", "Mul", "RealDiv", "Identity", "Mean"]))
        one, other = draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        value, second = expression.values[one], expression.values[other]
        number = float(draw(st.integers(1, 4)))
        if kind == "AddN":
            tensors.append(expression.add(kind, value + second, one, other))
        elif kind == "Sub":
            tensors.append(expression.add(kind, value - second, one, other))
        elif kind == "Neg":
            tensors.append(expression.add(kind, -value, one))
        elif kind == "Mul":
            factor = expression.constant(number)
            inputs = (one, factor) if draw(st.booleans()) else (factor, one)
            tensors.append(expression.add(kind, value * number, *inputs))
        elif kind == "RealDiv":
            tensors.append(expression.add(kind, value / number, one, expression.constant(number)))
        elif kind == "Mean":
            stacked = expression.add("Pack", None, one, other)
            axis = expression.constant(0.0)
            tensors.append(expression.add(kind, (value + second) / 2, stacked, axis))
        else:
            tensors.append(expression.add(kind, value, one))
    return expression, tensors[-1]


def updated_by(tensor: str, *ops: Op, **more: Any) -> Placement:
    """Three towers; the update of w takes a tensor that `ops` compute."""
    losses = {f"tower_{i}/loss:0": [gradient(i)] for i in range(_TOWERS)}
    return program(
        *ops,
        host("update/w", _APPLY, "w", "rate", tensor),
        gpus=range(_TOWERS),
        step={"gradients": losses},
        **more,
    )


def coefficients(graph: Placement) -> Mapping[str, float]:
    """The weight of each tower's gradient in the update of w."""
    read = objective(graph)
    form = read.weights.of_update(read.updates("w")[0])
    assert not isinstance(form, Unread), form
    return {key.tensor: value for (key, _), value in form.items() if isinstance(key, Gradient)}


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_weights_equal_derivatives(drawn: tuple[Expression, str]) -> None:
    expression, last = drawn
    graph = updated_by(last, *expression.ops, values=expression.constants)

    found = coefficients(graph)

    expected = expression.values[last]
    weights = [found.get(gradient(i), 0.0) for i in range(_TOWERS)]
    assert weights == pytest.approx(list(expected))


def unread(graph: Placement) -> Unread:
    read = objective(graph)
    form = read.weights.of_update(read.updates("w")[0])
    assert isinstance(form, Unread), form
    return form


def test_a_product_of_gradients_is_not_read() -> None:
    graph = updated_by("product", host("product", "Mul", gradient(0), gradient(1)))

    assert unread(graph) == ("product", "(Mul) computes neither a sum nor a multiple of gradients")


def test_a_bounded_gradient_of_one_tower_is_not_read() -> None:
    bounded = host("bounded", "Minimum", gradient(0), "limit")

    assert unread(updated_by("bounded", bounded)) == (
        "bounded",
        "(Minimum) computes neither a sum nor a multiple of gradients",
    )


def test_a_bound_on_the_gradients_of_all_towers_is_a_factor() -> None:
    total = host("total", "AddN", *map(gradient, range(_TOWERS)))
    graph = updated_by("bounded", total, host("bounded", "Minimum", "total", "limit"))

    assert coefficients(graph) == {gradient(i): 1.0 for i in range(_TOWERS)}


def test_rows_of_sparse_gradients_are_added_up() -> None:
    joined = host("joined", "ConcatV2", *map(gradient, range(_TOWERS)), "axis")

    assert coefficients(updated_by("joined", joined)) == {gradient(i): 1.0 for i in range(_TOWERS)}


def test_a_collective_adds_up_its_members() -> None:
    members = [
        op(f"reduced_{i}", "CollectiveReduce", f"/gpu:{i}", f"GPU:{i}", gradient(i))
        for i in range(_TOWERS)
    ]
    attributes = {each.name: {"merge_op": b"Add", "final_op": b"Div"} for each in members}
    graph = updated_by("reduced_0", *members, attributes=attributes)

    assert coefficients(graph) == {gradient(i): pytest.approx(1 / 3) for i in range(_TOWERS)}


def test_a_reduction_by_the_maximum_is_not_read() -> None:
    members = [
        op(f"reduced_{i}", "CollectiveReduce", f"/gpu:{i}", f"GPU:{i}", gradient(i))
        for i in range(_TOWERS)
    ]
    attributes = {each.name: {"merge_op": b"Max"} for each in members}
    graph = updated_by("reduced_0", *members, attributes=attributes)

    assert unread(graph).op == "reduced_0"


def assigned(tensor: str, *ops: Op, **more: Any) -> Placement:
    """Three towers; the program itself subtracts a tensor from w."""
    losses = {f"tower_{i}/loss:0": [gradient(i)] for i in range(_TOWERS)}
    update = host("update/w", "AssignSubVariableOp", "w", tensor)
    return program(*ops, update, gpus=range(_TOWERS), step={"gradients": losses}, **more)


def test_a_sum_of_functions_of_one_gradient_is_no_quotient() -> None:
    """As in Nesterov's momentum: the learning rate stays a factor."""
    ops = [
        host("total", "AddN", *map(gradient, range(_TOWERS))),
        host("half", "Mul", "total", "factor"),
        host("both", "AddV2", "total", "half"),
        host("step/w", "Mul", "both", "rate"),
        *(host(name, "Const") for name in ("factor", "rate")),
    ]
    graph = assigned("step/w", *ops, values={"factor": 0.5, "rate": 0.1})

    assert coefficients(graph) == pytest.approx({gradient(i): 0.15 for i in range(_TOWERS)})


@pytest.mark.timeout(20)
def test_an_update_by_the_result_of_a_loop_is_not_read() -> None:
    """A loop of TensorFlow 1 leads back to its first op."""
    loop = [
        host("initial", "Const"),
        host("enter", "Enter", "initial"),
        host("norm", "L2Loss", gradient(0)),
        host("scaled", "Mul", "merge", "norm"),
        host("next", "NextIteration", "scaled"),
        host("merge", "Merge", "enter", "next"),
    ]

    assert unread(assigned("merge", *loop, outputs={"norm": ()})).op == "next"
