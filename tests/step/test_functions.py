"""Branches and loops of functions: NumPy runs each program, so that a wrong expectation fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.steps import (
    Handle,
    Program,
    Value,
    add_n,
    apply,
    compare,
    differences,
    largest,
    mean,
    relu,
    rows_of,
    split,
    square,
    to_float,
    total,
)

from placement_checks.core.placement import Details, Op, Placement, Tensor
from placement_checks.step.comparison import State, StepEquality, compare_steps
from placement_checks.step.terms import Assumption

WIDTH = 3
Loss = Callable[[Value, Handle], Value]


def _program(loss: Loss, towers: int, least: float = 0.0) -> Program:
    """The program that trains a vector on rows."""
    program = Program()
    x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
    parts = split(x, towers) if towers > 1 else [x]
    gradients = [program.gradient(loss(rows, w), w) for rows in parts]
    program.train(w.descend(0.1, add_n(gradients) / float(towers)))
    return program


def _check(towers: Program, one: Program, *, is_equal: bool) -> None:
    found = compare(towers, one)
    answer = found.variables["w"]
    is_proved = answer.state is State.PROVED and Assumption.DECISIONS not in found.assumed
    assert is_proved is is_equal, answer
    assert (differences(towers, one, found, (4, 4), 0)["w"] < 1e-5) is is_equal


# --- branches ---


def _branch(
    condition: Callable[[Value, Handle], Value], yes: float = 2.0, no: float = 0.5
) -> Loss:
    def loss(x: Value, w: Handle) -> Value:
        h = x * w.read()
        errors = square(total(h, 1) - 1.0)
        return mean(
            x.program.branch(condition(x, w), lambda: errors * yes, lambda: relu(errors) * no)
        )

    return loss


def _of_weights(x: Value, w: Handle) -> Value:
    return apply("Greater", total(square(w.read())), 1e-3)


BRANCHES: dict[str, tuple[bool, Loss, Loss]] = {
    "equal": (True, _branch(_of_weights), _branch(_of_weights)),
    "condition of rows": (
        False,
        _branch(lambda x, _: apply("Greater", total(x), 0.0)),
        _branch(lambda x, _: apply("Greater", total(x), 0.0)),
    ),
    "values exchanged": (
        False,
        _branch(_of_weights, 0.5, 2.0),
        _branch(_of_weights, 2.0, 0.5),
    ),
    "condition negated": (
        False,
        _branch(lambda _, w: apply("Less", total(square(w.read())), 1e-3)),
        _branch(_of_weights),
    ),
    "condition that is known": (
        True,
        _branch(lambda x, _: x.program.add("Greater", 1.0, 0.0)),
        lambda x, w: mean(square(total(x * w.read(), 1) - 1.0)) * 2.0,
    ),
    "condition that is known to be false": (
        True,
        _branch(lambda x, _: x.program.add("Greater", 0.0, 1.0)),
        lambda x, w: mean(relu(square(total(x * w.read(), 1) - 1.0))) * 0.5,
    ),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches(name: str) -> None:
    is_equal, towers, one = BRANCHES[name]

    _check(_program(towers, 2), _program(one, 1), is_equal=is_equal)


@pytest.mark.parametrize("is_true", [False, True])
def test_updates_in_a_branch_that_is_known(is_true: bool) -> None:
    """One side of a condition of numbers updates a variable in each step."""

    def build(towers: int, is_known: bool) -> Program:
        program = _program(lambda x, w: mean(square(total(x * w.read(), 1))), towers)
        w = Handle(program, "w")
        with program.after(Value(program, program.roots[0])):
            if not is_known:
                program.train(w.assign_sub([0.1 if is_true else 0.2] * WIDTH))
                return program
            condition = program.add("Greater", 1.0, 0.0 if is_true else 2.0)
            sides = [lambda step=step: _moved(w, step) for step in (0.1, 0.2)]
            program.train(program.branch(condition, sides[0], sides[1]))
        return program

    _check(build(2, is_known=True), build(1, is_known=False), is_equal=True)


def _moved(w: Handle, step: float) -> None:
    w.assign_sub([step] * WIDTH)


@pytest.mark.parametrize("change", ["none", "other side", "other value", "always", "both sides"])
def test_updates_in_branches(change: str) -> None:
    """A variable is decayed after the step if its sum is great enough."""

    def build(towers: int, change: str) -> Program:
        program = _program(lambda x, w: mean(square(total(x * w.read(), 1))), towers)
        w = Handle(program, "w")
        factor = 0.8 if change == "other value" else 0.9

        def decay() -> None:
            w.assign(w.read() * factor)

        def nothing() -> None:
            pass

        step = Value(program, program.roots[0])
        with program.after(step):
            sides = [decay, nothing]
            if change == "other side":
                sides.reverse()
            elif change == "both sides":
                sides = [decay, decay]
            if change == "always":
                program.train(w.assign(w.read() * factor))
            else:
                condition = apply("Greater", total(square(w.read())), 1e-3)
                program.train(program.branch(condition, sides[0], sides[1]))
        return program

    towers, one = build(2, change), build(1, "none")
    answer = compare(towers, one).variables["w"]
    assert (answer.state is State.PROVED) is (change == "none"), answer
    if change in ("none", "other value", "other side"):
        found = compare(towers, one)
        assert (differences(towers, one, found, (4, 4), 0)["w"] < 1e-5) is (change == "none")


@pytest.mark.parametrize("waits", ["condition", "nothing"])
def test_a_branch_reads_after_its_condition(waits: str) -> None:
    """A read in a branch comes after all updates that the condition waits for."""

    def build(towers: int, waits: str) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        start = w.assign(w.read() * 0.5)
        parts = split(x, towers) if towers > 1 else [x]

        def loss(rows: Value) -> Value:
            with program.after(*([start] if waits != "nothing" else [])):
                condition = apply("Greater", total(square(w.read())), 1e-9)

            def errors() -> Value:
                with program.after(*([start] if waits == "all" else [])):
                    return square(total(rows * w.read(), 1) - 1.0)

            return mean(program.branch(condition, errors, lambda: relu(errors()) * 0.5))

        gradients = [program.gradient(loss(rows), w) for rows in parts]
        with program.after(start):
            program.train(w.descend(0.1, add_n(gradients) / float(towers)))
        return program

    found = compare(build(2, waits), build(1, "all"))
    assert (found.variables["w"].state is State.PROVED) is (waits == "condition")


# --- loops ---


def _loop(
    body: Callable[..., Sequence[Value]],
    initial: Callable[[Value, Value], Sequence[Any]],
    times: float = 3.0,
    goes_on: Callable[..., Value] | None = None,
) -> Loss:
    """A loss with a loop over a counter and other variables, which captures weighted rows."""

    def loss(x: Value, w: Handle) -> Value:
        program, h = x.program, x * w.read()
        start = [program.tensor(0.0), *map(program.tensor, initial(x, h))]
        results = program.loop(
            goes_on or (lambda i, *_: apply("Less", i, times)),
            lambda i, *state: [i + 1.0, *body(h, *state)],
            start,
            [h],
        )
        return mean(square(results[1]))

    return loss


def _rows(x: Value, h: Value) -> Sequence[Any]:
    return [h]


def _loop_over_weights(times: float) -> Loss:
    def loss(x: Value, w: Handle) -> Value:
        _, scale = x.program.loop(
            lambda i, _: apply("Less", i, times),
            lambda i, scale: [i + 1.0, apply("Tanh", scale) * 0.5],
            [x.program.tensor(0.0), total(w.read())],
        )
        return mean(square(total(x * w.read(), 1) * scale - 1.0))

    return loss


def _loop_over_columns(count: int) -> Loss:
    """A loss with a loop over equal columns."""

    def loss(x: Value, w: Handle) -> Value:
        program, h = x.program, total(x * w.read(), 1, keeps=True)
        _, columns = program.loop(
            lambda i, _: apply("Less", i, 3.0),
            lambda i, columns: [i + 1.0, apply("Tanh", columns + h)],
            [program.tensor(0.0), h * np.zeros(count)],
            [h],
        )
        return mean(square(total(columns, 1)))

    return loss


def _with_itself(is_equal: bool, loss: Loss) -> tuple[bool, Loss, Loss]:
    return is_equal, loss, loss


LOOPS: dict[str, tuple[bool, Loss, Loss]] = {
    "function of rows": _with_itself(True, _loop(lambda _, s: [apply("Tanh", s)], _rows)),
    "sum of rows": _with_itself(True, _loop(lambda h, s: [s * 0.5 + h], _rows)),
    "constants that become rows": _with_itself(
        True, _loop(lambda h, s: [apply("Tanh", s + h)], lambda x, _: [x * 0.0])
    ),
    "function of weights": _with_itself(True, _loop_over_weights(3.0)),
    "columns": _with_itself(True, _loop_over_columns(3)),
    "other columns": (False, _loop_over_columns(3), _loop_over_columns(1)),
    "function of weights with other times": (
        False,
        _loop_over_weights(3.0),
        _loop_over_weights(2.0),
    ),
    "other times": (
        False,
        _loop(lambda _, s: [apply("Tanh", s)], _rows, 3.0),
        _loop(lambda _, s: [apply("Tanh", s)], _rows, 2.0),
    ),
    "share of the number of rows": _with_itself(
        False, _loop(lambda h, s: [s / to_float(rows_of(s)) + h], _rows)
    ),
    "maxima over rows": _with_itself(False, _loop(lambda h, s: [s * 0.5 + largest(h)], _rows)),
    "maxima that reach rows": _with_itself(
        False,
        _loop(
            lambda h, s, most: [apply("Tanh", s) + most, largest(h) * 0.5],
            lambda _, h: [h, 0.1],
        ),
    ),
    "as many times as there are rows": _with_itself(
        False,
        _loop(
            lambda _, s: [s * 0.9],
            _rows,
            goes_on=lambda i, s: apply("Less", i, to_float(rows_of(s))),
        ),
    ),
    "until a row is small": _with_itself(
        False,
        _loop(
            lambda _, s: [s * 0.5],
            _rows,
            goes_on=lambda _, s: apply("Greater", largest(apply("Abs", s)), 0.1),
        ),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    is_equal, towers, one = LOOPS[name]

    _check(_program(towers, 2), _program(one, 1), is_equal=is_equal)


# --- loops of TensorFlow 1 ---


class _InFrames(Details):
    """The details of a program whose loops are frames.

    Attributes:
        made: for each op of a frame, its frame and its loop variable.
    """

    def __init__(self, program: Program) -> None:
        self._program, self._inner = program, program.placement().details
        self.made: dict[str, tuple[str, int]] = {}

    def outputs(self, op: str) -> Sequence[Tensor]:
        if op not in self.made:
            return self._inner.outputs(op)
        loop, number = self.made[op]
        return [self._inner.outputs(loop)[number]] * 2

    def attributes(self, op: str) -> Mapping[str, Any]:
        return {"frame_name": self.made[op][0]} if op in self.made else self._inner.attributes(op)

    def value(self, op: str) -> tuple[Any, ...] | None:
        return None if op in self.made else self._inner.value(op)


def _in_frames(program: Program) -> Placement:
    """The placement of a program whose loops are as TensorFlow 1 builds them."""
    placement, details = program.placement(), _InFrames(program)
    ops: dict[str, Op] = {}

    def add(loop: str, number: int, type_: str, *inputs: str) -> str:
        name = f"{loop}_{type_}_{number}"
        ops[name] = placement.ops[loop]._replace(name=name, type=type_, inputs=inputs)
        details.made[name] = loop, number
        return name

    exits: dict[str, str] = {}
    for name, op in placement.ops.items():
        variables = placement.loop_variables.get(name, {})
        inputs = [exits.get(each, each) for each in op.inputs]
        for number, variable in variables.items():
            side = "body" if f"{op.caller}/body" in name else "cond"
            inputs[number] = _in_frame(op.caller, variable, side, program)
        if op.type != "While":
            if op.caller and all(each[0] == "^" for each in inputs):  # an iteration starts it
                inputs.append(f"^{op.caller}_Switch_0")
            ops[name] = op._replace(inputs=tuple(inputs), caller="")
            continue
        results = placement.results[name]
        inputs = [each for each in inputs if each[0] != "^"]
        for number, (source, result) in enumerate(zip(inputs, results["/body"], strict=True)):
            variable = f"{name}:{number}" if number else name
            enter = add(name, number, "Enter", source)
            if result == variable:
                continue
            merge = add(name, number, "Merge", enter, f"{name}_NextIteration_{number}")
            switch = add(name, number, "Switch", merge, f"{name}_LoopCond_0")
            is_variable = result.partition(":")[0] == name
            inner = _in_frame(name, result, "body", program) if is_variable else result
            add(name, number, "NextIteration", inner)
            made = add(name, number, "Exit", switch)
            exits |= {variable: made, f"^{variable}": f"^{made}"}
        add(name, 0, "LoopCond", results["/cond"][0])
    return replace(placement, ops=ops, results={}, loop_variables={}, details=details)


def _in_frame(loop: str, variable: str, side: str, program: Program) -> str:
    """The tensor that a body reads as a loop variable."""
    number = int(variable.partition(":")[2] or 0)
    if program.results[loop]["/body"][number] == variable:  # a tensor from outside
        return f"{loop}_Enter_{number}"
    return f"{loop}_Merge_{number}" if side == "cond" else f"{loop}_Switch_{number}:1"


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_tensorflow_1(name: str) -> None:
    """Frames are proved if loops of functions are."""
    is_equal, towers, one = LOOPS[name]
    found = compare_steps(_in_frames(_program(towers, 2)), _in_frames(_program(one, 1)))

    assert isinstance(found, StepEquality)
    assert (found.variables["w"].state is State.PROVED) is is_equal, found.variables["w"]


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_updates_in_a_loop_of_tensorflow_1(times: float) -> None:
    """It is not known how often an update runs."""

    def build(towers: int, times: float) -> Program:
        program = _program(lambda x, w: mean(square(total(x * w.read(), 1))), towers)
        w = Handle(program, "w")

        def body(i: Value) -> Sequence[Value]:
            with program.after(w.assign_sub([0.1] * WIDTH)):
                return [i + 1.0]

        with program.after(Value(program, program.roots[0])):
            start = program.tensor(0.0)
            program.train(program.loop(lambda i: apply("Less", i, times), body, [start])[0])
        return program

    found = compare_steps(_in_frames(build(2, times)), _in_frames(build(1, 1.0)))

    assert isinstance(found, StepEquality)
    assert found.variables["w"].state is not State.PROVED
