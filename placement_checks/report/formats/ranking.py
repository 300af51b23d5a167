"""The findings of all programs in the order of their worth, for readers who see only the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from placement_checks.core.results import Impact, Report, worst_impact
from placement_checks.report.groups import Group
from placement_checks.report.sections import Sections
from placement_checks.util.text import plural


@dataclass(frozen=True)
class Ranked:
    """What is told once: a group of findings, of every program that has it.

    Attributes:
        rule: the broken one.
        group: of the first of the programs.
        reports: those of the programs.
    """

    rule: str
    group: Group
    reports: list[Report] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The rule, and how many findings there are if they are several."""
        number = len(self.group.findings)
        return self.rule if number == 1 else f"{self.rule} ({plural(number, 'finding')})"


def ranked(reports: Sequence[Report]) -> list[Ranked]:
    """The root causes in the order of their impact.

    Of one impact the first group of each rule comes first, then the second ones, and so on; in
    each turn the groups of most programs come first.
    """
    turns: dict[tuple[Impact, int], list[Ranked]] = defaultdict(list)
    known: dict[Hashable, Ranked] = {}
    for report in reports:
        for section in Sections(report.verdicts).causes:
            for turn, group in enumerate(section.groups):
                says = (section.rule, group.where, group.first.message, group.first.fix)
                if says not in known:
                    known[says] = Ranked(section.rule, group)
                    turns[worst_impact(group.findings), turn].append(known[says])
                known[says].reports.append(report)
    return [
        each
        for turn in sorted(turns)
        for each in sorted(turns[turn], key=lambda told: -len(told.reports))
    ]
