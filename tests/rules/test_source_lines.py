from __future__ import annotations

from dataclasses import replace

import pytest
from support.graphs import HandWrittenDetails, op, placement

from placement_checks.core.placement import Frame
from placement_checks.rules.source_lines import frames_up_to


class Details(HandWrittenDetails):
    """Lines as in "build:9 helper:3": a function each, of one file."""

    def frames(self, op: str) -> tuple[Frame, ...]:
        calls = (line.split(":") for line in self.lines[op].split())
        return tuple(Frame("net.py", int(number), function) for function, number in calls)


@pytest.mark.parametrize(
    ("lines", "others", "expected"),
    [
        pytest.param("build:9 clip:3", "build:8", [9], id="the next call of the function"),
        pytest.param("build:9 clip:3", "build:8 grad:5", [9], id="both in a helper of their own"),
        pytest.param("main:1 build:9 clip:3", "main:1 build:8", [1, 9], id="functions in common"),
        pytest.param("build:9 clip:3", "build:9", [9], id="both on one line"),
        pytest.param("build:9 clip:3 mul:4", "build:9 clip:2", [9, 3], id="both in one helper"),
        pytest.param("build:9 clip:3", "train:8", [9, 3], id="no function in common"),
        pytest.param("build:9 clip:3", "", [9, 3], id="nothing is known of the other"),
        pytest.param("build:9", "build:9 grad:5", [9], id="the other is in a helper of that line"),
        pytest.param("build:9 build:9 mul:4", "build:9 build:8", [9], id="a line appears once"),
    ],
)
def test_the_line_is_in_a_function_that_built_both(
    lines: str, others: str, expected: list[int]
) -> None:
    details = Details({"a": lines, "b": others}, {}, {}, {}, {})
    graph = replace(placement(op("a", "Mul"), op("b", "Mul")), details=details)

    assert frames_up_to(graph, "a", "b") == tuple(f"net.py:{number}" for number in expected)
