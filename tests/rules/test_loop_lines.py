"""The line at which towers differ, of ops that are built by the same lines in each."""

from __future__ import annotations

import pytest
from support.graphs import placement
from support.towers import host, on, program

from placement_checks.rules.source_lines import LoopLines

LOOP = {  # build() loops over towers, and averages
    "shared": "main.py:3 main.py:20 net.py:5 net.py:1",
    "loss": "main.py:3 main.py:30",
}


def line(op: str, lines: dict[str, str], *shared: str) -> str | None:
    return LoopLines(program(lines={**LOOP, **lines}), shared).line(op)


def test_towers_differ_in_the_function_that_also_joins_them() -> None:
    """And not in those that are called for each: what they built, they built for one tower."""
    assert line("own", {"own": "main.py:3 main.py:20 net.py:5 net.py:1"}) == "main.py:20"


def test_or_in_one_that_also_makes_what_is_shared() -> None:
    """A layer of many that is not shared: the line that calls it is in the network's function."""
    own = {"own": "main.py:3 main.py:20 net.py:6 net.py:1"}

    assert line("own", own, "shared") == "net.py:6"


def test_where_nothing_joins_towers_it_is_the_function_that_cuts_the_batch() -> None:
    """Towers that share nothing, each with an update of its own."""
    graph = placement(
        host("x", "Placeholder"),
        *(
            each
            for i in (0, 1)
            for each in (
                on(i, f"tower_{i}/w", "VarHandleOp"),
                on(i, f"tower_{i}/read", "ReadVariableOp", f"tower_{i}/w"),
                on(i, f"tower_{i}/MatMul", "MatMul", "x", f"tower_{i}/read"),
            )
        ),
        lines={"x": "main.py:3 main.py:10", "tower_1/w": "main.py:3 main.py:20 net.py:5"},
    )

    assert LoopLines(graph).line("tower_1/w") == "main.py:20"


def test_what_averages_in_a_helper_shows_where_that_was_called() -> None:
    lines = {"loss": "main.py:3 main.py:30 average.py:8", "own": "main.py:3 main.py:20 net.py:5"}

    assert line("own", lines) == "main.py:20"


@pytest.mark.parametrize(
    ("lines", "expected"), [("other.py:7 other.py:9", "other.py:7"), ("", None)]
)
def test_of_other_lines_the_outermost_and_without_any_none(
    lines: str, expected: str | None
) -> None:
    assert line("own", {"own": lines}) == expected


def test_the_innermost_where_nothing_is_known_of_all_towers() -> None:
    graph = program(gpus=[0], lines={"w": "main.py:20 net.py:5"})

    assert LoopLines(graph).line("w") == "net.py:5"
