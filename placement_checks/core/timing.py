"""Timings of training loops that ran side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple

from placement_checks.core.devices import RunDevices
from placement_checks.core.trace import Trace
from placement_checks.util.text import plural, printable

BASELINE_TOLERANCE = 0.1  # largest deviation of the baseline ratio from 1
CONTENTION_TOLERANCE = 0.25  # largest excess of the contention ratio over 1


class Loop(NamedTuple):
    """The steps of one loop, one per round."""

    wall: Sequence[float]  # the wall-clock time of each step, in seconds
    cpu: Sequence[float]  # the CPU time of each step, in seconds

    @property
    def median(self) -> float:
        return median(self.wall)


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @staticmethod
    def from_values(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return Spread(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


class Simulated(NamedTuple):
    """The length of a step of each program, in seconds, simulated from the times of its ops."""

    single: float
    towers: float

    @property
    def ratio(self) -> float:
        return self.towers / self.single


@dataclass(frozen=True)
class Circumstances:
    """Programs and environment of a timing."""

    program: str  # the program with towers
    reference: str  # the program for one GPU
    gpus: int  # the number of towers
    devices: RunDevices
    kind: str  # a description of the devices
    cores: int  # the number of cores that this process may use
    tensorflow: str  # the version of TensorFlow
    onednn: str  # `TF_ENABLE_ONEDNN_OPTS`, or `default`


@dataclass(frozen=True, repr=False)
class Timing:
    """Steps with towers and on one GPU, in turns, with equal rows.

    Attributes:
        at: programs and environment.
        rows: the number of rows in the global batch.
        single: the program for one GPU.
        towers: the program with towers.
        baseline: a control that shows whether the machine was quiet: the towers on one thread,
            like the single program; on GPUs, another run of the single program.
        contention: a control that shows whether each tower had a core: one copy of the single
            program per tower, all at once. None on GPUs, or with fewer cores.
        trace: traced steps of the towers.
        simulated: the simulated times of both programs; None if not available.
        overlap: the share of time in traced steps when all towers computed at once.
    """

    at: Circumstances
    rows: int
    single: Loop
    towers: Loop
    baseline: Loop
    contention: Loop | None
    trace: Trace
    simulated: Simulated | None = None
    overlap: float | None = None

    def __repr__(self) -> str:
        ratio = f"{self.ratio} of the time of one GPU" if self.ratio else "no ratio measured"
        at = self.at
        return printable(f"Timing({at.program} on {at.gpus} {at.devices} devices: {ratio})")

    @property
    def baseline_ratio(self) -> Spread:
        """The ratio of baseline to single program per round: about 1 on a quiet machine."""
        return Spread.from_values(_ratios(self.baseline.wall, self.single.wall))

    @property
    def contention_ratio(self) -> Spread | None:
        """The ratio of several single programs to one: about 1 if each program had a core."""
        return self.contention and Spread.from_values(
            _ratios(self.contention.wall, self.single.wall)
        )

    @property
    def work(self) -> float:
        """The CPU time of a baseline step divided by the CPU time of a step of the single program.

        Above 1, towers cost additional work. Only the fastest step of each program counts, because
        other load on the machine hardly affects it.
        """
        return min(self.baseline.cpu) / min(self.single.cpu)

    @property
    def unmeasured(self) -> str:
        """The reason why `ratio` is None; ``""`` if it is available."""
        where = self.at
        if where.devices == "simulated" and where.cores < where.gpus:
            return (
                f"{plural(where.gpus, 'device')} of one core each need as many cores, but this "
                f"process has {where.cores}"
            )
        baseline, tolerance = self.baseline_ratio.median, BASELINE_TOLERANCE
        outside = f"the baseline is {baseline:.3f}, not within 1 ± {tolerance}"
        is_slower = baseline > 1 + tolerance and where.devices == "simulated"
        if is_slower and self.work > 1 + tolerance:
            return (
                f"{outside}, and {self.work:.2f} in processor time: the towers do more work than "
                "one program; take more rows"
            )
        if abs(baseline - 1) > tolerance:
            return f"{outside}: the machine was busy; time it again when it is quiet"
        contention = self.contention_ratio
        if contention and contention.median > 1 + CONTENTION_TOLERANCE:
            return (
                f"{where.gpus} programs at once took {contention.median:.2f} times as long as "
                f"one alone, more than {1 + CONTENTION_TOLERANCE}: something else was using the "
                "cores; time it again when it is quiet"
            )
        return ""

    @property
    def ratio(self) -> Spread | None:
        """The time of the towers divided by one GPU's, per round; None if not measured."""
        if self.unmeasured:
            return None
        return Spread.from_values(_ratios(self.towers.wall, self.single.wall))

    @property
    def efficiency(self) -> float | None:
        """The speed-up divided by the number of GPUs; 1 is ideal."""
        return None if self.ratio is None else 1 / (self.ratio.median * self.at.gpus)

    def examples(self, loop: Loop) -> float:
        """Examples per second."""
        return self.rows / loop.median


def _ratios(seconds: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [own / other for own, other in zip(seconds, reference, strict=True)]
