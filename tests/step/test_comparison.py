"""Small training programs, and whether they train as the program for one GPU does.

Each program is also run with NumPy, so that a wrong expectation fails, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

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
    largest,
    mean,
    relu,
    reshape,
    rows_of,
    split,
    split_by_sizes,
    square,
    stack,
    stop_gradient,
    to_float,
    total,
)

from placement_checks import Placement
from placement_checks.core.missing import Missing
from placement_checks.step.comparison import State, StepEquality, compare_steps
from placement_checks.step.explanation import Excuse
from placement_checks.step.terms import Assumption
from placement_checks.step.weights import Weights

RATE, WIDTH = 0.1, 3
PROVED, DIFFERS, UNKNOWN = State.PROVED, State.DIFFERS, State.UNKNOWN
NOTHING: frozenset[Assumption] = frozenset()
EQUAL_ROWS = frozenset({Assumption.EQUAL_ROWS})
DIVISIBLE = frozenset({Assumption.DIVISIBLE_ROWS})
# Differences are fractions of the change of a variable. Constants have the precision of float32.
EQUAL, DIFFERENT = 1e-5, 1e-4


class Net:
    """A linear model with an input for features and one for labels.

    Args:
        towers: the number of towers with placeholders of their own; 1 for one of all rows.
        names: whether variables and rows of all towers come first.
    """

    def __init__(self, towers: int = 1) -> None:
        self.program = Program()
        feeds = [None] if towers == 1 else list(range(towers))
        self.feeds = [
            (
                self.program.placeholder("x", (None, WIDTH), tower),
                self.program.placeholder("y", (None,), tower),
            )
            for tower in feeds
        ]
        self.x, self.y = self.feeds[0]
        self.w = self.program.variable("w", (WIDTH,))

    def errors(self, x: Value, y: Value, w: Handle | None = None) -> Value:
        """The squared error of each row."""
        return square(total(x * (w or self.w).read(), 1) - y)

    def loss(self, x: Value, y: Value) -> Value:
        """The mean squared error."""
        return mean(self.errors(x, y))

    def gradients(self, losses: Sequence[Value]) -> list[Value]:
        """The gradient of each loss."""
        return [self.program.gradient(loss, self.w) for loss in losses]

    def descend(self, gradient: Value) -> Program:
        """The program that subtracts a gradient."""
        self.program.train(self.w.descend(RATE, gradient))
        return self.program

    def parts(self, count: int = 2) -> list[tuple[Value, Value]]:
        """Equal parts of the rows."""
        return list(zip(split(self.x, count), split(self.y, count), strict=True))


def one_gpu(loss: Callable[[Net], Value] = lambda net: net.loss(net.x, net.y)) -> Program:
    """The program for one GPU."""
    net = Net()
    return net.descend(net.gradients([loss(net)])[0])


def check(
    towers: Program,
    one: Program,
    expected: State,
    assumed: frozenset[Assumption] | None = NOTHING,
    rows: Sequence[Sequence[int]] = ((4, 4), (6, 6)),
) -> None:
    """Check the state of all variables, and that runs show the same."""
    found = compare(towers, one)
    states = {name: answer.state for name, answer in found.variables.items()}
    assert set(states.values()) == {expected}, found
    if expected is PROVED and assumed is not None:
        assert found.assumed == assumed
    runs = [differences(towers, one, found, each, seed) for seed, each in enumerate(rows)]
    for name, state in states.items():
        largest = max(run[name] for run in runs)
        if state is PROVED:
            assert largest < EQUAL
        elif state is DIFFERS:
            assert largest > DIFFERENT


# --- programs that train as one GPU does ---


def _mean_of(combine: Callable[[list[Value]], Value], count: int = 2) -> Program:
    """Towers on equal parts of the batch, whose gradients are combined."""
    net = Net()
    gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
    return net.descend(combine(gradients))


def _running_mean(gradients: list[Value]) -> Value:
    first, *rest = gradients
    for number, gradient in enumerate(rest, 2):
        first = first + (gradient - first) / float(number)
    return first


def _by_matrix(gradients: Sequence[Value], weights: Value) -> Value:
    """As ``tf.tensordot(weights, tf.stack(gradients), 1)``."""
    count = len(gradients)
    matrix = reshape(stack(gradients), [count, WIDTH])
    return reshape(reshape(weights, [1, count]) @ matrix, [WIDTH])


def _by_column(gradients: Sequence[Value], weights: Value) -> Value:
    """The transposed stack, times a column of weights."""
    column = reshape(weights, [len(gradients), 1])
    return reshape(apply("MatMul", stack(gradients), column, transpose_a=True), [WIDTH])


def _by_factors(gradients: Sequence[Value], weights: Value) -> Value:
    """The sum of a stack that is multiplied by a column."""
    return total(stack(gradients) * reshape(weights, [len(gradients), 1]), 0)


def _by_einsum(gradients: Sequence[Value], weights: Value) -> Value:
    return apply("Einsum", weights, stack(gradients), equation="t,ti->i")


WEIGHTED = {"matrix": _by_matrix, "column": _by_column, "factors": _by_factors, "sum": _by_einsum}


AVERAGES: dict[str, Callable[[list[Value]], Value]] = {
    "sum divided by n": lambda gradients: add_n(gradients) / float(len(gradients)),
    "sum times 1/n": lambda gradients: add_n(gradients) * (1 / len(gradients)),
    "each divided by n": lambda gradients: add_n(
        [each / float(len(gradients)) for each in gradients]
    ),
    "mean of a stack": lambda gradients: mean(stack(gradients), 0),
    "mean of a concatenation": lambda gradients: mean(
        concat([apply("ExpandDims", each, 0) for each in gradients]), 0
    ),
    "running mean": _running_mean,
    "weighted stack": lambda gradients: total(
        stack(gradients) * np.full((len(gradients), 1), 1 / len(gradients)), 0
    ),
    "mean of flat buffers": lambda gradients: reshape(
        mean(stack([reshape(each, [-1]) for each in gradients]), 0), [WIDTH]
    ),
    "clipped after": lambda gradients: apply(
        "Minimum", add_n(gradients) / float(len(gradients)), 0.1
    ),
}


@pytest.mark.parametrize("way", WEIGHTED)
@pytest.mark.parametrize("weights", [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.25, 0.75), (1.0, 1.0)])
def test_weights_as_a_tensor(way: str, weights: tuple[float, float]) -> None:
    """Weights of towers in one tensor, with the stack of the towers' gradients."""
    towers = _mean_of(
        lambda gradients: WEIGHTED[way](gradients, gradients[0].program.tensor(np.array(weights)))
    )
    check(towers, one_gpu(), PROVED if weights == (0.5, 0.5) else DIFFERS)


_BOTH = {"transpose_a": True, "transpose_b": True}
# Sums of a stack of matrices, given a line of a weight for each tower.
OF_MATRICES: dict[str, Callable[[Value, int, Value], Value]] = {
    "rows": lambda line, count, stacked: line @ reshape(stacked, [count, WIDTH * count]),
    "columns": lambda line, count, stacked: apply(
        "MatMul", reshape(stacked, [count, WIDTH * count]), line, **_BOTH
    ),
    "einsum": lambda line, _, stacked: apply(
        "Einsum", reshape(line, [-1]), stacked, equation="t,tij->ij"
    ),
    "factors": lambda line, count, stacked: total(stacked * reshape(line, [count, 1, 1]), 0),
}


@pytest.mark.parametrize("way", OF_MATRICES)
@pytest.mark.parametrize("axis", [0, 2])
def test_weights_of_matrices(way: str, axis: int) -> None:
    """As many columns as towers: a stack along another axis is another sum."""
    count = 3

    def build(towers: int) -> Program:
        program = Program()
        x = program.placeholder("x", (None, WIDTH))
        w = program.variable("w", (WIDTH, count))
        gradients = [
            program.gradient(mean(square(total(part @ w.read(), 1) - 1.0)), w)
            for part in (split(x, towers) if towers > 1 else [x])
        ]
        made = gradients[0]
        if towers > 1:
            line = program.tensor(np.full((1, count), 1 / count))
            made = OF_MATRICES[way](line, count, stack(gradients, axis))
        program.train(w.descend(RATE, reshape(made, [WIDTH, count])))
        return program

    towers, one = build(count), build(1)
    found = compare(towers, one).variables["w"].state
    assert (found is PROVED) == (axis == 0)
    assert axis == 0 or differences(towers, one, compare(towers, one), (4,) * 3, 1)["w"] > 1e-4


@pytest.mark.parametrize("way", WEIGHTED)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_numbers_of_rows_as_a_tensor(way: str, order: tuple[int, int]) -> None:
    """Each weight is the tower's share of the rows. In another order, the rows must be equal."""
    net = Net(towers=2)
    rows = [to_float(rows_of(x)) for x, _ in net.feeds]
    gradients = net.gradients([net.loss(x, y) for x, y in net.feeds])
    weights = stack([rows[i] for i in order]) / add_n(rows)
    towers = net.descend(WEIGHTED[way](gradients, weights))
    if order == (0, 1):
        check(towers, one_gpu(), PROVED, NOTHING, rows=[(4, 4), (2, 7)])
    else:
        check(towers, one_gpu(), PROVED, EQUAL_ROWS)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("average", AVERAGES)
def test_mean_gradient(average: str, count: int) -> None:
    """Every way to write the mean of the towers' gradients is proved."""
    one = one_gpu()
    if average == "clipped after":
        net = Net()
        one = net.descend(apply("Minimum", net.gradients([net.loss(net.x, net.y)])[0], 0.1))
    check(_mean_of(AVERAGES[average], count), one, PROVED, rows=[(4,) * count, (6,) * count])


def _slices(value: Value, count: int) -> list[Value]:
    size = rows_of(value) // count
    return [value[size * i : size * (i + 1)] for i in range(count)]


CUTS: dict[str, tuple[Callable[[Value, int], list[Value]], frozenset[Assumption]]] = {
    "split": (split, NOTHING),
    "slices": (_slices, DIVISIBLE),
    "split by sizes": (
        lambda value, count: split_by_sizes(
            value, stack([rows_of(value) // count] * count), count
        ),
        DIVISIBLE,
    ),
    "every n-th row": (lambda value, count: [value[i::count] for i in range(count)], DIVISIBLE),
    "reshaped": (
        lambda value, count: [
            reshape(part, [-1, *(dim or -1 for dim in value.shape[1:])])
            for part in split(value, count)
        ],
        NOTHING,
    ),
}


@pytest.mark.parametrize("cut", CUTS)
def test_cut_of_the_batch(cut: str) -> None:
    """The mean over equal parts is the mean over all rows, however the batch is cut."""
    cut_rows, assumed = CUTS[cut]
    net = Net()
    parts = zip(cut_rows(net.x, 2), cut_rows(net.y, 2), strict=True)
    towers = net.descend(add_n(net.gradients([net.loss(x, y) for x, y in parts])) / 2.0)
    check(towers, one_gpu(), PROVED, assumed)


def test_every_nth_row_of_any_number() -> None:
    """Sums over every n-th row are proved for any number of rows, but not means."""
    net = Net()
    parts = [(net.x[i::2], net.y[i::2]) for i in range(2)]
    towers = net.descend(add_n(net.gradients([total(net.errors(x, y)) for x, y in parts])))
    one = one_gpu(lambda net: total(net.errors(net.x, net.y)))
    check(towers, one, PROVED, NOTHING, rows=[(7,), (12,)])


def test_placeholders_of_towers() -> None:
    """Means of towers with placeholders of their own are averaged if they have equal rows."""
    net = Net(towers=2)
    towers = net.descend(add_n(net.gradients([net.loss(x, y) for x, y in net.feeds])) / 2.0)
    check(towers, one_gpu(), PROVED, EQUAL_ROWS)


def test_weighted_by_rows() -> None:
    """Weights by the number of rows are right for any numbers of rows."""
    net = Net(towers=2)
    rows = [to_float(rows_of(x)) for x, _ in net.feeds]
    gradients = net.gradients([net.loss(x, y) for x, y in net.feeds])
    pairs = zip(gradients, rows, strict=True)
    towers = net.descend(add_n([each * count for each, count in pairs]) / add_n(rows))
    check(towers, one_gpu(), PROVED, NOTHING, rows=[(4, 4), (2, 7)])


def test_sum_of_losses_of_any_rows() -> None:
    """Sums over rows add up for any numbers of rows."""
    net = Net(towers=2)
    towers = net.descend(add_n(net.gradients([total(net.errors(x, y)) for x, y in net.feeds])))
    one = one_gpu(lambda net: total(net.errors(net.x, net.y)))
    check(towers, one, PROVED, NOTHING, rows=[(4, 4), (2, 7)])


def test_loss_of_all_towers() -> None:
    """One gradient of the mean of the towers' losses."""
    net = Net()
    losses = [net.loss(x, y) for x, y in net.parts()]
    check(net.descend(net.gradients([add_n(losses) / 2.0])[0]), one_gpu(), PROVED)


def test_loss_of_joined_outputs() -> None:
    """The outputs of all towers are joined before the loss."""
    net = Net()
    outputs = concat([total(x * net.w.read(), 1) for x, _ in net.parts()])
    check(net.descend(net.gradients([mean(square(outputs - net.y))])[0]), one_gpu(), PROVED)


def _with_penalty(weight: float, towers: Sequence[int] = (0, 1)) -> Program:
    net = Net()
    losses = [
        net.loss(x, y) + apply("L2Loss", net.w.read()) * (weight if number in towers else 0.0)
        for number, (x, y) in enumerate(net.parts())
    ]
    return net.descend(add_n(net.gradients(losses)) / 2.0)


def _one_with_penalty(weight: float = 0.1) -> Program:
    return one_gpu(lambda net: net.loss(net.x, net.y) + apply("L2Loss", net.w.read()) * weight)


@pytest.mark.parametrize("weight", [0.1, 1e-8])
def test_penalty_of_each_tower(weight: float) -> None:
    """The mean of equal penalties is the penalty, even if it is as small as rounding."""
    check(_with_penalty(weight), _one_with_penalty(weight), PROVED)
    assert compare(_with_penalty(weight), one_gpu()).variables["w"].state is not PROVED


def test_penalty_of_one_tower() -> None:
    """One of two towers has twice the penalty."""
    check(_with_penalty(0.2, [0]), _one_with_penalty(), PROVED)


def test_penalty_shared() -> None:
    """The penalty is added to the sum of the losses once."""
    net = Net()
    data = add_n([net.loss(x, y) for x, y in net.parts()]) / 2.0
    loss = data + apply("L2Loss", net.w.read()) * 0.1
    check(net.descend(net.gradients([loss])[0]), _one_with_penalty(), PROVED)


@pytest.mark.parametrize("mistake", ["none", "last only", "sum"])
def test_momentum(mistake: str) -> None:
    """Momentum of the mean gradient; other gradients differ in the variable and in the slot."""

    def build(count: int) -> Program:
        net = Net()
        moment = net.program.variable("w/Momentum", (WIDTH,), is_trained=False)
        gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
        gradient = add_n(gradients) / float(count if mistake != "sum" else 1)
        if mistake == "last only":
            gradient = gradients[-1]
        net.program.train(net.w.apply_momentum(moment, RATE, gradient))
        return net.program

    check(build(2), build(1), PROVED if mistake == "none" else DIFFERS)


def test_adam() -> None:
    """Adam of the mean gradient, with powers of the rates that are updated afterwards."""

    def build(count: int) -> Program:
        net = Net()
        program = net.program
        slots = [program.variable(f"w/Adam_{i}", (WIDTH,), is_trained=False) for i in range(2)]
        powers = [program.variable(f"power_{i}", (), is_trained=False) for i in range(2)]
        gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
        gradient = add_n(gradients) / float(count)
        update = net.w.apply_adam((slots[0], slots[1]), (powers[0], powers[1]), RATE, gradient)
        with program.after(update):
            ends = [
                power.assign(power.read() * rate)
                for power, rate in zip(powers, (0.9, 0.999), strict=True)
            ]
        program.train(*ends)
        return program

    check(build(2), build(1), PROVED)


def test_micro_batches() -> None:
    """Each tower divides its part again."""
    net = Net()
    sums = []
    for x, y in net.parts():
        pairs = zip(split(x, 2), split(y, 2), strict=True)
        sums.append(add_n(net.gradients([net.loss(a, b) for a, b in pairs])) / 2.0)
    check(net.descend(add_n(sums) / 2.0), one_gpu(), PROVED)


@pytest.mark.parametrize("times", [1, 2])
def test_decay_after_the_step(times: int) -> None:
    """A decay that each tower repeats differs, for any number of rows."""

    def build(count: int) -> Program:
        net = Net()
        moment = net.program.variable("w/Momentum", (WIDTH,), is_trained=False)
        gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
        update = net.w.apply_momentum(moment, RATE, add_n(gradients) / float(count))
        for _ in range(min(count, times)):
            with net.program.after(update):
                update = net.w.assign(net.w.read() * 0.9)
        net.program.train(update)
        return net.program

    found = compare(build(2), build(1))
    assert found.variables["w"].state is (PROVED if times == 1 else DIFFERS)


def test_decay_before_the_step() -> None:
    """Both programs read the variable after it was decayed."""

    def build(count: int) -> Program:
        net = Net()
        with net.program.after(net.w.assign(net.w.read() * 0.9)):
            losses = [net.loss(x, y) for x, y in net.parts(count)]
        return net.descend(add_n(net.gradients(losses)) / float(count))

    check(build(2), build(1), PROVED)


def test_statistics_of_all_towers() -> None:
    """Features are standardized with the statistics of all rows."""

    def normalized(x: Value, center: Value) -> Value:
        return x - center

    net = Net()
    parts = net.parts()
    center = add_n([mean(x, 0) for x, _ in parts]) / 2.0
    losses = [net.loss(normalized(x, center), y) for x, y in parts]
    one = one_gpu(lambda net: net.loss(normalized(net.x, mean(net.x, 0)), net.y))
    check(net.descend(add_n(net.gradients(losses)) / 2.0), one, PROVED)


def test_weights_of_gradient_calls() -> None:
    """Each loss is weighted in its gradient call."""
    net = Net(towers=2)
    rows = [to_float(rows_of(x)) for x, _ in net.feeds]
    gradients = [
        net.program.gradient(net.loss(x, y), net.w, count / add_n(rows))
        for (x, y), count in zip(net.feeds, rows, strict=True)
    ]
    check(net.descend(add_n(gradients)), one_gpu(), PROVED, NOTHING, rows=[(4, 4), (2, 7)])


@pytest.mark.parametrize(
    "types",
    [("Relu", "Relu"), ("Relu", "Tanh"), ("Sigmoid", "Tanh"), ("Softplus", "Relu")],
)
def test_activations(types: tuple[str, str]) -> None:
    """Equal activations are proved. Other ones are another model."""

    def loss(net: Net, x: Value, y: Value, kind: str) -> Value:
        return mean(square(apply(kind, total(x * net.w.read(), 1)) - y))

    net = Net()
    losses = [loss(net, x, y, types[0]) for x, y in net.parts()]
    towers = net.descend(add_n(net.gradients(losses)) / 2.0)
    one = one_gpu(lambda net: loss(net, net.x, net.y, types[1]))
    found = compare(towers, one).variables["w"].state
    assert found is PROVED if types[0] == types[1] else found is not PROVED


# --- mistakes ---

WRONG_AVERAGES: dict[str, Callable[[list[Value]], Value]] = {
    "sum": add_n,
    "last tower": lambda gradients: gradients[-1],
    "first tower": lambda gradients: gradients[0],
    "one tower twice": lambda gradients: add_n([gradients[0], gradients[0]]) / 2.0,
    "divided twice": lambda gradients: add_n(gradients) / 4.0,
    "one tower with half the weight": lambda gradients: (gradients[0] + gradients[1] * 0.5) / 2.0,
    "weights of 2 and 1": lambda gradients: gradients[0] * (2 / 3) + gradients[1] * (1 / 3),
    "slightly other weight": lambda gradients: gradients[0] * 0.5 + gradients[1] * 0.5003,
    "difference": lambda gradients: (gradients[0] - gradients[1]) / 2.0,
    "clipped before": lambda gradients: (
        add_n([apply("Minimum", each, 0.1) for each in gradients]) / 2.0
    ),
    "product": lambda gradients: gradients[0] * gradients[1],
    "largest": lambda gradients: apply("Maximum", *gradients),
}
# Differences of ops of which the first may compute what the second does.
NOT_CERTAIN = {"clipped before", "product", "largest"}


@pytest.mark.parametrize("average", WRONG_AVERAGES)
def test_wrong_average(average: str) -> None:
    """No other combination of two towers is proved."""
    towers = _mean_of(WRONG_AVERAGES[average])
    found = compare(towers, one_gpu())
    state = found.variables["w"].state
    assert state is DIFFERS or (average in NOT_CERTAIN and state is UNKNOWN)
    assert max(differences(towers, one_gpu(), found, (4, 4), 1).values()) > DIFFERENT


@pytest.mark.parametrize(
    ("is_gradient", "times", "state"),
    [(True, 1, PROVED), (True, 2, DIFFERS), (False, 1, PROVED), (False, 2, UNKNOWN)],
)
def test_state_as_a_factor(is_gradient: bool, times: int, state: State) -> None:
    """State may be scaled on purpose, but not gradients that it scales."""

    def build(count: int) -> Program:
        net = Net()
        scale = net.program.variable("scale", (), is_trained=False)
        losses = [net.loss(x, y) for x, y in (net.parts(count) if count > 1 else [(net.x, net.y)])]
        change = add_n(net.gradients(losses)) / float(count)
        factor = float(times) if count > 1 else 1.0
        if is_gradient:
            return net.descend(change * scale.read() * factor)
        return net.descend(change + scale.read() * factor)

    check(build(2), build(1), state)


def test_same_slice() -> None:
    """Both towers train on the first half."""
    net = Net()
    (x, y), _ = net.parts()
    losses = [net.loss(x, y) for _ in range(2)]
    check(net.descend(add_n(net.gradients(losses)) / 2.0), one_gpu(), DIFFERS)


def test_labels_of_another_tower() -> None:
    """Features of one half with the labels of the other half."""
    net = Net()
    (x, y), (other_x, other_y) = net.parts()
    losses = [net.loss(x, other_y), net.loss(other_x, y)]
    towers = net.descend(add_n(net.gradients(losses)) / 2.0)
    assert compare(towers, one_gpu()).variables["w"].state is not PROVED


@pytest.mark.parametrize("weight", [0.05, 0.2])
def test_wrong_penalty(weight: float) -> None:
    """Each tower has the penalty divided by n, or times n, and the losses are averaged."""
    check(_with_penalty(weight), _one_with_penalty(), DIFFERS)


def test_penalty_of_one_tower_lacks_a_factor() -> None:
    """One tower has the penalty, and the losses are averaged."""
    check(_with_penalty(0.1, [0]), _one_with_penalty(), DIFFERS)


def test_rows_as_weights_of_other_towers() -> None:
    """Each gradient is weighted with the number of rows of the other tower."""
    net = Net(towers=2)
    rows = [to_float(rows_of(x)) for x, _ in net.feeds]
    gradients = net.gradients([net.loss(x, y) for x, y in net.feeds])
    pairs = zip(gradients, rows[::-1], strict=True)
    towers = net.descend(add_n([each * count for each, count in pairs]) / add_n(rows))
    found = compare(towers, one_gpu())
    assert found.variables["w"].state is not PROVED or Assumption.EQUAL_ROWS in found.assumed


def test_unequal_slices_without_weights() -> None:
    """The mean of means over a third and two thirds of the rows."""
    net = Net()
    third = rows_of(net.x) // 3
    parts = [(net.x[:third], net.y[:third]), (net.x[third:], net.y[third:])]
    towers = net.descend(add_n(net.gradients([net.loss(x, y) for x, y in parts])) / 2.0)
    check(towers, one_gpu(), DIFFERS, rows=[(6,), (12,)])


def test_unequal_slices_with_weights() -> None:
    """The means over a third and two thirds of the rows with the right weights."""
    net = Net()
    third = rows_of(net.x) // 3
    parts = [(net.x[:third], net.y[:third]), (net.x[third:], net.y[third:])]
    first, second = net.gradients([net.loss(x, y) for x, y in parts])
    towers = net.descend(first * (1 / 3) + second * (2 / 3))
    check(towers, one_gpu(), PROVED, DIVISIBLE, rows=[(6,), (12,)])


def test_slices_of_three_sizes() -> None:
    """A half, a third and a sixth of the rows, with the right weights."""
    net = Net()
    sixth = rows_of(net.x) // 6
    ends = [None, sixth * 3, sixth * 5, None]
    cuts = [slice(*each) for each in pairwise(ends)]
    gradients = net.gradients([net.loss(net.x[cut], net.y[cut]) for cut in cuts])
    weights = [1 / 2, 1 / 3, 1 / 6]
    pairs = zip(gradients, weights, strict=True)
    towers = net.descend(add_n([each * weight for each, weight in pairs]))
    check(towers, one_gpu(), PROVED, DIVISIBLE, rows=[(6,), (12,)])


def test_variable_of_another_name() -> None:
    """A tower reads a variable that the step does not train."""
    net, one = Net(), Net()
    others = [each.program.variable("other", (WIDTH,), is_trained=False) for each in (net, one)]
    (x, y), (other_x, other_y) = net.parts()
    losses = [
        net.loss(x, y),
        mean(net.errors(other_x, other_y, others[0])) + 0.0 * total(net.w.read()),
    ]
    towers = net.descend(add_n(net.gradients(losses)) / 2.0)
    found = compare(towers, one.descend(one.gradients([one.loss(one.x, one.y)])[0]))
    assert found.variables["w"].state is DIFFERS


def test_gradient_stopped_in_one_tower() -> None:
    """The gradient of one tower does not pass its activation."""
    net = Net()

    def loss(x: Value, y: Value, stops: bool) -> Value:
        h = relu(total(x * net.w.read(), 1))
        return mean(square((stop_gradient(h) if stops else h) * total(x * net.w.read(), 1) - y))

    losses = [loss(x, y, stops) for (x, y), stops in zip(net.parts(), (False, True), strict=True)]
    towers = net.descend(add_n(net.gradients(losses)) / 2.0)
    one = one_gpu(
        lambda net: mean(
            square(relu(total(net.x * net.w.read(), 1)) * total(net.x * net.w.read(), 1) - net.y)
        )
    )
    assert compare(towers, one).variables["w"].state is not PROVED


# --- inputs that the step does not read ---


def test_gradients_of_the_last_placeholders_only() -> None:
    """The step reads the placeholders of one tower, but the program has one for each tower."""
    net = Net(towers=3)
    losses = [net.loss(x, y) for x, y in net.feeds]
    towers = net.descend(net.gradients(losses)[-1])
    check(towers, one_gpu(), DIFFERS, rows=[(4, 4, 4)])


def test_unused_placeholders_of_the_same_shape() -> None:
    """Each tower has a placeholder that it does not use, beside one that it uses."""

    def build(count: int) -> Program:
        net = Net(count)
        losses = [mean(square(total(x * net.w.read(), 1))) for x, _ in net.feeds]
        return net.descend(add_n(net.gradients(losses)) / float(count))

    check(build(2), build(1), PROVED, EQUAL_ROWS)

    def with_mask(count: int) -> Program:
        program = Program()
        feeds = [
            [program.placeholder(name, (None,), tower) for name in ("x", "y", "z")]
            for tower in ([None] if count == 1 else range(count))
        ]
        w = program.variable("w")
        losses = [mean(square(x * w.read() - z)) for x, _, z in feeds]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(RATE, add_n(gradients) / float(count)))
        return program

    check(with_mask(2), with_mask(1), PROVED, EQUAL_ROWS)


def test_placeholders_for_evaluation() -> None:
    """Placeholders that neither program trains on do not count."""

    def build(count: int) -> Program:
        net = Net(count)
        net.program.placeholder("x_of_evaluation", (None, WIDTH))
        losses = [net.loss(x, y) for x, y in net.feeds]
        return net.descend(add_n(net.gradients(losses)) / float(count))

    check(build(2), build(1), PROVED, EQUAL_ROWS)


def test_another_input_of_the_same_shape() -> None:
    """All towers read an input that one GPU does not read, in place of the labels."""

    def build(count: int, labels: str) -> Program:
        program = Program()
        x, y, z = (program.placeholder(name, (None,)) for name in ("x", "y", "z"))
        w = program.variable("w")
        parts = zip(split(x, count), split(y if labels == "y" else z, count), strict=True)
        losses = [mean(square(a * w.read() - b)) for a, b in parts]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(RATE, add_n(gradients) / float(count)))
        return program

    check(build(2, "y"), build(1, "y"), PROVED)
    assert compare(build(2, "z"), build(1, "y")).variables["w"].state is not PROVED


def test_order_of_placeholders() -> None:
    """Inputs of the same shape are matched by name if they can be."""

    def build(count: int, names: Sequence[str]) -> Program:
        program = Program()
        fed = {name: program.placeholder(name, (None,)) for name in names}
        w = program.variable("w")
        parts = zip(split(fed["x"], count), split(fed["y"], count), strict=True)
        losses = [mean(square(a * w.read() - b)) for a, b in parts]
        gradients = [program.gradient(loss, w) for loss in losses]
        program.train(w.descend(RATE, add_n(gradients) / float(count)))
        return program

    check(build(2, "yx"), build(1, "xy"), PROVED)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_inputs_without_rows_in_name_scopes(is_swapped: bool) -> None:
    """Two weights are fed with the same name in two scopes, for each tower or for all."""

    def build(count: int, scopes: Sequence[str], *, for_each: bool) -> Program:
        net = Net()

        def fed(scope: str) -> Value:
            with net.program.scope(scope):
                return net.program.placeholder("weight", ())

        fed_once = [] if for_each else [fed(scope) for scope in scopes]
        losses = []
        for number, (x, y) in enumerate(net.parts(count)):
            with net.program.scope(f"tower_{number}"):
                one, other = fed_once or [fed(scope) for scope in scopes]
                losses.append(net.loss(x, y) * one + mean(square(y)) * other * total(net.w.read()))
        return net.descend(add_n(net.gradients(losses)) / float(count))

    scopes = ["fit", "penalty"]
    for for_each in (False, True):
        towers = build(2, scopes[::-1] if is_swapped else scopes, for_each=for_each)
        answer = compare(towers, build(1, scopes, for_each=for_each)).variables["w"]
        assert (answer.state is PROVED) is not is_swapped


@pytest.mark.parametrize("types", [("Elu", "Elu"), ("Elu", ""), ("", "Elu"), ("Elu", "Tanh")])
def test_gradient_of_another_type(types: tuple[str, str]) -> None:
    """An op has another gradient than the one of its type."""

    def build(count: int, kind: str) -> Program:
        net = Net()
        other = {"_gradient_op_type": kind} if kind else {}
        losses = [
            mean(square(apply("Relu", total(x * net.w.read(), 1), **other) - y))
            for x, y in net.parts(count)
        ]
        return net.descend(add_n(net.gradients(losses)) / float(count))

    found = compare(build(2, types[0]), build(1, types[1]))
    assert (found.variables["w"].state is PROVED) is (types[0] == types[1])


def test_a_stop_of_gradients_of_inputs() -> None:
    """Inputs have no gradient anyway, wherever it is stopped."""

    def loss(net: Net, x: Value, y: Value, stopped: Callable[[Value], Value]) -> Value:
        inner = relu(total(relu(stopped(x) * net.w.read()), 1) + stopped(square(y)))
        return mean(inner * stopped(y))

    net = Net()
    losses = [loss(net, *part, stop_gradient) for part in net.parts()]
    towers = net.descend(add_n(net.gradients(losses)) / 2.0)
    check(towers, one_gpu(lambda net: loss(net, net.x, net.y, lambda value: value)), PROVED)


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_examples_that_are_moved_by_gradients(kind: str) -> None:
    """The gradient of a sum for one row does not depend on the number of rows, as of a mean."""

    def loss(net: Net, x: Value, y: Value) -> Value:
        h = x * net.w.read()
        first = square(total(h, 1) - y)
        gradient = net.program.gradient_of_tensor((total if kind == "sum" else mean)(first), h)
        return mean(square(total((h + 0.1 * stop_gradient(gradient)) * net.w.read(), 1) - y))

    net = Net()
    losses = [loss(net, *part) for part in net.parts()]
    towers = net.descend(add_n(net.gradients(losses)) / 2.0)
    one = one_gpu(lambda net: loss(net, net.x, net.y))
    found = compare(towers, one)
    assert (found.variables["w"].state is PROVED) is (kind == "sum")
    assert (differences(towers, one, found, (4, 4), 1)["w"] < EQUAL) is (kind == "sum")


@pytest.mark.parametrize("parts", ["all", "one twice", "parts of parts", "parts of one"])
def test_parts_of_rows_that_were_combined(parts: str) -> None:
    """The batch is divided among towers after a layer that combines rows."""

    def layer(net: Net) -> Value:
        h = net.x * net.w.read()
        return h + largest(h, 0)

    net = Net()
    rows = split(layer(net), 2)
    if parts == "one twice":
        rows = rows[:1] * 2
    elif parts != "all":
        rows = [each for part in rows for each in split(part, 2)]
        rows = rows[:2] if parts == "parts of one" else rows
    towers = net.descend(add_n(net.gradients([total(square(relu(each))) for each in rows])))
    one = one_gpu(lambda net: total(square(relu(layer(net)))))
    check(towers, one, DIFFERS if "one" in parts else PROVED)


# --- statistics of a tower's rows ---


def _spread(h: Value) -> Value:
    return mean(square(h - mean(h, 0)), 0)


def _standardized(h: Value) -> Value:
    return (h - mean(h, 0)) * apply("Rsqrt", _spread(h) + 0.1)


def _scaled_and_shifted(h: Value) -> Value:
    scale = apply("Rsqrt", _spread(h) + 0.1) * 3.0
    return h * scale + (2.0 - mean(h, 0) * scale)


STATISTICS: dict[str, tuple[bool, Callable[[Value], Value]]] = {
    "rows without their mean": (False, lambda h: mean(relu(h - mean(h, 0)))),
    "standardized rows": (True, lambda h: mean(relu(_standardized(h)))),
    "rows divided by their deviation": (
        True,
        lambda h: mean(relu((h - mean(h, 0)) / (apply("Sqrt", _spread(h)) + 0.1))),
    ),
    "scaled and shifted rows": (True, lambda h: mean(relu(_scaled_and_shifted(h)))),
    "deviation by the mean of squares": (
        True,
        lambda h: mean(
            relu((h - mean(h, 0)) * apply("Rsqrt", mean(square(h), 0) - square(mean(h, 0)) + 0.1))
        ),
    ),
    "penalty on the variance": (False, lambda h: mean(relu(h)) + total(_spread(h))),
    "penalty on the deviation": (
        False,
        lambda h: mean(relu(h)) + total(apply("Sqrt", _spread(h) + 0.1)),
    ),
    "rows divided by their variance": (False, lambda h: mean(square(h) / (_spread(h) + 0.1))),
    "square of a mean next to standardized rows": (
        False,
        lambda h: mean(relu(_standardized(h))) + total(square(mean(relu(h), 0))),
    ),
    "rows above their mean": (False, lambda h: mean(relu(square(h) - mean(square(h))))),
    "rows weighted by a mean": (False, lambda h: mean(h * apply("Tanh", mean(h, 0)))),
    "rows and a mean that are joined": (
        False,
        lambda h: mean(relu(concat([h, apply("Tile", mean(h, 0, keeps=True), [2, 1])]))),
    ),
    "square of a mean": (False, lambda h: total(square(mean(h, 0)))),
    "product of means": (False, lambda h: mean(h) * mean(relu(h))),
    "rows without a sum": (False, lambda h: mean(relu(h - total(h, 0)))),
    "rows without the mean of other elements": (
        False,
        lambda h: mean(relu(h - total(h, 0) / (to_float(rows_of(h)) * to_float(rows_of(h))))),
    ),
    "rows divided by their maximum": (False, lambda h: mean(h / (largest(h, 0) + 9.0))),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_own_rows(name: str) -> None:
    """Means over a tower's rows may stand for means over all rows where rows are normalized."""
    is_accepted, loss = STATISTICS[name]
    net = Net()
    losses = [loss(x * net.w.read()) for x, _ in net.parts()]
    found = compare(
        net.descend(add_n(net.gradients(losses)) / 2.0),
        one_gpu(lambda net: loss(net.x * net.w.read())),
    )
    assert (found.variables["w"].state is PROVED) is is_accepted
    assert not is_accepted or Assumption.OWN_STATISTICS in found.assumed


@pytest.mark.parametrize(
    ("loss", "is_setting"),
    [
        (lambda h: mean(relu(_standardized(h))), True),
        (lambda h: mean(relu(h)) + total(_spread(h)), False),
    ],
    ids=["standardized rows", "penalty on the variance"],
)
def test_another_rate_with_statistics_of_own_rows(
    loss: Callable[[Value], Value], is_setting: bool
) -> None:
    """The gradients are compared with the accepted statistics, too."""
    net = Net()
    losses = [loss(x * net.w.read()) for x, _ in net.parts()]
    gradient = add_n(net.gradients(losses)) / 2.0
    net.program.train(net.w.descend(2 * RATE, gradient))
    one = one_gpu(lambda net: loss(net.x * net.w.read()))
    difference = compare(net.program, one).variables["w"].difference
    assert difference is not None
    assert (difference.excuse is Excuse.SETTING) is is_setting


# --- updates whose order is not fixed ---


def _update_in_each_tower(*, in_turn: bool) -> Program:
    net = Net()
    gradients = net.gradients([net.loss(x, y) for x, y in net.parts()])
    if not in_turn:
        net.program.train(*(net.w.descend(RATE / 2, each) for each in gradients))
        return net.program
    with net.program.after(*gradients):
        net.program.train(*(net.w.descend(RATE / 2, each) for each in gradients))
    return net.program


def test_update_in_each_tower() -> None:
    """A tower may read the variable before or after another tower's update."""
    towers = _update_in_each_tower(in_turn=False)
    found = compare(towers, one_gpu())
    assert found.variables["w"].state is not PROVED
    runs = [differences(towers, one_gpu(), found, (4, 4), seed)["w"] for seed in range(20)]
    assert min(runs) < EQUAL
    assert max(runs) > DIFFERENT


def test_updates_after_all_gradients() -> None:
    """All towers read the variable before the first update."""
    check(_update_in_each_tower(in_turn=True), one_gpu(), PROVED)


@pytest.mark.parametrize("wrong", [0, 1])
def test_runs_in_turns(wrong: int) -> None:
    """A variable that two runs train is equal only if it is after both of them."""

    def build(count: int) -> Placement:
        net = Net()
        runs = []
        for number in range(2):
            gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
            gradient = add_n(gradients) / float(1 if number == wrong else count)
            runs.append([net.w.descend(RATE, gradient).op])
        placement = net.program.placement()
        return placement.with_fields(step=placement.step._replace(train_op=(), runs=runs))

    found = compare_steps(build(2), build(1))

    assert isinstance(found, StepEquality)
    assert found.variables["w"].state is DIFFERS


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("place", ["loss", "rate"])
@pytest.mark.parametrize("value", [0.5, 0.7])
def test_a_value_that_eager_code_may_draw(place: str, value: float, *, traced: bool) -> None:
    """A random value of a loss, such as a temperature, differs without a mistake."""

    def build(count: int, value: float) -> Placement:
        net = Net()
        number = net.program.constant("number", value)
        scale, rate = (number, RATE) if place == "loss" else (1.0, number)
        losses = [net.loss(x, y) * scale for x, y in net.parts(count)]
        net.program.train(net.w.descend(rate, add_n(net.gradients(losses)) / float(count)))
        placement = net.program.placement()
        return placement.with_fields(step=placement.step._replace(traced=traced))

    found = compare_steps(build(2, 0.5), build(1, value))

    assert isinstance(found, StepEquality)
    other = DIFFERS if place == "loss" and not traced else UNKNOWN
    assert found.variables["w"].state is (PROVED if value == 0.5 else other)
    is_setting = found.weights.get("w") == Weights()
    assert is_setting is (value == 0.7 and place == "rate")


# --- branches of TensorFlow 1 ---


def _chosen_number(condition: Value) -> Value:
    """A number for each side of a condition, as `tf.cond` builds it."""
    program = condition.program
    switch = program.add("Switch", condition, condition)
    numbers = []
    for side, name in enumerate((switch.name, f"{switch.name}:1")):
        with program.after(program.add("Identity", Value(program, name))):
            numbers.append(program.tensor(1.0 + side))
    return program.add("Merge", *numbers)


@pytest.mark.parametrize("place", ["weights", "rows"])
def test_a_number_chosen_by_a_condition(place: str) -> None:
    """The condition counts even if the numbers do not depend on it."""

    def build(count: int, least: float = 0.0) -> Program:
        net = Net()
        losses = []
        for x, y in net.parts(count):
            value = total(net.w.read()) if place == "weights" else mean(y)
            losses.append(net.loss(x, y) * _chosen_number(apply("Greater", value, least)))
        return net.descend(add_n(net.gradients(losses)) / float(count))

    found = compare(build(2), build(1))
    assert (found.variables["w"].state is PROVED) is (place == "weights")
    assert compare(build(2, 1.0), build(1)).variables["w"].state is not PROVED


@pytest.mark.parametrize("side", [0, 1, None])
def test_an_update_in_a_branch(side: int | None) -> None:
    """An update that runs on one side of a condition; None for an update that always runs."""

    def build(count: int, side: int | None) -> Program:
        net = Net()
        gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
        condition = apply("Greater", total(net.w.read()), 0.0)
        if side is None:
            return net.descend(add_n(gradients) / float(count))
        switch = net.program.add("Switch", net.w, condition)
        with net.program.after(net.w.descend(RATE, add_n(gradients) / float(count))):
            branch = Value(net.program, f"{switch.op}:{side}" if side else switch.op)
            net.program.train(net.program.add("AssignSubVariableOp", branch, [0.1] * WIDTH))
        return net.program

    for other in (0, 1, None):
        state = compare(build(2, side), build(1, other)).variables["w"].state
        assert (state is PROVED) is (side == other)


@pytest.mark.parametrize(
    ("parts", "is_swapped", "state"),
    [((0, 1), False, PROVED), ((0,), False, DIFFERS), ((0, 1), True, UNKNOWN)],
)
def test_gradients_in_a_branch(parts: Sequence[int], is_swapped: bool, state: State) -> None:
    """A branch takes gradients of some parts, if a condition holds, or if it does not hold.

    The condition depends on the gradients of all parts.
    """

    def build(count: int, *parts: int, is_swapped: bool = False) -> Program:
        net = Net()
        gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
        condition = apply("Greater", total(add_n(gradients) / float(count)), 0.0)
        taken = []
        for part in parts:
            switch = net.program.add("Switch", gradients[part], condition)
            taken.append(Value(net.program, f"{switch.op}:{0 if is_swapped else 1}"))
        pivot = net.program.add("Switch", condition, condition)
        with net.program.after(
            net.program.add("Identity", Value(net.program, f"{pivot.op}:{int(is_swapped)}"))
        ):
            none = net.program.tensor([0.0] * WIDTH)
        return net.descend(net.program.add("Merge", none, add_n(taken) / float(count)))

    found = compare(build(2, *parts, is_swapped=is_swapped), build(1, 0))
    assert found.variables["w"].state is state


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"), [("PyFunc", 0, {"token": "f"}), ("Case", 1, {})]
)
def test_functions_that_are_not_read(kind: str, inputs: int, attributes: dict[str, str]) -> None:
    """Equal inputs do not show that two calls of unknown functions have equal results."""

    def build(count: int) -> Program:
        net = Net()
        penalty = total(apply(kind, *[0] * inputs, net.w.read(), **attributes))
        losses = [net.loss(x, y) + penalty for x, y in net.parts(count)]
        return net.descend(add_n(net.gradients(losses)) / float(count))

    assert compare(build(2), build(1)).variables["w"].state is UNKNOWN


def test_decay_beside_the_step() -> None:
    """If reads may come after an update on one GPU, too, they are assumed to come first."""

    def build(count: int) -> Program:
        net = Net()
        gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
        decay = net.w.assign_sub(net.w.read() * 0.01)
        with net.program.after(decay):
            return net.descend(add_n(gradients) / float(count))

    first = frozenset({Assumption.READ_FIRST})
    found = compare(build(2), build(1))
    assert found.variables["w"].state is PROVED
    assert found.assumed == first


# --- gradient calls ---


def test_mean_loss_written_for_each_variable() -> None:
    """The mean loss of all towers is written again for each variable."""

    def build(count: int) -> Program:
        net = Net()
        b = net.program.variable("b")
        errors = [total(x * net.w.read(), 1) + b.read() - y for x, y in net.parts(count)]
        losses = [mean(square(each)) for each in errors]
        means = [add_n(losses) / float(count) for _ in range(2)]
        net.program.train(
            net.w.descend(RATE, net.program.gradient(means[0], net.w)),
            b.descend(RATE, net.program.gradient(means[1], b)),
        )
        return net.program

    check(build(2), build(1), PROVED)


@pytest.mark.parametrize("reads", [1, 2])
def test_gradient_of_one_read(reads: int) -> None:
    """The gradient for one of two reads is not the gradient for the variable."""

    def build(count: int, reads: int) -> Program:
        net = Net()
        gradients = []
        for x, y in net.parts(count):
            one = net.w.read()
            other = one if reads == 1 else net.w.read()
            loss = mean(square(total(x * one, 1) + total(x * relu(other), 1) - y))
            gradients.append(net.program.gradient(loss, one))
        return net.descend(add_n(gradients) / float(count))

    towers, one = build(2, reads), build(1, 1)
    found = compare(towers, one)
    assert (found.variables["w"].state is PROVED) == (reads == 1)
    assert (differences(towers, one, found, (4, 4), 1)["w"] < EQUAL) == (reads == 1)


def _with_constant_columns(net: Net, x: Value, y: Value) -> Value:
    """A loss of rows with a column of constants, as initial states of recurrent layers are."""
    shape = stack([rows_of(x), 1])
    column = apply("Fill", shape, 0.5)
    gate, value = split(concat([x * net.w.read(), column], 1), 2, axis=1)
    return mean(square(total(apply("Sigmoid", gate) * value, 1) - y))


def test_constants_with_the_number_of_rows_of_a_tower_have_its_rows() -> None:
    net = Net()
    gradients = net.gradients([_with_constant_columns(net, x, y) for x, y in net.parts()])
    towers = net.descend(add_n(gradients) / 2.0)

    check(towers, one_gpu(lambda net: _with_constant_columns(net, net.x, net.y)), PROVED)


def _fixed(
    towers: int,
    divisor: float,
    loss: Callable[[Value, float], Value] = lambda losses, divisor: total(losses) / divisor,
    rows: int = 4,
) -> Program:
    """Towers with a fixed number of rows each, whose gradients are added up."""
    program = Program()
    w = program.variable("w", (WIDTH,))
    feeds = range(towers) if towers > 1 else [None]
    features = [program.placeholder("x", (rows, WIDTH), tower) for tower in feeds]
    losses = [loss(square(total(x * w.read(), 1)), divisor) for x in features]
    gradients = [program.gradient(each, w) for each in losses]
    program.train(w.descend(RATE, add_n(gradients)))
    return program


FIXED_DIVISORS: dict[str, tuple[State, tuple[float, float], Callable[[Value, float], Value]]] = {
    "rows of one tower": (DIFFERS, (4.0, 4.0), lambda loss, divisor: total(loss) / divisor),
    "rows of all towers": (PROVED, (8.0, 4.0), lambda loss, divisor: total(loss) / divisor),
    "one by rows of all": (
        *(PROVED, (8.0, 4.0)),
        lambda loss, divisor: total(loss) * (1 / divisor),
    ),
    "one by rows of one tower": (
        *(DIFFERS, (4.0, 4.0)),
        lambda loss, divisor: (1 / divisor) * total(loss),
    ),
    "rows of one tower, doubled": (
        *(DIFFERS, (4.0, 4.0)),
        lambda loss, divisor: apply("DivNoNan", total(loss), divisor) * 2.0,
    ),
}


@pytest.mark.parametrize("name", FIXED_DIVISORS)
def test_sums_divided_by_a_fixed_number_of_rows(name: str) -> None:
    """A mean, if both programs divide by their rows: for two copies of a batch it is the same."""
    expected, divisors, loss = FIXED_DIVISORS[name]
    programs = [
        _fixed(towers, divisor, loss) for towers, divisor in zip((2, 1), divisors, strict=True)
    ]
    found = compare(*programs).variables["w"]
    assert found.state is expected
    x, values = np.random.default_rng(0).normal(size=(4, WIDTH)), {"w": np.ones(WIDTH)}
    after = [
        program.run({"x": np.concatenate([x] * towers)}, values, [4] * towers)["w"]
        for program, towers in zip(programs, (2, 1), strict=True)
    ]
    assert (np.abs(after[0] - after[1]).max() < EQUAL) == (expected is PROVED)


@pytest.mark.parametrize("divisors", [(1.0, 1.0), (3.0, 3.0), (4.0, 3.0), (8.0, 8.0)])
def test_sums_divided_by_another_fixed_number(divisors: tuple[float, float]) -> None:
    """A sum of all rows, as before, unless both programs divide by numbers of rows."""
    towers, one = [_fixed(count, divisor) for count, divisor in zip((2, 1), divisors, strict=True)]
    found = compare(towers, one).variables["w"].state
    assert found is (PROVED if divisors[0] == divisors[1] else UNKNOWN)


def test_an_extent_of_unknown_size_shows_no_mistake() -> None:
    def loss(net: Net, x: Value, y: Value, rows: Value) -> Value:
        ones = apply("Fill", stack([rows]), 1.0)
        return total(net.errors(x, y)) / total(ones)

    net = Net()
    rows = to_float(rows_of(net.x)) * 0.5
    half = apply("Cast", apply("Maximum", rows, 1.0), DstT="int32")
    towers = net.descend(
        add_n(net.gradients([loss(net, x, y, half) for x, y in net.parts()])) / 2.0
    )

    check(towers, one_gpu(lambda net: loss(net, net.x, net.y, rows_of(net.x))), UNKNOWN)


# --- weight decay ---


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("decay", [1e-3, 1e-7])
def test_small_decay(decay: float, times: int) -> None:
    """A decay that is subtracted counts, even if it is as small as rounding."""

    def build(count: int, decay: float) -> Program:
        net = Net()
        gradients = net.gradients([net.loss(x, y) for x, y in net.parts(count)])
        with net.program.after(net.w.descend(RATE, add_n(gradients) / float(count))):
            net.program.train(net.w.assign_sub(net.w.read() * decay))
        return net.program

    found = compare(build(2, decay * times), build(1, decay))
    assert found.variables["w"].state is (PROVED if times == 1 else DIFFERS)


@pytest.mark.parametrize("decays", [(0.01, 0.0), (0.0, 0.01), (0.0, 0.0)])
def test_decay_in_one_of_the_programs(decays: tuple[float, float]) -> None:
    def build(count: int, decay: float) -> Program:
        net = Net()
        gradient = add_n(net.gradients([net.loss(x, y) for x, y in net.parts(count)]))
        gradient = gradient / float(count)
        return net.descend(gradient + net.w.read() * decay if decay else gradient)

    found = compare(build(2, decays[0]), build(1, decays[1]))
    assert found.variables["w"].state is (DIFFERS if any(decays) else PROVED)


@pytest.mark.parametrize("element", [0.0, 1.0])
def test_a_multiple_of_equal_elements(element: float) -> None:
    """Zeros stand for the gradient of a penalty that does not contain the variable."""

    def build(count: int, times: float) -> Program:
        net = Net()
        gradient = add_n(net.gradients([net.loss(x, y) for x, y in net.parts(count)]))
        penalty = net.program.tensor(np.full(WIDTH, element)) * times
        return net.descend(gradient / float(count) + penalty)

    found = compare(build(2, 2.0), build(1, 1.0))
    assert found.variables["w"].state is (DIFFERS if element else PROVED)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_default_of_a_placeholder(factor: float) -> None:
    """An input that need not be fed is equal only if its default is."""

    def build(count: int, factor: float) -> Program:
        net = Net(count)
        losses = []
        for x, y in net.feeds:
            columns = apply("Slice", x, [0, 0], [-1, 2]) * factor
            default = net.program.placeholder_with_default(columns)
            losses.append(mean(square(total(x * net.w.read(), 1) + total(default, 1) - y)))
        return net.descend(add_n(net.gradients(losses)) / float(count))

    found = compare(build(2, factor), build(1, 1.0))
    assert (found.variables["w"].state is PROVED) == (factor == 1.0)


def test_towers_may_compute_the_loss_of_all_rows() -> None:
    def whole(towers: int) -> Program:
        program = Program()
        x = program.placeholder("x", (None, WIDTH))
        w = program.variable("w", (WIDTH,))
        results = [total(part * w.read(), 1) for part in (split(x, towers) if towers > 1 else [x])]
        losses = [
            mean(square(concat(results) if towers > 1 else results[0])) for _ in range(towers)
        ]
        gradients = [program.gradient(loss, w) for loss in losses]
        average = add_n(gradients) / float(towers) if towers > 1 else gradients[0]
        program.train(w.descend(0.1, average))
        return program

    found = compare(whole(2), whole(1))

    assert all(answer.state is not DIFFERS for answer in found.variables.values())


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_choice_by_a_weight(is_swapped: bool) -> None:
    """Two values are chosen by a condition that is the same for all rows."""

    def loss(net: Net, x: Value, y: Value, is_swapped: bool = False) -> Value:
        errors = net.errors(x, y)
        values = (errors * 0.5, errors) if is_swapped else (errors, errors * 0.5)
        return mean(apply("SelectV2", apply("Greater", total(net.w.read()), 0.0), *values))

    towers = Net()
    gradients = towers.gradients([loss(towers, *part, is_swapped) for part in towers.parts()])
    found = compare(
        towers.descend(add_n(gradients) * 0.5), one_gpu(lambda net: loss(net, net.x, net.y))
    )

    assert (found.variables["w"].state is PROVED) is not is_swapped


def test_steps_that_are_not_known() -> None:
    net = Net()
    known, unknown = one_gpu().placement(), net.program.placement()

    for pair in ((known, unknown), (unknown, known)):
        assert isinstance(compare_steps(*pair), Missing)
