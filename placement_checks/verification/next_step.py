"""What to do next: the one edit or command that is worth most after a report.

An edit that lets the program run comes first, then one that makes its training right, then one
that makes it faster, however many findings each of them has.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placement_checks.core.evidence import NO_REFERENCE, Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.program import Program
from placement_checks.core.results import Finding, Report, worst_impact
from placement_checks.report.common.findings import group_findings
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.util.text import plural
from placement_checks.verification.declare import value_declaration

_SHORT = 110  # letters, of a fix that is told
_FEW = 2  # rules that one missing thing must leave unchecked to be worth naming


def next_step(reports: Sequence[Report], *, to_hold: bool = True) -> str | None:
    """The last line of a report; None where there is nothing more to do, or errors come first.

    Args:
        reports: the verdicts on some programs.
        to_hold: whether the programs could be added to those of pyproject.toml.
    """
    if not reports or any(report.errors for report in reports):
        return None
    if any(report.count("broken") for report in reports):
        return f"next: {_mend(reports)}"
    step = _unchecked(reports) or _compare(reports) or (_hold(reports) if to_hold else None)
    return step and f"next: {step}"


@dataclass
class _Cause:
    """Findings that have one cause.

    Attributes:
        rules: those that are broken for it, the most decisive one first.
        roots: the findings that follow from no other.
        findings: all of them with their rules, those that follow included.
        programs: which reports have them.
    """

    rules: dict[str, None] = field(default_factory=dict)
    roots: list[Finding] = field(default_factory=list)
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    programs: set[int] = field(default_factory=set)

    def add(self, other: _Cause) -> None:
        """Take in the findings of another."""
        first, second = (self, other) if self.impact <= other.impact else (other, self)
        self.rules = first.rules | second.rules
        self.roots = [*first.roots, *second.roots]
        self.findings = [*first.findings, *second.findings]
        self.programs |= other.programs

    @property
    def impact(self) -> Impact:
        """The impact of its most decisive finding."""
        return worst_impact(finding for _, finding in self.findings)

    @property
    def worth(self) -> tuple[int, ...]:
        """What is gained where it is mended: the most decisive findings count before others."""
        decisive = [
            (rule, each) for rule, each in self.findings if worst_impact([each]) == self.impact
        ]
        rules = {rule for rule, _ in decisive}
        return -self.impact, len(rules), len(decisive), len(self.rules), len(self.findings)

    def __str__(self) -> str:
        rule, *others = self.rules
        more = f" and {plural(len(others), 'more rule')}" if others else ""
        several = f" in {plural(len(self.programs), 'program')}" if len(self.programs) > 1 else ""
        return f"{rule}{more} ({plural(len(self.findings), 'finding')}{several})"


def _mend(reports: Sequence[Report]) -> str:
    """The line with which most goes away; the rule's explanation where no line is known."""
    by_line: dict[str, _Cause] = {}
    without_line = []
    for cause in _causes(reports):
        if line := _line(cause.roots):
            by_line.setdefault(line, _Cause()).add(cause)
        else:
            without_line.append(cause)
    if not by_line:
        return _without_line(reports, max(without_line, key=lambda cause: cause.worth))
    line = max(by_line, key=lambda each: by_line[each].worth)
    cause = by_line[line]
    return f"edit {line}, {_breaking(cause, line)}{_or_declare(reports, cause)}"


def _without_line(reports: Sequence[Report], cause: _Cause) -> str:
    """The fix where it is one, and short; else where mended programs are shown."""
    rule = next(iter(cause.rules))
    if any(finding.known for finding in cause.roots):
        return f"take the way out of {rule}, or declare it: --declare prints how"
    fixes = {finding.fix for finding in cause.roots}
    fix = next(iter(fixes))
    if len(fixes) > 1 or not 0 < len(fix) <= _SHORT:
        return f"see placement-checks explain {rule}, with a program that breaks it, and mended"
    return f"{fix}, for {cause}{_or_declare(reports, cause)}"


def _breaking(cause: _Cause, line: str) -> str:
    """What a line breaks; if the findings are of several lines, with the others."""
    groups = [group for group in group_findings(cause.roots) if group.where == line]
    lines = max((group.lines for group in groups), default=1)
    return (
        f"which breaks {cause}" if lines == 1 else f"the first of {lines} lines that break {cause}"
    )


def _causes(reports: Sequence[Report]) -> Iterator[_Cause]:
    """The causes in each program: the rules whose findings follow from no other's."""
    for program, report in enumerate(reports):
        causes: dict[str, _Cause] = defaultdict(_Cause)
        for verdict in report.verdicts:
            for finding in verdict.findings:
                root = finding.follows or verdict.rule
                roots = [] if finding.follows else [finding]
                rules = dict.fromkeys((root, verdict.rule))
                causes[root].add(_Cause(rules, roots, [(verdict.rule, finding)], {program}))
        yield from causes.values()


def _line(findings: Sequence[Finding]) -> str | None:
    """The line to edit: that of the most findings among the most decisive ones."""
    groups = group_findings(findings)
    decisive = [
        group for group in groups if worst_impact(group.findings) == worst_impact(findings)
    ]
    return max(decisive, key=lambda group: len(group.findings)).where if decisive else None


def _or_declare(reports: Sequence[Report], cause: _Cause) -> str:
    """The value of one field with which the rule that is broken there would be kept."""
    if len(reports) > 1 or len(cause.rules) > 1:
        return ""
    (verdict,) = (verdict for verdict in reports[0].verdicts if verdict.rule in cause.rules)
    for name, value in value_declaration(reports[0], verdict).items():
        return f"; or, if that is meant: --set {verdict.rule}.{name}={value}"
    return ""


def _unchecked(reports: Sequence[Report]) -> str | None:
    """What leaves most rules unchecked and can be changed: its reason says how."""
    open_rules = {
        (verdict.reason, verdict.rule)
        for report in reports
        for verdict in report.verdicts
        if verdict.state == "not-checked" and not verdict.one_tower
        if verdict.reason and "; " in verdict.reason
    }
    for reason, rules in Counter(reason for reason, _ in sorted(open_rules)).most_common(1):
        if rules >= _FEW:
            return f"{plural(rules, 'rule')} could not be checked: {reason}"
    return None


def _compare(reports: Sequence[Report]) -> str | None:
    """The reference that would let numbers be compared."""
    for report in reports:
        evidence = report.evidence
        compares = any(verdict.rule == GradientsEqual.name for verdict in report.verdicts)
        without = compares and evidence.reference is NO_REFERENCE
        if without and (reference := _reference(evidence)):
            return f"compare numbers, with {reference}"
    return None


def _reference(evidence: Evidence) -> str | None:
    """The option that names a reference; a function that takes the number of GPUs is its own."""
    program = evidence.program.program if evidence.program else None
    if not isinstance(program, Program):
        return None
    name = evidence.placement.program
    if program.takes_num_gpus:
        return f"the same function built for one GPU: --reference {name}"
    file, colon, _ = name.rpartition(":")
    if evidence.placement.step.traced:
        return f"a function that trains the same on one GPU: --reference {file}{colon}FUNCTION"
    return f"the function that builds it for one GPU: --reference {file}{colon}build_single"


def _hold(reports: Sequence[Report]) -> str | None:
    """The line that lets `verify` without a target judge these programs from now on."""
    if not all(report.count("kept") for report in reports):
        return None
    names = [report.evidence.placement.program for report in reports]
    what = "it" if len(names) == 1 else "them"
    programs = json.dumps(names, ensure_ascii=False)
    return f"add {what} to pyproject.toml: [tool.placement_checks] programs = {programs}"
