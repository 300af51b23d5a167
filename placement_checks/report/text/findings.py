"""Renders the findings of a program: root causes by rule, the findings that follow, and doubts.

The brief text has a limit of lines. Each rule that stops the program or makes its training wrong
shows its first finding in full; `allot_lines` distributes the remaining lines among all rules.

`finding_lines` renders groups of findings for terminals, pages and assertion messages;
`finding_sentences` renders one group for formats with their own lines; `draw_error_bars` draws the
differences between variables of towers and of the reference as bars of text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple, TypeAlias

from rich.text import Text

from placement_checks.core.impact import Impact
from placement_checks.report.common.findings import Group, Section, Sections
from placement_checks.report.common.source import source_text
from placement_checks.report.text.layout import shorten, wrap
from placement_checks.util.text import format_factor, plural, printable

LineKind = Literal["headline", "detail", "consequence", "fix"]

_EXAMPLES = 3
_CALLERS = 4
_STEPS = 4  # of a path, if the finding is from a run
_LINES = {"headline": 6, "detail": 2, "consequence": 3, "fix": 4}  # limits for one sentence
_INDENT = {"headline": 2, "detail": 6, "consequence": 4, "fix": 4}


class Line(NamedTuple):
    """A line of a report, with the kind of its sentence."""

    text: str
    kind: LineKind


def finding_lines(groups: Sequence[Group], *, everything: bool = False) -> Iterator[Line]:
    """Yields the lines of groups: source line, details, other objects, consequence and fix.

    Args:
        groups: the groups of one rule; consecutive groups with the same fix share it.
        everything: whether to list all names and steps, instead of the first ones.
    """
    for _, same_fix in groupby(groups, lambda each: (each.first.consequence, each.first.fix)):
        members = list(same_fix)
        for group in members:
            for kind, text in _group(group, everything):
                yield from _sentence(kind, text, everything)
        first = members[0].first
        if first.consequence:
            yield from _sentence("consequence", first.consequence, everything)
        yield from _sentence("fix", first.advice, everything)


def first_lines(groups: Sequence[Group], shown: int, hint: str) -> Iterator[Line]:
    """Yields the lines of the first groups, and the number of omitted findings."""
    yield from finding_lines(groups[:shown])
    if left := sum(len(group.findings) for group in groups[shown:]):
        yield Line(f"  and {plural(left, 'finding')} more ({hint})", "detail")


def line_counts(groups: Sequence[Group]) -> Iterator[int]:
    """Yields the number of lines of each group if it is rendered alone, with its own fix."""
    return (sum(1 for _ in finding_lines([group])) for group in groups)


def _sentence(kind: LineKind, text: str, everything: bool) -> Iterator[Line]:
    indent = _INDENT[kind]
    most = None if everything else _LINES[kind]
    for line in wrap(text, indent=indent, hanging=indent + 4, most=most):
        yield Line(line, kind)


def _group(group: Group, everything: bool) -> Iterator[tuple[LineKind, str]]:
    first, where = group.first, group.where
    yield "headline", f"{where}: {first.message}" if where else first.message
    if where and (text := source_text(where)):
        yield "detail", f"| {text}"
    if where and first.library_line and where in first.frames:
        yield "detail", f"in {first.library_line}, called from this line"
    before, callers = where or "", group.callers
    if callers and group.lines > 1:
        text = source_text(callers[0])
        through = f"{_abbreviate(callers[0], before)}{f': {text}' if text else ''}"
        yield "detail", f"all {len(group.findings)} are built through {through}"
        before, *callers = callers
    if callers:
        named = callers if everything else callers[:_CALLERS]
        lines = ", ".join(map(_abbreviate, named, (before, *named)))
        yield "detail", f"called from {lines}{'' if len(named) == len(callers) else ', …'}"
    if first.op and first.built_at and first.built_at != where:
        built = first.object if first.object in (*first.ops, first.object)[:1] else first.ops[0]
        yield "detail", f"{built} is created at {_line_with_source(first.built_at)}"
    if first.device_line and first.device_line != where:
        yield "detail", f"device requested at {_line_with_source(first.device_line)}"
    steps = len(first.path) if everything else _STEPS if first.evidence == "executed" else 0
    yield from (("detail", step) for step in first.path[:steps])
    if len(group.findings) > 1:
        yield "detail", likewise(group, everything=everything)


def _abbreviate(line: str, before: str) -> str:
    """Returns a line without its file if the line before has the same file."""
    file, _, number = line.rpartition(":")
    return f"line {number}" if file == before.rpartition(":")[0] else line


def _line_with_source(line: str) -> str:
    text = source_text(line)
    return f"{line}: {text}" if text else line


def likewise(group: Group, *, everything: bool = False) -> str:
    """Returns the number of other findings of a group, with some or all of their objects."""
    others = group.others if everything else group.others[:_EXAMPLES]
    names, before = [], group.where or ""
    for name, line in others:
        names.append(f"{name} ({_abbreviate(line, before)})" if line else name)
        before = line or before
    number = f"likewise {len(group.findings) - 1} more"
    if not names:
        return number
    return f"{number}{': ' if len(names) == len(group.others) else ', such as '}{', '.join(names)}"


def allot_lines(
    costs: Sequence[Iterable[int]], lines: int, always: Collection[int] = ()
) -> list[int]:
    """Returns how many items of each section fit into a number of lines.

    Items are allotted in rounds: the first item of each section, then the second one, and so on.

    Args:
        costs: the number of lines of each item, by section.
        lines: the number of lines for all sections.
        always: the indices of sections that get their first item even if it does not fit. They
            precede the other sections.
    """
    given = [0] * len(costs)
    open_sections = [(number, iter(items)) for number, items in enumerate(costs)]
    while open_sections:
        still_open = []
        for number, items in open_sections:
            cost = next(items, None)
            is_required = number in always and not given[number]
            if cost is not None and (cost <= lines or is_required):
                lines -= cost
                given[number] += 1
                still_open.append((number, items))
        open_sections = still_open
    return given


_Lines: TypeAlias = Iterator[Text]
_HINT = "--all shows them"
_TITLE = 2  # lines: the title, and an empty one at the end
_DOUBT_STYLE = "yellow"
_STYLES = {"headline": "", "detail": "dim", "consequence": "", "fix": "green"}


def all_findings(sections: Sections) -> _Lines:
    """Yields all findings, with bars of measured differences."""
    for section in (*sections.causes, *sections.consequences):
        found = finding_lines(section.groups, everything=True)
        yield from _with_title(section, _style_lines(found))
        yield from _picture(section)
    for section in sections.doubts:
        found = finding_lines(section.groups, everything=True)
        yield from _with_title(section, _style_lines(found), _DOUBT_STYLE)


def brief_findings(sections: Sections, lines: int) -> _Lines:
    """Yields the first findings of each rule, in a limited number of lines."""
    following = [
        Text(line)
        for section in sections.consequences
        for line in wrap(f"{section.title} ({_HINT})", hanging=4)
    ]
    causes = sections.causes
    doubts = [
        line
        for section in sections.doubts
        for line in _with_title(
            section, _style_lines(first_lines(section.groups, 1, _HINT)), _DOUBT_STYLE
        )
    ]
    # Each cause may need a line for its omitted findings.
    remaining = lines - len(following) - len(causes) - len(doubts)
    decisive = [number for number, section in enumerate(causes) if section.impact < Impact.LAYOUT]
    given = allot_lines([_costs(section) for section in causes], remaining, decisive)
    if not all(given):
        remaining -= len(_omitted_titles(causes))
        given = allot_lines([_costs(section) for section in causes], remaining, decisive)
    for section, items in zip(causes, given, strict=True):
        if items:
            is_drawn = bool(section.figures) and items > bool(section.findings)
            groups = first_lines(section.groups, items - is_drawn, _HINT)
            yield from _with_title(section, _style_lines(groups))
            if is_drawn:
                yield from _picture(section)
    omitted = [
        section
        for section, items in zip(causes, given, strict=True)
        if section.findings and not items
    ]
    yield from _omitted_titles(omitted)
    yield from following
    if omitted or following:
        yield Text()
    yield from doubts


def _omitted_titles(sections: Sequence[Section]) -> list[Text]:
    """The titles of rules without shown findings."""
    titles = ", ".join(section.title for section in sections)
    return [Text(line) for line in wrap(f"{titles} ({_HINT})", hanging=4)] if titles else []


def _costs(section: Section) -> Iterator[int]:
    """Yields the number of lines of each group, and of the picture after the first group."""
    groups = line_counts(section.groups)
    yield from (_TITLE + cost for cost in islice(groups, 1))
    if section.figures:
        yield sum(1 for _ in _picture(section))
    yield from groups


def _with_title(section: Section, lines: _Lines, style: str = "bold red") -> _Lines:
    if section.findings:
        title = Text(section.title)
        title.stylize(style, 0, len(section.rule))
        yield title
        yield from lines
        yield Text()


def _picture(section: Section) -> Iterator[Text]:
    if section.figures:
        yield Text(f"{section.rule}, in eps of the largest value", "bold")
        yield from draw_error_bars(section.figures)
        yield Text()


def _style_lines(lines: Iterator[Line]) -> Iterator[Text]:
    for text, kind in lines:
        styled = Text(text, _STYLES[kind])
        if kind == "headline":
            styled.highlight_regex(r"^  \S+:\d+(?=:)", "cyan")
        yield styled


_LONGEST = 600  # characters of a sentence, such as an error message of the placer


def finding_sentences(group: Group, *, with_line: bool = False) -> Iterator[str]:
    """Yields the message, the other objects, the consequence and the fix of a group.

    Args:
        group: the findings.
        with_line: whether the first sentence begins with the source line, if it is known.
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
    """Returns a sentence in one line, with very long words and text shortened."""
    words = " ".join(map(shorten, printable(sentence).split(" ")))
    return words if len(words) <= most else f"{words[: most - 2]} …"


_MAX_SHOWN = 8  # variables
_WIDTH = 24
_DECADES = 9  # a difference as large as the values is some 10^7 eps in float32
_BAR_STYLES = {"equal": "green", "noise": "dim", "too-coarse": "yellow", "differs": "bold red"}


def draw_error_bars(figures: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yields a line for each of the worst variables: ratio, error in eps, and a bar.

    The bars have a logarithmic scale. The mark in a bar is the limit of the error.
    """
    worst = sorted(figures, key=_severity, reverse=True)
    shown = worst[:_MAX_SHOWN]
    width = max(len(figure["variable"]) for figure in shown)
    yield Text(f"  {'variable':<{width}}       ratio  error, eps", "dim")
    for figure in shown:
        style = _BAR_STYLES[figure["state"]]
        ratio = "-" if figure["ratio"] is None else format_factor(figure["ratio"])
        yield Text.assemble(
            f"  {figure['variable']:<{width}}  {ratio:>10}  {_number(_error(figure)):>10}  ",
            (_bar(figure), style),
            ("  noise" if figure["state"] == "noise" else "", style),
        )
    if worst[_MAX_SHOWN:]:
        yield Text(f"  and {len(worst) - _MAX_SHOWN} more, see --format json", "dim")


def _severity(figure: Mapping[str, Any]) -> tuple[bool, float]:
    return figure["state"] == "differs", _error(figure)


def _bar(figure: Mapping[str, Any]) -> str:
    length, limit = _column(_error(figure)), min(_WIDTH - 1, _column(figure["limit"] or 0.0))
    return "".join(
        "┃" if place == limit else "━" if place < length else " " for place in range(_WIDTH)
    )


def _column(error: float) -> int:
    decades = math.log10(1 + error) if math.isfinite(error) else _DECADES
    return min(_WIDTH, round(_WIDTH * decades / _DECADES))


def _error(figure: Mapping[str, Any]) -> float:
    return math.inf if figure["error"] is None else float(figure["error"])


def _number(error: float) -> str:
    if math.isinf(error):
        return "-"
    return f"{error:.1f}" if error < 1000 else f"{error:.1e}"
