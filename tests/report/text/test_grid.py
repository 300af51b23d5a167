from __future__ import annotations

import pytest
from support.reports import broken, finding, report

from placement_checks import RULES, Verdict
from placement_checks.core.results import State
from placement_checks.report.text.layout import WIDTH, terminal_width
from placement_checks.report.text.writer import grid


def verdict(rule: str, state: State) -> Verdict:
    return Verdict(rule, state, None)


def findings(rule: str, number: int) -> Verdict:
    return broken(rule, *[finding("w")] * number)


def test_programs_down_and_broken_rules_across() -> None:
    one = report(
        verdict("placeable", "kept"),
        findings("no-fallback", 2),
        findings("variables-on-host", 130),
        verdict("one-update", "not-checked"),
        program="one.py:build",
    )
    two = report(
        verdict("placeable", "kept"),
        verdict("no-fallback", "kept"),
        verdict("variables-on-host", "not-checked"),
        findings("one-update", 1),
        program="two.py:build",
    )

    assert list(grid([one, two])) == [
        "┌ no-fallback",
        "│   ┌ variables-on-host",
        "│   │ ┌ one-update",
        "│   │ │ ┌ kept",
        "│   │ │ │ ┌ not checked",
        "2 130 - 1 1  one.py:build",
        ".   - 1 2 1  two.py:build",
        "findings of each rule; . kept, - not checked",
    ]


def test_an_unselected_rule_is_blank() -> None:
    lines = grid([report(findings("placeable", 1)), report(verdict("no-fallback", "kept"))])
    assert list(lines)[-2] == "  1 0  p"


@pytest.mark.parametrize(("number", "most"), [(1, 99), (999, 24), (12_345, 24)])
def test_the_grid_fits_with_all_rules_and_long_names(number: int, most: int) -> None:
    """No program breaks all of them that often: some are for strategies, and some for clusters."""
    name = f"a/folder/{'with_a_long_name/' * 8}train.py:build_towers"
    rules = list(RULES)[:most]
    program = report(*(findings(rule, number) for rule in rules), program=name)

    lines = list(grid([program, program]))
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) == len(rules) + 5
    assert lines[-2].endswith("build_towers" if number == 1 else "towers")


@pytest.mark.parametrize(
    ("number", "shown"), [(999, "999"), (1000, "1k"), (1999, "1k"), (12_345, "12k")]
)
def test_large_numbers_are_short(number: int, shown: str) -> None:
    assert list(grid([report(findings("placeable", number))]))[-2] == f"{shown} 0 0  p"


def test_a_narrow_terminal_has_room_for_names() -> None:
    program = f"p{'x' * 200}"
    with terminal_width(60):
        *_, row, _ = grid([report(broken("a", finding("w")), program=program)] * 2)

    assert row.startswith("1 0 0  pxx")
    assert len(row) <= 60
    many = report(*[broken(f"r{n}", finding("w")) for n in range(40)], program=program)
    with terminal_width(60):
        *_, row, _ = grid([many, many])
    assert 10 < len(row.rpartition("  ")[2]) <= 20
