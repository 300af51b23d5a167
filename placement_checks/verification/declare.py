"""Declares the present state of a program as meant: the policy with which broken rules are kept.

Only what a program may do on purpose is offered. That an update is lost or a number is wrong is no
matter of policy, even where a rule has a field for the rare case in which it is.

Declarations as lines of ``pyproject.toml``.

Few patterns for many names: as they stand in the ``allow`` of a policy.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache, partial
from itertools import islice
from textwrap import wrap
from typing import Any

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report, Verdict
from placement_checks.rules.base import Rule
from placement_checks.util.text import plural, printable
from placement_checks.verification.configuration import Settings
from placement_checks.verification.judging import rules_of, verify
from placement_checks.verification.policy import Policy

_MANY = 3  # names, for which one pattern is written
_NUMBER = re.compile(r"\d+")
_SPECIAL = re.compile(r"([*?[])")


def patterns_for(names: Collection[str], others: Collection[str], strays: int = 0) -> list[str]:
    """Patterns and names that match all of ``names``, and none of ``others``.

    A pattern stands for a scope, for scopes that differ in their numbers, or for what is called
    alike in all of them: ``tower_*/bn/*``, ``*/ExponentialMovingAverage``.

    Args:
        names: what is to be matched.
        others: what is not.
        strays: how many others for each name a pattern may match all the same.
    """
    left = list(dict.fromkeys(names))
    rejected: set[str] = set()
    found = []
    while left:
        pattern = _literal(left[0])
        for wider in _wider(left[0]):
            if wider in rejected:
                continue
            meant = _matched(wider, left)
            most = strays * meant
            if meant >= _MANY and _matched(wider, others, up_to=most + 1) <= most:
                pattern = wider
                break
            rejected.add(wider)
        found.append(_with_numbers(pattern, left))
        left = [name for name in left if not _pattern(pattern).match(name)]
    return found


def _wider(name: str) -> Iterator[str]:
    """Patterns that match a name, the widest first.

    Its scopes and the name, each with any numbers, with those behind the outermost scope, and as
    they are; and what is called like it in all scopes.
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


def _with_numbers(pattern: str, names: Collection[str]) -> str:
    """The pattern with each number of the first name that all names have which it matches."""
    own = _literal(next(iter(names))).split("/")
    parts = pattern.split("/")
    if parts[0] == "*":
        return pattern
    for place, part in enumerate(parts):
        narrower = "/".join((*parts[:place], own[place], *parts[place + 1 :]))
        if part != "*" and _matched(narrower, names) == _matched(pattern, names):
            parts[place] = own[place]
    return "/".join(parts)


def _matched(pattern: str, names: Collection[str], up_to: int | None = None) -> int:
    """How many names a pattern matches, of which no more than ``up_to`` are counted."""
    return sum(1 for _ in islice(filter(_pattern(pattern).match, names), up_to))


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _literal(name: str) -> str:
    """A pattern that matches this name alone."""
    return _SPECIAL.sub(r"[\1]", name)


Fields = Mapping[str, Any]

_MOST = 8  # patterns, of which each stands for what it should and nothing else
_STRAYS = 2  # ops for each that is meant, which a pattern may match where there would be more


@dataclass(frozen=True)
class Declaration:
    """How a broken rule is declared as meant.

    Attributes:
        rule: its name.
        fields: what its policy would be; empty where it is no matter of policy.
        findings: how many findings that excuses.
        meaning: what it says of the program, or why it is not offered.
    """

    rule: str
    fields: Fields
    findings: int
    meaning: str


def declarations(report: Report, policy: Policy) -> list[Declaration]:
    """One for each broken rule of a program, in the order of the report.

    Args:
        report: the verdicts on the program.
        policy: that by which it was judged; the program's own comes after it.
    """
    return [
        declaration(report, verdict, policy)
        for verdict in report.verdicts
        if verdict.state == "broken"
    ]


def declaration(report: Report, verdict: Verdict, policy: Policy) -> Declaration:
    """How one broken rule is declared: by the first fields that leave no finding."""
    findings = len(verdict.findings)
    if verdict.rule not in _MEANINGS:
        return Declaration(verdict.rule, {}, findings, _NO_POLICY)
    (rule,) = rules_of(report.evidence, [policy], [verdict.rule])
    judge = partial(_judged, report.evidence, policy, rule.name)
    by_values = _BY_VALUES.get(rule.name, _no_values)
    for fields in by_values(report.evidence, verdict, rule):
        if judge(fields).state != "broken":
            return Declaration(rule.name, fields, findings, _MEANINGS[rule.name])
    if fields := _allowed(report.evidence, verdict, rule, judge):
        return Declaration(rule.name, fields, findings, _MEANINGS[rule.name])
    return Declaration(rule.name, {}, findings, "no field of its policy fits")


def value_declaration(report: Report, verdict: Verdict) -> Fields:
    """The one value, such as a device, with which a broken rule is kept; else nothing."""
    if verdict.rule not in _BY_ONE_VALUE:
        return {}
    (rule,) = rules_of(report.evidence, only=[verdict.rule])
    ways = _BY_VALUES[verdict.rule](report.evidence, verdict, rule)
    kept = (way for way in ways if _judged(report.evidence, {}, rule.name, way).state == "kept")
    return next(kept, {})


def _judged(evidence: Evidence, policy: Policy, rule: str, fields: Fields) -> Verdict:
    """The verdict of a rule if its policy had these fields too."""
    (verdict,) = verify(evidence, [{rule: fields}, policy], only=[rule]).verdicts
    return verdict


def _allowed(
    evidence: Evidence, verdict: Verdict, rule: Rule, judge: Callable[[Fields], Verdict]
) -> Fields:
    """The objects of the findings, beside what is allowed already; nothing if that does not do.

    What follows from an object that is allowed, such as its slots, is found then.
    """
    if not hasattr(rule, "allow"):
        return {}
    names: dict[str, None] = {}
    while new := dict.fromkeys(_objects(verdict)).keys() - names.keys():
        names |= {name: None for name in _objects(verdict) if name in new}
        fields = {"allow": [*rule.allow, *_patterns(evidence, list(names))]}
        verdict = judge(fields)
        if verdict.state != "broken":
            return fields
    return {}


def _objects(verdict: Verdict) -> Iterator[str]:
    for finding in verdict.findings:
        yield from (finding.object, *finding.others)


def _patterns(evidence: Evidence, names: Sequence[str]) -> Sequence[str]:
    """Patterns for names of variables, ops or devices.

    Those for variables match no other variable, those for many ops some other ops as well.
    """
    variables = {variable.name for variable in evidence.variables}
    if variables.issuperset(names):
        return patterns_for(names, variables.difference(names))
    if not evidence.ops.keys() >= set(names):
        return names
    others = evidence.ops.keys() - set(names)
    patterns = patterns_for(names, others)
    return patterns if len(patterns) <= _MOST else patterns_for(names, others, _STRAYS)


_ByValues = Callable[[Evidence, Verdict, Rule], Iterator[Fields]]


def _no_values(_evidence: Evidence, _verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    return iter(())


def _one_device(_evidence: Evidence, verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    """The one device on which all of it is."""
    found = {finding.found for finding in verdict.findings if finding.evidence == "assigned"}
    if len(found) == 1:
        yield {"device": _written(next(iter(found)))}


def _written(device: str) -> str:
    """As programs write it: /gpu:0 for /device:GPU:0."""
    parsed = Device.parse(device)
    if parsed == Device(type=parsed.type, index=parsed.index) and parsed.type in ("CPU", "GPU"):
        return f"/{parsed.type.lower()}:{parsed.index}"
    return device


def _one_tower(evidence: Evidence, _verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    """The tower whose updates run."""
    for tower in analyse(evidence.placement).towers:
        yield {"tower": _written(tower.devices[0].short)}


def _frozen(evidence: Evidence, verdict: Verdict, rule: Rule) -> Iterator[Fields]:
    """The variables that no step trains, beside those that are declared already."""
    names = [finding.object for finding in verdict.findings]
    yield {"frozen": [*getattr(rule, "frozen", ()), *_patterns(evidence, names)]}


def _all_memory(_evidence: Evidence, _verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    yield {"fraction": 1.0}


def _as_it_is(_evidence: Evidence, verdict: Verdict, rule: Rule) -> Iterator[Fields]:
    """What is copied now, for each budget that the rule has."""
    links: dict[tuple[Device, Device], list[Mapping[str, Any]]] = defaultdict(list)
    for figure in verdict.figures:
        tasks = [Device.parse(figure[end]).task_device for end in ("from", "to")]
        if tasks[0] != tasks[1]:
            links[tasks[0], tasks[1]].append(figure)
    now = {
        **{field: _sum(verdict.figures, field) for field in ("bytes", "copies")},
        **{
            f"link_{field}": max((_sum(link, field) for link in links.values()), default=0)
            for field in ("bytes", "copies")
        },
    }
    budgets = {field: getattr(rule, field) for field in now}
    yield {
        field: max(now[field], budget) for field, budget in budgets.items() if budget is not None
    }


def _sum(figures: Sequence[Mapping[str, Any]], field: str) -> int:
    return sum(figure[field] for figure in figures)


def _spread(_evidence: Evidence, verdict: Verdict, _rule: Rule) -> Iterator[Fields]:
    """In turn; else as unevenly as it is."""
    yield {"by": "round-robin"}
    sizes = [figure["bytes"] for figure in verdict.figures]
    if sum(sizes):
        most = max(sizes) * len(sizes) / sum(sizes)
        yield {"by": "bytes", "most": math.ceil(10 * most) / 10}


_BY_VALUES: Mapping[str, _ByValues] = {
    "variables-on-host": _one_device,
    "averaging-on-host": _one_device,
    "trainables-trained": _frozen,
    "update-ops-run": _one_tower,
    "transfer-budget": _as_it_is,
    "shards-balanced": _spread,
    "session-memory": _all_memory,
}
_BY_ONE_VALUE = ("variables-on-host", "averaging-on-host", "update-ops-run", "session-memory")
_NO_POLICY = "not a matter of policy"
# The rules that are a matter of policy, with what is said of a program that declares them.
_MEANINGS: Mapping[str, str] = {
    "no-fallback": "these ops may end elsewhere than they ask for",
    "variables-on-host": "variables are meant to be there, and the other GPUs read them from "
    "there in each step",
    "created-in-scope": "these variables are made once, and all replicas share them",
    "variables-shared": "towers have these variables of their own, and train them apart",
    "slots-with-variables": "these slots travel to their variables in each step",
    "no-idle-device": "these GPUs have nothing to do in a step",
    "towers-alike": "the towers differ in these ops",
    "inputs-distinct": "all towers read these inputs, or each builds its own",
    "losses-apart": "these losses contain what other towers compute",
    "gradients-colocated": "these backward ops sit elsewhere than their forward ops",
    "averaging-on-host": "gradients are brought together there, and all of them travel to it",
    "replicas-in-sync": "the copies of these variables may differ, and the first one's is saved",
    "aggregated-before-clipped": "each replica clips its own gradients of these variables",
    "loss-of-all-towers": "these losses and summaries show one tower",
    "randomness-apart": "these ops draw the same numbers in more than one tower",
    "trainables-trained": "these variables keep their initial values",
    "names-portable": "a checkpoint has these names, which other numbers of GPUs do not find",
    "update-ops-run": "the step need not run the other updates of statistics",
    "transfer-budget": "a step may copy as much as it does now",
    "shards-balanced": "the parameter servers hold what they hold now",
    "session-memory": "the session takes all memory of its GPUs, and a second program there fails",
}


_TABLE = "tool.placement_checks"
_WIDTH = 99
_HEAD = (
    "For pyproject.toml: what is broken now, declared as meant. Keep the lines that are true of "
    "your program, each in the place of what is there for the same field, and mend the rest."
)


def declared_text(
    programs: Sequence[tuple[Report, Settings, Sequence[Declaration]]],
) -> str:
    """The lines for some programs: of one for all, of several an entry for each.

    Args:
        programs: the verdicts on each, the settings that it was judged by, and what can be
            declared of it.
    """
    lines = [*_comment(_HEAD)]
    told = [program for program in programs if program[2]]
    for report, settings, declared in told:
        if len(programs) == 1:
            lines += _tables(declared)
        else:
            lines += ["", *_entry(report, settings), *_dotted(declared)]
        lines += _not_policy(declared, report.evidence.placement.program)
    return "\n".join(map(printable, lines)) + "\n"


def _tables(declared: Sequence[Declaration]) -> Iterator[str]:
    """A table for each rule."""
    for each in declared:
        if each.fields:
            yield ""
            yield from _comment(_meaning(each))
            yield f"[{_TABLE}.policy.{each.rule}]"
            yield from _assignments("", each.fields)


def _entry(report: Report, settings: Settings) -> Iterator[str]:
    """The head of a program's entry."""
    yield f"[[{_TABLE}.programs]]"
    own = {"target": report.evidence.placement.program}
    fields = {"gpus": settings.gpus, "machine": settings.machine, "args": list(settings.args)}
    yield from _assignments("", {**own, **{key: value for key, value in fields.items() if value}})


def _dotted(declared: Sequence[Declaration]) -> Iterator[str]:
    """The fields of a program's entry."""
    for each in declared:
        if each.fields:
            yield from _comment(_meaning(each))
            yield from _assignments(f"policy.{each.rule}.", each.fields)


def _meaning(each: Declaration) -> str:
    return f"{each.rule}, {plural(each.findings, 'finding')}: {each.meaning}"


def _not_policy(declared: Sequence[Declaration], program: str) -> Iterator[str]:
    """What is left to mend."""
    left = [each for each in declared if not each.fields]
    if left:
        yield ""
    for each in left:
        findings = plural(each.findings, "finding")
        yield from _comment(f"{each.meaning}: {each.rule}, {findings} in {program}")


def _comment(text: str) -> Iterator[str]:
    for line in wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False):
        yield f"# {line}"


def _assignments(path: str, fields: Mapping[str, Any]) -> Iterator[str]:
    for field, value in fields.items():
        yield from _assignment(f"{path}{field}", value)


def _assignment(key: str, value: Any) -> Iterator[str]:
    line = f"{key} = {_toml(value)}"
    if len(line) <= _WIDTH or not isinstance(value, list):
        yield line
        return
    yield f"{key} = ["
    yield from (f"  {_toml(item)}," for item in value)
    yield "]"


def _toml(value: Any) -> str:
    """A value as TOML writes it, which is as JSON does for texts, numbers and lists of them."""
    return json.dumps(value, ensure_ascii=False)
