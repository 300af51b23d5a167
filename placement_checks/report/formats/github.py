"""A report as annotations of GitHub's runner: workflow commands, at the user's lines.

GitHub shows the first ten errors, warnings and notices of a step, so that what comes first counts:
an error for each root cause in the order of their impact. Of one impact the first of every rule
comes before the second of any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TextIO

from placement_checks.core.results import Report
from placement_checks.report.common.baseline import first_line, render_text
from placement_checks.report.common.findings import Sections
from placement_checks.report.formats.locations import (
    Location,
    Ranked,
    Repository,
    rank_root_causes,
)
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.text.findings import finding_sentences, one_line
from placement_checks.report.text.writer import summary, title
from placement_checks.util.text import join_and

_SHOWN = 10  # of the errors of a step
_NAMED = 3  # programs that have the same finding
_NAME = "placement_checks"


def write(outcome: Outcome, stream: TextIO) -> None:
    """Write what failed, the findings, what was not checked but must be, and the count."""
    files = Repository()
    errors = [_command("error", [one_line(str(error))], _NAME) for error in outcome.errors]
    errors += [_annotation(each, files) for each in rank_root_causes(outcome.reports)]
    errors += _moved(outcome.reports, files)
    warnings = [*_unchecked(outcome), *_following(outcome.reports, files)]
    lines = [*errors, *warnings, *_last(outcome, len(errors))]
    stream.write("".join(f"{line}\n" for line in lines))


def _annotation(told_once: Ranked, files: Repository) -> str:
    group, (report, *_) = told_once.group, told_once.reports
    at = files.location_of(group.where, report)
    in_no_line = at is None or at.line is None
    lines = [*finding_sentences(group, with_line=in_no_line), f"in {_programs(told_once.reports)}"]
    return _command("error", lines, told_once.title, at)


def _moved(reports: Sequence[Report], files: Repository) -> Iterator[str]:
    """What differs from its baseline, once for each program, at the first line that is known."""
    for report in reports:
        if report.baseline:
            lines = [*render_text(report.baseline).split("\n"), f"in {one_line(title(report))}"]
            at = files.location_of(first_line(report.baseline), report)
            yield _command("error", lines, "baseline", at)


def _programs(reports: Sequence[Report]) -> str:
    names = [one_line(title(report)) for report in reports[:_NAMED]]
    if left := len(reports) - len(names):
        names.append(f"{left} more")
    return join_and(names)


def _unchecked(outcome: Outcome) -> Iterator[str]:
    """The rules that had to be checked and were not, those of one reason together."""
    rules: dict[str, dict[str, None]] = defaultdict(dict)
    for report in outcome.reports:
        for verdict in filter(outcome.must_be_checked, report.verdicts):
            rules[verdict.reason or ""][verdict.rule] = None
    for reason, names in rules.items():
        yield _command("warning", [f"{join_and(names)}: {one_line(reason)}"], "not checked")


def _following(reports: Sequence[Report], files: Repository) -> Iterator[str]:
    """What follows from other findings, once for each rule and cause."""
    for report in reports:
        for section in Sections(report.verdicts).consequences:
            if section.groups:
                at = files.location_of(section.groups[0].where, report)
                lines = [section.title, f"in {one_line(title(report))}"]
                yield _command("warning", lines, section.rule, at)


def _last(outcome: Outcome, errors: int) -> Iterator[str]:
    if outcome.reports:
        lines = [summary(outcome.reports)]
        if errors > _SHOWN:
            lines.append(f"GitHub shows {_SHOWN} errors of a step; its log has all {errors}.")
        yield _command("notice", lines, _NAME)


def _command(kind: str, lines: Sequence[str], title: str, at: Location | None = None) -> str:
    """A workflow command, with what GitHub's runner reads as marks escaped."""
    properties = {"title": title}
    if at is not None:
        line = {} if at.line is None else {"line": str(at.line)}
        properties = {"file": at.path, **line, **properties}
    named = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{kind} {named}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
