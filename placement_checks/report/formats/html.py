"""Writes a report as an HTML page."""

from __future__ import annotations

from typing import TextIO

from placement_checks.core.results import NO_STEP, NextStep
from placement_checks.report.formats import Format
from placement_checks.report.outcome import Outcome
from placement_checks.report.page.data import program_data, revision_data
from placement_checks.report.page.write import render_page


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes one page for all programs."""
    if outcome.since is not None:
        step = NextStep(outcome.summary)
        found = (revision_data(each, outcome.since) for each in outcome.since.programs)
        pages = [page for page in found if page is not None]
    else:
        step = outcome.next_step or NO_STEP
        pages = list(map(program_data, outcome.reports))
    if pages:
        stream.write(render_page(pages, step))


FORMAT = Format(
    write,
    "browser: one page with every result",
    "the sign `?`, after the findings",
    ".html",
)
