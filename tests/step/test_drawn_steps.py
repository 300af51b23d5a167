"""What is claimed of drawn training programs is true: NumPy runs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from support.drawn_steps import FEEDS, FOR_ANY_ROWS, Recipe, build, recipes, right_recipes
from support.fuzzing import examples
from support.steps import Program, compare, differences

from placement_checks.step.comparison import State, StepEquality
from placement_checks.step.explanation import Obligation
from placement_checks.step.terms import Assumption

# Differences are fractions of the change of a variable. Constants have the precision of float32.
EQUAL, DIFFERENT = 1e-4, 1e-6


@pytest.fixture(autouse=True)
def _without_warnings() -> object:
    """Drawn programs may divide by zero."""
    with np.errstate(all="ignore"):
        yield


def _batches(recipe: Recipe, assumed: frozenset[Assumption]) -> list[Sequence[int]]:
    """Numbers of rows of towers that the assumptions of a proof allow."""
    count = recipe.count
    rows: list[Sequence[int]] = [(12,) * count, (24,) * count]
    if recipe.cut == FEEDS:
        return rows if Assumption.EQUAL_ROWS in assumed else [*rows, (12, *[2] * (count - 1))]
    if recipe.cut in ("split", "split_by_sizes") or Assumption.DIVISIBLE_ROWS in assumed:
        return rows
    return [*rows, (25,), (7,)]


def _largest_differences(
    recipe: Recipe,
    towers: Program,
    one: Program,
    found: StepEquality,
    rows: Sequence[Sequence[int]],
) -> dict[str, float]:
    runs = []
    for seed, each in enumerate(rows):
        try:
            runs.append(differences(towers, one, found, each, seed))
        except ValueError:  # rows that a program cannot split
            continue
    assume(runs)
    return {name: max(run[name] for run in runs) for name in found.variables}


def _build(recipe: Recipe) -> tuple[Program, Program]:
    try:
        programs = build(recipe, recipe.count), build(recipe, 1)
        for program in programs:
            program.placement()
    except ValueError:  # such as a slice of no rows
        assume(False)
        raise
    return programs


@given(recipes())
@settings(max_examples=examples(12))
def test_claims_are_true(recipe: Recipe) -> None:
    """Proved variables have equal values for all allowed batches; others differ for one."""
    towers, one = _build(recipe)
    found = compare(towers, one)
    states = {name: answer.state for name, answer in found.variables.items()}
    event(f"states: {sorted({state.name for state in states.values()})}")
    if Assumption.OWN_STATISTICS in found.assumed:
        return  # equal on average only
    largest = _largest_differences(recipe, towers, one, found, _batches(recipe, found.assumed))
    assume(all(np.isfinite(each) for each in largest.values()))
    for name, state in states.items():
        if state is State.PROVED:
            assert largest[name] < EQUAL, name
    differing = [
        name
        for name, answer in found.variables.items()
        if answer.difference and answer.state is State.DIFFERS
        if answer.difference.obligation is not Obligation.ROWS  # towers may repeat each other
    ]
    # The elements of a softmax add up to 1, so the gradient of such a term is 0.
    if differing and not {"softmax", "swapped"} & set(recipe.layers):
        assert max(largest[name] for name in differing) > DIFFERENT


@given(right_recipes())
@settings(max_examples=examples(12))
def test_right_programs_are_proved(recipe: Recipe) -> None:
    """No drawn program of parts that are right together is left open."""
    unequal = recipe.cut == "unequal" and recipe.count > 2
    if unequal and recipe.combination not in FOR_ANY_ROWS:
        return
    found = compare(*_build(recipe))
    assert found.variables
    assert {answer.state for answer in found.variables.values()} == {State.PROVED}
