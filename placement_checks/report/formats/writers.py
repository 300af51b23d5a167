"""The report formats by name; the module of a format is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple, TextIO

from rich.console import Console

from placement_checks.core.results import NO_STEP, NextStep
from placement_checks.report.commands.since import render_text as since_text
from placement_checks.report.common.baseline import render_text
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.text import writer
from placement_checks.report.text.layout import WIDTH, terminal_width

Writer = Callable[[Outcome, TextIO], None]


def _text(outcome: Outcome, stream: TextIO) -> None:
    if outcome.since is not None:
        stream.write(since_text(outcome.since) + "\n")
        return
    shown = [*filter(outcome.fails, outcome.reports)] if outcome.is_quiet else outcome.reports
    if outcome.reports:
        step = None if outcome.is_quiet else outcome.next_step
        console = Console(file=stream)
        with terminal_width(console.width if stream.isatty() else WIDTH):
            writer.write(
                shown,
                console,
                everything=outcome.everything,
                next_step=step,
                counts=outcome.reports,
            )
    for report in shown:
        if report.baseline is not None:
            stream.write(f"{report.baseline.new}: {render_text(report.baseline)}\n")


def _html(outcome: Outcome, stream: TextIO) -> None:
    from placement_checks.report.page.data import program_data, revision_data
    from placement_checks.report.page.write import render_page

    if outcome.since is not None:
        step = NextStep(outcome.summary)
        found = (revision_data(each, outcome.since) for each in outcome.since.programs)
        pages = [page for page in found if page is not None]
    else:
        step = outcome.next_step or NO_STEP
        pages = list(map(program_data, outcome.reports))
    if pages:
        stream.write(render_page(pages, step))


def _from_module(name: str) -> Writer:
    """Returns a writer that imports its module of this package when it is called."""

    def write(outcome: Outcome, stream: TextIO) -> None:
        import_module(f"placement_checks.report.formats.{name}").write(outcome, stream)

    return write


class Format(NamedTuple):
    """A format of the report.

    Attributes:
        write: writes the result of `verify` or `diff --since`.
        suffix: the suffix of its files; ``""`` if it is for standard output.
        has_errors: whether the report contains errors, for programs that do not read stderr.
    """

    write: Writer
    suffix: str
    has_errors: bool = False


FORMATS: Mapping[str, Format] = {
    "text": Format(_text, ".txt"),
    "json": Format(_from_module("json"), ".json", has_errors=True),
    "html": Format(_html, ".html"),
    "markdown": Format(_from_module("markdown"), ".md"),
    "github": Format(_from_module("github"), "", has_errors=True),
    "sarif": Format(_from_module("sarif"), ".sarif", has_errors=True),
    "junit": Format(_from_module("junit"), ".xml", has_errors=True),
}
