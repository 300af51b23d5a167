"""Writes a report as text for the terminal."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console

from placement_checks.report.commands.since import render_text as since_text
from placement_checks.report.common.baseline import render_text
from placement_checks.report.formats import Format
from placement_checks.report.outcome import Outcome
from placement_checks.report.text import writer
from placement_checks.report.text.layout import WIDTH, terminal_width


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes the reports, the next step, and the difference from each baseline."""
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


FORMAT = Format(
    write,
    "terminal: 60 lines for each program; more only if the first finding of each rule needs them",
    "`DOUBTFUL` in the table of rules, and a section after the findings",
    ".txt",
)
