from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.steps import (
    Program,
    Value,
    add_n,
    apply,
    mean,
    relu,
    reshape,
    split,
    square,
    to_float,
    total,
)
from support.verdicts import broken, doubtful, kept, not_checked, verdicts

from placement_checks import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.towers.equal_to_one_gpu import EqualToOneGpu
from placement_checks.rules.towers.one_update import OneUpdate
from placement_checks.rules.towers.randomness_apart import RandomnessApart
from placement_checks.verification.judging import with_causes

Loss = Callable[[Value, Value, Value], Value]
Average = Callable[[list[Value]], Value]


def squares(x: Value, y: Value, w: Value) -> Value:
    """The mean of the squared errors."""
    return mean(square(total(x * w, 1) - y))


def average(gradients: list[Value]) -> Value:
    return add_n(gradients) / float(len(gradients))


def program(
    towers: int = 1,
    average: Average = average,
    losses: Sequence[Loss] = (squares, squares),
    rate: float = 0.1,
    rows: Sequence[int] = (0, 1),
    *,
    spare: int = 0,
    evaluates: bool = False,
) -> Program:
    """Towers on equal parts of one batch; with one tower, the program for one GPU.

    Args:
        towers: the number of towers.
        average: combines the gradients of the towers.
        losses: the loss of each tower.
        rate: the learning rate.
        rows: the part of the batch that each tower reads.
        spare: the number of parts that no tower reads.
        evaluates: whether the program computes with the last part, but does not train with it.
    """
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w = made.variable("w", (3,))
    xs, ys = split(x, towers + spare), split(y, towers + spare)
    if evaluates:
        squares(xs[-1], ys[-1], w.read())
    gradients = []
    for tower in range(towers):
        with made.tower(tower):
            part = rows[tower]
            loss = losses[tower](xs[part], ys[part], w.read())
            gradients.append(made.gradient(loss, w))
    made.train(w.descend(rate, average(gradients)))
    return made


def evidence(towers: Program, one_gpu: Program | Missing | None = None, **fields: Any) -> Evidence:
    """A program and its build for one GPU."""
    single = program() if one_gpu is None else one_gpu
    placement = single if isinstance(single, Missing) else single.placement()
    return Evidence(towers.placement(), single_gpu=placement, **fields)


def of_products(x: Value, y: Value, w: Value) -> Value:
    """A loss that combines the rows of a tower."""
    return mean(square(total(x * w, 1) - y)) * mean(y)


def of_tokens(x: Value, y: Value, w: Value) -> Value:
    """A sum that is divided by the number of rows with a positive label."""
    there = to_float(apply("Greater", y, 0.0))
    return total(square(total(x * w, 1) - y) * there) / apply("Maximum", total(there), 1.0)


def of_activations(x: Value, y: Value, w: Value) -> Value:
    """A sum that is divided by another sum, which depends on the weights, too."""
    predicted = total(x * w, 1)
    return total(square(predicted - y)) / (total(square(predicted)) + 1.0)


def weighted(number: Callable[[Program, int], Value], one_gpu: Program | None = None) -> Evidence:
    """Towers whose gradients are multiplied by numbers that the program keeps or gets."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w = made.variable("w", (3,))
    weights = [number(made, tower) for tower in (0, 1)]
    gradients = []
    for tower, (part, labels) in enumerate(zip(split(x, 2), split(y, 2), strict=True)):
        with made.scope(f"tower_{tower}"):
            loss = squares(part, labels, w.read())
            gradients.append(made.gradient(loss, w) * weights[tower])
    made.train(w.descend(0.1, add_n(gradients)))
    return evidence(made, one_gpu)


def kept_weight(made: Program, tower: int) -> Value:
    return made.variable(f"weight_{tower}", is_trained=False).read()


def with_kept_weights() -> Program:
    """The program for one GPU, with the weights of two towers, which it does not use."""
    made = program()
    for tower in (0, 1):
        kept_weight(made, tower)
    return made


def scaled_by_first(towers: int = 1) -> Program:
    """Gradient descent that is written out, with a factor that the first gradient determines."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w = made.variable("w", (3,))
    gradients = []
    for tower, (part, labels) in enumerate(zip(split(x, towers), split(y, towers), strict=True)):
        with made.scope(f"tower_{tower}"):
            gradients.append(made.gradient(squares(part, labels, w.read()), w))
    made.train(w.assign_sub(average(gradients) * total(gradients[0])))
    return made


def with_levels(towers: int = 1) -> Program:
    """Each tower assigns the mean of its rows to one variable, and none waits for another."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w, level = made.variable("w", (3,)), made.variable("level", (), is_trained=False)
    gradients, levels = [], []
    for tower, (part, labels) in enumerate(zip(split(x, towers), split(y, towers), strict=True)):
        with made.scope(f"tower_{tower}"):
            gradients.append(made.gradient(squares(part, labels, w.read()), w))
            levels.append(level.assign(mean(labels)))
    made.train(w.descend(0.1, average(gradients)), *levels)
    return made


def centered(towers: int = 1, moved: int = 1) -> Program:
    """The rows of some towers move the centers of their classes, which the loss reads."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w, centers = made.variable("w", (3,)), made.variable("centers", (5,), is_trained=False)
    gradients, moves = [], []
    for tower, (part, labels) in enumerate(zip(split(x, towers), split(y, towers), strict=True)):
        with made.scope(f"tower_{tower}"):
            classes = apply("Cast", labels, DstT="int32")
            apart = total(part * w.read(), 1) - apply("GatherV2", centers.read(), classes, 0)
            gradients.append(made.gradient(mean(square(apart)), w))
            moves.append((classes, apart * -0.1))
    with made.after(average(gradients)):
        updates = [made.add("ResourceScatterSub", centers, *move) for move in moves[:moved]]
    made.train(w.descend(0.1, average(gradients)), *updates)
    return made


def decayed(towers: int = 1, times: int = 1) -> Program:
    """Weights that decay by a share of a scheduled rate before Adam updates them."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w, step = made.variable("w", (3,)), made.variable("step", is_trained=False)
    slots = [made.variable(name, (3,), is_trained=False) for name in ("m", "v")]
    powers = [made.variable(name, is_trained=False) for name in ("beta1", "beta2")]
    rate = apply("Minimum", step.read(), 1000.0) * -1e-5 + 0.02
    gradients = []
    for tower, (rows, labels) in enumerate(zip(split(x, towers), split(y, towers), strict=True)):
        with made.scope(f"tower_{tower}"):
            gradients.append(made.gradient(squares(rows, labels, w.read()), w))
    combined = average(gradients)
    with made.after(combined):
        decays = [w.assign_sub(rate * 0.1 * w.read()) for _ in range(times)]
    with made.after(*decays):
        made.train(w.apply_adam((slots[0], slots[1]), (powers[0], powers[1]), rate, combined))
    return made


def penalized(towers: int = 1, decay: float = 0.0) -> Program:
    """Losses with a penalty, and a decay that is added to the mean of their gradients."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w, gradients = made.variable("w", (3,)), []
    for tower, (rows, labels) in enumerate(zip(split(x, towers), split(y, towers), strict=True)):
        with made.scope(f"tower_{tower}"):
            loss = squares(rows, labels, w.read()) + apply("L2Loss", w.read()) * 0.01
            gradients.append(made.gradient(loss, w))
    combined = average(gradients)
    made.train(w.descend(0.1, combined + w.read() * decay if decay else combined))
    return made


def copied(towers: int = 1, decays: Sequence[int] = (0,)) -> Program:
    """A copy of the weights in each tower, some of which decay."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    copies = [made.variable(f"copy_{tower}/w", (3,)) for tower in range(towers)]
    gradients = []
    for tower, (rows, labels) in enumerate(zip(split(x, towers), split(y, towers), strict=True)):
        with made.scope(f"tower_{tower}"):
            w = copies[tower]
            gradients.append(made.gradient(squares(rows, labels, w.read()), w))
    means = [
        average(gradients) + w.read() * (0.01 if i in decays else 0) for i, w in enumerate(copies)
    ]
    made.train(*(w.descend(0.1, mean) for w, mean in zip(copies, means, strict=True)))
    return made


def crossed(towers: int = 1) -> Program:
    """Each tower gets the labels of another tower's rows."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w, gradients = made.variable("w", (3,)), []
    parts = zip(split(x, towers), split(y, towers)[::-1], strict=True)
    for tower, (rows, labels) in enumerate(parts):
        with made.scope(f"tower_{tower}"):
            gradients.append(made.gradient(squares(rows, labels, w.read()), w))
    made.train(w.descend(0.1, average(gradients)))
    return made


def mispaired(towers: int = 1) -> Program:
    """The second tower lists its gradients in another order."""
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    variables = [made.variable(name, (3,)) for name in ("w", "v")]
    w, v = variables
    gradients = []
    for tower, (rows, labels) in enumerate(zip(split(x, towers), split(y, towers), strict=True)):
        with made.scope(f"tower_{tower}"):
            loss = squares(rows, labels, w.read() * v.read())
            order = variables if tower == 0 else variables[::-1]
            gradients.append([made.gradient(loss, each) for each in order])
    means = [average(list(pair)) for pair in zip(*gradients, strict=True)]
    made.train(*(each.descend(0.1, mean) for each, mean in zip(variables, means, strict=True)))
    return made


def clipped(gradients: list[Value]) -> Value:
    """The mean of the gradients, which is divided by a large norm."""
    combined = average(gradients)
    norm = total(square(combined))
    return apply("Select", apply("Greater", norm, 1.0), combined / norm, combined)


def with_sum(x: Value, y: Value, w: Value) -> Value:
    """A mean over rows, and a sum over rows where `with_mean` has a mean."""
    return squares(x, y, w) + total(relu(total(x * w, 1) - y))


def with_mean(x: Value, y: Value, w: Value) -> Value:
    """Two means over rows."""
    return squares(x, y, w) + mean(relu(total(x * w, 1) - y))


def of_masked(x: Value, y: Value, w: Value) -> Value:
    """The mean over the rows with a positive label, which a lookup selects."""
    there = reshape(apply("Where", reshape(apply("Greater", y, 0.0), [-1])), [-1])
    return mean(apply("GatherV2", square(total(x * w, 1) - y), there, 0))


CASES = {
    "weights that the program keeps": not_checked(weighted(kept_weight)),
    "weights that both programs keep": not_checked(weighted(kept_weight, with_kept_weights())),
    "a factor that depends on gradients": broken(evidence(scaled_by_first(2), scaled_by_first())),
    "centers that the rows of all towers move": kept(evidence(centered(2, moved=2), centered())),
    "centers that the rows of one tower move": doubtful(evidence(centered(2), centered())),
    "averaged": kept(evidence(program(2))),
    "three towers": kept(evidence(program(3, losses=[squares] * 3, rows=(0, 1, 2)))),
    "compared with the reference": kept(
        evidence(program(2), Missing("no build"), reference=program(1).placement())
    ),
    "summed": broken(evidence(program(2, add_n))),
    "the reference decides": broken(
        evidence(program(2, add_n), program(1), reference=program(1).placement())
    ),
    "one tower alone": broken(evidence(program(2, lambda gradients: gradients[1]))),
    "the same rows": broken(evidence(program(2, rows=(0, 0)))),
    "a part that no op uses": broken(evidence(program(2, spare=1))),
    "a part that no op uses, also on one GPU": broken(
        evidence(program(2, spare=1), program(spare=1))
    ),
    "a part that no op uses, and the same rows on one GPU": not_checked(
        evidence(program(2, spare=2), program(spare=1))
    ),
    "a part that is evaluated": not_checked(
        evidence(program(2, spare=1, evaluates=True), program(spare=1, evaluates=True))
    ),
    "towers that differ": broken(
        evidence(program(2, losses=[squares, lambda x, y, w: mean(relu(total(x * w, 1) - y))]))
    ),
    "allowed to differ": kept(evidence(program(2, add_n)), allow=("w",)),
    "another learning rate": doubtful(evidence(program(2, rate=0.2))),
    "another learning rate that is allowed": kept(evidence(program(2, rate=0.2)), allow=("w",)),
    "another learning rate, and one tower alone": broken(
        evidence(program(2, lambda gradients: gradients[1], rate=0.2))
    ),
    # Another rate may make up for a sum.
    "another learning rate for a sum": not_checked(evidence(program(2, add_n, rate=0.2))),
    "half of the learning rate for a sum": kept(evidence(program(2, add_n, rate=0.05))),
    "another learning rate, and rows of a tower combined": not_checked(
        evidence(program(2, losses=[of_products] * 2, rate=0.2), program(losses=[of_products]))
    ),
    "rows of a tower combined": not_checked(
        evidence(program(2, losses=[of_products] * 2), program(losses=[of_products]))
    ),
    "means over the tokens of each tower": doubtful(
        evidence(program(2, losses=[of_tokens] * 2), program(losses=[of_tokens]))
    ),
    "means over tokens, and another learning rate": doubtful(
        evidence(program(2, losses=[of_tokens] * 2, rate=0.2), program(losses=[of_tokens]))
    ),
    "a sum of means over the tokens of each tower": not_checked(
        evidence(program(2, add_n, losses=[of_tokens] * 2), program(losses=[of_tokens]))
    ),
    "means over tokens on several GPUs alone": not_checked(
        evidence(program(2, losses=[of_tokens] * 2))
    ),
    "divisors that depend on the weights": not_checked(
        evidence(program(2, losses=[of_activations] * 2), program(losses=[of_activations]))
    ),
    "means over rows that a mask leaves": doubtful(
        evidence(program(2, losses=[of_masked] * 2), program(losses=[of_masked]))
    ),
    "a variable that each tower assigns": broken(evidence(with_levels(2), with_levels())),
    "decay once": kept(evidence(decayed(2), decayed())),
    "decay once per tower": broken(evidence(decayed(2, times=2), decayed())),
    "decay and a penalty": broken(evidence(penalized(2, 0.01), penalized())),
    "decay and a penalty, also on one GPU": kept(evidence(penalized(2, 0.01), penalized(1, 0.01))),
    "no decay, which one GPU has": broken(evidence(penalized(2), penalized(1, 0.01))),
    "copies that decay alike": kept(evidence(copied(2, (0, 1)), copied())),
    "copies that decay differently": broken(evidence(copied(2), copied())),
    "gradients of another variable in one tower": broken(evidence(mispaired(2), mispaired())),
    "clipped means of gradients": kept(evidence(program(2, clipped), program(average=clipped))),
    "clipped gradients of a sum in place of a mean": not_checked(
        evidence(
            program(2, clipped, losses=[with_sum] * 2),
            program(average=clipped, losses=[with_mean]),
        )
    ),
    "labels of another part": broken(evidence(crossed(2), crossed())),
    "no build for one GPU": not_checked(
        evidence(program(2), Missing("it always builds two towers", "build num_gpus towers"))
    ),
    "two towers, also for one GPU": not_checked(evidence(program(2), program(2))),
}

test_verdicts = verdicts(EqualToOneGpu, CASES)


def test_equal_noise_explains_the_difference_before_other_mistakes() -> None:
    """A step counter that is not incremented makes no random numbers equal."""

    def noisy(x: Value, y: Value, w: Value) -> Value:
        shape = x.program.add("Shape", x)
        return squares(x + x.program.add("RandomStandardNormal", shape, seed=1, seed2=1), y, w)

    programs = program(2, losses=[noisy] * 2), program(losses=[noisy])
    found = [EqualToOneGpu().judge(evidence(*programs))]
    rules: list[type[Rule]] = [EqualToOneGpu, OneUpdate, RandomnessApart]
    for rule in rules[1:]:
        finding = Finding("tower_1/x", "", "requested", "", "")
        found.append(Verdict(rule.name, "broken", "requested", None, [finding]))

    judged = with_causes(found, [rule.states for rule in rules])

    assert {each.follows for each in judged[0].findings} == {"randomness-apart"}
