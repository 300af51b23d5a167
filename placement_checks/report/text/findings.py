"""The findings of a program: root causes rule by rule, then what follows from them.

In brief, every rule whose breach stops the program or makes its training wrong shows its first
finding in full, however many lines that takes. What is left of the lines goes to the other rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import TypeAlias

from rich.text import Text

from placement_checks.core.placement import Placement
from placement_checks.core.results import Impact
from placement_checks.report.sections import Section, Sections
from placement_checks.report.text.budget import dealt
from placement_checks.report.text.error_bars import picture
from placement_checks.report.text.finding_lines import Line, costs, finding_lines, first_lines
from placement_checks.report.text.wrapping import wrapped

_Lines: TypeAlias = Iterator[Text]
_HINT = "--all shows them"
_TITLE = 2  # lines: the title, and an empty one at the end
_STYLES = {"headline": "", "detail": "dim", "consequence": "", "fix": "green"}


class Extent(Enum):
    """How much is told: what fits, or everything."""

    BRIEF = "brief"
    FULL = "full"


def findings_lines(
    sections: Sections, extent: Extent, lines: int, placement: Placement | None = None
) -> _Lines:
    """The findings, and the pictures of what was measured.

    Args:
        sections: the findings by rule.
        extent: how much of them.
        lines: how many there are for what is told in brief.
        placement: the program, whose ops show which of its lines ran.
    """
    if extent is Extent.BRIEF:
        yield from _brief(sections, lines, placement)
    else:
        for section in (*sections.causes, *sections.consequences):
            told = finding_lines(section.groups, placement, everything=True)
            yield from _titled(section, _styled(told))
            yield from _picture(section)


def _brief(sections: Sections, lines: int, placement: Placement | None) -> _Lines:
    following = _following(sections)
    causes = sections.causes
    room = lines - len(following) - len(causes)  # each may say how many of its own are left
    decisive = [number for number, section in enumerate(causes) if section.impact < Impact.LAYOUT]
    given = dealt([_costs(section, placement) for section in causes], room, decisive)
    if not all(given):
        room -= len(_left_out(causes))
        given = dealt([_costs(section, placement) for section in causes], room, decisive)
    for section, items in zip(causes, given, strict=True):
        if items:
            yield from _shortened(section, items, placement)
    untold = [section for section, items in zip(causes, given, strict=True) if not items]
    left_out = [section for section in untold if section.findings]
    yield from _left_out(left_out)
    yield from following
    if left_out or following:
        yield Text()


def _following(sections: Sections) -> list[Text]:
    """What follows from other findings, a line for each rule and cause."""
    return [
        Text(line)
        for section in sections.consequences
        for line in wrapped(f"{section.title} ({_HINT})", hanging=4)
    ]


def _left_out(sections: Sequence[Section]) -> list[Text]:
    """The rules of which nothing more is told."""
    titles = ", ".join(section.title for section in sections)
    return [Text(line) for line in wrapped(f"{titles} ({_HINT})", hanging=4)] if titles else []


def _costs(section: Section, placement: Placement | None) -> Iterator[int]:
    """The lines of each group, and those of the picture, which is told after the first group."""
    groups = costs(section.groups, placement)
    yield from (_TITLE + cost for cost in islice(groups, 1))
    if section.figures:
        yield sum(1 for _ in _picture(section))
    yield from groups


def _shortened(section: Section, items: int, placement: Placement | None) -> _Lines:
    """A section of which some items are told."""
    is_drawn = bool(section.figures) and items > bool(section.findings)
    groups = first_lines(section.groups, items - is_drawn, _HINT, placement)
    yield from _titled(section, _styled(groups))
    if is_drawn:
        yield from _picture(section)


def _titled(section: Section, lines: _Lines) -> _Lines:
    if section.findings:
        yield _title(section.title, section.rule)
        yield from lines
        yield Text()


def _title(title: str, rule: str) -> Text:
    text = Text(title)
    text.stylize("bold red", 0, len(rule))
    return text


def _picture(section: Section) -> Iterator[Text]:
    if section.figures:
        yield Text(f"{section.rule}, in eps of the largest value", "bold")
        yield from picture(section.figures)
        yield Text()


def _styled(lines: Iterator[Line]) -> Iterator[Text]:
    for text, kind in lines:
        styled = Text(text, _STYLES[kind])
        if kind == "headline":
            styled.highlight_regex(r"^  \S+:\d+(?=:)", "cyan")
        yield styled
