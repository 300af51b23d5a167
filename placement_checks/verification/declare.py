"""Declares broken rules as intended: finds a policy with which the program keeps each rule.

Only deviations that a program may have on purpose can be declared. A lost update or a wrong number
cannot be declared, even if the rule has a field for rare exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import wrap

from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report, Verdict
from placement_checks.core.settings import Policy, Settings
from placement_checks.core.toml import to_toml
from placement_checks.rules.base import Fields, Rule, exact_pattern
from placement_checks.util.text import plural, printable
from placement_checks.verification.judging import verify
from placement_checks.verification.policy import rule_named, rule_with


@dataclass(frozen=True)
class Declaration:
    """The policy that declares a broken rule as intended."""

    rule: str  # the name of the rule
    fields: Fields  # the fields of its policy; empty if the rule cannot be declared
    findings: int  # the number of findings that the policy excuses
    meaning: str  # the statement about the program, or the reason for empty fields


def declarations(report: Report) -> list[Declaration]:
    """Declare each rule of a report with findings or doubts, in addition to the policy it used."""
    return [declaration(report, verdict) for verdict in report.verdicts if verdict.findings]


def declaration(report: Report, verdict: Verdict) -> Declaration:
    """Declare one rule, by the first fields that leave no finding and no doubt."""
    findings = len(verdict.findings)
    rule = rule_with(rule_named(verdict.rule), report.evidence.settings.policy)
    if not rule.intended:
        return Declaration(rule.name, {}, findings, "cannot be declared as intended")
    judge = partial(_judge, report.evidence, rule.name)
    for fields in rule.intended_fields(report.evidence, verdict):
        if not judge(fields).findings:
            return Declaration(rule.name, fields, findings, rule.intended)
    if fields := _allow_objects(verdict, rule, judge):
        return Declaration(rule.name, fields, findings, rule.intended)
    return Declaration(rule.name, {}, findings, "no field of the rule declares this")


def value_declaration(report: Report, verdict: Verdict) -> Fields:
    """A single value, such as a device, with which a broken rule is kept; empty if none exists."""
    rule = rule_with(rule_named(verdict.rule), report.evidence.settings.policy)
    for fields in rule.intended_fields(report.evidence, verdict):
        is_single = [isinstance(value, str | float) for value in fields.values()] == [True]
        if is_single and _judge(report.evidence, rule.name, fields).state == "kept":
            return fields
    return {}


def _judge(evidence: Evidence, rule: str, fields: Fields) -> Verdict:
    """The verdict of a rule with these fields added to the policy."""
    (verdict,) = verify(evidence, [{rule: fields}], only=[rule]).verdicts
    return verdict


# Objects to allow


def _allow_objects(verdict: Verdict, rule: Rule, judge: Callable[[Fields], Verdict]) -> Fields:
    """Fields that allow the objects of the findings; empty if the rule is still broken.

    An allowed object may lead to findings on other objects, such as its slots. These objects are
    allowed too, until no new object appears.
    """
    if not hasattr(rule, "allow"):
        return {}
    names: dict[str, None] = {}
    while True:
        objects = dict.fromkeys(
            name for finding in verdict.findings for name in (finding.object, *finding.others)
        )
        if objects.keys() <= names.keys():
            return {}
        names |= objects
        fields = {"allow": [*rule.allow, *map(exact_pattern, names)]}
        verdict = judge(fields)
        if not verdict.findings:
            return fields


# TOML

_TABLE = "tool.placement_checks"
_WIDTH = 99
_HEAD = (
    "For pyproject.toml: the broken rules, declared as intended. Keep only lines that are true "
    "for your program; they replace existing values of the same fields. Fix the other rules."
)


def declared_text(
    programs: Sequence[tuple[str, Report, Settings, Sequence[Declaration]]],
) -> str:
    """The lines for pyproject.toml: tables for a single program, entries for several programs.

    Args:
        programs: for each program its target, verdicts, settings and declarations.
    """
    lines = [*_comment(_HEAD)]
    for target, report, settings, declared in programs:
        program = report.evidence.placement.program
        if not declared:
            continue
        if len(programs) > 1:
            entry = replace(settings, policy=Policy()).entry(target)
            lines += ["", f"[[{_TABLE}.programs]]", *_assignments("", entry)]
        for each in filter(lambda each: each.fields, declared):
            findings = plural(each.findings, "finding")
            comment = _comment(f"{each.rule}, {findings}: {each.meaning}")
            if len(programs) == 1:
                lines += ["", *comment, f"[{_TABLE}.policy.{each.rule}]"]
                lines += _assignments("", each.fields)
            else:
                lines += [*comment, *_assignments(f"policy.{each.rule}.", each.fields)]
        undeclared = [each for each in declared if not each.fields]
        if undeclared:
            lines.append("")
        for each in undeclared:
            findings = plural(each.findings, "finding")
            lines += _comment(f"{each.meaning}: {each.rule}, {findings} in {program}")
    return "\n".join(map(printable, lines)) + "\n"


def _comment(text: str) -> Iterator[str]:
    for line in wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False):
        yield f"# {line}"


def _assignments(prefix: str, fields: Fields) -> Iterator[str]:
    for field, value in fields.items():
        line = f"{prefix}{field} = {to_toml(value)}"
        if len(line) <= _WIDTH or not isinstance(value, list):
            yield line
        else:
            yield f"{prefix}{field} = ["
            yield from (f"  {to_toml(item)}," for item in value)
            yield "]"
