"""Variables of a step: copies in towers, rows of tables, and reductions over replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from support.steps import (
    Handle,
    Program,
    Value,
    add_n,
    apply,
    compare,
    concat,
    differences,
    mean,
    reshape,
    split,
    square,
    total,
)

from placement_checks.step.comparison import State
from placement_checks.step.terms import Assumption

WIDTH = 3


def _loss(x: Value, *reads: Value) -> Value:
    return mean(square(add_n([total(x * read, 1) for read in reads]) - 1.0))


def _one_gpu(reads: int = 1) -> Program:
    program = Program()
    x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
    gradient = program.gradient(_loss(x, *(w.read() for _ in range(reads))), w)
    program.train(w.descend(0.1, gradient))
    return program


def _check(towers: Program, one: Program, state: State) -> None:
    found = compare(towers, one)
    answer = found.variables["w"]
    assert answer.state is state, answer
    assert (differences(towers, one, found, (4, 4), 0)["w"] < 1e-5) is (state is State.PROVED)


# --- copies ---

Updates = Callable[[Sequence[Handle], Sequence[Value]], Sequence[Value]]


def _averaged(copies: Sequence[Handle], gradients: Sequence[Value]) -> Sequence[Value]:
    return [copy.descend(0.1, add_n(gradients) / float(len(gradients))) for copy in copies]


def _by_own_gradient(copies: Sequence[Handle], gradients: Sequence[Value]) -> Sequence[Value]:
    pairs = zip(copies, gradients, strict=True)
    return [copy.descend(0.1, gradient) for copy, gradient in pairs]


def _with_copies(
    updates: Updates, read: Callable[[int], Sequence[int]] = lambda tower: [tower]
) -> Program:
    """Each tower has a copy of the variable.

    Args:
        updates: the updates of the copies, given the gradients.
        read: the copies that a tower reads.
    """
    program = Program()
    x, copies = program.placeholder("x", (None, WIDTH)), []
    for tower in range(2):
        with program.scope(f"tower_{tower}"):
            copies.append(program.variable("w", (WIDTH,)))
    gradients = []
    for tower, rows in enumerate(split(x, 2)):
        loss = _loss(rows, *(copies[number].read() for number in read(tower)))
        gradients.append(program.gradient(loss, copies[tower]))
    program.train(*updates(copies, gradients))
    return program


COPIES: dict[str, tuple[State, Program, int]] = {
    "all by the mean": (State.PROVED, _with_copies(_averaged), 1),
    "each by its own gradient": (State.DIFFERS, _with_copies(_by_own_gradient), 1),
    "one by its own gradient": (
        State.DIFFERS,
        _with_copies(
            lambda copies, gradients: [
                _averaged(copies, gradients)[0],
                _by_own_gradient(copies, gradients)[1],
            ]
        ),
        1,
    ),
    "two reads of one copy": (State.PROVED, _with_copies(_averaged, lambda tower: [tower] * 2), 2),
    "reads of two copies": (State.UNKNOWN, _with_copies(_averaged, lambda _: [0, 1]), 2),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    """Copies are one variable if all of them get the same value."""
    state, towers, reads = COPIES[name]
    one = _one_gpu(reads)
    found = compare(towers, one)
    answer = found.variables["w"]

    assert (answer.state is State.PROVED) is (state is State.PROVED), answer
    assert Assumption.COPIES_START_EQUAL in found.assumed
    is_equal = differences(towers, one, found, (4, 4), 0)["w"] < 1e-5
    assert is_equal is (state is State.PROVED)


@pytest.mark.parametrize(("rate", "divisor"), [(0.1, 1.0), (0.2, 2.0)])
def test_copies_that_take_the_gradients_of_all_towers_differently(
    rate: float, divisor: float
) -> None:
    """A copy that adds gradients up, or has another learning rate, does not stay a copy."""

    def updates(copies: Sequence[Handle], gradients: Sequence[Value]) -> Sequence[Value]:
        other = copies[1].descend(rate, add_n(gradients) / divisor)
        return [_averaged(copies, gradients)[0], other]

    towers = _with_copies(updates)

    _check(towers, _one_gpu(), State.DIFFERS)
    assert compare(towers, _one_gpu()).copies["w"][0] == "tower_1/w"


def test_variables_that_each_take_another_rate() -> None:
    """No variable of the towers is right, so the rate may differ from one GPU on purpose."""

    def updates(copies: Sequence[Handle], gradients: Sequence[Value]) -> Sequence[Value]:
        return [copy.descend(0.3, add_n(gradients) / 2.0) for copy in copies]

    assert compare(_with_copies(updates), _one_gpu()).variables["w"].state is State.UNKNOWN


def test_a_copy_that_is_not_updated() -> None:
    """A variable of a tower that the step does not update is no copy."""
    towers = _with_copies(lambda copies, gradients: _averaged(copies, gradients)[:1])

    assert compare(towers, _one_gpu()).variables["w"].state is not State.PROVED


@pytest.mark.parametrize("is_in_both", [False, True])
def test_another_variable(is_in_both: bool) -> None:
    """A variable that one GPU lacks may have the value of the variable in its place."""

    def build(towers: int, name: str) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        made = {
            each: program.variable(each, (WIDTH,), is_trained=False)
            for each in (("scale", "other") if is_in_both else (name,))
        }
        losses = [
            _loss(rows * made[name].read(), w.read())
            for rows in (split(x, towers) if towers > 1 else [x])
        ]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(0.1, add_n(gradients) / float(towers)))
        return program

    state = compare(build(2, "other"), build(1, "scale")).variables["w"].state
    assert state is (State.DIFFERS if is_in_both else State.UNKNOWN)


# --- rows of tables ---

Combine = Callable[[list[Value]], Value]
TABLE = 5


def _indices(x: Value) -> Value:
    """Indices from 0 to 4, some of them several times."""
    return apply("Cast", apply("Sigmoid", total(x, 1)) * float(TABLE), DstT="int32")


def _embedded(
    towers: int,
    update: Callable[[Handle, list[Value], list[Value]], Value],
    indices: Callable[[Value], Value] = _indices,
) -> Program:
    """A table, whose gradients are those of looked-up rows."""
    program = Program()
    x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (TABLE, 2))
    values, at = [], []
    for rows in split(x, towers) if towers > 1 else [x]:
        lookup = apply("GatherV2", w.read(), indices(rows), 0)
        gradient = program.gradient_of_rows(mean(square(total(lookup, 1) - 1.0)), lookup)
        values.append(gradient[0])
        at.append(gradient[1])
    program.train(update(w, values, at))
    return program


def _joined(values: list[Value]) -> Value:
    return concat(values) if len(values) > 1 else values[0]


def _scattered(w: Handle, values: list[Value], at: list[Value]) -> Value:
    rate = 0.1 / len(values)
    return apply("ResourceScatterSub", w, _joined(at), _joined(values) * rate)


def _adagrad(
    w: Handle, values: list[Value], at: list[Value], outputs: tuple[int, int] = (0, 1)
) -> Value:
    """Rows with equal indices are added up before the update.

    Args:
        w: the table.
        values: the gradients of rows.
        at: their indices.
        outputs: the outputs of ``Unique`` in place of the indices, and of their numbers.
    """
    program = w.program
    slot = program.variable("w/Adagrad", (TABLE, 2), is_trained=False)
    unique = apply("Unique", _joined(at))
    own, segments = (Value(program, f"{unique.op}:{i}" if i else unique.op) for i in outputs)
    count = apply("Shape", unique)[0] if outputs == (0, 1) else TABLE
    rows = apply("UnsortedSegmentSum", _joined(values) / float(len(values)), segments, count)
    return program.add("ResourceSparseApplyAdagrad", w, slot, 0.1, rows, own)


def test_scattered_rows() -> None:
    towers, one = _embedded(2, _scattered), _embedded(1, _scattered)

    _check(towers, one, State.PROVED)


def test_rows_added_up_before_an_update() -> None:
    towers, one = _embedded(2, _adagrad), _embedded(1, _adagrad)

    _check(towers, one, State.PROVED)


WRONG_ROWS: dict[str, Callable[[Handle, list[Value], list[Value]], Value]] = {
    "added up": lambda w, values, at: apply(
        "ResourceScatterSub", w, _joined(at), _joined(values) * 0.1
    ),
    "of the last tower": lambda w, values, at: _scattered(w, values[1:], at[1:]),
    "of the first tower twice": lambda w, values, at: _scattered(w, values[:1] * 2, at[:1] * 2),
    "with indices of the other tower": lambda w, values, at: _scattered(w, values, at[::-1]),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_rows(name: str) -> None:
    towers, one = _embedded(2, WRONG_ROWS[name]), _embedded(1, _scattered)
    found = compare(towers, one)

    assert found.variables["w"].state is not State.PROVED
    assert differences(towers, one, found, (4, 4), 0)["w"] > 1e-4


def _words(towers: int, rows: int = 8) -> Program:
    """Sentences of three words, in a batch of fixed size, and the sum of the towers' slices."""
    program = Program()
    x, w = program.placeholder("x", (rows, WIDTH)), program.variable("w", (TABLE, 2))
    values, at = [], []
    for part in split(x, towers) if towers > 1 else [x]:
        words = apply("Cast", apply("Sigmoid", part) * float(TABLE), DstT="int32")
        lookup = apply("GatherV2", w.read(), words, 0)
        gradient = program.gradient_of_rows(mean(square(total(lookup, [1, 2]) - 1.0)), lookup)
        count = rows // towers * WIDTH
        values.append(reshape(gradient[0], [count, 2]))
        at.append(reshape(words, [count]))
    program.train(apply("ResourceScatterSub", w, _joined(at), _joined(values) * 0.1))
    return program


def test_slices_of_a_batch_of_fixed_size() -> None:
    """The indices are reshaped to a number of elements, which is a multiple of the rows."""
    found = compare(_words(2), _words(1))

    difference = found.variables["w"].difference
    assert difference is not None
    assert found.variables["w"].state is State.DIFFERS
    assert "2 times as much" in difference.text
    assert differences(_words(2), _words(1), found, (4, 4), 0)["w"] > 1e-4


def test_other_rows() -> None:
    """The towers update the rows of other indices than those that they looked up."""

    def shifted(w: Handle, values: list[Value], at: list[Value]) -> Value:
        return _scattered(w, values, [4 - each for each in at])

    found = compare(_embedded(2, shifted), _embedded(1, _scattered))
    assert found.variables["w"].state is not State.PROVED


@pytest.mark.parametrize("outputs", [(1, 1), (0, 0), (1, 0)])
def test_outputs_of_unique_indices(outputs: tuple[int, int]) -> None:
    """The values and the numbers of unique indices must not be confused."""

    found = compare(_embedded(2, partial(_adagrad, outputs=outputs)), _embedded(1, _adagrad))
    assert found.variables["w"].state is not State.PROVED


# --- reductions over replicas ---


def _reduced(towers: int, **changes: str | int) -> Program:
    """Each replica adds up the gradients of all replicas, and updates a copy."""
    program = Program()
    x, copies, gradients = program.placeholder("x", (None, WIDTH)), [], []
    for tower, rows in enumerate(split(x, towers) if towers > 1 else [x]):
        with program.scope(f"tower_{tower}"):
            copies.append(program.variable("w", (WIDTH,)))
            gradients.append(program.gradient(_loss(rows, copies[-1].read()), copies[-1]))
    settings = {"merge_op": "Add", "final_op": "Div", "group_key": 1, "instance_key": 1, **changes}
    sums = [apply("CollectiveReduce", gradient, **settings) for gradient in gradients]
    program.train(*(w.descend(0.1, each) for w, each in zip(copies, sums, strict=True)))
    return program


@pytest.mark.parametrize(
    ("changes", "is_equal"),
    [({}, True), ({"final_op": "Id"}, False), ({"merge_op": "Max"}, False)],
)
def test_reductions(changes: dict[str, str], is_equal: bool) -> None:
    """The mean over all replicas is the gradient for one GPU, but not their sum or maximum."""
    found = compare(_reduced(2, **changes), _one_gpu())
    assert (found.variables["w"].state is State.PROVED) is is_equal


def _centered(towers: int, final: str = "Div", width: int = 1) -> Program:
    """Replicas with copies subtract the mean over all rows, and reshape errors of 8 rows."""
    program = Program()
    x, copies, gradients = program.placeholder("x", (8, WIDTH)), [], []
    settings = {"merge_op": "Add", "final_op": "Div", "group_key": 1, "instance_key": 1}
    for tower, rows in enumerate(split(x, towers) if towers > 1 else [x]):
        with program.scope(f"tower_{tower}"):
            w, v = program.variable("w", (WIDTH,)), program.variable("v", (WIDTH, width))
            hidden = rows * w.read()
            center = apply("CollectiveReduce", mean(hidden, 0), **settings)
            errors = square((hidden - center) @ v.read() - 1.0)
            loss = mean(reshape(errors, [8 // towers * width]))
            copies.append((w, v))
            gradients.append(program.gradient(loss, v))
    settings |= {"final_op": final, "instance_key": 2}
    means = [apply("CollectiveReduce", gradient, **settings) for gradient in gradients]
    with program.after(*means):
        decays = [w.assign_sub(w.read() * 0.01) for w, _ in copies]
        updates = [v.descend(0.1, each) for (_, v), each in zip(copies, means, strict=True)]
    program.train(*updates, *decays)
    return program


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("final", ["Div", "Id"])
def test_reshaped_rows_that_copies_of_variables_hide(final: str, width: int) -> None:
    """That an op has rows is known only when copies of variables have become one variable."""
    found = compare(_centered(2, final, width), _centered(1, width=width)).variables["tower_0/v"]
    if final == "Div":
        assert found.state is State.PROVED
    else:
        assert found.difference is not None
        assert "counts 2 times" in found.difference.text


def test_gathered_rows() -> None:
    """The loss of the outputs of all replicas."""

    def build(towers: int, axis: int = 1) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        parts = split(x, towers) if towers > 1 else [x]
        outputs = [total(rows * w.read(), axis) for rows in parts]
        if towers > 1:
            outputs = [apply("CollectiveGather", each, group_key=1) for each in outputs]
        gradient = program.gradient(mean(square(outputs[0])), w)
        program.train(w.descend(0.1, gradient))
        return program

    assert compare(build(2), build(1)).variables["w"].state is State.PROVED
    assert compare(build(2, 0), build(1, 0)).variables["w"].state is not State.PROVED


def test_numbers_of_a_table() -> None:
    """Constant indices look up constant rows."""
    table = np.arange(8.0).reshape(4, 2)

    def build(towers: int, indices: Sequence[int]) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
        chosen = program.add("GatherV2", table, list(indices), 0)
        losses = [
            _loss(rows, w.read()) * total(chosen * np.array([[1.0, 2.0], [3.0, 4.0]]))
            for rows in (split(x, towers) if towers > 1 else [x])
        ]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(0.1, add_n(gradients) / float(towers)))
        return program

    assert compare(build(2, (1, 2)), build(1, (1, 2))).variables["w"].state is State.PROVED
    assert compare(build(2, (2, 1)), build(1, (1, 2))).variables["w"].state is not State.PROVED


def test_layers_of_other_sizes() -> None:
    """A layer that grows with the number of GPUs is no layer of the model for one GPU."""

    def build(towers: int, units: int) -> Program:
        program = Program()
        x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH, units))
        parts = split(x, towers) if towers > 1 else [x]
        losses = [mean(square(total(rows @ w.read(), 1))) for rows in parts]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(0.1, add_n(gradients) / float(towers)))
        return program

    assert compare(build(2, 4), build(1, 4)).variables["w"].state is State.PROVED
    assert compare(build(2, 4), build(1, 2)).variables["w"].state is State.UNKNOWN
