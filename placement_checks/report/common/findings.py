"""Groups the findings of a program by rule: root causes, their consequences, and doubts.

Rules and findings keep the order that `judge` gave them. Findings of one rule that say the same of
several objects form one group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from placement_checks.core.impact import Impact
from placement_checks.core.results import Finding, Verdict, worst_impact
from placement_checks.util.text import listed, plural


@dataclass(frozen=True)
class Group:
    """Findings that say the same of different objects; reports show the first finding."""

    findings: Sequence[Finding]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @cached_property
    def where(self) -> str | None:
        """The line to edit: the first known line of the findings."""
        return next((finding.where for finding in self.findings if finding.where), None)

    @property
    def callers(self) -> Sequence[str]:
        """The lines of the calls that led to `where` for all objects, the nearest first."""
        here = (each for each in self.findings if each.built_at == self.where)
        lines = next((each.frames for each in here), ())
        shared = set(lines).intersection(*(each.frames for each in self.findings))
        return [line for line in lines if line in shared and line != self.where][::-1]

    @property
    def lines(self) -> int:
        """The number of different lines of the findings."""
        lines = {each.where for each in self.findings if self.where not in each.frames}
        return len({*lines, self.where} - {None})

    @property
    def others(self) -> Sequence[tuple[str, str | None]]:
        """The other objects, each once, with its line; None if this line is `where`."""
        places = {finding.object: finding.built_at for finding in self.findings[1:]}
        places.pop(self.first.object, None)
        return [(name, None if at == self.where else at) for name, at in places.items()]


def group_findings(findings: Iterable[Finding]) -> list[Group]:
    """Returns the findings of one rule in groups, in the order of their first findings."""
    groups: dict[Hashable, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.group].append(finding)
    return list(map(Group, groups.values()))


@dataclass(frozen=True)
class Section:
    """A part of the report: findings of one rule."""

    rule: str  # the name of the rule
    title: str  # the name with the number of findings
    findings: Sequence[Finding]  # the findings
    # The measured differences of variables, if they are to be drawn.
    figures: Sequence[Mapping[str, Any]] = ()
    # The findings of other rules that follow from these, by rule.
    followers: Mapping[str, Sequence[Finding]] = field(default_factory=dict)

    @cached_property
    def groups(self) -> Sequence[Group]:
        return group_findings(self.findings)

    @property
    def impact(self) -> Impact:
        """The worst impact of the findings."""
        return worst_impact(self.findings)

    @property
    def number(self) -> int:
        """The number of findings, with all that follow from them."""
        return len(self.findings) + sum(map(len, self.followers.values()))


class Sections:
    """The findings of all rules of a program, in the order of the verdicts."""

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        self._verdicts = verdicts

    @cached_property
    def causes(self) -> Sequence[Section]:
        """The rules with root causes, or with figures to draw."""
        followers: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
        for verdict in self._verdicts:
            for finding in verdict.findings:
                if finding.follows is not None:
                    followers[finding.follows][verdict.rule].append(finding)
        sections = []
        for verdict in self._verdicts:
            own = [each for each in verdict.findings if each.is_root]
            figures = () if self.cause_of(verdict.rule) else _distinct_figures(verdict)
            if own or figures:
                title = f"{verdict.rule}: {plural(len(own), 'finding')}"
                found = followers[verdict.rule]
                sections.append(Section(verdict.rule, title, own, figures, found))
        return sections

    @cached_property
    def consequences(self) -> Sequence[Section]:
        """The findings that follow from other rules: a section for each rule and its cause."""
        sections = []
        for verdict in self._verdicts:
            for cause, number in self._numbers(verdict).items():
                follow = "follows" if number == 1 else "follow"
                title = f"{verdict.rule}: {plural(number, 'finding')} {follow} from {cause}"
                findings = [each for each in verdict.findings if each.follows == cause]
                figures = _distinct_figures(verdict) if self.cause_of(verdict.rule) else ()
                sections.append(Section(verdict.rule, title, findings, figures))
        return sections

    @cached_property
    def doubts(self) -> Sequence[Section]:
        """The findings that may be intended, by rule."""
        sections = []
        for verdict in self._verdicts:
            if doubts := [each for each in verdict.findings if each.is_doubt]:
                title = f"{verdict.rule}: {plural(len(doubts), 'doubt')}"
                sections.append(Section(verdict.rule, title, doubts))
        return sections

    @property
    def cause_texts(self) -> dict[str, str]:
        """A text on the causes of a rule's findings, by the name of the rule."""
        texts = {}
        for verdict in self._verdicts:
            numbers, found = self._numbers(verdict), len(verdict.findings)
            parts = [
                f"follows from {cause}"
                if number == found
                else f"{number} of {found} findings follow from {cause}"
                for cause, number in numbers.items()
            ]
            if parts:
                texts[verdict.rule] = "; ".join(parts)
        return texts

    def cause_of(self, rule: str) -> str | None:
        """Returns the rule that all findings of a rule follow from; None if there is none."""
        (verdict,) = (each for each in self._verdicts if each.rule == rule)
        causes = {each.follows for each in verdict.findings if not each.is_doubt}
        return causes.pop() if len(causes) == 1 else None

    def _numbers(self, verdict: Verdict) -> Mapping[str, int]:
        """The number of a rule's findings that follow from each other rule."""
        return Counter(each.follows for each in verdict.findings if each.follows is not None)


def objective_lines(verdict: Verdict) -> Iterator[str]:
    """Yields the objective of each variable in words, if the verdict has it in its figures.

    An example is ``fc1/weights, fc2/weights: 2 mean; on one GPU: mean``.
    """
    for figure in verdict.figures:
        if "objective" in figure:
            one_gpu = figure["expected"] or "not known"
            yield f"{listed(figure['variables'])}: {figure['objective']}; on one GPU: {one_gpu}"


def _distinct_figures(verdict: Verdict) -> Sequence[Mapping[str, Any]]:
    """The figures of a rule to draw: none if all variables differ by the same ratio."""
    measured = verdict.figures if verdict.evidence == "executed" else ()
    figures = [figure for figure in measured if "error" in figure]
    kinds = {
        (figure["state"], None if figure["ratio"] is None else f"{figure['ratio']:.2g}")
        for figure in figures
    }
    return figures if len(kinds) > 1 else ()
