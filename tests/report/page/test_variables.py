from __future__ import annotations

from typing import Any

from support.pictures import data_of
from support.towers import host, program, variable

from placement_checks import Placement
from placement_checks.core.placement import GLOBAL, TRAINABLE


def variables(graph: Placement) -> dict[str, list[Any]]:
    """The data of each variable without its op: bytes, kind, dtype, shape and towers."""
    data = data_of(graph)
    found = data["ops"]["names"]
    return {found[op]: rest for op, *rest in data["variables"]}


def test_a_variable_has_its_size_and_form() -> None:
    found = variables(program(shapes={"w": (3, 2)}, collections={TRAINABLE: ["w"]}))

    assert found["w"] == [24, 1, "float32 [3, 2]", [], "shared"]


def test_slots_are_distinguished_from_trained_variables() -> None:
    update = host("update/w", "ResourceApplyMomentum", "w", "w/m", "rate", "mean/w")

    saved = {TRAINABLE: ["w"], GLOBAL: ["w", "w/m", "step"]}
    found = variables(program(variable("w/m"), update, collections=saved))

    assert [found[name][1] for name in ("w", "w/m", "step")] == [1, 2, 0]
    assert [found[name][4] for name in ("w", "w/m", "step")] == ["shared", "slot of w", "counter"]


def test_an_unknown_size_is_none() -> None:
    assert variables(program(shapes={"w": (None, 2)}))["w"][0] is None


def test_a_variable_of_one_tower_names_it() -> None:
    own = host("tower_1/w/read", "ReadVariableOp", "own")

    found = variables(program(variable("own"), own))

    assert (found["own"][3], found["w"][3]) == ([1], [0])


def test_mirrored_copies_are_trained_in_any_collection() -> None:
    found = variables(program(mirrored=True, collections={TRAINABLE: ["v0/w"]}))

    assert (found["v0/w"][1], found["v1/w"][1]) == (1, 1)
