"""The table of figures, for handwritten values and for saved runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.figures import CLUSTER, GOALS, PLACING, STATIC, Figures, lines

RATIO = PLACING.format(1_000)
NONE: Figures = {}
TEST = """
from benchmarks.figures import CLUSTER, PLACING

def test_placing(benchmark, record):
    benchmark.pedantic(lambda: None)
    record(PLACING.format(1_000), {ratios})
    record(CLUSTER, [1.5])
"""


def table(
    now: Figures, before: Figures = NONE, *, same_machine: bool = True
) -> Mapping[str, Sequence[str]]:
    """The cells after the name of each figure."""
    _, *rows, _ = lines(now, before, same_machine=same_machine)
    return {name: _cells(row, name) for name, row in zip(GOALS, rows, strict=True)}


def _cells(row: str, name: str) -> list[str]:
    assert row.startswith(name)
    return [cell.strip() for cell in row.removeprefix(name).split("  ") if cell]


def test_each_figure_has_its_goal() -> None:
    rows = table({RATIO: [0.06, 0.05, 0.07], STATIC: [9]})

    assert rows[RATIO] == ["0.06 (0.055 to 0.065)", "<= 0.1", "reached"]
    assert rows[STATIC] == ["9", "<= 4.5 CPU s", "missed by 2.00"]
    assert rows[CLUSTER] == ["not measured", "<= 2 s"]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({RATIO: [0.1], CLUSTER: [1]}, "2 figures of 2 reached; not reached: none"),
        (
            {STATIC: [4.6], CLUSTER: [1], RATIO: [0.2]},
            f"1 figure of 3 reached; not reached: {RATIO}; {STATIC}",
        ),
    ],
)
def test_missed_goals_are_named(now: Figures, expected: str) -> None:
    *_, last = lines(now, NONE, same_machine=True)

    assert last == expected


@pytest.mark.parametrize(("same_machine", "cluster"), [(True, ["0.50"]), (False, [])])
def test_only_ratios_are_compared_between_machines(same_machine: bool, cluster: list[str]) -> None:
    before: Figures = {RATIO: [0.2, 0.1, 0.3], CLUSTER: [2]}

    rows = table({RATIO: [0.05], CLUSTER: [1]}, before, same_machine=same_machine)

    assert rows[RATIO][3:] == ["0.25"]
    assert rows[CLUSTER][3:] == cluster


def test_a_figure_missing_in_the_earlier_run_is_not_compared() -> None:
    assert table({RATIO: [0.05]}, {CLUSTER: [2]})[RATIO][3:] == []


def test_a_run_is_saved_and_the_next_one_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # this test may run under xdist
    pytester.makeconftest("from benchmarks.conftest import *")
    outputs = []
    for ratios, option in (("[0.2]", "--benchmark-autosave"), ("[0.05]", "--benchmark-compare")):
        path = pytester.makepyfile(test_placing=TEST.replace("{ratios}", ratios))
        ran = pytester.runpytest(path, "--benchmark-only", "-p", "no:xdist", option)
        outputs.append(ran.stdout)

    first, second = outputs
    first.fnmatch_lines([f"{RATIO} * missed by 2.00", "1 figure of 2 reached;*"])
    second.fnmatch_lines([f"{RATIO} * reached * 0.25", f"{CLUSTER} * reached * 1.00"])
