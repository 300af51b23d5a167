"""Several programs at a glance: which rules each breaks, drawn as `git show-branch` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.core.results import Report, Verdict, worst_impact
from placement_checks.report.text.wrapping import columns, shortened

_SHORTEST_NAME = 20
_LEGEND = "findings of each rule; . kept, - not checked"


def grid(reports: Sequence[Report]) -> Iterator[str]:
    """A line for each program, a column for each rule that one of them breaks."""
    verdicts = [verdict for report in reports for verdict in report.verdicts]
    broken = {verdict.rule for verdict in verdicts if verdict.state == "broken"}
    in_order = dict.fromkeys(each.rule for each in verdicts)
    impact = {
        rule: min(worst_impact(each.findings) for each in verdicts if each.rule == rule)
        for rule in broken
    }
    rules = sorted((rule for rule in in_order if rule in broken), key=impact.__getitem__)
    titles = [*rules, "kept", "not checked"]
    rows = [_cells(report, rules) for report in reports]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, title in enumerate(titles):
        bars = " ".join("│".rjust(width) for width in widths[:number])
        yield (
            f"{bars} {'┌'.rjust(widths[number])} {title}"
            if bars
            else (f"{'┌'.rjust(widths[0])} {title}")
        )
    room = max(_SHORTEST_NAME, columns() - sum(widths) - len(widths) - 1)
    for report, cells in zip(reports, rows, strict=True):
        row = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"{row}  {shortened(report.evidence.placement.program, room)}"
    yield _LEGEND


def _cells(report: Report, rules: Sequence[str]) -> list[str]:
    verdicts = {verdict.rule: verdict for verdict in report.verdicts}
    return [
        *(_cell(verdicts.get(rule)) for rule in rules),
        str(report.count("kept")),
        str(report.count("not-checked")),
    ]


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.state == "broken":
        return _short(len(verdict.findings))
    return "." if verdict.state == "kept" else "-"


def _short(number: int) -> str:
    """Three letters at most below 100,000."""
    return str(number) if number < 1000 else f"{number // 1000}k"
