from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.steps import Program, Value, add_n, mean, relu, split, square, total
from support.verdicts import broken, kept, not_checked, verdicts

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
) -> Program:
    """Towers on equal parts of one batch; with one tower, the program for one GPU.

    Args:
        towers: the number of towers.
        average: combines the gradients of the towers.
        losses: the loss of each tower.
        rate: the learning rate.
        rows: the part of the batch that each tower reads.
    """
    made = Program()
    x, y = made.placeholder("x", (None, 3)), made.placeholder("y", (None,))
    w = made.variable("w", (3,))
    xs, ys = split(x, towers), split(y, towers)
    gradients = []
    for tower in range(towers):
        with made.scope(f"tower_{tower}"):
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


def weighted(number: Callable[[Program, int], Value]) -> Evidence:
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
    return evidence(made)


CASES = {
    "weights that the program keeps": not_checked(
        weighted(lambda made, i: made.variable(f"weight_{i}", is_trained=False).read())
    ),
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
    "towers that differ": broken(
        evidence(program(2, losses=[squares, lambda x, y, w: mean(relu(total(x * w, 1) - y))]))
    ),
    "allowed to differ": kept(evidence(program(2, add_n)), allow=("w",)),
    "another learning rate": not_checked(evidence(program(2, rate=0.2))),
    "rows of a tower combined": not_checked(
        evidence(program(2, losses=[of_products] * 2), program(losses=[of_products]))
    ),
    "no build for one GPU": not_checked(
        evidence(program(2), Missing("it always builds two towers", "build num_gpus towers"))
    ),
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
