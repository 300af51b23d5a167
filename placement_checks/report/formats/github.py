"""Writes a report as annotations of the user's lines on GitHub (workflow commands).

GitHub shows the first ten errors, ten warnings and ten notices of a step. Each root cause is an
error, in the order of `rank_root_causes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TextIO

from placement_checks.core.errors import PlacementError
from placement_checks.core.results import Report
from placement_checks.report.common.baseline import first_line, render_text
from placement_checks.report.common.findings import Sections
from placement_checks.report.formats.locations import (
    Location,
    RankedGroup,
    Repository,
    rank_root_causes,
)
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.text.findings import finding_sentences, one_line
from placement_checks.report.text.writer import program_title, summary
from placement_checks.util.text import join_and, listed

_SHOWN = 10  # errors of a step
_NAMED = 3  # programs with the same finding
_NAME = "placement_checks"


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes errors, findings, required rules that were not checked, and the counts."""
    files = Repository()
    errors = error_annotations(outcome.errors)
    errors += [group_annotation(each, files) for each in rank_root_causes(outcome.reports)]
    errors += difference_annotations(outcome.reports, files, "baseline")
    lines = [*errors, *_unchecked(outcome), *_consequences(outcome.reports, files)]
    if outcome.reports:
        lines.append(count_notice(summary(outcome.reports), len(errors)))
    stream.write("".join(f"{line}\n" for line in lines))


def error_annotations(errors: Sequence[PlacementError]) -> list[str]:
    """Returns an annotation for each error that ended a program."""
    return [annotation("error", [one_line(str(error))], _NAME) for error in errors]


def count_notice(counts: str, errors: int) -> str:
    """Returns the last annotation, with the counts of the report."""
    lines = [counts]
    if errors > _SHOWN:
        lines.append(f"GitHub shows {_SHOWN} errors of a step; its log has all {errors}.")
    return annotation("notice", lines, _NAME)


def group_annotation(ranked: RankedGroup, files: Repository) -> str:
    """Returns the annotation of a group of findings, at its line."""
    group, (report, *_) = ranked.group, ranked.reports
    programs = listed([one_line(program_title(each)) for each in ranked.reports], _NAMED)
    at = files.location_of(group.where, report)
    in_no_line = at is None or at.line is None
    lines = [*finding_sentences(group, with_line=in_no_line), f"in {programs}"]
    return annotation("error", lines, ranked.title, at)


def difference_annotations(
    reports: Sequence[Report], files: Repository, title: str
) -> Iterator[str]:
    """Yields everything that moved in each program, at the first known line."""
    for report in reports:
        if report.baseline:
            lines = [
                *render_text(report.baseline).split("\n"),
                f"in {one_line(program_title(report))}",
            ]
            at = files.location_of(first_line(report.baseline), report)
            yield annotation("error", lines, title, at)


def _unchecked(outcome: Outcome) -> Iterator[str]:
    """Yields the required rules that were not checked, by their reasons."""
    rules: dict[str, dict[str, None]] = defaultdict(dict)
    for report in outcome.reports:
        for verdict in filter(outcome.must_be_checked, report.verdicts):
            rules[verdict.reason or ""][verdict.rule] = None
    for reason, names in rules.items():
        yield annotation("warning", [f"{join_and(names)}: {one_line(reason)}"], "not checked")


def _consequences(reports: Sequence[Report], files: Repository) -> Iterator[str]:
    """Yields an annotation for each rule whose findings follow from another rule."""
    for report in reports:
        for section in Sections(report.verdicts).consequences:
            if section.groups:
                at = files.location_of(section.groups[0].where, report)
                lines = [section.title, f"in {one_line(program_title(report))}"]
                yield annotation("warning", lines, section.rule, at)


def annotation(kind: str, lines: Sequence[str], title: str, at: Location | None = None) -> str:
    """Returns a workflow command, with GitHub's special characters escaped."""
    properties = {"title": title}
    if at is not None:
        line = {} if at.line is None else {"line": str(at.line)}
        properties = {"file": at.path, **line, **properties}
    named = ",".join(
        f"{name}={_escape(value).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in properties.items()
    )
    return f"::{kind} {named}::{_escape(chr(10).join(lines))}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
