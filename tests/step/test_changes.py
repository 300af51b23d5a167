"""No change of a single op that changes what a proved program computes leaves it proved."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.changed_ops import changed_program
from support.drawn_steps import FEEDS, Recipe, build, right_recipes
from support.fuzzing import examples
from support.steps import Program, compare, differences

from placement_checks.step.comparison import State
from placement_checks.step.terms import Assumption

# Differences are fractions of the change of a variable. Constants have the precision of float32.
EQUAL = 1e-4


@given(right_recipes(), st.data())
@settings(max_examples=examples(15))
def test_changed_op(recipe: Recipe, data: st.DataObject) -> None:
    """If the verdict stays, NumPy computes the same."""
    towers, one = build(recipe, recipe.count), build(recipe, 1)
    with np.errstate(all="ignore"):
        changed, text = changed_program(towers, data)
        _check(recipe, changed, one, text)


def _check(recipe: Recipe, changed: Program, one: Program, text: str) -> None:
    found = compare(changed, one)
    states = {answer.state for answer in found.variables.values()}
    if states != {State.PROVED}:
        event("no longer proved")
        return
    event("still proved")
    rows = [(12,) * recipe.count, (24,) * recipe.count]
    if recipe.cut == FEEDS and Assumption.EQUAL_ROWS not in found.assumed:
        rows.append((12, *[2] * (recipe.count - 1)))
    for seed, each in enumerate(rows):
        largest = max(differences(changed, one, found, each, seed).values())
        assert not np.isfinite(largest) or largest < EQUAL, text
