"""The results of checks: findings, verdicts, reports, and the difference of two placements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.errors import PlacementError
from placement_checks.core.evidence import Evidence
from placement_checks.core.impact import Impact
from placement_checks.util.text import join_and, plural, printable

if TYPE_CHECKING:  # the pytest plugin imports this module in every run
    from placement_checks.core.baseline import Difference as BaselineDifference

State = Literal["kept", "broken", "not-checked"]
Kind = Literal["requested", "assigned", "executed", "configuration"]  # what a rule rests on
Places = tuple[Device, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """One breach of a rule.

    A rule says what is wrong and which ops show it; their lines are filled in by `Rule.judge`.

    Attributes:
        object: the op, variable (without ``:0``) or device it is about.
        op: the type of that op; ``""`` for a device.
        evidence: what it rests on.
        expected, found: the two that differ.
        message: a sentence that names all of it.
        fix: what to change.
        consequence: what it means for the training, in a sentence; ``""`` where that is plain.
        alike: what it has in common with findings of this rule that say the same of other
            objects; of those one is told, and the others are listed. None for its message
            without the object's name.
        path: the ops that show the breach, one after the other.
        ops: the ops whose lines are told; the object itself where none is named.
        placed: the op whose device is at fault, of which ``device_line`` tells.
        frames: the user's source lines that all of ``ops`` were built through, the outermost
            first.
        at: the line of these to look at, where it is not the innermost.
        device_line: the ``with tf.device(…)`` that decided where ``placed`` is.
        follows: the rule that has found the same objects, from which this follows.
        known: the library that is known to do this by itself, such as ``Keras 3``: no line of
            the user's is at fault, and none is told. ``""`` where none does.
        others: objects that a known behaviour, which is told once, is about as well.
        impact: what it means for the program. Filled in by `verify` from the rule's own impact;
            None, as for a finding that no rule has judged, counts as ``LAYOUT``.
    """

    object: str
    op: str
    evidence: Kind
    expected: str
    found: str
    message: str
    fix: str
    consequence: str = ""
    alike: Hashable = field(default=None, compare=False)
    path: tuple[str, ...] = ()
    ops: tuple[str, ...] = field(default=(), compare=False)
    placed: str | None = field(default=None, compare=False)
    frames: tuple[str, ...] = ()
    at: str | None = None
    device_line: str | None = None
    follows: str | None = None
    known: str = ""
    others: tuple[str, ...] = ()
    impact: Impact | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        at = f", at {self.where}" if self.where else ""
        return printable(
            f"Finding({self.object}: expected {self.expected}, found {self.found}{at})"
        )

    @property
    def where(self) -> str | None:
        """`at`, or else the innermost of `frames`, as ``file:line``; None where none is known."""
        return self.at or (self.frames[-1] if self.frames else None)

    @property
    def advice(self) -> str:
        """The fix, told as one; of what a library does by itself it is the way out of that."""
        return f"{'way out' if self.known else 'fix'}: {self.fix}"


def worst_impact(findings: Iterable[Finding]) -> Impact:
    """The impact of the most decisive finding; ``LAYOUT`` if there is none."""
    return min((each.impact or Impact.LAYOUT for each in findings), default=Impact.LAYOUT)


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """What a rule says of a placement.

    Attributes:
        note: what a reader should know beside the state.
        figures: what was measured, as plain mappings for reports.
        error: what ended the rule before it had an answer.
        one_tower: whether it is not checked because it compares towers, and there is one.
    """

    rule: str
    state: State
    evidence: Kind | None
    reason: str | None = None
    findings: Sequence[Finding] = ()
    note: str | None = None
    figures: Sequence[Mapping[str, Any]] = ()
    error: PlacementError | None = None
    one_tower: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        why = f", {self.reason}" if self.reason else ""
        found = f", {plural(len(self.findings), 'finding')}" if self.findings else ""
        return printable(f"Verdict({self.rule}: {self.state.replace('-', ' ')}{found}{why})")


def by_impact(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts in the order of reports: the most decisive first, others in their order."""
    return sorted(verdicts, key=lambda verdict: worst_impact(verdict.findings))


@dataclass(frozen=True, repr=False)
class Report:
    """What the rules said of one program.

    Attributes:
        baseline: how it differs from its baseline; None where it was not compared with one.
    """

    evidence: Evidence
    verdicts: Sequence[Verdict]
    baseline: BaselineDifference | None = None

    def __repr__(self) -> str:
        return printable(f"Report({self.evidence.placement.program}: {self.counts})")

    @property
    def counts(self) -> str:
        """How many rules are in each state, in words."""
        states = ("kept", "broken", "not-checked")
        return ", ".join(f"{self.count(state)} {state.replace('-', ' ')}" for state in states)

    def count(self, state: str) -> int:
        """How many rules are ``kept``, ``broken`` or ``not-checked``."""
        return sum(verdict.state == state for verdict in self.verdicts)

    @property
    def errors(self) -> Sequence[PlacementError]:
        """The errors that ended rules before they had an answer, each with all its rules."""
        by_error: dict[str, list[Verdict]] = defaultdict(list)
        for verdict in self.verdicts:
            if verdict.error is not None:
                by_error[str(verdict.error)].append(verdict)
        return [_combined_error(verdicts) for verdicts in by_error.values()]

    def status(self, *, requested: Collection[str] = (), require_all: bool = False) -> int:
        """The exit status: 0 for sound, 1 for broken, 2 where nothing could be checked.

        It is 2 also where a rule was ended by an error: the worst counts.

        Args:
            requested: rules that the user names, which must be checked.
            require_all: whether a rule that could not be checked is as bad as a broken one.
        """
        if self.errors:
            return 2
        unchecked = [verdict.rule for verdict in self.verdicts if verdict.state == "not-checked"]
        if self.count("broken") or self.baseline:
            return 1
        if not self.count("kept") or any(rule in requested for rule in unchecked):
            return 2
        return 1 if require_all and unchecked else 0


def _combined_error(verdicts: Sequence[Verdict]) -> PlacementError:
    """The error that ended these verdicts' rules, with the names of the rules."""
    error = verdicts[0].error
    assert error is not None
    rules = join_and(verdict.rule for verdict in verdicts)
    message = f"{rules} could not be checked: {error.message}"
    combined = type(error)(error.object, message, error.fix, details=error.details)
    combined.__cause__ = error.__cause__
    return combined


class MovedOp(NamedTuple):
    """An op that is elsewhere; more than one device where it was placed more than once."""

    op: str
    type: str
    old: Places
    new: Places


@dataclass(frozen=True)
class Difference:
    """What differs between two placements.

    Attributes:
        old, new: what they are called.
        ops: how many ops both have.
        moved: ops that both have, on other devices.
        removed, added: the types of ops that only the old or the new one has, by name.
        unread: which of the two was not read in full, and why.
    """

    old: str
    new: str
    ops: int
    moved: Sequence[MovedOp]
    removed: Mapping[str, str]
    added: Mapping[str, str]
    unread: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.moved or self.removed or self.added)
