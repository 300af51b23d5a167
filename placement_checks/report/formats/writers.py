"""The formats of a report by name: for people, and for other programs.

Those that are not asked for are not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TextIO

from rich.console import Console

from placement_checks.report.common import json
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.text import writer
from placement_checks.report.text.layout import WIDTH, terminal_width

Writer = Callable[[Outcome, TextIO], None]


def _text(outcome: Outcome, stream: TextIO) -> None:
    if outcome.reports:
        only = outcome.fails if outcome.is_quiet else None
        step = None if outcome.is_quiet else outcome.next_step
        console = Console(file=stream)
        with terminal_width(console.width if stream.isatty() else WIDTH):
            writer.write(outcome.reports, console, outcome.extent, step, only=only)


def _json(outcome: Outcome, stream: TextIO) -> None:
    stream.write(json.render(outcome.reports, outcome.errors) + "\n")


def _html(outcome: Outcome, stream: TextIO) -> None:
    from placement_checks.report.page.data import program_data
    from placement_checks.report.page.write import page

    if outcome.reports:
        stream.write(page(list(map(program_data, outcome.reports)), outcome.next_step))


def _for_programs(name: str) -> Writer:
    """The writer of a module of this package."""

    def write(outcome: Outcome, stream: TextIO) -> None:
        import_module(f"placement_checks.report.formats.{name}").write(outcome, stream)

    return write


WRITERS: Mapping[str, Writer] = {
    "text": _text,
    "json": _json,
    "html": _html,
    "markdown": _for_programs("markdown"),
    "github": _for_programs("github"),
    "sarif": _for_programs("sarif"),
    "junit": _for_programs("junit"),
}
