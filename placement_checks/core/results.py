"""The results of checks: findings, verdicts and reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from placement_checks.core.devices import Device
from placement_checks.core.errors import PlacementError
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact
from placement_checks.core.impact import Impact
from placement_checks.util.text import join_and, plural, printable

if TYPE_CHECKING:  # the pytest plugin imports this module in every run
    from placement_checks.core.baseline import Difference

State = Literal["kept", "broken", "doubtful", "not-checked"]
STATES: Final[Sequence[State]] = get_args(State)
EvidenceKind = Literal["requested", "assigned", "executed", "configuration"]


class PathStep(str):
    """A line of a finding's path.

    Attributes:
        op: the op that the line shows; ``""`` if it shows none.
    """

    op: str

    def __new__(cls, text: str, op: str = "") -> PathStep:
        step = super().__new__(cls, text)
        step.op = op
        return step


class NextStep(str):
    """The next step for the user, the last line of a report.

    Attributes:
        to_paste: lines to be copied unchanged, such as lines for pyproject.toml.
    """

    to_paste: Sequence[str]

    def __new__(cls, text: str, to_paste: Sequence[str] = ()) -> NextStep:
        step = super().__new__(cls, text)
        step.to_paste = to_paste
        return step


NO_STEP: Final = NextStep("")


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """One violation of a rule, or one observation that may be a violation.

    The rule supplies the message and the ops; `Rule.judge` adds their source lines, and `judge`
    the impact and the root cause.

    Attributes:
        object: the op, variable (without ``:0``) or device.
        op: the type of the op; ``""`` for a device.
        evidence: the kind of evidence.
        message: a sentence with all facts.
        fix: the change to make.
        consequence: the effect on training, one sentence; ``""`` if it is obvious.
        group_key: a fact in the message, such as a device. Of findings with the same key, fix and
            device line, reports show only the first, with a list of the other objects.
        path: the ops that show the violation, in order; each is a text or a `PathStep`.
        devices: the devices at fault, which the page highlights. By default the device of
            ``placed`` or of the object, if the evidence is an assigned device.
        ops: the ops at fault, with the source lines to show; by default the object.
        against: ops that are right. The line to edit is the last one that separates ``ops`` from
            them (`rules.source_lines.blame`).
        placed: the op with the wrong device.
        frames: the user's source lines that all of ``ops`` were built through, the outermost
            first. The last one is the line to edit. A rule sets them only if no op has this line.
        device_line: the ``with tf.device(…)`` that decided the device of ``placed``.
        is_of_scope: whether ``device_line`` is the line to edit. By default it is if the finding
            is on a device, or if it is on one of several ops with this line.
        library_line: the line of a library in another repository that built the op, if the line
            to edit is the user's call of this library.
        follows: the rule with the root cause of this finding; None for a root cause.
        facts: the facts that the finding states, from which other findings may follow. By default
            they are the facts of the kind `Rule.states` on its object, ops and others.
        may_follow: facts from which this finding follows if another finding states them, or a
            cause of them. The causes of the kind `Rule.states` need not be listed.
        is_doubt: whether the program may do this on purpose, and nothing in it tells. Reports show
            a doubt, but it does not break the rule.
        known: the library with this behavior, such as ``Keras 3``; else ``""``. Source lines are
            then only shown if the rule sets them, because they are to be edited.
        others: further objects with the same known behavior, which is reported once.
        impact: the impact on the program. `verify` fills it in from the rule; None, for a finding
            outside of a rule, counts as ``LAYOUT``.
    """

    object: str
    op: str
    evidence: EvidenceKind
    message: str
    fix: str
    consequence: str = ""
    group_key: Hashable = field(default=None, compare=False)
    path: tuple[str, ...] = ()
    ops: tuple[str, ...] = field(default=(), compare=False)
    against: tuple[str, ...] = field(default=(), compare=False)
    placed: str | None = field(default=None, compare=False)
    frames: tuple[str, ...] = ()
    device_line: str | None = None
    is_of_scope: bool | None = field(default=None, compare=False)
    library_line: str | None = None
    follows: str | None = None
    facts: tuple[Fact, ...] = field(default=(), compare=False)
    may_follow: tuple[Fact, ...] = field(default=(), compare=False)
    is_doubt: bool = False
    known: str = ""
    others: tuple[str, ...] = ()
    impact: Impact | None = field(default=None, compare=False)
    devices: tuple[Device, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        at = f", at {self.where}" if self.where else ""
        return printable(f"Finding({self.object}: {self.message}{at})")

    @property
    def where(self) -> str | None:
        """The line to edit as ``file:line``; None if unknown."""
        return self.device_line if self.is_of_scope else self.built_at

    @property
    def built_at(self) -> str | None:
        """The line that builds ``ops``; None if unknown."""
        return self.frames[-1] if self.frames else None

    @property
    def group(self) -> Hashable:
        """A key that findings of one rule share if reports show them as one."""
        return self.group_key, self.fix, self.device_line

    @property
    def is_root(self) -> bool:
        """Whether this is a violation that follows from no other finding."""
        return self.follows is None and not self.is_doubt

    @property
    def advice(self) -> str:
        """The fix with its label, such as "workaround" for a library's known behavior."""
        label = "unless intended" if self.is_doubt else "workaround" if self.known else "fix"
        return f"{label}: {self.fix}"


def worst_impact(findings: Iterable[Finding]) -> Impact:
    """The impact of the most severe finding; ``LAYOUT`` without findings."""
    return min((each.impact or Impact.LAYOUT for each in findings), default=Impact.LAYOUT)


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The result of a rule for a program.

    A rule is ``doubtful`` if all its findings are doubts.

    Attributes:
        findings: root causes first, in the order of reports; doubts last.
        reason: why the rule is not checked, with the fix.
        fix: the fix in ``reason``, or ``""``.
        note: a note for readers, besides the state.
        figures: measured values, as plain mappings for reports.
        error: the error that ended the rule before it returned a verdict.
        one_tower: whether the rule is not checked because there is only one tower.
        headline: a sentence on all findings that are root causes; ``""`` if the first finding
            says enough.
    """

    rule: str
    state: State
    evidence: EvidenceKind | None
    reason: str | None = None
    findings: Sequence[Finding] = ()
    note: str | None = None
    figures: Sequence[Mapping[str, Any]] = ()
    error: PlacementError | None = None
    one_tower: bool = field(default=False, compare=False)
    fix: str = field(default="", compare=False)
    headline: str = field(default="", compare=False)

    def __repr__(self) -> str:
        why = f", {self.reason}" if self.reason else ""
        found = f", {plural(len(self.findings), 'finding')}" if self.findings else ""
        return printable(f"Verdict({self.rule}: {self.state.replace('-', ' ')}{found}{why})")


@dataclass(frozen=True, repr=False)
class Report:
    """The verdicts on one program.

    Attributes:
        verdicts: the verdicts in the order of all reports: the rule with the root cause to fix
            first is the first one.
        baseline: the difference from the program's baseline; None if the two were not compared.
    """

    evidence: Evidence
    verdicts: Sequence[Verdict]
    baseline: Difference | None = None

    def __repr__(self) -> str:
        return printable(f"Report({self.evidence.placement.program}: {self.counts})")

    @property
    def counts(self) -> str:
        """The number of rules in each state, in words."""
        return counts_text({state: self.count(state) for state in STATES})

    def count(self, state: str) -> int:
        """The number of rules that are ``kept``, ``broken``, ``doubtful`` or ``not-checked``."""
        return sum(verdict.state == state for verdict in self.verdicts)

    @property
    def errors(self) -> Sequence[PlacementError]:
        """The errors that ended rules, each with the names of the rules that it ended."""
        by_error: dict[str, list[Verdict]] = defaultdict(list)
        for verdict in self.verdicts:
            if verdict.error is not None:
                by_error[str(verdict.error)].append(verdict)
        return [_combined_error(verdicts) for verdicts in by_error.values()]

    def status(self, *, requested: Collection[str] = (), require_all: bool = False) -> int:
        """The exit status: 0 for sound, 1 for broken, 2 if nothing could be checked.

        Doubts do not change it. The status is also 2 if an error ended a rule.

        Args:
            requested: rules that the user names, which must be checked.
            require_all: whether a rule that could not be checked counts as broken.
        """
        if self.errors:
            return 2
        unchecked = [verdict.rule for verdict in self.verdicts if verdict.state == "not-checked"]
        if self.count("broken") or self.baseline:
            return 1
        if len(unchecked) == len(self.verdicts) or any(rule in requested for rule in unchecked):
            return 2
        return 1 if require_all and unchecked else 0


def counts_text(counts: Mapping[State, int]) -> str:
    """The number of rules in each state, in words; doubtful rules only if there are any."""
    return ", ".join(
        f"{counts[state]} {state.replace('-', ' ')}"
        for state in STATES
        if counts[state] or state != "doubtful"
    )


def _combined_error(verdicts: Sequence[Verdict]) -> PlacementError:
    """The error that ended these rules, with their names."""
    error = verdicts[0].error
    assert error is not None
    rules = join_and(verdict.rule for verdict in verdicts)
    message = f"{rules} could not be checked: {error.message}"
    combined = error.copy(type(error), message=message, is_predicate=False)
    combined.__cause__ = error.__cause__
    return combined
