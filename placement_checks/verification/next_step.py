"""Chooses the last line of a report: the first root cause, or a command that checks more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placement_checks.core.evidence import NO_REFERENCE, Evidence
from placement_checks.core.program import Program
from placement_checks.core.results import NextStep, Report
from placement_checks.core.settings import Settings
from placement_checks.core.toml import to_toml
from placement_checks.report.items import items, ranked
from placement_checks.report.outcome import Outcome
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.util.text import plural
from placement_checks.verification.declare import value_declaration

_MAX_FIX = 110  # characters of a fix that fits into the line
_MIN_RULES = 2  # a reason is named if at least two rules could not be checked because of it


def next_step(
    reports: Sequence[Report],
    to_add: Sequence[tuple[str, Settings]] = (),
    *,
    are_declared: bool = False,
) -> NextStep | None:
    """The last line of a report; None if there is nothing to do, or if there are errors.

    Args:
        reports: the verdicts on some programs.
        to_add: the targets that may be added to pyproject.toml, with the settings of the call.
        are_declared: whether pyproject.toml declares how the programs are checked. Then no
            further evidence is suggested.
    """
    if not reports or any(report.errors for report in reports):
        return None
    if any(report.count("broken") for report in reports):
        return NextStep(f"next: {_edit(reports)}")
    if are_declared:
        return None
    if step := _missing_evidence(reports) or _comparison(reports):
        return NextStep(f"next: {step}")
    return _configuration(reports, to_add) if to_add else None


def _edit(reports: Sequence[Report]) -> str:
    """The first root cause: its source line, or else its fix."""
    causes = (each for each in ranked(items(Outcome(reports))) if each.kind == "cause")
    cause = next(causes)
    (rule,), (group,) = cause.rules, cause.groups
    others = {each for section in cause.sections for each in section.followers}
    number = sum(section.number for section in cause.sections)
    what = f"{rule} and {plural(len(others), 'more rule')}" if others else rule
    where = f" in {_programs(cause.reports)}" if len(reports) > 1 else ""
    what += f" ({plural(number, 'finding')}{where})"
    may_set = _or_set(cause.reports[0], rule) if len(reports) == 1 and not others else ""
    if cause.where is not None:
        first = f"the first of {group.lines} lines that break"
        breaks = "which breaks" if group.lines == 1 else first
        return f"edit {cause.where}, {breaks} {what}{may_set}"
    fix = group.first.fix
    if group.first.known:
        return f"apply the workaround of {rule}, or declare it: --declare prints how"
    fixes = {each.fix for section in cause.sections for each in section.findings}
    if len(fixes) > 1 or not 0 < len(fix) <= _MAX_FIX:
        return f"for an example with its fix, run placement-checks explain {rule}"
    return f"{fix}, for {what}{may_set}"


def _or_set(report: Report, rule: str) -> str:
    """The --set option with which a broken rule is kept, if there is one."""
    (verdict,) = (verdict for verdict in report.verdicts if verdict.rule == rule)
    for name, value in value_declaration(report, verdict).items():
        return f"; or, if that is intended: --set {rule}.{name}={value}"
    return ""


def _programs(reports: Sequence[Report]) -> str:
    """The first program, and the number of the others."""
    first, *others = reports
    more = f" and {plural(len(others), 'more program')}" if others else ""
    return f"{first.evidence.placement.program}{more}"


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
            affected = [
                report
                for report in reports
                if any(verdict.reason == reason for verdict in report.verdicts)
            ]
            where = f" in {_programs(affected)}" if len(reports) > 1 else ""
            return f"{plural(rules, 'rule')} could not be checked{where}: {reason}"
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
) -> NextStep | None:
    """The lines for pyproject.toml that make `verify` check these programs by default."""
    if not all(report.count("kept") for report in reports):
        return None
    entries = [settings.entry(target) for target, settings in to_add]
    programs = to_toml([entry if len(entry) > 1 else entry["target"] for entry in entries])
    pronoun = "it" if len(entries) == 1 else "them"
    lines = ("[tool.placement_checks]", f"programs = {programs}")
    return NextStep(f"next: add {pronoun} to pyproject.toml:", lines)
