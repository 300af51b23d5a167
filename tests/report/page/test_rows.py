from __future__ import annotations

from collections.abc import Mapping

import pytest

from placement_checks.report.page.layout import NumberedRows, Rows


def inside(tree: NumberedRows) -> Mapping[str, list[str]]:
    """The names of the rows right inside each."""
    found: dict[str, list[str]] = {name: [] for name in tree.names}
    for name, parent in zip(tree.names, tree.parents, strict=True):
        if parent >= 0:
            found[tree.names[parent]].append(name)
    return found


def test_rows_are_numbered_from_top_to_bottom() -> None:
    rows = Rows()
    last = rows.section("update")
    deep = rows.row(["block", "conv", "MatMul"])
    beside = rows.row(["block", "Add"])

    tree = rows.numbered()

    assert tree.names == ["", "update", "block", "conv", "MatMul", "Add"]
    assert tree.parents == [-1, 0, 0, 2, 3, 2]
    assert [tree.number[row] for row in (last, deep, beside)] == [1, 4, 5]


def test_a_path_has_one_row() -> None:
    rows = Rows()

    assert rows.row(["a", "b"]) == rows.row(["a", "b"]) != rows.row(["a"])


def test_a_layer_named_like_a_section_has_its_own_row() -> None:
    rows = Rows()
    section = rows.section("inputs")

    assert rows.row(["inputs"]) != section
    assert rows.numbered().names == ["", "inputs", "inputs"]


@pytest.mark.parametrize("layers", [14, 15, 100, 1000])
def test_the_width_of_levels_is_limited(layers: int) -> None:
    rows = Rows()
    rows.section("inputs")
    for number in range(layers):
        rows.row([f"w{number}"])

    tree = rows.numbered()

    assert max(len([p for p in tree.parents if p == row]) for row in range(len(tree.names))) <= 15
    assert inside(tree)[""][0] == "inputs"
    leaves = [name for name in tree.names if name.startswith("w") and "…" not in name]
    assert leaves == [f"w{number}" for number in range(layers)]


def test_a_range_is_named_after_its_ends() -> None:
    rows = Rows()
    for number in range(20):
        rows.row([f"w{number}"])

    tree = inside(rows.numbered())

    assert tree[""] == [f"w{start} … w{start + 1}" for start in range(0, 20, 2)]
    assert tree["w18 … w19"] == ["w18", "w19"]


def test_a_single_remaining_row_is_not_a_range() -> None:
    rows = Rows()
    for number in range(19):
        rows.row([f"w{number}"])

    assert inside(rows.numbered())[""][-2:] == ["w16 … w17", "w18"]
