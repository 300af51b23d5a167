"""Programs compared with themselves at a git revision."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from placement_checks.core.baseline import Difference
from placement_checks.core.errors import PlacementError
from placement_checks.core.results import Report, Verdict

Effect = Literal["broken", "unchecked", "kept"]
ProgramState = Literal["same", "changed", "new", "gone"]


@dataclass(frozen=True)
class RuleChange:
    """A rule whose verdict differs from its verdict at the revision."""

    # `broken` if the rule is broken now, and was not broken or had fewer findings; `unchecked` if
    # the rule is not checked now, and was checked; `kept` if the rule is kept now, and was not
    # kept.
    effect: Effect
    old: Verdict  # the verdict at the revision
    new: Verdict  # the present verdict


@dataclass(frozen=True)
class Numbers:
    """Whether training on the same rows has the same results as at the revision."""

    state: Literal["equal", "different", "not-checked"]
    text: str  # the compared variables, the differences, or the reason


TrainingState = Literal["proved", "different", "not-checked"]


@dataclass(frozen=True)
class ChangedVariable:
    """Whether a training step gives a variable the same value as the step at the revision."""

    name: str  # its name now; its name at the revision, if that alone has it
    state: TrainingState
    text: str = ""  # the difference, or why it is not checked
    where: str | None = None  # the line of the difference; None if unknown


@dataclass(frozen=True)
class TrainingChange:
    """Whether the training step is the step at the revision, for every batch."""

    # Each variable that the step updates, now or at the revision.
    variables: Sequence[ChangedVariable] = ()
    assumed: Sequence[str] = ()  # what the proofs take for granted
    reason: str = ""  # why no variable is compared

    @property
    def state(self) -> TrainingState:
        """``proved`` only if it is proved for all variables."""
        states = {each.state for each in self.variables}
        if "different" in states:
            return "different"
        return "proved" if states == {"proved"} else "not-checked"


@dataclass(frozen=True)
class ProgramChange:
    """A program compared with itself at a revision.

    Attributes:
        name: the target.
        old: the verdicts at the revision; None if the revision lacks the program, or if the
            program is gone.
        new: the present verdicts, with the objects on other devices as `Report.baseline`; None if
            pyproject.toml lists the program only at the revision.
        training: the comparison of training steps; None if only one side has the program.
        numbers: the comparison of runs; None if none was requested.
    """

    name: str
    old: Report | None
    new: Report | None
    training: TrainingChange | None = None
    numbers: Numbers | None = None

    @property
    def difference(self) -> Difference | None:
        """The objects on other devices; None if only one side has the program."""
        return self.new.baseline if self.new is not None else None

    @cached_property
    def rules(self) -> Sequence[RuleChange]:
        """The rules whose verdicts differ; for a new program, all its broken rules."""
        before = {verdict.rule: verdict for verdict in self.old.verdicts} if self.old else {}
        changes = []
        for verdict in self.new.verdicts if self.new else ():
            was = before.get(verdict.rule) or Verdict(
                verdict.rule, "not-checked", None, "the revision lacks the program"
            )
            effect = _effect(was, verdict)
            if effect and (self.old or effect == "broken"):
                changes.append(RuleChange(effect, was, verdict))
        return changes

    @property
    def state(self) -> ProgramState:
        """Whether the program is the same on both sides."""
        if self.new is None:
            return "gone"
        if self.old is None:
            return "new"
        compared = (self.training, self.numbers)
        is_trained_otherwise = any(each and each.state == "different" for each in compared)
        rules = self.with_effect("broken", "unchecked")
        return "changed" if self.difference or rules or is_trained_otherwise else "same"

    @property
    def differs(self) -> bool:
        """Whether the program fails the comparison: it changed, is gone, or is new and broken."""
        return self.state in ("changed", "gone") or bool(self.with_effect("broken"))

    def with_effect(self, *effects: Effect) -> Sequence[RuleChange]:
        """The changed rules with one of these effects."""
        return [change for change in self.rules if change.effect in effects]

    @cached_property
    def newly_broken(self) -> Report | None:
        """The present report with the newly broken rules only; None if the program is gone."""
        if self.new is None:
            return None
        broken = [change.new for change in self.with_effect("broken")]
        rules = {verdict.rule for verdict in broken}
        return replace(self.new, verdicts=[_without_causes(each, rules) for each in broken])


def _without_causes(verdict: Verdict, rules: Collection[str]) -> Verdict:
    """A verdict whose findings are root causes if their cause is not among some rules."""
    findings = [
        each if each.follows in rules else replace(each, follows=None) for each in verdict.findings
    ]
    return replace(verdict, findings=findings)


def _effect(old: Verdict, new: Verdict) -> Effect | None:
    if new.state == "broken":
        is_worse = old.state != "broken" or len(new.findings) > len(old.findings)
        return "broken" if is_worse else None
    if new.state in (old.state, "doubtful"):
        return None
    return "kept" if new.state == "kept" else "unchecked"


@dataclass(frozen=True)
class Since:
    """All programs compared with themselves at a revision."""

    revision: str  # the revision in the words of the user
    commit: str  # the hash of its commit
    programs: Sequence[ProgramChange] = ()  # the programs
    errors: Sequence[PlacementError] = ()  # the errors of programs that could not be compared
    notes: Sequence[str] = ()  # remarks on the copy of the revision

    @property
    def status(self) -> int:
        """The exit status: 0 if no program differs, 1 if one does, 2 if an error occurred."""
        if self.errors:
            return 2
        return int(any(program.differs for program in self.programs))

    @property
    def reports(self) -> Sequence[Report]:
        """For each program that is not gone, its newly broken rules and everything that moved."""
        return [each.newly_broken for each in self.programs if each.newly_broken is not None]
