"""Findings of one rule that say the same of many objects, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from placement_checks.core.results import Finding, worst_impact

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
