"""Each rule has a module and a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.towers import on, program

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.impact import Impact
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import NAMES, RULES, in_order


def test_the_order_of_reports_is_by_facts_then_by_name() -> None:
    names = [rule.name for rule in in_order(RULES[name] for name in sorted(NAMES))]

    assert names[:3] == ["placeable", "no-fallback", "variables-on-host"]
    assert names[-2:] == ["towers-overlap", "transfer-budget"]


@pytest.mark.parametrize("name", NAMES)
def test_name_file_and_class_of_a_rule_agree(name: str) -> None:
    rule = RULES[name]

    assert rule.name == name
    assert rule.__module__.rpartition(".")[2] == name.replace("-", "_")
    assert rule.__name__.lower() == name.replace("-", "")
    assert issubclass(rule, Rule)


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_has_a_test_of_its_own(name: str) -> None:
    group = RULES[name].__module__.split(".")[-2]

    assert Path(__file__).with_name(group).joinpath(f"test_{name.replace('-', '_')}.py").is_file()


@pytest.mark.parametrize(
    ("name", "impact"),
    [
        ("placeable", Impact.EXECUTION),
        ("every-tower-counts", Impact.TRAINING),
        ("gradients-equal", Impact.TRAINING),
        ("variables-on-host", Impact.LAYOUT),
        ("towers-overlap", Impact.LAYOUT),
    ],
)
def test_the_impact_of_a_rule(name: str, impact: Impact) -> None:
    assert RULES[name].impact == impact


def test_no_such_rule() -> None:
    assert "no-fallbacks" not in RULES
    with pytest.raises(KeyError, match="no-fallbacks"):
        RULES["no-fallbacks"]


@pytest.mark.parametrize("name", RULES)
def test_variables_in_function_bodies(name: str) -> None:
    """Calls of one function use the same variable, and the program itself has no such variable."""
    bodies = []
    for i in (0, 1):
        call, x = f"tower_{i}/call", f"tower_{i}/x"
        handle, read = f"{call}/handle", f"{call}/read"
        bodies += [
            on(i, call, "StatefulPartitionedCall", x),
            on(i, handle, "VarHandleOp", caller=call),
            on(i, read, "ReadVariableOp", handle, caller=call),
            on(i, f"{call}/scaled", "Mul", read, x, caller=call),
            on(i, f"{call}/set", "AssignVariableOp", handle, f"{call}/scaled", caller=call),
            on(i, f"tower_{i}/w/MatMul", "MatMul", call, f"tower_{i}/w/read"),
        ]
    graph = program(*bodies)

    assert RULES[name]().judge(graph).state == RULES[name]().judge(program()).state
    assert analyze(graph).updates.by_variable.keys() == {"w", "step"}
