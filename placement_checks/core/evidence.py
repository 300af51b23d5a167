"""The evidence that rules judge: a placement, and further results for its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from placement_checks.core.errors import UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Op, Placement, Placer
from placement_checks.core.program import CapturedProgram
from placement_checks.core.settings import DEFAULTS, Settings
from placement_checks.core.variables import Variables

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement
    from placement_checks.core.trace import Trace


NO_PROGRAM: Final = Missing("only a placement is given, without its program")
NO_REFERENCE: Final = Missing("no reference is given", option="--reference TARGET --batch TARGET")

NOT_BUILT_FOR_ONE: Final = Missing("the program was not also built for one GPU")


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """All results for one program. A part that is not available is a `Missing` with the reason.

    Two objects are equal if their placements are equal: ``place(before) == place(after)``.

    Attributes:
        placement: the devices of all ops.
        program: the program as it was built.
        single_gpu: the devices that the same program requests if built for one GPU.
        reference: the devices that the reference, a program for one GPU, requests.
        measurement: gradients and weights of the program and its reference, from runs.
        trace: timelines of some steps of the program.
        settings: how the program was run and placed, and how it is judged. The policy includes
            the deviations that the program itself declares.
    """

    placement: Placement
    program: CapturedProgram | Missing = NO_PROGRAM
    single_gpu: Placement | Missing = NOT_BUILT_FOR_ONE
    reference: Placement | Missing = NO_REFERENCE
    measurement: Measurement | Missing = NO_REFERENCE
    trace: Trace | Missing = NO_REFERENCE
    settings: Settings = DEFAULTS

    def __eq__(self, other: object) -> bool:
        return self.placement == (other.placement if isinstance(other, Evidence) else other)

    def __repr__(self) -> str:
        ran = f", run on {self.measurement.devices} devices" if self.measurement else ""
        return f"Evidence({self.placement!r}{ran})"

    @staticmethod
    def wrap(evidence: Evidence | Placement) -> Evidence:
        """Return evidence unchanged; wrap a placement, such as one from a log.

        Raises:
            UsageError: the object is neither, for example a builder that was not placed.
        """
        if isinstance(evidence, Evidence):
            return evidence
        if isinstance(evidence, Placement):
            return Evidence(evidence)
        raise UsageError(
            f"{evidence!r:.60}",
            "is not a placement",
            "pass the result of place(build_towers), or for a log, "
            "read_logs(['outputlog']).placement()",
            is_predicate=True,
        )

    @property
    def ops(self) -> Mapping[str, Op]:
        """Every op of the placement by name."""
        return self.placement.ops

    @property
    def variables(self) -> Variables:
        """The variables of the placement."""
        return self.placement.variables

    @property
    def machine(self) -> Machine | None:
        """The machine of the placement; None if no devices were assigned."""
        return self.placement.machine

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the program for reports, besides the verdicts."""
        return self.program.notes if self.program else ()

    @property
    def placer(self) -> Placer | None:
        """The source of assigned devices: ``phantom``, ``session``, ``log``, or None."""
        return self.placement.placer
