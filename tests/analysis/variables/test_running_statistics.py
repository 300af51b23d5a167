"""The updates of running statistics, and the groups that run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.towers import host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.running_statistics import statistics


def normalized(*ops: Op, runs: Sequence[int] = (), count: int = 2, **more: Any) -> Placement:
    """Towers that compute with their moments, and update a moving mean each."""
    own = [variable("mean")]
    for i in range(count):
        own += [
            on(i, f"tower_{i}/moments", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/norm", "Sub", f"tower_{i}/w/MatMul", f"tower_{i}/moments"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/norm"),
            host(f"tower_{i}/update", "AssignSubVariableOp", "mean", f"tower_{i}/moments"),
        ]
    train = host("train", "NoOp", "^update/w", *(f"^tower_{i}/update" for i in runs))
    return program(*own, train, *ops, gpus=range(count), **more)


def updates(graph: Placement) -> list[str]:
    return [analyze(graph).flow.names[op] for op in statistics(graph).updates]


def group(name: str, *towers: int) -> Op:
    return host(name, "NoOp", *(f"^tower_{i}/update" for i in towers))


def test_an_assigned_value_on_the_way_to_a_loss_is_a_statistic() -> None:
    assert updates(normalized()) == ["tower_0/update", "tower_1/update"]


@pytest.mark.parametrize("at", [host, lambda *op: on(0, *op)])
def test_a_variable_with_a_fed_value_is_no_statistic(at: Any) -> None:
    """A setter that was built in the scope of a tower."""
    graph = normalized(
        variable("noise"),
        at("new", "Placeholder"),
        host("set", "AssignVariableOp", "noise", "new"),
    )

    assert "set" not in updates(graph)


def test_a_value_that_reaches_no_loss_is_no_statistic() -> None:
    graph = normalized(
        variable("seen"),
        on(0, "accuracy", "Mean", "tower_0/labels"),
        on(0, "tower_0/labels", "Placeholder"),
        host("set", "AssignVariableOp", "seen", "accuracy"),
    )

    assert "set" not in updates(graph)


def test_a_value_of_weights_on_the_way_to_a_loss_is_a_statistic() -> None:
    """The power iteration of a spectral norm."""
    graph = program(
        variable("u"),
        on(0, "tower_0/v", "MatMul", "tower_0/w/read", "u"),
        on(0, "tower_0/u", "MatMul", "tower_0/w/read", "tower_0/v"),
        on(0, "tower_0/w/MatMul", "MatMul", "tower_0/x", "tower_0/u"),
        host("set", "AssignVariableOp", "u", "tower_0/u"),
    )

    assert updates(graph) == ["set"]


@pytest.mark.parametrize("trains", [True, False])
def test_updates_of_another_step_are_left_out(trains: bool) -> None:
    """Networks that are trained alternately."""
    update = "ResourceApplyAdam" if trains else "NoOp"
    graph = normalized(
        variable("v"),
        host("update/v", update, "v", "rate"),
        host("other", "NoOp", "^update/v", "^tower_0/update", "^tower_1/update"),
    )

    assert (updates(graph) == []) == trains


@pytest.mark.parametrize(
    ("runs", "count", "tower"),
    [((0,), 2, 0), ((1,), 2, 1), ((0, 1), 2, None), ((), 2, None), ((1,), 3, 1), ((), 1, None)],
)
def test_only_one_tower_runs_updates(runs: Sequence[int], count: int, tower: int | None) -> None:
    graph = normalized(runs=runs, count=count)

    only = statistics(graph).only_tower(statistics(graph).updates)

    assert only == tower


def test_a_program_with_one_tower_has_no_only_tower() -> None:
    graph = normalized(runs=[0], count=1)

    assert statistics(graph).only_tower(statistics(graph).updates) is None


@pytest.mark.parametrize("runs", ["^tower_0/update", "^tower_0/update ^second"])
def test_an_incomplete_set_of_updates_has_no_only_tower(runs: str) -> None:
    """Both updates run, but the other tower has only one."""
    graph = normalized(
        variable("variance"),
        host("apart", "Sub", "variance", "tower_0/moments"),
        host("second", "AssignSubVariableOp", "variance", "apart"),
        host("train", "NoOp", "^update/w", *runs.split()),
    )

    assert statistics(graph).only_tower(statistics(graph).updates) is None


def test_an_update_by_both_towers_has_no_only_tower() -> None:
    graph = normalized(
        variable("both"),
        host("set", "AssignVariableOp", "both", "all"),
        host("all", "AddN", "tower_0/moments", "tower_1/moments"),
        runs=[0],
    )

    assert statistics(graph).only_tower(statistics(graph).updates) is None


@pytest.mark.parametrize(
    ("ops", "named"),
    [
        pytest.param([group("updates", 0, 1)], "updates", id="all"),
        pytest.param([group("updates", 0)], "updates", id="the first tower's"),
        pytest.param([group("updates", 1)], None, id="the last tower's"),
        pytest.param(
            [group("one", 0), group("other", 1), host("updates", "NoOp", "^one", "^other")],
            "updates",
            id="a group of groups",
        ),
        pytest.param([], None, id="none"),
        pytest.param(
            [group("gradients/group_deps", 0, 1)], None, id="a group of the backward pass"
        ),
    ],
)
def test_the_group_outside_the_step_that_runs_the_updates(
    ops: Sequence[Op], named: str | None
) -> None:
    graph = normalized(*ops)

    found = statistics(graph).group_outside_step(statistics(graph).updates)

    assert (None if found is None else analyze(graph).flow.names[found]) == named
