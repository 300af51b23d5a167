"""A program and its reference, built to run on the same kind of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from placement_checks.core.gpus import Devices
from placement_checks.core.program import BatchFunction, BuiltProgram
from placement_checks.run.feeding import FEWEST, Feeding
from placement_checks.run.runnable import RunnableProgram, runnable


@final
@dataclass(frozen=True)
class ProgramPair:
    """Two programs that can be run beside each other.

    Attributes:
        towers: the program.
        reference: the same for one GPU.
    """

    towers: RunnableProgram
    reference: RunnableProgram

    @staticmethod
    def of(towers: BuiltProgram, reference: BuiltProgram, devices: Devices) -> ProgramPair:
        """Make both ready to run; ``devices`` is ``auto``, ``real`` or ``simulated``.

        Raises:
            InputError: what one of them says about its step cannot be used.
            CannotRun: one of them cannot be run.
        """
        program = runnable(towers, devices)
        # Not one on a GPU and the other on the CPU: their kernels round otherwise.
        single = runnable(reference, "simulated" if program.simulated else devices)
        return ProgramPair(program, single)

    def feeding(
        self,
        batch: BatchFunction | None,
        *,
        rows: int = 0,
        shares: Sequence[int] = (),
        fewest: int = FEWEST,
    ) -> Feeding:
        """How rows get into both; the arguments are those of `Feeding`."""
        return Feeding(self.towers, self.reference, batch, rows=rows, shares=shares, fewest=fewest)
