"""Hundreds of variables, which a baseline lists by scope."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement_checks.baseline.build import fold_variables
from placement_checks.baseline.compare_variables import compare_folded, match_scopes
from placement_checks.baseline.text import parse, render
from placement_checks.core.baseline import Baseline, HeldVariable
from placement_checks.core.placement import Tensor


def variables(blocks: int = 60, block: str = "block") -> list[HeldVariable]:
    return [
        HeldVariable(
            f"{block}{at}/conv{n}/{name}", Tensor("float32", shape), "/cpu:0", ("/cpu:0",)
        )
        for at in range(blocks)
        for n in range(5)
        for name, shape in (("weights", (3, 3, 8)), ("biases", (8,)))
    ]


def baseline(held: list[HeldVariable]) -> Baseline:
    listed, scopes = fold_variables(held)
    made = Baseline("p", "gpu*2", "phantom", variables=tuple(listed), folded=tuple(scopes))
    return parse(render(made), "many.txt")


def differences(old: list[HeldVariable], new: list[HeldVariable]) -> list[str]:
    was = baseline(old)
    found = compare_folded(was, new, match_scopes(was, new))
    return [
        *(f"{each.what}: {each.old} -> {each.new} {each.note}".rstrip() for each in found.moved),
        *(f"new {each.what} {each.note}" for each in found.new_there),
        *(f"gone {each.what} {each.note}" for each in found.gone),
        *found.notes,
    ]


def elsewhere(held: list[HeldVariable], *numbers: int) -> list[HeldVariable]:
    return [
        replace(each, place="/gpu:1", slots=("/gpu:1",)) if at in numbers else each
        for at, each in enumerate(held)
    ]


def test_scopes_of_variables_are_few_lines() -> None:
    text = render(baseline(variables()))

    assert "\n  block7/conv2/*: 2 variables, 320 bytes, forms " in text
    assert len(text.split("\n")) < 325


def test_few_variables_are_listed_one_by_one() -> None:
    assert fold_variables(variables(50)) == (variables(50), ())


@pytest.mark.parametrize("held", [variables(), elsewhere(variables(), 3, 4, 11)])
def test_scopes_of_variables_keep_their_own_baseline(held: list[HeldVariable]) -> None:
    assert not differences(held, held)


def test_renamed_scopes_keep_the_baseline() -> None:
    assert not differences(variables(), variables(block="layer"))


def test_a_moved_variable_of_a_scope_is_named() -> None:
    assert differences(variables(), elsewhere(variables(), 23)) == [
        "variable block2/conv1/biases: /cpu:0 -> /gpu:1"
    ]


def test_moved_slots_are_reported() -> None:
    new = variables()
    new[23] = replace(new[23], slots=("/gpu:0",))

    assert differences(variables(), new) == ["slots of block2/conv1/biases: /cpu:0 -> /gpu:0"]


def test_two_variables_that_exchange_devices_are_reported() -> None:
    """If the variables of a scope are on several devices, only the digest distinguishes them."""
    old = [replace(each, name=f"net/{each.name.replace('/', '_')}") for each in variables()]
    even, odd = (elsewhere(old, *range(first, 600, 2)) for first in (0, 1))

    assert differences(even, odd) == [
        "variables of net/*: 300 on /gpu:1 and 300 on /cpu:0 -> 300 on /cpu:0 and 300 on /gpu:1 "
        "other variables, or distributed in another order"
    ]
    assert differences(even, elsewhere(old, *range(0, 598, 2))) == [
        "variables of net/*: 300 on /gpu:1 and 300 on /cpu:0 -> 299 on /gpu:1 and 301 on /cpu:0"
    ]


def test_added_and_removed_variables_are_reported() -> None:
    more = [*variables(), replace(variables()[0], name="block3/conv4/more")]

    assert differences(variables(), more) == ["new variables of block3/conv4/* were 2"]
    assert differences(variables(), variables()[:-1]) == [
        "gone variables of block59/conv4/* were 2"
    ]


def test_other_shapes_are_reported() -> None:
    new = variables()
    new[23] = replace(new[23], tensor=Tensor("float32", (9,)))

    assert differences(variables(), new) == [
        "variables of block2/conv1/* have other dtypes or shapes, or another order"
    ]


def test_without_scopes_there_is_one_line() -> None:
    held = [replace(each, name=each.name.replace("/", "_")) for each in variables()]

    assert "\n  *: 600 variables, 96,000 bytes, forms " in render(baseline(held))
    assert differences(held, elsewhere(held, 5)) == [
        "variable block0_conv2_biases: /cpu:0 -> /gpu:1"
    ]
