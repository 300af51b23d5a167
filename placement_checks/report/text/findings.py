"""The findings of a program: root causes rule by rule, then what follows from them.

In brief, every rule whose breach stops the program or makes its training wrong shows its first
finding in full, however many lines that takes. What is left of the lines goes to the other rules.

Groups of findings as lines of text, for the terminal, for pages and for assertion messages.

Which findings are told where not all can be.

What is told of a group of findings, as sentences for formats that have their own lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import groupby, islice
from typing import Literal, NamedTuple, TypeAlias

from rich.text import Text

from placement_checks.core.impact import Impact
from placement_checks.core.placement import Placement
from placement_checks.report.common.findings import Group, Section, Sections
from placement_checks.report.common.source import lines_of_values, source_text
from placement_checks.report.text.error_bars import picture
from placement_checks.report.text.layout import shortened, wrapped
from placement_checks.util.text import plural, printable

Kind = Literal["headline", "detail", "consequence", "fix"]

_EXAMPLES = 3
_CALLERS = 4
_STEPS = 4  # of a path, where only a run shows them
_LINES = {"headline": 6, "detail": 2, "consequence": 3, "fix": 4}  # of one sentence
_INDENT = {"headline": 2, "detail": 6, "consequence": 4, "fix": 4}


class Line(NamedTuple):
    """A line of a report, and what it is part of."""

    text: str
    kind: Kind


def finding_lines(
    groups: Sequence[Group], placement: Placement | None = None, *, everything: bool = False
) -> Iterator[Line]:
    """Each group once: its source line, what shows it, others alike, what it means, and the fix.

    Args:
        groups: those of one rule; where the same is to be done about some in a row, that stands
            below the last of them.
        placement: the program that they are about, whose ops show which of its lines ran.
        everything: all names and steps, not the first alone.
    """
    for _, alike in groupby(groups, key=_cure):
        members = list(alike)
        for group in members:
            for kind, text in _group(group, placement, everything):
                yield from _sentence(kind, text, everything)
        first = members[0].first
        if first.consequence:
            yield from _sentence("consequence", first.consequence, everything)
        yield from _sentence("fix", first.advice, everything)


def first_lines(
    groups: Sequence[Group], shown: int, hint: str, placement: Placement | None = None
) -> Iterator[Line]:
    """The first of some groups, and how many findings are left out."""
    yield from finding_lines(groups[:shown], placement)
    if left := sum(len(group.findings) for group in groups[shown:]):
        yield Line(f"  and {plural(left, 'finding')} more ({hint})", "detail")


def costs(groups: Sequence[Group], placement: Placement | None = None) -> Iterator[int]:
    """How many lines each group takes, if it stands alone."""
    return (sum(1 for _ in finding_lines([group], placement)) for group in groups)


def _cure(group: Group) -> tuple[str, str]:
    return group.first.consequence, group.first.fix


def _sentence(kind: Kind, text: str, everything: bool) -> Iterator[Line]:
    indent = _INDENT[kind]
    most = None if everything else _LINES[kind]
    for line in wrapped(text, indent=indent, hanging=indent + 4, most=most):
        yield Line(line, kind)


def _group(
    group: Group, placement: Placement | None, everything: bool
) -> Iterator[tuple[Kind, str]]:
    first, where = group.first, group.where
    yield "headline", f"{where}: {first.message}" if where else first.message
    if where and (text := source_text(where)):
        yield "detail", f"| {text}"
    before, callers = where or "", group.callers
    if callers and group.lines > 1:
        text = source_text(callers[0])
        through = f"{_after(callers[0], before)}{f': {text}' if text else ''}"
        yield "detail", f"all {len(group.findings)} are built through {through}"
        before, *callers = callers
    if callers:
        told = callers if everything else callers[:_CALLERS]
        lines = ", ".join(map(_after, told, (before, *told)))
        yield "detail", f"called from {lines}{'' if len(told) == len(callers) else ', …'}"
    if where and first.evidence in ("requested", "executed"):
        for line in lines_of_values(where, placement):
            yield "detail", f"given by {_after(line, where)}: {source_text(line)}"
    if first.op and first.where and first.where != where:
        yield "detail", f"{first.object} is made at {_with_text(first.where)}"
    if first.device_line and first.device_line != where:
        yield "detail", f"device requested at {_with_text(first.device_line)}"
    steps = len(first.path) if everything else _STEPS if first.evidence == "executed" else 0
    yield from (("detail", step) for step in first.path[:steps])
    if len(group.findings) > 1:
        yield "detail", likewise(group, everything=everything)


def _after(line: str, before: str) -> str:
    """A line as it is told after another one: of the same file, its number will do."""
    file, _, number = line.rpartition(":")
    return f"line {number}" if file == before.rpartition(":")[0] else line


def _with_text(line: str) -> str:
    text = source_text(line)
    return f"{line}: {text}" if text else line


def likewise(group: Group, *, everything: bool = False) -> str:
    """How many more findings a group has, and of which objects: some of them, or all."""
    others = group.others if everything else group.others[:_EXAMPLES]
    names, before = [], group.where or ""
    for name, line in others:
        names.append(f"{name} ({_after(line, before)})" if line else name)
        before = line or before
    number = f"likewise {len(group.findings) - 1} more"
    if not names:
        return number
    return f"{number}{': ' if len(names) == len(group.others) else ', such as '}{', '.join(names)}"


def allot_lines(
    costs: Sequence[Iterable[int]], lines: int, always: Collection[int] = ()
) -> list[int]:
    """How many items of each section fit, dealt out in turns: the first of each comes first.

    Args:
        costs: for each section the lines that its items take, in their order.
        lines: how many there are for all of them.
        always: the sections, by number, whose first item is given even if it does not fit. They
            precede the others.
    """
    given = [0] * len(costs)
    open_sections = [(number, iter(items)) for number, items in enumerate(costs)]
    while open_sections:
        still_open = []
        for number, items in open_sections:
            cost = next(items, None)
            is_due = number in always and not given[number]
            if cost is not None and (cost <= lines or is_due):
                lines -= cost
                given[number] += 1
                still_open.append((number, items))
        open_sections = still_open
    return given


_Lines: TypeAlias = Iterator[Text]
_HINT = "--all shows them"
_TITLE = 2  # lines: the title, and an empty one at the end
_STYLES = {"headline": "", "detail": "dim", "consequence": "", "fix": "green"}


class DetailLevel(Enum):
    """How much is told: what fits, or everything."""

    BRIEF = "brief"
    FULL = "full"


def findings_lines(
    sections: Sections, extent: DetailLevel, lines: int, placement: Placement | None = None
) -> _Lines:
    """The findings, and the pictures of what was measured.

    Args:
        sections: the findings by rule.
        extent: how much of them.
        lines: how many there are for what is told in brief.
        placement: the program, whose ops show which of its lines ran.
    """
    if extent is DetailLevel.BRIEF:
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
    given = allot_lines([_costs(section, placement) for section in causes], room, decisive)
    if not all(given):
        room -= len(_left_out(causes))
        given = allot_lines([_costs(section, placement) for section in causes], room, decisive)
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


_LONGEST = 600  # letters of a sentence, such as what the placer says of a graph


def finding_sentences(group: Group, *, with_line: bool = False) -> Iterator[str]:
    """What is wrong, with which others, what it means, and the fix.

    Args:
        group: some findings.
        with_line: whether the first sentence says at which line, if one is known.
    """
    first = group.first
    where = f"{group.where}: " if with_line and group.where else ""
    yield one_line(f"{where}{first.message}")
    if len(group.findings) > 1:
        yield one_line(likewise(group))
    if first.consequence:
        yield one_line(first.consequence)
    if first.fix:
        yield one_line(first.advice)


def one_line(sentence: str, most: int = _LONGEST) -> str:
    """A sentence in one line, its names and itself shortened where they are very long."""
    words = " ".join(map(shortened, printable(sentence).split(" ")))
    return words if len(words) <= most else f"{words[: most - 2]} …"
