"""Declares broken rules as intended: finds a policy with which the program keeps each rule.

Only deviations that a program may have on purpose can be declared. A lost update or a wrong number
cannot be declared, even if the rule has a field for rare exceptions.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache, partial
from itertools import islice
from textwrap import wrap
from typing import Any

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report, Verdict
from placement_checks.core.toml import to_toml
from placement_checks.rules.base import Rule
from placement_checks.util.text import plural, printable
from placement_checks.verification.configuration import Settings
from placement_checks.verification.judging import rules_of, verify
from placement_checks.verification.policy import Policy

Fields = Mapping[str, Any]
_FieldSource = Callable[[Evidence, Verdict, Rule], Iterator[Fields]]


@dataclass(frozen=True)
class Declaration:
    """The policy that declares a broken rule as intended.

    Attributes:
        rule: the name of the rule.
        fields: the fields of its policy; empty if the rule cannot be declared.
        findings: the number of findings that the policy excuses.
        meaning: the statement about the program, or the reason for empty fields.
    """

    rule: str
    fields: Fields
    findings: int
    meaning: str


def declarations(report: Report, policy: Policy) -> list[Declaration]:
    """Declare each broken rule of a report, in its order, in addition to the policy it used."""
    return [
        declaration(report, verdict, policy)
        for verdict in report.verdicts
        if verdict.state == "broken"
    ]


def declaration(report: Report, verdict: Verdict, policy: Policy) -> Declaration:
    """Declare one broken rule, by the first fields that leave no finding."""
    findings = len(verdict.findings)
    if verdict.rule not in _MEANINGS:
        return Declaration(verdict.rule, {}, findings, _NO_POLICY)
    (rule,) = rules_of(report.evidence, [policy], [verdict.rule])
    judge = partial(_judge, report.evidence, policy, rule.name)
    by_value = _VALUES.get(rule.name)
    for fields in by_value(report.evidence, verdict, rule) if by_value else ():
        if judge(fields).state != "broken":
            return Declaration(rule.name, fields, findings, _MEANINGS[rule.name])
    if fields := _allow_objects(report.evidence, verdict, rule, judge):
        return Declaration(rule.name, fields, findings, _MEANINGS[rule.name])
    return Declaration(rule.name, {}, findings, "no field of the rule declares this")


def value_declaration(report: Report, verdict: Verdict) -> Fields:
    """A single value, such as a device, with which a broken rule is kept; empty if none exists."""
    if verdict.rule not in _SINGLE_VALUE:
        return {}
    (rule,) = rules_of(report.evidence, only=[verdict.rule])
    for fields in _VALUES[verdict.rule](report.evidence, verdict, rule):
        if _judge(report.evidence, {}, rule.name, fields).state == "kept":
            return fields
    return {}


def _judge(evidence: Evidence, policy: Policy, rule: str, fields: Fields) -> Verdict:
    """The verdict of a rule with these fields added to the policy."""
    (verdict,) = verify(evidence, [{rule: fields}, policy], only=[rule]).verdicts
    return verdict


# Values of fields


def _found_device(_evidence: Evidence, verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    """The assigned device of the findings, if all are about the same device."""
    found = {finding.found for finding in verdict.findings if finding.evidence == "assigned"}
    if len(found) == 1:
        yield {"device": _short_device(next(iter(found)))}


def _short_device(device: str) -> str:
    """The short form of a device: /gpu:0 for /device:GPU:0."""
    parsed = Device.parse(device)
    if parsed == Device(type=parsed.type, index=parsed.index) and parsed.type in ("CPU", "GPU"):
        return f"/{parsed.type.lower()}:{parsed.index}"
    return device


def _updating_tower(evidence: Evidence, _verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    """Each tower, as the only tower whose updates must run."""
    for tower in analyze(evidence.placement).towers:
        yield {"tower": _short_device(tower.devices[0].short)}


def _frozen_variables(evidence: Evidence, verdict: Verdict, rule: Rule) -> Iterator[Fields]:
    """The untrained variables, in addition to the variables declared as frozen."""
    names = [finding.object for finding in verdict.findings]
    yield {"frozen": [*getattr(rule, "frozen", ()), *_object_patterns(evidence, names)]}


def _present_budgets(_evidence: Evidence, verdict: Verdict, rule: Rule) -> Iterator[Fields]:
    """The present bytes or copies of one step, for each budget of the rule."""
    links: dict[tuple[Device, Device], list[Mapping[str, Any]]] = defaultdict(list)
    for figure in verdict.figures:
        source, target = (Device.parse(figure[end]).task_device for end in ("from", "to"))
        if source != target:
            links[source, target].append(figure)
    fields = {}
    for unit in ("bytes", "copies"):
        fields[unit] = sum(figure[unit] for figure in verdict.figures)
        fields[f"link_{unit}"] = max(
            (sum(figure[unit] for figure in link) for link in links.values()), default=0
        )
    budgets = {field: getattr(rule, field) for field in fields}
    yield {
        field: max(fields[field], budget)
        for field, budget in budgets.items()
        if budget is not None
    }


def _present_sharding(_evidence: Evidence, verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    """Round-robin sharding, else the present imbalance in bytes."""
    yield {"by": "round-robin"}
    sizes = [figure["bytes"] for figure in verdict.figures]
    if sum(sizes):
        imbalance = max(sizes) * len(sizes) / sum(sizes)
        yield {"by": "bytes", "most": math.ceil(10 * imbalance) / 10}


_VALUES: Mapping[str, _FieldSource] = {
    "variables-on-host": _found_device,
    "averaging-on-host": _found_device,
    "trainables-trained": _frozen_variables,
    "update-ops-run": _updating_tower,
    "transfer-budget": _present_budgets,
    "shards-balanced": _present_sharding,
    "session-memory": lambda *_: iter([{"fraction": 1.0}]),
}
_SINGLE_VALUE = ("variables-on-host", "averaging-on-host", "update-ops-run", "session-memory")
_NO_POLICY = "cannot be declared as intended"
# The rules that can be declared, with the statement that a declaration makes about the program.
_MEANINGS: Mapping[str, str] = {
    "no-fallback": "these ops may run on other devices than requested",
    "variables-on-host": "variables are on this device, and other GPUs read them from it in each "
    "step",
    "created-in-scope": "these variables are created once, and all replicas share them",
    "variables-shared": "each tower has its own copy of these variables, trained separately",
    "slots-with-variables": "these slots are copied to their variables in each step",
    "no-idle-device": "these GPUs do not compute in a step",
    "towers-alike": "the towers differ in these ops",
    "inputs-distinct": "all towers read these inputs, or each tower generates its own",
    "losses-apart": "these losses contain values that other towers compute",
    "gradients-colocated": "these backward ops are on other devices than their forward ops",
    "averaging-on-host": "gradients are averaged on this device, and all of them are copied to it",
    "replicas-in-sync": "the copies of these variables may differ, and the first copy is saved",
    "aggregated-before-clipped": "each replica clips its own gradients of these variables",
    "loss-of-all-towers": "these losses and summaries show one tower",
    "randomness-apart": "these ops draw the same numbers in several towers",
    "files-apart": "several ranks write these paths, each on a disk of its own",
    "trainables-trained": "these variables keep their initial values",
    "names-portable": "a checkpoint has these names, which the program for one GPU lacks",
    "update-ops-run": "the step need not run the other updates of statistics",
    "transfer-budget": "a step may copy as much as it does now",
    "shards-balanced": "the parameter servers keep their present share of the variables",
    "session-memory": "the session takes all memory of its GPUs, and other programs on them fail",
}


# Objects to allow

_MAX_PATTERNS = 8  # if more patterns are needed, they may match other ops
_STRAYS = 2  # other ops that a pattern may match for each intended op


def _allow_objects(
    evidence: Evidence, verdict: Verdict, rule: Rule, judge: Callable[[Fields], Verdict]
) -> Fields:
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
        fields = {"allow": [*rule.allow, *_object_patterns(evidence, list(names))]}
        verdict = judge(fields)
        if verdict.state != "broken":
            return fields


def _object_patterns(evidence: Evidence, names: Sequence[str]) -> Sequence[str]:
    """Patterns for names of variables, ops or devices.

    Patterns for variables match no other variable. Patterns for many ops may match other ops.
    """
    variables = {variable.name for variable in evidence.variables}
    if variables.issuperset(names):
        return patterns_for(names, variables.difference(names))
    if not evidence.ops.keys() >= set(names):
        return names
    others = evidence.ops.keys() - set(names)
    patterns = patterns_for(names, others)
    return patterns if len(patterns) <= _MAX_PATTERNS else patterns_for(names, others, _STRAYS)


# Patterns for names

_MIN_NAMES = 3  # names that one pattern replaces
_NUMBER = re.compile(r"\d+")
_SPECIAL = re.compile(r"([*?[])")


def patterns_for(names: Collection[str], others: Collection[str], strays: int = 0) -> list[str]:
    """Patterns and names that match all of ``names``, but not ``others``.

    A pattern matches a scope, numbered scopes, or a name in all scopes:
    ``tower_*/bn/*``, ``*/ExponentialMovingAverage``.

    Args:
        names: the names to match.
        others: the names not to match.
        strays: the number of other names that a pattern may match for each intended name.
    """
    left = list(dict.fromkeys(names))
    rejected: set[str] = set()
    found = []
    while left:
        pattern = _literal(left[0])
        for wider in _wider_patterns(left[0]):
            if wider in rejected:
                continue
            matched = _count_matches(wider, left)
            most = strays * matched
            if matched >= _MIN_NAMES and _count_matches(wider, others, most + 1) <= most:
                pattern = wider
                break
            rejected.add(wider)
        found.append(_restore_numbers(pattern, left))
        left = [name for name in left if not _compiled(pattern).match(name)]
    return found


def _wider_patterns(name: str) -> Iterator[str]:
    """Patterns that match a name, the widest first.

    For each depth, the patterns match everything in a scope: first in the scope with any numbers,
    then with any numbers below the outermost scope, then unchanged. After these patterns follow
    the last part of the name in any scope, and the name with any numbers.
    """
    own = _literal(name).split("/")
    free = [_NUMBER.sub("*", part) for part in own]
    for depth in range(1, len(own)):
        for scope in (free[:depth], [own[0], *free[1:depth]], own[:depth]):
            yield "/".join((*scope, "*"))
    if len(own) > 1:
        yield f"*/{own[-1]}"
    yield "/".join(free)
    yield "/".join((own[0], *free[1:]))


def _restore_numbers(pattern: str, names: Collection[str]) -> str:
    """Put the first name's numbers back into a pattern, as far as it matches as many names."""
    own = _literal(next(iter(names))).split("/")
    parts = pattern.split("/")
    if parts[0] == "*":
        return pattern
    for index, part in enumerate(parts):
        narrower = "/".join((*parts[:index], own[index], *parts[index + 1 :]))
        if part != "*" and _count_matches(narrower, names) == _count_matches(pattern, names):
            parts[index] = own[index]
    return "/".join(parts)


def _count_matches(pattern: str, names: Collection[str], limit: int | None = None) -> int:
    """The number of names that a pattern matches, counted up to a limit."""
    return sum(1 for _ in islice(filter(_compiled(pattern).match, names), limit))


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _literal(name: str) -> str:
    """A pattern that matches only this name."""
    return _SPECIAL.sub(r"[\1]", name)


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
            entry = replace(settings, policy={}).entry(target)
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
