"""The findings of a program by rule: root causes apart from what follows from them.

Rules come in the order of their impact, and so do the findings of a rule: what stops the program,
what makes its training wrong, what makes it slow.

Findings of one rule that say the same of many objects, as one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from placement_checks.core.impact import Impact
from placement_checks.core.results import Finding, Verdict, worst_impact
from placement_checks.util.text import plural

_IN_A_NAME = frozenset("/_")


@dataclass(frozen=True)
class Group:
    """Findings that say the same, of which the first is told."""

    findings: Sequence[Finding]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @cached_property
    def where(self) -> str | None:
        """The line to look at: the first finding's own.

        The ``with tf.device(…)`` that decided, if the findings have lines of their own and one
        device in common. A caller of all lines, such as ``main``, is never the line to look at.
        """
        places = {finding.where for finding in self.findings}
        if self.first.device_line and (len(places) > 1 or not self.first.op):
            return self.first.device_line
        return next((finding.where for finding in self.findings if finding.where), None)

    @property
    def callers(self) -> Sequence[str]:
        """The lines that led all objects to `where`, the nearest first."""
        lines = next((_lines(each) for each in self.findings if each.where == self.where), ())
        shared = set(lines).intersection(*map(_lines, self.findings))
        return [line for line in lines if line in shared and line != self.where][::-1]

    @property
    def lines(self) -> int:
        """How many lines the findings lead to, the others' own lines included."""
        if self.where == self.first.device_line:
            return 1
        lines = {each.where for each in self.findings if self.where not in each.frames}
        return len({*lines, self.where} - {None})

    @property
    def others(self) -> Sequence[tuple[str, str | None]]:
        """The other objects, each once, with its own line where that is not `where`."""
        places = {finding.object: finding.where for finding in self.findings[1:]}
        places.pop(self.first.object, None)
        return [(name, None if at == self.where else at) for name, at in places.items()]


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """The findings of one rule in groups, by impact and in the order of the first of each."""
    groups: dict[Hashable, list[Finding]] = defaultdict(list)
    for finding in findings:
        says = _without_name(finding) if finding.alike is None else (finding.alike,)
        groups[says, finding.fix, finding.device_line].append(finding)
    return sorted(map(Group, groups.values()), key=lambda group: worst_impact(group.findings))


def _lines(finding: Finding) -> Sequence[str]:
    """The lines that lead to the one to look at, which may not be the innermost."""
    if finding.at is None:
        return finding.frames
    if finding.at not in finding.frames:
        return (finding.at,)
    return finding.frames[: finding.frames.index(finding.at) + 1]


def _without_name(finding: Finding) -> str:
    """The message without the object's name, where that stands as a whole name."""
    name, message = finding.object, finding.message
    if not name:
        return message
    kept, start, at = [], 0, message.find(name)
    while at >= 0:
        end = at + len(name)
        if not (_continues(message[at - 1 : at]) or _continues(message[end : end + 1])):
            kept.append(message[start:at])
            start = end
        at = message.find(name, end)
    return "\0".join((*kept, message[start:]))


def _continues(letter: str) -> bool:
    return letter.isalnum() or letter in _IN_A_NAME if letter else False


@dataclass(frozen=True)
class Section:
    """What is told of one rule.

    Attributes:
        rule: its name.
        title: the rule with the number of findings; that of the picture where there are none.
        findings: those that are told.
        figures: what was measured, where it can be drawn.
    """

    rule: str
    title: str
    findings: Sequence[Finding]
    figures: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def groups(self) -> Sequence[Group]:
        return grouped(self.findings)

    @property
    def impact(self) -> Impact:
        """The impact of its most decisive finding."""
        return worst_impact(self.findings)


class Sections:
    """The findings of all rules of a program.

    A finding follows from a rule that has findings of its own; where it names another, it is one
    of its own rule.
    """

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        self._verdicts = verdicts
        self._roots = {
            verdict.rule
            for verdict in verdicts
            if any(finding.follows is None for finding in verdict.findings)
        }

    @cached_property
    def causes(self) -> Sequence[Section]:
        """The rules with findings of their own, or with a picture."""
        sections = []
        for verdict in self._verdicts:
            own = [each for each in verdict.findings if not self._follows(each)]
            figures = () if self.cause_of(verdict.rule) else _drawn(verdict)
            if own or figures:
                title = f"{verdict.rule}: {plural(len(own), 'finding')}"
                sections.append(Section(verdict.rule, title, own, figures))
        return _by_impact(sections)

    @cached_property
    def consequences(self) -> Sequence[Section]:
        """One for each rule and cause."""
        sections = []
        for verdict in self._verdicts:
            for cause, number in self._numbers(verdict).items():
                follow = "follows" if number == 1 else "follow"
                title = f"{verdict.rule}: {plural(number, 'finding')} {follow} from {cause}"
                findings = [each for each in verdict.findings if each.follows == cause]
                figures = _drawn(verdict) if self.cause_of(verdict.rule) else ()
                sections.append(Section(verdict.rule, title, findings, figures))
        return _by_impact(sections)

    @property
    def said_of(self) -> dict[str, str]:
        """What the findings of a rule follow from, by its name."""
        said = {}
        for verdict in self._verdicts:
            numbers, found = self._numbers(verdict), len(verdict.findings)
            parts = [
                f"follows from {cause}"
                if number == found
                else f"{number} of {found} findings follow from {cause}"
                for cause, number in numbers.items()
            ]
            if parts:
                said[verdict.rule] = "; ".join(parts)
        return said

    def cause_of(self, rule: str) -> str | None:
        """The rule that all findings of a rule follow from; None where there is no such one."""
        (verdict,) = (each for each in self._verdicts if each.rule == rule)
        causes = {each.follows if self._follows(each) else None for each in verdict.findings}
        return causes.pop() if len(causes) == 1 else None

    def _numbers(self, verdict: Verdict) -> Mapping[str, int]:
        """How many findings of a rule follow from each other one."""
        return Counter(
            str(finding.follows) for finding in verdict.findings if self._follows(finding)
        )

    def _follows(self, finding: Finding) -> bool:
        return finding.follows in self._roots


def _by_impact(sections: Iterable[Section]) -> Sequence[Section]:
    return sorted(sections, key=lambda section: section.impact)


def _drawn(verdict: Verdict) -> Sequence[Mapping[str, Any]]:
    """The figures of a rule that a picture tells apart: not if all differ by the same ratio."""
    figures = [figure for figure in verdict.figures if "error" in figure]
    kinds = {(figure["state"], _rounded(figure["ratio"])) for figure in figures}
    return figures if len(kinds) > 1 else ()


def _rounded(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.2g}"
