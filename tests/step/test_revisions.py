"""A step is proved to be an earlier step only if both compute the same; NumPy runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from support.changed_ops import changed_program
from support.drawn_steps import (
    COMBINATIONS,
    FEEDS,
    LOSSES,
    MISTAKES,
    OPTIMIZERS,
    PENALTIES,
    Recipe,
    recipes,
)
from support.drawn_steps import build as build_recipe
from support.fuzzing import examples
from support.steps import (
    Handle,
    Program,
    Value,
    add_n,
    apply,
    concat,
    differences,
    mean,
    relu,
    square,
    stack,
    total,
)

from placement_checks.core.missing import Missing
from placement_checks.step.comparison import State, StepEquality
from placement_checks.step.revisions import Revision, compare_revisions
from placement_checks.step.terms import Assumption

PROVED, DIFFERS, UNKNOWN = State.PROVED, State.DIFFERS, State.UNKNOWN
WIDTH, UNITS = 4, 3
# Differences are fractions of the change of a variable. Constants have the precision of float32.
EQUAL, DIFFERENT = 1e-4, 1e-6


def compare(new: Program, old: Program, names: Mapping[str, str] | None = None) -> StepEquality:
    """The comparison with a revision, whose towers are those of its placeholders."""
    towers = {name: tower for name, (_, tower) in (old.fed | old.drawn).items()}
    count = 1 + max(tower or 0 for tower in towers.values())

    def reading(name: str) -> Collection[int]:
        tower = towers[name]
        return range(count) if tower is None else (tower,)

    revision = Revision(old.placement(), "at HEAD", names or {}, reading, count)
    found = compare_revisions(new.placement(), revision)
    assert not isinstance(found, Missing), found
    return found


def _mean(gradients: Sequence[Value]) -> Value:
    return add_n(gradients) / float(len(gradients))


def _clipped(gradient: Value) -> Value:
    norm = apply("Sqrt", total(square(gradient)))
    return gradient * (1.0 / apply("Maximum", norm, 0.01))


@dataclass(frozen=True)
class Model:
    """Two towers with a hidden layer, and how they are written."""

    scope: str = ""
    towers: Sequence[int] = (0, 1)
    gpu: Callable[[int], int] = lambda tower: tower
    units: int = UNITS
    rows: int | None = None
    inputs: tuple[str, str] = ("x", "y")
    is_shared: bool = True
    layer: Callable[[Value], Value] = relu
    penalty: float = 0.05
    combine: Callable[[Sequence[Value]], Value] = _mean
    rate: float = 0.1
    momentum: float = 0.9
    averages: float | None = 0.99  # the decay of a moving average of the weights
    reads_all_rows: bool = False  # whether rows are centered by the mean of all towers

    def build(self) -> Program:
        program = Program()
        x, y = self.inputs
        feeds = {
            tower: (
                program.placeholder(x, (self.rows, WIDTH), tower),
                program.placeholder(y, (self.rows,), tower),
            )
            for tower in self.towers
        }
        copies = 1 if self.is_shared else 2
        with program.scope(self.scope) if self.scope else nullcontext():
            weights = [self._variables(program, copy) for copy in range(copies)]
        everything = concat([x for x, _ in feeds.values()]) if self.reads_all_rows else None
        losses = []
        for tower, (x_of_tower, y_of_tower) in feeds.items():
            w, v, _, _ = weights[tower % copies]
            with program.tower(self.gpu(tower)):
                rows = x_of_tower if everything is None else everything
                centered = x_of_tower - mean(rows, 0, keeps=True)
                hidden = self.layer(centered @ w.read())
                error = total(hidden * v.read(), 1) - y_of_tower
                loss = mean(square(error)) + apply("L2Loss", v.read()) * self.penalty
                losses.append((tower, loss))
        updates = []
        for copy, (w, v, slot, average) in enumerate(weights):
            own = [loss for tower, loss in losses if tower % copies == copy]
            gradients = [[program.gradient(loss, each) for loss in own] for each in (w, v)]
            updates.append(w.descend(self.rate, self.combine(gradients[0])))
            updates.append(
                v.apply_momentum(slot, self.rate, self.combine(gradients[1]), self.momentum)
            )
            if self.averages is not None:
                with program.after(*updates):
                    old = average.read()
                    change = (old - v.read()) * (1.0 - self.averages)
                    updates.append(average.assign_sub(change))
        program.train(*updates)
        return program

    def _variables(self, program: Program, copy: int) -> tuple[Handle, Handle, Handle, Handle]:
        end = "" if self.is_shared else f"_of_{copy}"
        return (
            program.variable(f"w{end}", (WIDTH, self.units)),
            program.variable(f"v{end}", (self.units,)),
            program.variable(f"v{end}/Momentum", (self.units,), is_trained=False),
            program.variable(f"v{end}/average", (self.units,), is_trained=False),
        )


OLD = Model()
IN_A_SCOPE = {name: name.removeprefix("net/") for name in ("net/w", "net/v", "net/v/average")}
IN_A_SCOPE["net/v/Momentum"] = "v/Momentum"
SOUND: dict[str, Model] = {
    "unchanged": OLD,
    "towers in another order": Model(towers=(1, 0)),
    "on other devices": Model(gpu=lambda tower: 1 - tower),
    "on one device": Model(gpu=lambda _: 0),
    "mean of stacked gradients": Model(combine=lambda each: mean(stack(each), 0)),
    "weights of the gradients": Model(combine=lambda each: each[0] * 0.5 + 0.5 * each[1]),
    "running mean": Model(combine=lambda each: each[0] + (each[1] - each[0]) / 2.0),
    "layer in two halves": Model(layer=lambda h: 0.5 * relu(h) + relu(h) / 2.0),
}
RENAMED: dict[str, tuple[Model, dict[str, str]]] = {
    "scope": (Model(scope="net"), IN_A_SCOPE),
    "inputs": (Model(inputs=("images", "labels")), {}),
    "scope and other inputs": (Model(scope="net", inputs=("y_of", "x_of")), IN_A_SCOPE),
}
MISTAKES_OF_REFACTORS: dict[str, Model] = {
    "sum": Model(combine=add_n),
    "one tower": Model(combine=lambda each: each[0] * 1.0),
    "uneven": Model(combine=lambda each: each[0] * 0.6 + each[1] * 0.4),
    "other rate": Model(rate=0.2),
    "slightly other rate": Model(rate=0.10002),
    "other momentum": Model(momentum=0.8),
    "other penalty": Model(penalty=0.06),
    "no penalty": Model(penalty=0.0),
    "other layer": Model(layer=lambda h: apply("Tanh", h)),
    "scaled layer": Model(layer=lambda h: relu(h) * 1.001),
    "gradients stopped": Model(layer=lambda h: apply("StopGradient", relu(h))),
    "statistics of all towers": Model(reads_all_rows=True),
    "clipped": Model(combine=lambda each: _clipped(_mean(each))),
    "average not updated": Model(averages=None),
    "average decays faster": Model(averages=0.9),
}


def _check(
    new: Model, old: Model, names: Mapping[str, str] | None = None
) -> tuple[StepEquality, float]:
    """The comparison, and the largest difference of two runs."""
    programs = new.build(), old.build()
    found = compare(*programs, names)
    compared = found._replace(
        copies={(names or {}).get(name, name): (name,) for name in found.variables}
    )
    keys = dict(zip(new.inputs, old.inputs, strict=True))
    ran = replace(
        programs[0],
        fed={name: (keys[key], tower) for name, (key, tower) in programs[0].fed.items()},
    )
    runs = [differences(ran, programs[1], compared, rows, seed=1) for rows in ((6, 6), (9, 5))]
    return found, max(value for run in runs for value in run.values())


@pytest.mark.parametrize("name", SOUND)
def test_a_refactor_is_proved(name: str) -> None:
    found, difference = _check(SOUND[name], OLD)

    assert {answer.state for answer in found.variables.values()} == {PROVED}, found
    assert found.assumed == frozenset()
    assert found.trained == {"w", "v"}
    assert set(found.variables) == {"w", "v", "v/Momentum", "v/average"}
    assert difference < EQUAL


@pytest.mark.parametrize("name", RENAMED)
def test_renamed_variables_and_inputs_have_counterparts(name: str) -> None:
    model, names = RENAMED[name]
    found, difference = _check(model, OLD, names)

    assert {answer.state for answer in found.variables.values()} == {PROVED}, found
    assert found.assumed == ({Assumption.RENAMED_INPUTS} if "inputs" in name else set())
    assert difference < EQUAL


def test_a_renamed_variable_without_a_counterpart_is_not_proved() -> None:
    found = compare(Model(scope="net").build(), OLD.build())

    assert {answer.state for answer in found.variables.values()} == {UNKNOWN}


@pytest.mark.parametrize("name", MISTAKES_OF_REFACTORS)
def test_a_change_of_what_is_computed_is_not_proved(name: str) -> None:
    found, difference = _check(MISTAKES_OF_REFACTORS[name], OLD)

    assert {answer.state for answer in found.variables.values()} != {PROVED}
    assert difference > DIFFERENT


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Model(combine=add_n), "the gradient counts 2 times as much as at HEAD"),
        (Model(rate=0.2), "its learning rate is 0.2, but 0.1 at HEAD"),
        (
            Model(combine=lambda each: each[0] * 0.6 + each[1] * 0.4),
            "the gradient counts 0.8 times as much as at HEAD, in part 2 of 2 of the batch",
        ),
        (Model(units=5), "w is float32[4, 5], but float32[4, 3] at HEAD"),
        (Model(rows=8), "x has 8 rows, but 6 at HEAD"),
    ],
)
def test_a_certain_difference_is_explained(model: Model, text: str) -> None:
    old = Model(rows=6) if model.rows else OLD
    answer = compare(model.build(), old.build()).variables["w"]

    assert answer.state is DIFFERS
    assert answer.difference is not None
    assert text in answer.difference.text


def test_another_clip_order_is_not_proved() -> None:
    after = Model(combine=lambda each: _clipped(_mean(each)))
    before = Model(combine=lambda each: _mean(list(map(_clipped, each))))

    found, difference = _check(before, after)

    assert found.variables["w"].state is not PROVED
    assert found.variables["v"].state is not PROVED
    assert difference > DIFFERENT


@pytest.mark.parametrize("models", [(OLD, Model(is_shared=False)), (Model(is_shared=False), OLD)])
def test_copies_are_no_shared_variables(models: tuple[Model, Model]) -> None:
    new, old = (model.build() for model in models)
    found = compare(new, old, {"w_of_0": "w", "v_of_0": "v"} if "w" in old.variables else {})

    assert PROVED not in {answer.state for answer in found.variables.values()}


def test_towers_with_variables_of_their_own_are_proved() -> None:
    """Towers differ from each other in both programs, which is no difference."""
    old = Model(is_shared=False)
    same = replace(old, combine=lambda each: add_n(each) / float(len(each)), gpu=lambda _: 1)
    other = replace(old, layer=lambda h: relu(h * 2.0) / 2.0)  # which is not followed

    found, difference = _check(same, old)
    assert {answer.state for answer in found.variables.values()} == {PROVED}
    assert difference < EQUAL
    found, difference = _check(other, old)
    assert DIFFERS not in {answer.state for answer in found.variables.values()}, found
    assert difference < EQUAL


def test_a_tower_that_is_written_in_another_way() -> None:
    """Towers may differ from each other if they do not differ from the towers before."""

    def build(scales: Sequence[float]) -> Program:
        program = Program()
        w, gradients = program.variable("w", (WIDTH,)), []
        for tower, scale in enumerate(scales):
            x = program.placeholder("x", (None, WIDTH), tower)
            loss = mean(relu(total(x * w.read(), 1) * scale) / scale)
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    new, old = build((1.0, 2.0)), build((1.0, 1.0))
    found = compare(new, old)

    assert found.variables["w"].state is UNKNOWN
    assert max(differences(new, old, found, (6, 6), seed=1).values()) < EQUAL


def test_swapped_inputs_are_no_renamed_inputs() -> None:
    """An input that the other program has, too, is not the counterpart of another input."""

    def build(name: str) -> Program:
        program = Program()
        inputs = {each: program.placeholder(each, (None, WIDTH)) for each in ("a", "b")}
        w = program.variable("w", (WIDTH,))
        loss = mean(square(inputs[name] * w.read()))
        program.train(w.descend(0.1, program.gradient(loss, w)))
        return program

    assert compare(build("a"), build("b")).variables["w"].state is UNKNOWN
    assert compare(build("a"), build("a")).variables["w"].state is PROVED


def test_a_variable_with_its_old_name_is_not_renamed() -> None:
    """Another shape does not make a variable another variable: then its name would be free."""

    def build(size: int, extra: str) -> Program:
        program = Program()
        x = program.placeholder("x", (None, 1))
        w, factor = program.variable("w", (1,)), program.variable("a", (size,), is_trained=False)
        if extra:
            program.variable(extra, (1,), is_trained=False)
        loss = mean(square(total(x * w.read() * factor.read(), 1)))
        program.train(w.descend(0.1, program.gradient(loss, w)))
        return program

    found = compare(build(3, "b"), build(1, ""), {"b": "a"})
    assert found.variables["w"].state is DIFFERS


@pytest.mark.parametrize(
    ("names", "old_names"),
    [
        (("c", "d"), ("one/a", "one/b")),
        (("a/net/kernel", "b/net/kernel"), ("one/net/kernel", "two/net/kernel")),
    ],
)
def test_an_ambiguous_counterpart_shows_no_difference(
    names: tuple[str, str], old_names: tuple[str, str]
) -> None:
    """Both layers are renamed, so the layers may be matched the wrong way around."""

    def build(names: tuple[str, str], penalties: tuple[float, float]) -> Program:
        program = Program()
        x = program.placeholder("x", (None, WIDTH))
        layers = [program.variable(name, (WIDTH,)) for name in names]
        one, two = (total(x * each.read(), 1) for each in layers)
        loss = mean(square(one) + square(two))
        for each, penalty in zip(layers, penalties, strict=True):
            loss = loss + apply("L2Loss", each.read()) * penalty
        program.train(*[each.descend(0.1, program.gradient(loss, each)) for each in layers])
        return program

    old = build(old_names, (0.1, 0.2))
    swapped = build(names, (0.2, 0.1))
    found = compare(swapped, old, dict(zip(names, old_names, strict=True)))
    assert {answer.state for answer in found.variables.values()} == {UNKNOWN}
    kept = compare(swapped, old, dict(zip(names, old_names[::-1], strict=True)))
    assert {answer.state for answer in kept.variables.values()} == {PROVED}


@pytest.mark.parametrize(
    ("seeds", "assumed"),
    [
        (({}, {}), frozenset()),
        (({"seed": 1, "seed2": 2}, {"seed": 1, "seed2": 2}), frozenset()),
        (
            ({"seed": 1, "seed2": 3}, {"seed": 1, "seed2": 2}),
            frozenset({Assumption.OTHER_SEEDS}),
        ),
    ],
)
def test_other_seeds_are_an_assumption(
    seeds: tuple[dict[str, Any], dict[str, Any]], assumed: frozenset[Assumption]
) -> None:
    def build(seed: dict[str, Any]) -> Program:
        program = Program()
        x = program.placeholder("x", (None, WIDTH))
        w = program.variable("w", (WIDTH,))
        noise = program.add("RandomStandardNormal", apply("Shape", x), **seed)
        loss = mean(square(total(x * w.read() * noise, 1)))
        program.train(w.descend(0.1, program.gradient(loss, w)))
        return program

    found = compare(build(seeds[0]), build(seeds[1]))

    assert found.variables["w"].state is PROVED, found
    assert found.assumed == assumed


def test_numbers_that_are_drawn_twice_are_no_other_numbers() -> None:
    """Ops of equal seeds draw equal numbers."""

    def build(seeds: Sequence[int]) -> Program:
        program = Program()
        x = program.placeholder("x", (None, WIDTH))
        w = program.variable("w", (WIDTH,))
        one, other = (
            program.add("RandomStandardNormal", apply("Shape", x), seed2=seed) for seed in seeds
        )
        loss = mean(square(total(x * w.read() * (one - other * 0.5), 1)))
        program.train(w.descend(0.1, program.gradient(loss, w)))
        return program

    assert compare(build((1, 1)), build((2, 2))).variables["w"].state is PROVED
    assert compare(build((1, 1)), build((1, 2))).variables["w"].state is not PROVED
    assert compare(build((1, 2)), build((1, 1))).variables["w"].state is not PROVED


@pytest.mark.parametrize("falls", [False, True])
def test_the_value_of_a_learning_rate_that_no_step_changes_is_an_assumption(
    *, falls: bool
) -> None:
    def build() -> Program:
        program = Program()
        x = program.placeholder("x", (None, WIDTH))
        w, rate = program.variable("w", (WIDTH,)), program.variable("rate", is_trained=False)
        gradient = program.gradient(mean(square(total(x * w.read(), 1))), w)
        descent = w.assign_sub(gradient * rate.read())
        with program.after(descent) if falls else nullcontext():
            program.train(rate.assign_sub(rate.read() * 0.1) if falls else descent)
        return program

    found = compare(build(), build())

    assert {answer.state for answer in found.variables.values()} == {PROVED}
    assert found.assumed == (frozenset() if falls else {Assumption.CONSTANT_STATE})


def test_noise_that_towers_share_is_not_proved() -> None:
    def build(is_shared: bool) -> Program:
        program = Program()
        w = program.variable("w", (WIDTH,))
        made, gradients = None, []
        for tower in range(2):
            x = program.placeholder("x", (None, WIDTH), tower)
            if made is None or not is_shared:
                made = program.add("RandomStandardNormal", [WIDTH])
            loss = mean(square(total(x * w.read() * made, 1)))
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, _mean(gradients)))
        return program

    assert compare(build(False), build(False)).variables["w"].state is PROVED
    assert compare(build(True), build(False)).variables["w"].state is not PROVED
    assert compare(build(False), build(True)).variables["w"].state is not PROVED


def test_a_read_before_or_after_an_update() -> None:
    def build(is_ordered: bool) -> Program:
        program = Program()
        x = program.placeholder("x", (None, WIDTH))
        w = program.variable("w", (WIDTH,))
        gradient = program.gradient(mean(square(total(x * w.read(), 1))), w)
        decay = w.read() * 0.01
        with program.after(decay) if is_ordered else nullcontext():
            descent = w.descend(0.1, gradient)
        with program.after(descent):
            program.train(w.assign_sub(decay))
        return program

    assert compare(build(True), build(True)).variables["w"].state is PROVED
    assert compare(build(False), build(True)).variables["w"].state is not PROVED
    assert compare(build(True), build(False)).variables["w"].state is not PROVED
    both = compare(build(False), build(False))
    assert both.variables["w"].state is PROVED
    assert Assumption.READ_FIRST in both.assumed


# --- drawn programs ---


def _built(recipe: Recipe) -> Program:
    try:
        program = build_recipe(recipe, recipe.count)
        program.placement()
    except ValueError:  # such as a slice of no rows
        assume(False)
        raise
    return program


def _check_claims(recipe: Recipe, new: Program, old: Program, text: str) -> None:
    """What is proved has equal values for all allowed batches."""
    found = compare(new, old)
    event(f"{sorted({answer.state.name for answer in found.variables.values()})}")
    batches: list[tuple[int, ...]] = [(12,) * recipe.count, (24,) * recipe.count]
    if recipe.cut == FEEDS and Assumption.EQUAL_ROWS not in found.assumed:
        batches.append((12, *[2] * (recipe.count - 1)))
    runs = []
    for seed, rows in enumerate(batches):
        try:
            runs.append(differences(new, old, found, rows, seed))
        except (IndexError, ValueError):  # rows that a program cannot split or look up
            continue
    for name, answer in found.variables.items():
        values = [run[name] for run in runs]
        if answer.state is PROVED and all(map(np.isfinite, values)):
            assert max(values, default=0.0) < EQUAL, (name, text)


@given(recipes())
@settings(max_examples=examples(8))
def test_each_program_is_proved_equal_to_itself(recipe: Recipe) -> None:
    found = compare(_built(recipe), _built(recipe))

    assert {answer.state for answer in found.variables.values()} == {PROVED}, found
    assert found.assumed <= {
        Assumption.CONSTANT_STATE,
        Assumption.DIVISIBLE_ROWS,
        Assumption.NO_ZERO_DIVISION,
    }


@given(recipes(), st.data())
@settings(max_examples=examples(12))
def test_changed_op(recipe: Recipe, data: st.DataObject) -> None:
    with np.errstate(all="ignore"):
        old = _built(recipe)
        new, text = changed_program(old, data)
        _check_claims(recipe, new, old, text)


CHANGED = {
    "combination": tuple(COMBINATIONS),
    "loss": tuple(LOSSES),
    "penalty": PENALTIES,
    "optimizer": OPTIMIZERS,
    "mistake": MISTAKES,
}


@given(recipes(), st.data())
@settings(max_examples=examples(12))
def test_changed_part_of_a_program(recipe: Recipe, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(sorted(CHANGED)))
    change: dict[str, Any] = {part: data.draw(st.sampled_from(CHANGED[part]))}
    other = replace(recipe, **change)
    with np.errstate(all="ignore"):
        _check_claims(recipe, _built(other), _built(recipe), str(other))
