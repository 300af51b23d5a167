"""The goals of the benchmarks, and the table of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from placement_checks.core.timing import Spread
from placement_checks.util.text import plural


class Goal(NamedTuple):
    """The limit of a figure.

    A figure without a unit is a ratio, which does not depend on the machine.
    """

    most: float
    unit: str = ""


PLACING = "place and judge / build, {:,} ops"
BASELINE = "baseline written and compared / build, {:,} ops"
PROOF = "judge with the build for one GPU / build, {:,} ops"
OBJECTIVE = "objective of each update / build, {:,} ops"
TRACED = "read, place and judge a traced step, 11,500 ops"
START = "placer's process, started"
PEAK = "placer's process, peak at 1.04 M ops"
HELD = "placer's process, after 1.04 M ops"
STATIC = "verify mnist.py, static"
NUMERIC = "verify mnist.py, with numbers"
WHOLE = "{} a whole program / its own way to the first step"
EQUAL = "numbers, 4.2 M parameters, equal: above TensorFlow"
DIFFERENT = "numbers, 4.2 M parameters, different: above TensorFlow"
LOG = "log of 600k lines / re.finditer, {}"
PLUGIN = "plugin / bare pytest: added"
REPORT = "text report of 10,000 findings, all of them"
CLUSTER = "placing 64 workers of 8 GPUs"

_PARAMETERS = 4.2e-3  # billions
GOALS: Mapping[str, Goal] = {
    **{PLACING.format(ops): Goal(0.1) for ops in (1_000, 10_000, 78_000)},
    **{BASELINE.format(ops): Goal(0.05) for ops in (1_000, 10_000, 78_000)},
    **{PROOF.format(ops): Goal(0.08) for ops in (1_000, 10_000, 78_000)},
    **{OBJECTIVE.format(ops): Goal(0.2) for ops in (1_000, 10_000, 78_000)},
    TRACED: Goal(3, "CPU s"),
    START: Goal(0.7, "CPU s"),
    PEAK: Goal(6, "GB"),
    HELD: Goal(1, "GB"),
    STATIC: Goal(4.5, "CPU s"),
    NUMERIC: Goal(6.5, "CPU s"),
    WHOLE.format("place"): Goal(1.15),
    WHOLE.format("verify"): Goal(1.3),
    EQUAL: Goal(0.3, "GB"),
    DIFFERENT: Goal(128 * _PARAMETERS, "GB"),
    LOG.format("252k placements, torn records"): Goal(0.2),
    LOG.format("21k placements, torn records"): Goal(0.1),
    LOG.format("21k placements"): Goal(0.1),
    PLUGIN: Goal(20, "CPU ms"),
    REPORT: Goal(1, "CPU s"),
    CLUSTER: Goal(2, "s"),
}

Figures = Mapping[str, Sequence[float]]  # the measurements of each figure
Record = Callable[[str, Sequence[float]], None]  # the type of the fixture `record`


def lines(now: Figures, before: Figures, *, same_machine: bool) -> Iterator[str]:
    """A table of all figures, and the figures that miss their goal.

    Args:
        now: the measurements.
        before: the measurements of an earlier run, or empty.
        same_machine: whether the earlier run was on this machine; otherwise only ratios are
            compared.
    """
    rows = [("figure", "measured", "goal", "", "relative to the previous run")]
    for name, goal in GOALS.items():
        comparable = name in before and (same_machine or not goal.unit)
        rows.append(_row(name, goal, now.get(name, ()), before[name] if comparable else ()))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    short = [name for name in GOALS if name in now and _over(GOALS[name], now[name]) > 1]
    reached = plural(len(now) - len(short), "figure")
    yield f"{reached} of {len(now)} reached; not reached: {'; '.join(short) or 'none'}"


def _row(
    name: str, goal: Goal, now: Sequence[float], before: Sequence[float]
) -> tuple[str, str, str, str, str]:
    most = f"<= {goal.most:.3g} {goal.unit}".rstrip()
    if not now:
        return name, "not measured", most, "", ""
    over = _over(goal, now)
    verdict = "reached" if over <= 1 else f"missed by {over:.2f}"
    since = (
        f"{Spread.from_values(now).median / Spread.from_values(before).median:.2f}"
        if before
        else ""
    )
    return name, _measured(now), most, verdict, since


def _over(goal: Goal, values: Sequence[float]) -> float:
    return Spread.from_values(values).median / goal.most


def _measured(values: Sequence[float]) -> str:
    """The median, and the quartiles if there are enough measurements."""
    median, low, high = (f"{value:.3g}" for value in Spread.from_values(values))
    return median if len(values) == 1 else f"{median} ({low} to {high})"
