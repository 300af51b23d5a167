"""Training loops timed side by side, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any, NamedTuple

from placement_checks.core.trace import Trace
from placement_checks.util.text import plural, printable

BASELINE_TOLERANCE = 0.1  # how far from 1 the ratio of the baseline may be
CONTENTION_TOLERANCE = 0.25  # how far above 1 the time of several programs at once may be


class Loop(NamedTuple):
    """The steps of one loop, one a round.

    Attributes:
        wall: how long each took, in seconds.
        cpu: how much time of processors each took, in seconds.
    """

    wall: Sequence[float]
    cpu: Sequence[float]

    @property
    def median(self) -> float:
        return median(self.wall)


class Spread(NamedTuple):
    """The median of some figures, and the quartiles around it."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return Spread(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


class Simulated(NamedTuple):
    """How long a step of each program takes, in seconds, in a schedule of its ops as measured."""

    single: float
    towers: float

    @property
    def ratio(self) -> float:
        return self.towers / self.single


@dataclass(frozen=True)
class Circumstances:
    """Where and on what programs were timed.

    Attributes:
        program: the one with towers.
        reference: the one for one GPU.
        gpus: how many towers.
        devices: ``real`` or ``simulated``.
        kind: what the devices are, in words.
        cores: of this machine, that this process may use.
        tensorflow: its version.
        onednn: ``TF_ENABLE_ONEDNN_OPTS``, or ``default``.
    """

    program: str
    reference: str
    gpus: int
    devices: str
    kind: str
    cores: int
    tensorflow: str
    onednn: str


@dataclass(frozen=True, repr=False)
class Timing:
    """Steps of towers and of one GPU on equal rows, taken in turn.

    Attributes:
        at: where it was, and on what programs.
        rows: of the global batch.
        single: the program for one GPU.
        towers: the program with towers.
        baseline: what shows whether the machine was quiet: the towers on one thread, as the single
            program is; on GPUs the single program once more.
        contention: as many single programs at once as there are towers, which shows whether each
            had a core to itself; None on GPUs, and where there are fewer cores.
        trace: what the step statistics of the towers tell.
        simulated: a schedule of both programs' ops; None where there is none.
        overlap: the share of time for which all towers computed at once, in the traced steps.
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
        """The baseline against the single program, round by round: about 1 on a quiet machine."""
        return Spread.of(_ratios(self.baseline.wall, self.single.wall))

    @property
    def contention_ratio(self) -> Spread | None:
        """Several single programs at once against one alone: about 1 if each had its core."""
        return self.contention and Spread.of(_ratios(self.contention.wall, self.single.wall))

    @property
    def work(self) -> float:
        """Processor time of the baseline over that of the single program: what towers cost.

        Of each the step that took the least, which a busy machine hardly changes.
        """
        return min(self.baseline.cpu) / min(self.single.cpu)

    @property
    def unmeasured(self) -> str:
        """Why no ratio is given; ``""`` where it is. The ratio itself is not looked at."""
        where = self.at
        if where.devices == "simulated" and where.cores < where.gpus:
            return (
                f"{plural(where.gpus, 'device')} of one core each need as many cores, and this "
                f"process has {where.cores}"
            )
        baseline, tolerance = self.baseline_ratio.median, BASELINE_TOLERANCE
        outside = f"the baseline is {baseline:.3f}, not within 1 ± {tolerance}"
        is_slower = baseline > 1 + tolerance and where.devices == "simulated"
        if is_slower and self.work > 1 + tolerance:
            return (
                f"{outside}, and so is its processor time ({self.work:.2f}): towers cost that "
                "much more than one program; take more rows"
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
        """Time of the towers over that of one GPU, round by round; None if it was not measured."""
        if self.unmeasured:
            return None
        return Spread.of(_ratios(self.towers.wall, self.single.wall))

    @property
    def efficiency(self) -> float | None:
        """Speed-up over the number of GPUs; 1 is ideal."""
        return None if self.ratio is None else 1 / (self.ratio.median * self.at.gpus)

    def examples(self, loop: Loop) -> float:
        """Examples of the global batch a second."""
        return self.rows / loop.median

    def document(self) -> dict[str, Any]:
        """All figures as plain values, for reports and to be compared with later."""
        ratio = self.ratio
        return {
            **asdict(self.at),
            "rows": self.rows,
            **{
                name: {
                    "seconds": loop.median,
                    "spread": Spread.of(loop.wall)[1:],
                    "examples_per_second": self.examples(loop),
                    "wall": list(loop.wall),
                    "cpu": list(loop.cpu),
                }
                for name, loop in (("single", self.single), ("towers", self.towers))
            },
            "baseline_ratio": self.baseline_ratio.median,
            "contention_ratio": self.contention_ratio and self.contention_ratio.median,
            "work_ratio": self.work,
            "measured_ratio": None if ratio is None else ratio.median,
            "measured_spread": None if ratio is None else ratio[1:],
            "not_measured": self.unmeasured or None,
            "efficiency": self.efficiency,
            "simulated_ratio": None if self.simulated is None else self.simulated.ratio,
            "simulated_seconds": None if self.simulated is None else self.simulated._asdict(),
            "overlap": self.overlap,
        }


def _ratios(seconds: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [mine / its for mine, its in zip(seconds, reference, strict=True)]


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a `Timing.document` that a benchmark keeps beside its own."""
    names = (
        "simulated_ratio", "measured_ratio", "not_measured", "baseline_ratio", "contention_ratio",
        "work_ratio", "efficiency", "overlap", "rows", "gpus", "devices", "kind", "tensorflow",
        "onednn",
    )  # fmt: skip
    return {name: document[name] for name in names if document[name] is not None}
