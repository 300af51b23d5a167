"""All that a rule may look at: a placement, and what else is known of its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from placement_checks.core.errors import UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Op, Placement, Placer
from placement_checks.core.program import BuiltProgram
from placement_checks.core.variables import Variables

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement
    from placement_checks.core.trace import Trace


NO_PROGRAM: Final = Missing("only a placement is given, and no program")
NO_REFERENCE: Final = Missing("no reference is given", "--reference TARGET --batch TARGET")

NOT_BUILT_FOR_ONE: Final = Missing("it was not built for one GPU")


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """What is known of one program. Each part is there, or a `Missing` that says why it is not.

    It is compared as its placement is: ``place(before) == place(after)``.

    Attributes:
        placement: where its ops are.
        program: what its builder made.
        single_gpu: what the same program requests when it is built for one GPU.
        reference: what the reference, a program for one GPU, requests.
        measurement: what running the program and its reference gave.
        trace: what some steps of the program did when.
        policy: what the program does differently on purpose, ``{rule: {field: value}}``.
    """

    placement: Placement
    program: BuiltProgram | Missing = NO_PROGRAM
    single_gpu: Placement | Missing = NOT_BUILT_FOR_ONE
    reference: Placement | Missing = NO_REFERENCE
    measurement: Measurement | Missing = NO_REFERENCE
    trace: Trace | Missing = NO_REFERENCE
    policy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return self.placement == (other.placement if isinstance(other, Evidence) else other)

    def __repr__(self) -> str:
        ran = f", run on {self.measurement.devices} devices" if self.measurement else ""
        return f"Evidence({self.placement!r}{ran})"

    @staticmethod
    def of(evidence: Evidence | Placement) -> Evidence:
        """The evidence itself, or that of a placement alone, such as a log's.

        Raises:
            UsageError: it is neither, but for example a builder that was not placed.
        """
        if isinstance(evidence, Evidence):
            return evidence
        if isinstance(evidence, Placement):
            return Evidence(evidence)
        raise UsageError(
            f"{evidence!r:.60}",
            "is not a placement",
            "give what place(build_towers) returns, or of a log "
            "read_logs(['outputlog']).placement()",
        )

    @property
    def ops(self) -> Mapping[str, Op]:
        """Every op of the placement by name."""
        return self.placement.ops

    @property
    def variables(self) -> Variables:
        """The variables among them."""
        return self.placement.variables

    @property
    def machine(self) -> Machine | None:
        """The devices it was placed on; None for a placement that was only requested."""
        return self.placement.machine

    @property
    def notes(self) -> Sequence[str]:
        """What a report says of the program beside the rules."""
        return self.program.notes if self.program else ()

    @property
    def placer(self) -> Placer | None:
        """Who assigned the devices: ``phantom``, ``session``, ``log``, or None."""
        return self.placement.placer
