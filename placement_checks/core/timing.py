"""StepOps loops timed side by side, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, NamedTuple

from placement_checks.core.trace import Trace
from placement_checks.util.text import plural

QUIET = 0.1  # how far from 1 the control may be
CROWDED = 0.25  # how far above 1 the time of several programs at once may be


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
    """How long a step of each program takes when it is replayed (`timing.replay`), in seconds."""

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


@dataclass(frozen=True)
class Timing:
    """Steps of towers and of one GPU on equal rows, taken in turn.

    Attributes:
        at: where it was, and on what programs.
        rows: of the global batch.
        single: the program for one GPU.
        towers: the program with towers.
        control: what shows whether the machine was quiet: the towers on one thread, as the single
            program is; on GPUs the single program once more.
        company: as many single programs at once as there are towers, which shows whether each had
            a core to itself; None on GPUs, and where there are fewer cores.
        trace: what the step statistics of the towers tell.
        replayed: a schedule of both programs' ops; None where there is none.
        at_once: the share of time for which all towers computed at once (`Trace.did`).
    """

    at: Circumstances
    rows: int
    single: Loop
    towers: Loop
    control: Loop
    company: Loop | None
    trace: Trace = field(repr=False)
    replayed: Simulated | None = None
    at_once: float | None = None

    @property
    def quiet(self) -> Spread:
        """The control against the single program, round by round: about 1 on a quiet machine."""
        return Spread.of(_ratios(self.control.wall, self.single.wall))

    @property
    def crowded(self) -> Spread | None:
        """Several single programs at once against one alone: about 1 if each had its core."""
        return self.company and Spread.of(_ratios(self.company.wall, self.single.wall))

    @property
    def work(self) -> float:
        """Processor time of the control over that of the single program: what towers cost.

        Of each the step that took the least, which a busy machine hardly changes.
        """
        return min(self.control.cpu) / min(self.single.cpu)

    @property
    def unmeasured(self) -> str:
        """Why no ratio is given; ``""`` where it is. The ratio itself plays no part in it."""
        where = self.at
        if where.devices == "simulated" and where.cores < where.gpus:
            return (
                f"{plural(where.gpus, 'device')} of one core each need as many cores, and this "
                f"process has {where.cores}"
            )
        control = self.quiet.median
        said = f"the control is {control:.3f}, not within 1 ± {QUIET}"
        if control > 1 + QUIET and where.devices == "simulated" and self.work > 1 + QUIET:
            return (
                f"{said}, and so is its processor time ({self.work:.2f}): towers cost that much "
                "more than one program; take more rows"
            )
        if abs(control - 1) > QUIET:
            return f"{said}: the machine was busy; time it again when it is quiet"
        if self.crowded and self.crowded.median > 1 + CROWDED:
            return (
                f"{where.gpus} programs at once took {self.crowded.median:.2f} times as long as "
                f"one alone, more than {1 + CROWDED}: something else was using the cores; time "
                "it again when it is quiet"
            )
        return ""

    @property
    def ratio(self) -> Spread | None:
        """Time of the towers over that of one GPU, round by round; None where it is no figure."""
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
            "control_ratio": self.quiet.median,
            "company_ratio": self.crowded and self.crowded.median,
            "work_ratio": self.work,
            "measured_ratio": None if ratio is None else ratio.median,
            "measured_spread": None if ratio is None else ratio[1:],
            "not_measured": self.unmeasured or None,
            "efficiency": self.efficiency,
            "replayed_ratio": None if self.replayed is None else self.replayed.ratio,
            "replayed_seconds": None if self.replayed is None else self.replayed._asdict(),
            "at_once": self.at_once,
        }


def _ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [mine / its for mine, its in zip(one, other, strict=True)]


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a `Timing.document` that a benchmark keeps beside its own."""
    kept = (
        "replayed_ratio", "measured_ratio", "not_measured", "control_ratio", "company_ratio",
        "work_ratio",
        "efficiency", "at_once", "rows", "gpus", "devices", "kind", "tensorflow", "onednn",
    )  # fmt: skip
    return {name: document[name] for name in kept if document[name] is not None}
