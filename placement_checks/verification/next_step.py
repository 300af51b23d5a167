"""Chooses the last line of a report: the edit or command with the largest effect.

Edits that let the program run have priority over edits that make its training correct. Edits that
make it faster come last. The number of findings decides only between edits with the same impact.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from placement_checks.core.evidence import NO_REFERENCE, Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.program import Program
from placement_checks.core.results import Finding, Report, worst_impact
from placement_checks.core.settings import Settings
from placement_checks.core.toml import to_toml
from placement_checks.report.common.findings import group_findings
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.util.text import plural
from placement_checks.verification.declare import value_declaration

_MAX_FIX = 110  # characters of a fix that fits into the line
_MIN_RULES = 2  # a reason is named if at least two rules could not be checked because of it


def next_step(
    reports: Sequence[Report], to_add: Sequence[tuple[str, Settings]] = ()
) -> str | None:
    """The last line of a report; None if there is nothing to do, or if there are errors.

    Args:
        reports: the verdicts on some programs.
        to_add: the targets that may be added to pyproject.toml, with the settings of the call.
    """
    if not reports or any(report.errors for report in reports):
        return None
    if any(report.count("broken") for report in reports):
        return f"next: {_edit(reports)}"
    step = (
        _missing_evidence(reports)
        or _comparison(reports)
        or (_configuration(reports, to_add) if to_add else None)
    )
    return step and f"next: {step}"


class _Breach(NamedTuple):
    """A finding, its rule, and the index of its report."""

    program: int
    rule: str
    finding: Finding

    @property
    def impact(self) -> Impact:
        return worst_impact([self.finding])


_Cause = Sequence[_Breach]  # findings with one root cause, and the findings that follow from them


def _rules(cause: _Cause) -> Sequence[str]:
    """The broken rules; first the root cause of the worst finding."""
    worst_first = sorted(cause, key=lambda breach: breach.impact)
    names = ((breach.finding.follows or breach.rule, breach.rule) for breach in worst_first)
    return list(dict.fromkeys(chain.from_iterable(names)))


def _roots(cause: _Cause) -> Sequence[Finding]:
    return [breach.finding for breach in cause if not breach.finding.follows]


def _priority(cause: _Cause) -> tuple[int, ...]:
    """The value of fixing a cause: findings with the worst impact count first."""
    impact = min(breach.impact for breach in cause)
    worst = [breach.rule for breach in cause if breach.impact == impact]
    return -impact, len(set(worst)), len(worst), len(_rules(cause)), len(cause)


def _summary(cause: _Cause) -> str:
    rule, *others = _rules(cause)
    programs = len({breach.program for breach in cause})
    more = f" and {plural(len(others), 'more rule')}" if others else ""
    several = f" in {plural(programs, 'program')}" if programs > 1 else ""
    return f"{rule}{more} ({plural(len(cause), 'finding')}{several})"


def _edit(reports: Sequence[Report]) -> str:
    """The source line to edit first; without source lines, the fix."""
    causes: dict[tuple[int, str], list[_Breach]] = defaultdict(list)
    for program, report in enumerate(reports):
        for verdict in report.verdicts:
            for finding in verdict.findings:
                breach = _Breach(program, verdict.rule, finding)
                causes[program, finding.follows or verdict.rule].append(breach)
    by_line: dict[str, list[_Breach]] = defaultdict(list)
    without_line = []
    for each in causes.values():
        if line := _line(_roots(each)):
            by_line[line] += each
        else:
            without_line.append(each)
    if not by_line:
        return _fix(reports, max(without_line, key=_priority))
    line = max(by_line, key=lambda each: _priority(by_line[each]))
    cause = by_line[line]
    groups = group_findings(_roots(cause))
    lines = max((group.lines for group in groups if group.where == line), default=1)
    breaks = "which breaks" if lines == 1 else f"the first of {lines} lines that break"
    return f"edit {line}, {breaks} {_summary(cause)}{_or_set(reports, cause)}"


def _line(findings: Sequence[Finding]) -> str | None:
    """The source line of most findings with the worst impact."""
    worst = [
        group
        for group in group_findings(findings)
        if worst_impact(group.findings) == worst_impact(findings)
    ]
    return max(worst, key=lambda group: len(group.findings)).where if worst else None


def _fix(reports: Sequence[Report], cause: _Cause) -> str:
    """The fix of a cause, if it is one short fix; else the command that explains the rule."""
    rule = _rules(cause)[0]
    if any(finding.known for finding in _roots(cause)):
        return f"apply the workaround of {rule}, or declare it: --declare prints how"
    fixes = {finding.fix for finding in _roots(cause)}
    fix = next(iter(fixes))
    if len(fixes) > 1 or not 0 < len(fix) <= _MAX_FIX:
        return f"for an example with its fix, run placement-checks explain {rule}"
    return f"{fix}, for {_summary(cause)}{_or_set(reports, cause)}"


def _or_set(reports: Sequence[Report], cause: _Cause) -> str:
    """The --set option with which the broken rule is kept, if there is one."""
    rules = _rules(cause)
    if len(reports) > 1 or len(rules) > 1:
        return ""
    (verdict,) = (verdict for verdict in reports[0].verdicts if verdict.rule in rules)
    for name, value in value_declaration(reports[0], verdict).items():
        return f"; or, if that is intended: --set {verdict.rule}.{name}={value}"
    return ""


def _missing_evidence(reports: Sequence[Report]) -> str | None:
    """The reason that leaves most rules unchecked, if it contains a fix."""
    unchecked = {
        (verdict.reason, verdict.rule)
        for report in reports
        for verdict in report.verdicts
        if verdict.state == "not-checked" and not verdict.one_tower
        if verdict.fix
    }
    for reason, rules in Counter(reason for reason, _ in sorted(unchecked)).most_common(1):
        if rules >= _MIN_RULES:
            return f"{plural(rules, 'rule')} could not be checked: {reason}"
    return None


def _comparison(reports: Sequence[Report]) -> str | None:
    """The option that adds a reference to compare numbers with."""
    for report in reports:
        evidence = report.evidence
        can_compare = any(verdict.rule == GradientsEqual.name for verdict in report.verdicts)
        if (
            can_compare
            and evidence.reference is NO_REFERENCE
            and (reference := _reference_option(evidence))
        ):
            return f"compare numbers, with {reference}"
    return None


def _reference_option(evidence: Evidence) -> str | None:
    """The --reference option for a builder, which is its own reference if it takes num_gpus."""
    captured = evidence.program
    program = captured.program if captured else None
    if not captured or not isinstance(program, Program):
        return None
    name = captured.name  # for a log, the program that printed it
    if program.takes_num_gpus:
        return f"the same function built for one GPU: --reference {name}"
    target = program.target
    named = f"{target.path}:{target.function}" if target else name
    file, colon, _ = named.rpartition(":")
    verb = "trains" if evidence.placement.step.traced else "builds"
    return f"a function that {verb} the same for one GPU: --reference {file}{colon}FUNCTION"


def _configuration(
    reports: Sequence[Report], to_add: Sequence[tuple[str, Settings]]
) -> str | None:
    """The line for pyproject.toml that makes `verify` check these programs by default."""
    if not all(report.count("kept") for report in reports):
        return None
    entries = [settings.entry(target) for target, settings in to_add]
    programs = to_toml([entry if len(entry) > 1 else entry["target"] for entry in entries])
    pronoun = "it" if len(entries) == 1 else "them"
    return f"add {pronoun} to pyproject.toml: [tool.placement_checks] programs = {programs}"
