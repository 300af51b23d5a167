"""A program and its reference, built to run on the same kind of devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from placement_checks.core.devices import Devices
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.program import BatchFunction, BuiltProgram
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.declared import MIN_ROWS, DeclaredFeeding
from placement_checks.run.feeding.inferred import InferredInputs, infer_inputs, random_tensors
from placement_checks.run.feeding.replayed import ReplayedFeeding, input_errors_as_reasons
from placement_checks.run.runnable import RunnableProgram, make_runnable
from placement_checks.util.text import plural

_SECONDS = 60.0  # that the run may take in which random ops draw


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
    def of(
        towers: BuiltProgram,
        reference: BuiltProgram,
        devices: Devices,
        *,
        ends_at: float = math.inf,
    ) -> ProgramPair:
        """Make both ready to run.

        Args:
            towers: the program.
            reference: the same for one GPU.
            devices: ``auto``, ``real`` or ``simulated``.
            ends_at: when their runs must have ended, in seconds of `time.monotonic`.

        Raises:
            InputError: what one of them says about its step cannot be used.
            CannotRun: one of them cannot be run.
        """
        program = make_runnable(towers.on_one_host or towers, devices)
        # Not one on a GPU and the other on the CPU: their kernels round otherwise.
        single = make_runnable(reference, "simulated" if program.simulated else devices)
        return ProgramPair(replace(program, ends_at=ends_at), replace(single, ends_at=ends_at))

    def feeding(
        self,
        batch: BatchFunction | None,
        *,
        rows: int = 0,
        shares: Sequence[int] = (),
        fewest: int = MIN_ROWS,
    ) -> DeclaredFeeding | ReplayedFeeding:
        """How rows get into both; the arguments are those of `Feeding`.

        Rows that nobody gives are those that a watched program was fed.

        Raises:
            InputError: a program or the batch function is at fault.
            CannotRun: the programs are sound, but cannot be given the same rows.
        """
        if self.towers.built.fed and not self.towers.inputs and isinstance(batch, Case | None):
            fed = self._fed_inputs
            if rows not in (0, fed.rows):
                raise InputError(
                    f"a batch of {plural(rows, 'row')}",
                    f"{self.towers.name} was fed {fed.rows}",
                    "leave the number out",
                )
            return ReplayedFeeding(self.reference.name, fed, self.towers.gpus, batch)
        return DeclaredFeeding(
            self.towers, self.reference, batch, rows=rows, shares=shares, fewest=fewest
        )

    @cached_property
    def _fed_inputs(self) -> InferredInputs:
        """What the rows of both are, which were watched."""
        if not self.reference.built.fed:
            raise CannotRun(
                f"what {self.reference.name} feeds is not known, as it was not watched until a "
                "step; give --batch"
            )
        with input_errors_as_reasons():
            several, alone = (
                random_tensors(each, _SECONDS) for each in (self.towers, self.reference)
            )
        return infer_inputs(self.towers, self.reference, several, alone)
