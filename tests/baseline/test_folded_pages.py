"""Two baselines of which either tells variables by scope."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement_checks.baseline.build import folded
from placement_checks.baseline.compare_files import compare_pages
from placement_checks.baseline.parse import parse
from placement_checks.baseline.text import render
from placement_checks.core.baseline import Address, Baseline, HeldVariable
from placement_checks.core.placement import Tensor
from placement_checks.report.common.baseline import change_text


def variables(blocks: int = 60, block: str = "block") -> list[HeldVariable]:
    return [
        HeldVariable(f"{block}{at}/conv/{name}", Tensor("float32", shape), "/cpu:0", ("/cpu:0",))
        for at in range(blocks)
        for n in range(5)
        for name, shape in ((f"weights{n}", (3, 3, 8)), (f"biases{n}", (8,)))
    ]


def elsewhere(held: list[HeldVariable], *numbers: int) -> list[HeldVariable]:
    return [
        replace(each, place="/gpu:1", slots=("/gpu:1",)) if at in numbers else each
        for at, each in enumerate(held)
    ]


def page(held: list[HeldVariable], layer: str | None = None) -> Baseline:
    listed, scopes = folded(held)
    exceptions = {Address("forward", -1, layer, "MatMul"): {"/gpu:0": 0}} if layer else {}
    made = Baseline(
        *("p", "gpu*2", "phantom"),
        variables=tuple(listed),
        folded=tuple(scopes),
        defaults={"forward": "/cpu:0"},
        exceptions=exceptions,
    )
    return parse(render(made), "many.txt")


def differences(old: Baseline, new: Baseline) -> list[str]:
    found = compare_pages(old, new, "old", "new")
    return [
        *map(change_text, found.moved),
        *(f"new {change_text(each)}" for each in found.new_there),
        *(f"gone {change_text(each)}" for each in found.gone),
        *found.notes,
    ]


@pytest.mark.parametrize("held", [variables(), variables(50), elsewhere(variables(), 3, 4, 11)])
def test_nothing_has_moved(held: list[HeldVariable]) -> None:
    assert not differences(page(held), page(held))


def test_other_names_of_scopes_keep_all() -> None:
    old = page(variables(), "block7/conv/weights1")
    new = page(variables(block="layer"), "layer7/conv/weights1")

    assert not differences(old, new)


@pytest.mark.parametrize("numbers", [(23,), (23, 27)])
def test_what_is_elsewhere_is_told_by_scope(numbers: tuple[int, ...]) -> None:
    """One that sits alone is listed, others are one line more."""
    there, here = f"{len(numbers)} on /gpu:1", f"{10 - len(numbers)} on /cpu:0"
    old, new = page(variables()), page(elsewhere(variables(), *numbers))

    (text,) = differences(old, new)
    assert text.startswith("variables of block2/conv/*: 10 on /cpu:0 -> ")
    assert there in text
    assert here in text
    assert len(differences(new, old)) == 1


def test_two_that_change_places_are_told() -> None:
    old = [replace(each, name=f"net/{each.name.replace('/', '_')}") for each in variables()]
    even, odd = (page(elsewhere(old, *range(first, 600, 2))) for first in (0, 1))

    (text,) = differences(even, odd)
    assert text.endswith("  (dealt in another order, or others)")


def test_more_and_fewer_are_told() -> None:
    more = [*variables(), replace(variables()[0], name="block3/conv/more")]

    assert differences(page(variables()), page(more)) == [
        "new variables of block3/conv/*: 10 on /cpu:0 -> 11 on /cpu:0  (were 10)"
    ]
    assert differences(page(more), page(variables())) == [
        "gone variables of block3/conv/*: 11 on /cpu:0 -> 10 on /cpu:0  (were 11)"
    ]
    assert differences(page(variables()), page(variables(61))) == [
        "new variables of block60/conv/* on 10 on /cpu:0"
    ]


def test_few_enough_to_list_after_many() -> None:
    found = differences(page(variables()), page(variables(50)))

    assert len(found) == 10
    assert found[0] == "gone variables of block50/conv/*, was on 10 on /cpu:0  (were 10)"


def test_other_forms_are_told() -> None:
    new = variables()
    new[23] = replace(new[23], tensor=Tensor("float32", (9,)))

    assert differences(page(variables()), page(new)) == [
        "variables of block2/conv/* have other forms, or another order"
    ]


def test_without_scopes_there_is_one_line() -> None:
    held = [replace(each, name=each.name.replace("/", "_")) for each in variables()]

    assert not differences(page(held), page(held))
    (text,) = differences(page(held), page(elsewhere(held, 5)))
    assert text.startswith("variables without a scope: 600 on /cpu:0 -> ")
