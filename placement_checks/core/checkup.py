"""Checks of a machine: the results of ``placement-checks doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# ok: works. limited: works in part, or with a restriction. missing: programs cannot be checked.
State = Literal["ok", "limited", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: the part that was checked, such as ``placer``.
        state: whether it works.
        found: the facts found, in a clause.
        fix: the remedy, a clause, or ``""``.
    """

    name: str
    state: State
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Checkup:
    """All checks of a machine, in the order of reports.

    Attributes:
        checks: the results of the checks.
        gpus: the comparison with the GPUs of the machine; None if it was not requested.
    """

    checks: Sequence[Check]
    gpus: GpuComparison | None = None

    @property
    def can_check(self) -> bool:
        """Whether programs can be checked: no part is missing."""
        return all(check.state != "missing" for check in self.checks)

    @property
    def status(self) -> int:
        """The exit status: 1 if a part is missing or a prediction was wrong, else 0."""
        return int(not self.can_check or (self.gpus is not None and not self.gpus.is_as_predicted))


@dataclass(frozen=True, slots=True)
class OpDifference:
    """An op on another device than predicted.

    Attributes:
        op: the name of the op.
        type: the type of the op.
        predicted: the predicted device.
        found: the device on this machine.
        executed: whether ``found`` is the device in the executed graph, after all rewrites, rather
            than the answer of the placer.
    """

    op: str
    type: str
    predicted: str
    found: str
    executed: bool


@dataclass(frozen=True)
class ComparedProgram:
    """A program whose prediction was compared with this machine.

    Attributes:
        name: the name of the program.
        subject: the parts of TensorFlow that it uses, in a sentence.
        state: ``same``, ``different``, ``failed`` if it did not run here, or ``skipped``.
        predicted: the number of ops in the prediction.
        ops: the number of compared ops; the log lacks the other ops, or lists them twice.
        differences: the ops on other devices than predicted.
        reason: why the program failed or was skipped, or how it differs apart from
            ``differences``; or ``""``.
    """

    name: str
    subject: str
    state: Literal["same", "different", "failed", "skipped"]
    predicted: int = 0
    ops: int = 0
    differences: Sequence[OpDifference] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether an assumption of predictions holds on this machine.

    Attributes:
        assumption: the assumption, as in docs/gpu_machines.md.
        state: ``seen`` if it holds here, ``different`` if it does not, or ``not answered``.
        reason: the observation, or why there is none.
    """

    assumption: str
    state: Literal["seen", "different", "not answered"]
    reason: str


@dataclass(frozen=True)
class GpuComparison:
    """Predictions for two GPUs, compared with the GPUs of this machine.

    Attributes:
        devices: the two GPUs that ran the programs, in words.
        programs: the compared programs.
        answers: an answer for each assumption.
    """

    devices: str
    programs: Sequence[ComparedProgram]
    answers: Sequence[Answer]

    @property
    def is_as_predicted(self) -> bool:
        """Whether all programs that could run here ran as predicted."""
        return all(program.state in ("same", "skipped") for program in self.programs) and all(
            answer.state != "different" for answer in self.answers
        )
