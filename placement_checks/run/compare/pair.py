"""A program and its reference, built to run on the same kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from placement_checks.core.devices import Devices
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.program import BatchFunction, CapturedProgram
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.declared import MIN_ROWS, DeclaredFeeding
from placement_checks.run.feeding.inferred import (
    FedProgram,
    InferredInputs,
    infer_inputs,
    random_tensors,
)
from placement_checks.run.feeding.interface import PASS_BATCH
from placement_checks.run.feeding.replayed import ReplayedFeeding, input_errors_as_reasons
from placement_checks.run.runnable import (
    UNLIMITED,
    RunnableProgram,
    TimeLimit,
    gradient_at,
    make_runnable,
)
from placement_checks.step.stages import comparable_stages
from placement_checks.util.text import plural

_NOT_COMPARABLE = (
    "a learning rate or weight decay is applied before the gradients of towers are combined, and "
    "not at the same place in the reference"
)


@final
@dataclass(frozen=True)
class ProgramPair:
    """Two programs that run on the same kind of device.

    Attributes:
        towers: the program.
        reference: the program for one GPU.
        same_towers: whether the reference is not for one GPU, but an earlier revision of the
            program with the same towers.
    """

    towers: RunnableProgram
    reference: RunnableProgram
    same_towers: bool = False

    @staticmethod
    def from_programs(
        towers: CapturedProgram,
        reference: CapturedProgram,
        devices: Devices,
        *,
        limit: TimeLimit = UNLIMITED,
        same_towers: bool = False,
    ) -> ProgramPair:
        """Make both programs runnable.

        ``limit`` is the time limit of all runs. ``same_towers`` is the attribute of the pair.

        Raises:
            InputError: the step that a builder returned is malformed.
            CannotRun: one of the programs cannot be run.
        """
        program = make_runnable(towers.on_one_host or towers, devices)
        # CPU and GPU kernels round differently, so both programs run on the same kind of device.
        single = make_runnable(reference, "simulated" if program.simulated else devices)
        _match_gradients(program, single)
        return ProgramPair(
            replace(program, limit=limit), replace(single, limit=limit), same_towers
        )

    def on_cpus(self) -> ProgramPair:
        """Return the same programs on CPU devices; raises the same errors as `from_programs`."""
        towers, single = self.towers, self.reference
        return ProgramPair.from_programs(
            towers.built,
            single.built,
            "simulated",
            limit=towers.limit,
            same_towers=self.same_towers,
        )

    def feeding(
        self,
        batch: BatchFunction | None,
        *,
        rows: int = 0,
        shares: Sequence[int] = (),
        min_rows: int = MIN_ROWS,
    ) -> DeclaredFeeding | ReplayedFeeding:
        """Choose how rows are fed to both programs.

        Scripts without declared inputs or a batch function are fed their recorded rows.

        `DeclaredFeeding` describes the parameters.

        Raises:
            InputError: a program or the batch function is at fault.
            CannotRun: the programs are sound, but cannot be fed the same rows.
        """
        if self.towers.built.fed and not self.towers.inputs and isinstance(batch, Case | None):
            if self.same_towers:
                raise CannotRun(
                    f"the numbers of two revisions cannot be compared: {self.towers.name} feeds "
                    "its own rows, and each revision may feed different rows",
                    "name a function that builds the step and returns its inputs",
                )
            inputs = self._inferred_inputs
            if rows not in (0, inputs.rows):
                raise InputError(
                    f"a batch of {plural(rows, 'row')}",
                    f"{self.towers.name} was fed {inputs.rows}",
                    "omit the number",
                )
            return ReplayedFeeding(self.reference.name, inputs, self.towers.gpus, batch)
        return DeclaredFeeding(
            self.towers,
            self.reference,
            batch,
            rows=rows,
            shares=shares,
            min_rows=min_rows,
            same_towers=self.same_towers,
        )

    @cached_property
    def _inferred_inputs(self) -> InferredInputs:
        if not self.reference.built.fed:
            raise CannotRun(
                f"the rows of {self.reference.name} are not known: its capture recorded no rows "
                "that are fed to a training step",
                PASS_BATCH,
            )
        with input_errors_as_reasons():
            towers, reference = (
                FedProgram(each, random_tensors(each)) for each in (self.towers, self.reference)
            )
        return infer_inputs(towers, reference)


def _match_gradients(program: RunnableProgram, reference: RunnableProgram) -> None:
    """Choose comparable stages of the gradients whose updates are written out."""
    own, others = program.gradients, reference.gradients
    for variable in own.written.keys() | others.written.keys():
        if variable not in own.by_variable or variable not in others.by_variable:
            continue
        written, expected = own.written.get(variable), others.written.get(variable)
        stages = comparable_stages(written, expected, reference.gpus / program.gpus)
        if stages is None:
            del own.by_variable[variable]
            own.unreadable[variable] = _NOT_COMPARABLE
            continue
        if written is not None:
            own.by_variable[variable] = gradient_at(written, stages[0])
        if expected is not None:
            others.by_variable[variable] = gradient_at(expected, stages[1])
