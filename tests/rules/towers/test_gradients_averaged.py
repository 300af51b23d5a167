from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from support.drawn_steps import Recipe, build, recipes
from support.fuzzing import examples
from support.steps import (
    Handle,
    Program,
    Value,
    add_n,
    apply,
    compare,
    mean,
    rows_of,
    split,
    square,
    to_float,
    total,
)
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.rules.towers.gradients_averaged import GradientsAveraged
from placement_checks.step.explanation import Excuse


class Tower(NamedTuple):
    """What a loss is computed from.

    Attributes:
        number: the number of the tower.
        x: its rows.
        y: their labels.
        w: the weights.
        of_all: the labels of all rows, if the batch is split on the host.
        task: another variable.
    """

    number: int
    x: Value
    y: Value
    w: Handle
    of_all: Value
    task: Handle

    @property
    def errors(self) -> Value:
        return square(total(self.x * self.w.read(), 1) - self.y)

    @property
    def penalty(self) -> Value:
        return apply("L2Loss", self.w.read())


Loss = Callable[[Tower], Value]
Combine = Callable[[list[Value]], Value]
Update = Callable[[Handle, Handle, Value], Sequence[Value]]


def squares(tower: Tower) -> Value:
    return mean(tower.errors)


def sums(tower: Tower) -> Value:
    return total(tower.errors)


def average(gradients: Sequence[Value]) -> Value:
    return add_n(gradients) / float(len(gradients)) if len(gradients) > 1 else gradients[0]


def added_up(gradients: Sequence[Value]) -> Value:
    return add_n(gradients) if len(gradients) > 1 else gradients[0]


def weighted(*weights: float) -> Combine:
    """A sum with a weight for each tower."""
    return lambda gradients: add_n([g * x for g, x in zip(gradients, weights, strict=True)])


def descend(rate: float) -> Update:
    return lambda w, _, gradient: [w.descend(rate, gradient)]


def momentum(rate: float) -> Update:
    return lambda w, slot, gradient: [w.apply_momentum(slot, rate, gradient)]


def adam(w: Handle, slot: Handle, gradient: Value) -> Sequence[Value]:
    made = w.program
    v = made.variable("w/v", (3,), is_trained=False)
    one, other = (made.variable(name, is_trained=False) for name in ("power", "other_power"))
    return [w.apply_adam((slot, v), (one, other), 0.1, gradient)]


def rms(rate: float) -> Update:
    """An optimizer that is written out: the gradient divided by the root of a mean of squares."""

    def update(w: Handle, slot: Handle, gradient: Value) -> Sequence[Value]:
        moved = slot.read() * 0.9 + square(gradient) * 0.1
        step = gradient * rate / (apply("Sqrt", moved) + 1e-3)
        return [slot.assign(moved), w.assign_sub(step)]

    return update


def program(
    count: int = 1,
    combine: Combine = average,
    loss: Loss | Sequence[Loss] = squares,
    update: Update | None = None,
    *,
    is_split: bool = False,
    rows: Sequence[int | None] = (None,),
) -> Program:
    """Towers on parts of one batch; with one tower, the program for one GPU.

    Args:
        count: the number of towers.
        combine: combines the gradients of the towers.
        loss: the loss of all towers, or of each of them.
        update: the updates of the weights and a slot, given the combined gradient.
        is_split: whether one batch is split; otherwise each tower has its own placeholders.
        rows: the fixed numbers of rows of the placeholders; None for any number.
    """
    made = Program()
    w, slot = made.variable("w", (3,)), made.variable("w/slot", (3,), is_trained=False)
    task = made.variable("task", is_trained=False)
    losses = [loss] * count if callable(loss) else loss
    if is_split:
        x, y = made.placeholder("x", (rows[0], 3)), made.placeholder("y", (rows[0],))
        xs, ys = split(x, count), split(y, count)
    gradients = []
    for i in range(count):
        with made.tower(i):
            if is_split:
                tower = Tower(i, xs[i], ys[i], w, y, task)
            else:
                at, number = rows[i % len(rows)], None if count == 1 else i
                x, y = made.placeholder("x", (at, 3), number), made.placeholder("y", (at,), number)
                tower = Tower(i, x, y, w, y, task)
            gradients.append(made.gradient(losses[i](tower), w))
    made.train(*(update or descend(0.1))(w, slot, combine(gradients)))
    return made


def compared(many: Program, one: Program | Missing | None = None, **fields: Any) -> Evidence:
    """A program, and the program for one GPU, which by default is ``program()``."""
    one = program() if one is None else one
    single = one if isinstance(one, Missing) else one.placement()
    return Evidence(many.placement(), single_gpu=single, **fields)


def same(combine: Combine, loss: Loss, **more: Any) -> Evidence:
    """Two towers, and one GPU with the same loss and update."""
    return compared(program(2, combine, loss, **more), program(loss=loss, **more))


def roots(tower: Tower) -> Value:
    return apply("Sqrt", mean(tower.errors))


def absolute(tower: Tower) -> Value:
    return mean(apply("Abs", total(tower.x * tower.w.read(), 1) - tower.y))


def running_sums(tower: Tower) -> Value:
    """The mean of values that depend on other rows, too."""
    return mean(apply("Cumsum", tower.errors, 0))


def pairs(kind: str, reduce: Callable[[Value], Value] = mean) -> Loss:
    """A mean over all pairs of a tower's rows, or a sum."""

    def loss(tower: Tower) -> Value:
        weighted = tower.x * tower.w.read()
        errors = total(weighted, 1)
        if kind == "products":
            return reduce(square(apply("MatMul", weighted, tower.x, transpose_b=True)))
        other = apply("ExpandDims", errors, 1)
        return reduce(apply("Relu", other - (errors if kind == "differences" else tower.y)))

    return loss


def own_rows(tower: Tower) -> Value:
    """A sum that is divided by the number of the tower's rows."""
    return total(tower.errors) / to_float(rows_of(tower.x))


def all_rows(tower: Tower) -> Value:
    """A sum that is divided by the number of rows of all towers."""
    return total(tower.errors) / to_float(rows_of(tower.of_all))


def own_tokens(tower: Tower) -> Value:
    """A sum that is divided by the number of the tower's rows with a positive label."""
    mask = to_float(apply("Greater", tower.y, 0.0))
    return total(tower.errors * mask) / apply("Maximum", total(mask), 1.0)


def all_tokens(tower: Tower) -> Value:
    """A sum that is divided by the number of all rows with a positive label."""
    mask = to_float(apply("Greater", tower.y, 0.0))
    return total(tower.errors * mask) / total(to_float(apply("Greater", tower.of_all, 0.0)))


def two_terms(weight: float) -> Loss:
    """A mean of squares, and a mean of absolute values with a weight."""

    def loss(tower: Tower) -> Value:
        absolute = apply("Abs", total(tower.x * tower.w.read(), 1) - tower.y)
        return mean(tower.errors) + mean(absolute) * weight

    return loss


def with_task(of_tower: Callable[[Tower], Value]) -> Loss:
    """A second term with a weight that the program computes."""

    def loss(tower: Tower) -> Value:
        absolute = apply("Abs", total(tower.x * tower.w.read(), 1))
        return mean(tower.errors) + mean(absolute) * of_tower(tower)

    return loss


def learned_weight(tower: Tower) -> Value:
    return square(tower.task.read())


def fed_weight(tower: Tower) -> Value:
    return tower.w.program.placeholder("task", ())


def fed_weight_of_tower(tower: Tower) -> Value:
    return tower.w.program.placeholder(f"task_{tower.number}", ())


def random_weight(tower: Tower) -> Value:
    return total(apply("RandomStandardNormal", tower.w.program.tensor([2])))


def penalized(factor: float | Callable[[Tower], Value] = 0.01, share: float = 1.0) -> Loss:
    """A mean, times a share, and a penalty on the weights."""

    def loss(tower: Tower) -> Value:
        weight = factor if isinstance(factor, float) else factor(tower)
        return mean(tower.errors) * share + tower.penalty * weight

    return loss


def by_rows(*order: int) -> Evidence:
    """Gradients that are weighted by the shares of two towers' rows, in this order."""
    made = Program()
    w = made.variable("w", (3,))
    gradients, sizes = [], []
    for i in (0, 1):
        with made.tower(i):
            x, y = made.placeholder("x", (None, 3), i), made.placeholder("y", (None,), i)
            gradients.append(made.gradient(mean(square(total(x * w.read(), 1) - y)), w))
            sizes.append(to_float(rows_of(x)))
    sum_of_rows = sizes[0] + sizes[1]
    shares = [sizes[i] / sum_of_rows for i in order]
    combined = add_n([g * share for g, share in zip(gradients, shares, strict=True)])
    made.train(w.descend(0.1, combined))
    return compared(made)


def clipped(gradient: Value) -> Value:
    norm = apply("Sqrt", total(square(gradient)))
    return gradient * (1.0 / apply("Maximum", norm, 1.0))


def clip_each(gradients: Sequence[Value]) -> Value:
    return average([clipped(gradient) for gradient in gradients])


def decayed(combine: Combine, *, in_towers: bool) -> Evidence:
    """A decay of the weights that is added to gradients, not to losses."""

    def of(count: int) -> Program:
        made = Program()
        w = made.variable("w", (3,))
        gradients = []
        for i in range(count):
            with made.tower(i):
                tower = None if count == 1 else i
                x, y = (
                    made.placeholder("x", (None, 3), tower),
                    made.placeholder("y", (None,), tower),
                )
                gradient = made.gradient(mean(square(total(x * w.read(), 1) - y)), w)
                gradients.append(gradient + w.read() * 0.01 if in_towers else gradient)
        mean_gradient = combine(gradients)
        made.train(w.descend(0.1, mean_gradient if in_towers else mean_gradient + w.read() * 0.01))
        return made

    return compared(of(2), of(1))


def crossed(*, on_one: bool = False) -> Evidence:
    """Two variables, each of which takes the gradient of the other one."""

    def of(count: int, is_crossed: bool) -> Program:
        made = Program()
        variables = [made.variable(name, (3,)) for name in ("u", "w")]
        gradients: list[list[Value]] = [[], []]
        for i in range(count):
            with made.tower(i):
                x = made.placeholder("x", (None, 3), None if count == 1 else i)
                read = variables[0].read() + square(variables[1].read())
                loss = mean(square(total(x * read, 1)))
                for own, variable in zip(gradients, variables, strict=True):
                    own.append(made.gradient(loss, variable))
        taken = gradients[::-1] if is_crossed else gradients
        updates = [v.descend(0.1, average(g)) for v, g in zip(variables, taken, strict=True)]
        made.train(*updates)
        return made

    return compared(of(2, True), of(1, on_one))


SHAPES = [("x", (None, 3)), ("y", (None,))]


def of_local_copies() -> Evidence:
    """Towers read a local copy, which then gets the value of the variable that it copies."""

    def of(count: int) -> Program:
        made = Program()
        w, local = made.variable("w", (3,)), made.variable("local", (3,))
        gradients = []
        for i in range(count):
            with made.tower(i):
                x = made.placeholder("x", (None, 3), None if count == 1 else i)
                loss = mean(square(total(x * local.read(), 1)))
                gradients.append(made.gradient(loss, local))
        update = w.descend(0.1, average(gradients))
        with made.after(update):
            made.train(local.assign(w.read()))
        return made

    return compared(of(2), of(1))


def without_gradients(*, of_function: bool) -> Evidence:
    """Updates take results of a Python function, or sums of gradients of other runs."""

    def of(count: int) -> Program:
        made = Program()
        w, taken = made.variable("w", (3,)), []
        for i in range(count):
            with made.tower(i):
                x = made.placeholder("x", (None, 3), None if count == 1 else i)
                made.gradient(mean(square(total(x * w.read(), 1))), w)
                kept_sum = made.variable(f"sum_{i}", (3,), is_trained=False)
                computed = apply("PyFunc", mean(x, 0))
                taken.append(computed if of_function else kept_sum.read())
        made.train(w.descend(0.1, average(taken)))
        return made

    return compared(of(2), of(1))


ONE_PENALTY = program(loss=penalized())

CASES = {
    **{f"a mean of {count} towers": kept(compared(program(count))) for count in (2, 12)},
    "a mean of parts of one batch": kept(compared(program(2, is_split=True))),
    "a sum of four towers": broken(compared(program(4, added_up))),
    "a sum of parts of one batch": broken(compared(program(2, added_up, is_split=True))),
    "a mean that is divided again": broken(compared(program(2, weighted(0.25, 0.25)))),
    "another factor": broken(compared(program(2, weighted(64.0, 64.0)))),
    "a sum, and a scale of 2 is declared": kept(compared(program(2, added_up)), scale=2.0),
    "a mean, and a scale of 2 is declared": broken(compared(program(2)), scale=2.0),
    "a sum at half of the rate, and a scale of 2 is declared": kept(
        compared(program(2, added_up, update=descend(0.05))), scale=2.0
    ),
    "a sum that is allowed": not_checked(compared(program(2, added_up)), allow=("w",)),
    "a sum of sums over rows": kept(same(added_up, sums)),
    # Towers may have as many rows as one GPU, or split its rows.
    "a mean of sums over rows": not_checked(same(average, sums)),
    "a mean of sums over a fixed number of rows": broken(
        same(average, sums, is_split=True, rows=[16])
    ),
    "a mean of sums that are divided by the rows of each tower": kept(same(average, own_rows)),
    "a sum of sums that are divided by the rows of each tower": broken(same(added_up, own_rows)),
    "a sum of sums that are divided by all rows": kept(same(added_up, all_rows, is_split=True)),
    "a mean of sums that are divided by all rows": broken(same(average, all_rows, is_split=True)),
    # The mean of the towers' roots is not the root of the mean, but the factor must be right.
    "a sum of roots of means": broken(same(added_up, roots)),
    "a mean of roots of means": not_checked(same(average, roots)),
    "a sum of roots of means, and a scale of 2 is declared": not_checked(
        same(added_up, roots), scale=2.0
    ),
    "a sum of means that combine rows": broken(same(added_up, running_sums)),
    "a mean of means that combine rows": not_checked(same(average, running_sums)),
    "results of a Python function": not_checked(without_gradients(of_function=True)),
    "sums of gradients of other runs": not_checked(without_gradients(of_function=False)),
    "a mean of means over the tokens of each tower": not_checked(same(average, own_tokens)),
    "a sum of means over the tokens of each tower": broken(same(added_up, own_tokens)),
    "a sum of means over all tokens": kept(same(added_up, all_tokens, is_split=True)),
    "a term with another factor in all towers": broken(
        compared(program(2, loss=two_terms(0.8)), program(loss=two_terms(0.4)))
    ),
    "a term with another factor in one tower": broken(
        compared(program(2, loss=[two_terms(0.1), two_terms(0.4)]), program(loss=two_terms(0.1)))
    ),
    "a second term in both towers": kept(same(average, two_terms(0.4))),
    "a second term in the first tower": broken(
        compared(program(2, loss=[two_terms(0.4), squares]), program(loss=two_terms(0.4)))
    ),
    "a second term in the second tower that one GPU lacks": broken(
        compared(program(2, loss=[squares, two_terms(0.4)]))
    ),
    "a second term in the first of three towers": broken(
        compared(program(3, loss=[two_terms(0.4), squares, squares]), program(loss=two_terms(0.4)))
    ),
    # Then it is another function, which equal-to-one-gpu reports.
    "a second term on one GPU alone": not_checked(
        compared(program(2), program(loss=two_terms(0.4)))
    ),
    "a second term in all towers that one GPU lacks": not_checked(
        compared(program(2, loss=two_terms(0.4)))
    ),
    "another function in one tower": not_checked(compared(program(2, loss=[squares, roots]))),
    "another function than on one GPU": not_checked(compared(program(2, loss=own_tokens))),
    **{
        f"a task with a {how} weight, {combine.__name__}": expected(
            same(combine, with_task(weight))
        )
        for how, weight in {"learned": learned_weight, "fed": fed_weight}.items()
        for combine, expected in {average: kept, added_up: broken}.items()
    },
    "another weight of a task": not_checked(
        compared(program(2, loss=with_task(fed_weight)), program(loss=with_task(learned_weight)))
    ),
    "another fed weight of a task in each tower": not_checked(
        same(average, with_task(fed_weight_of_tower))
    ),
    "a random weight of a task": not_checked(same(average, with_task(random_weight))),
    "a sum at half of the learning rate": kept(
        compared(program(2, added_up, update=descend(0.05)))
    ),
    "a sum with momentum at half of the learning rate": kept(
        compared(program(2, added_up, update=momentum(0.05)), program(update=momentum(0.1)))
    ),
    "a mean at another learning rate": kept(compared(program(2, update=descend(0.2)))),
    "a mean at another learning rate, with momentum": kept(
        compared(program(2, update=momentum(0.2)), program(update=momentum(0.1)))
    ),
    **{
        f"{name}, {combine.__name__}": expected(same(combine, squares, update=update))
        for name, update in {"momentum": momentum(0.1), "Adam": adam, "RMS": rms(0.1)}.items()
        for combine, expected in {average: kept, added_up: broken}.items()
    },
    "an optimizer that is written out at another rate": kept(
        compared(program(2, update=rms(0.2)), program(update=rms(0.1)))
    ),
    "penalties in both towers": kept(compared(program(2, loss=penalized()), ONE_PENALTY)),
    "a penalty in one tower": broken(
        compared(program(2, loss=[penalized(), squares]), ONE_PENALTY)
    ),
    "no penalty in the towers": broken(compared(program(2), ONE_PENALTY)),
    "a penalty that one GPU lacks": broken(compared(program(2, loss=penalized()))),
    "summed losses with a penalty each": broken(
        compared(program(2, added_up, loss=penalized(share=0.5)), ONE_PENALTY)
    ),
    "a sum with half of the penalty in each tower": broken(
        compared(program(2, added_up, loss=penalized(0.005)), ONE_PENALTY)
    ),
    "losses that are divided again, and penalties that are not": broken(
        compared(program(2, loss=penalized(share=0.5)), ONE_PENALTY)
    ),
    "a penalty with the coefficient 0, and a sum": broken(
        compared(program(2, added_up, loss=penalized(0.0)), program(loss=penalized(0.0)))
    ),
    "penalties with a fed weight": kept(same(average, penalized(fed_weight))),
    "penalties with another fed weight in each tower": not_checked(
        same(average, penalized(fed_weight_of_tower))
    ),
    "uneven weights of equal towers": broken(compared(program(2, weighted(0.75, 0.25)))),
    "towers with different signs": broken(compared(program(2, weighted(0.5, -0.5)))),
    "weights of 3 to 1, and these shares are declared": kept(
        compared(program(2, weighted(0.75, 0.25))), shares=(3, 1)
    ),
    "equal weights, and shares of 3 to 1 are declared": broken(
        compared(program(2)), shares=(3, 1)
    ),
    "weights by fixed numbers of rows": kept(
        compared(program(2, weighted(0.75, 0.25), rows=[12, 4]), program(rows=[16]))
    ),
    "weights by the rows of each tower": kept(by_rows(0, 1)),
    "weights by the rows of the other tower, which may have as many": kept(by_rows(1, 0)),
    "a gradient with the weight 0": not_checked(compared(program(2, weighted(1.0, 0.0)))),
    "the sum lacks a tower": not_checked(compared(program(2, lambda each: each[0]))),
    **{
        f"a clip {how}": expected(compared(program(2, combine), program(1, clip_each)))
        for how, combine, expected in (
            ("of the mean", lambda each: clipped(average(each)), kept),
            ("of the sum", lambda each: clipped(added_up(each)), broken),
            ("in each tower", clip_each, not_checked),
        )
    },
    "weight decay that towers add to their gradients": kept(decayed(average, in_towers=True)),
    "weight decay that is added to the mean": kept(decayed(average, in_towers=False)),
    "weight decay that is added to a sum": broken(decayed(added_up, in_towers=False)),
    "the gradient of another variable": broken(crossed()),
    "the gradient of a local copy": kept(of_local_copies()),
    "the gradient of another variable, on one GPU too": broken(crossed(on_one=True)),
    "a reference, and a program for one GPU with another scale": kept(
        compared(
            program(2),
            program(1, lambda each: each[0] * 0.5),
            reference=program().placement(),
        )
    ),
    "a program for one GPU with another scale": broken(
        compared(program(2), program(1, lambda each: each[0] * 0.5))
    ),
    "another loss than on one GPU, which counts three times": not_checked(
        compared(program(2, lambda each: average(each) * 3.0), program(loss=absolute))
    ),
    "no program for one GPU": not_checked(
        compared(program(2), Missing("the builder has no argument num_gpus"))
    ),
    "a program for one GPU with two towers": not_checked(compared(program(2), program(2))),
}

test_verdicts = verdicts(GradientsAveraged, CASES)


@pytest.mark.parametrize("kind", ["products", "differences", "differences from labels"])
@pytest.mark.parametrize("reduce", [mean, total])
@pytest.mark.parametrize("combine", [average, added_up])
@pytest.mark.parametrize("rows", [None, 16])
def test_losses_of_pairs_of_rows(
    kind: str, reduce: Callable[[Value], Value], combine: Combine, rows: int | None
) -> None:
    """No tower has the pairs with rows of other towers, so that no factor is right."""
    evidence = same(combine, pairs(kind, reduce), is_split=True, rows=[rows])

    verdict = GradientsAveraged().judge(evidence)

    assert verdict.state == "not-checked"
    reason = str(verdict.reason)
    assert "combines rows" in reason or "a number of rows or columns" in reason


@given(recipes())
@settings(max_examples=examples(12))
def test_gradients_that_equal_to_one_gpu_cannot_read_are_not_compared(recipe: Recipe) -> None:
    try:
        towers, one = build(recipe, recipe.count), build(recipe, 1)
        evidence = compared(towers, one)
    except ValueError:  # such as a slice of no rows
        assume(False)
        raise
    with np.errstate(all="ignore"):
        found = compare(towers, one)
    differences = {name: found.variables[name].difference for name in found.trained}
    unread = [
        name
        for name, difference in differences.items()
        if difference and difference.excuse in (Excuse.UNKNOWN, Excuse.UNFOLLOWED)
    ]

    verdict = GradientsAveraged().judge(evidence)

    event(f"{verdict.state}, {'unread' if unread else 'read'}")
    if verdict.state == "kept":
        assert all(name in str(verdict.note) for name in unread), (verdict.note, unread)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"scale": 0.0}, "leaves no gradient"), ({"shares": (1, 0)}, "no rows")],
)
def test_bad_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GradientsAveraged(**fields)
