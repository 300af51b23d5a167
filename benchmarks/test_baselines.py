"""The time to write a baseline and to compare with it is proportional to the number of ops."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pytest_benchmark.fixture import BenchmarkFixture
from support.towers import program

from placement_checks import Placement
from placement_checks.analysis.addresses import addresses
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.compare import compare
from placement_checks.baseline.text import parse, render
from placement_checks.core.baseline import Difference

SIZES = (1_000, 10_000, 100_000)
_OPS_A_VARIABLE = 13
# Building takes 320 to 600 us for each op; a baseline takes at most 5 % of 600 us.
_MOST = 30.0

_T = TypeVar("_T")


def timed(call: Callable[[], _T]) -> tuple[_T, float]:
    """The result of a call, and its CPU seconds: the minimum of three calls."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        given = call()
        times.append(time.process_time() - begin)
    return given, min(times)


def baseline_text(graph: Placement) -> str:
    return render(baseline_from_placement(graph))


def checked(text: str, graph: Placement) -> Difference:
    return compare(parse(text, "page.toml"), graph)


def test_baselines_are_linear_and_a_small_part_of_building(benchmark: BenchmarkFixture) -> None:
    """In the worst case, no two ops of a tower have the same address."""
    each: dict[int, float] = {}
    for size in SIZES if benchmark.enabled else SIZES[:1]:
        names = [f"block{number // 50}/w{number}" for number in range(size // _OPS_A_VARIABLE)]
        graph = program(variables=names)
        analyze(graph).prepare()
        begin = time.process_time()
        addresses(graph)
        analysed = time.process_time() - begin
        text, writing = timed(partial(baseline_text, graph))
        found, checking = timed(partial(checked, text, graph))
        assert not found
        each[size] = (analysed + writing + checking) / len(graph.ops) * 1e6
    benchmark.extra_info["CPU us an op"] = {size: round(took, 1) for size, took in each.items()}
    benchmark.pedantic(lambda: compare(baseline_from_placement(graph), graph))
    if benchmark.enabled:
        assert each[100_000] < 2 * each[10_000]
        assert each[100_000] < _MOST
