"""The time to find the tower of each op and the layout of variables is linear in the ops."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.towers import program

from placement_checks import Placement
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import GradientFlow
from placement_checks.analysis.variables.layout import Layout

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

SIZES = (1_000, 10_000, 100_000)
_OPS_A_VARIABLE = 13


def find_towers(graph: Placement) -> Callable[[], object]:
    return lambda: TowerAnalysis(graph).tower_of


def find_layout(graph: Placement) -> Callable[[], object]:
    analyze(graph).prepare()

    def found() -> object:
        vars(graph)["_cache"].pop(GradientFlow, None)  # it caches the paths from updates
        return Layout(graph).tower_of

    return found


def cpu_per_op(call: Callable[[], object], ops: int) -> float:
    """The CPU microseconds for each op: the minimum of three calls."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times) / ops * 1e6


@pytest.mark.parametrize("mirrored", [False, True], ids=["central", "mirrored"])
@pytest.mark.parametrize("find", [find_towers, find_layout])
def test_analyses_are_linear(
    benchmark: BenchmarkFixture, find: Callable[[Placement], Callable[[], object]], mirrored: bool
) -> None:
    costs = {}
    for size in SIZES if benchmark.enabled else SIZES[:1]:
        names = [f"w{number}" for number in range(size // _OPS_A_VARIABLE)]
        graph = program(variables=names, mirrored=mirrored)
        call = find(graph)
        costs[size] = cpu_per_op(call, len(graph.ops))

    benchmark.pedantic(call, rounds=3)

    benchmark.extra_info["CPU us an op"] = {size: round(each, 2) for size, each in costs.items()}
    assert max(costs.values()) < 4 * min(costs.values())
