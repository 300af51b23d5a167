"""The report formats by name; the module of a format is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple, TextIO

from rich.console import Console

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
            writer.write(
                outcome.reports,
                console,
                everything=outcome.everything,
                next_step=step,
                only=only,
            )


def _html(outcome: Outcome, stream: TextIO) -> None:
    from placement_checks.report.page.data import program_data
    from placement_checks.report.page.write import render_page

    if outcome.reports:
        stream.write(render_page(list(map(program_data, outcome.reports)), outcome.next_step))


def _from_module(name: str) -> Writer:
    """Returns a writer that imports its module of this package when it is called."""

    def write(outcome: Outcome, stream: TextIO) -> None:
        import_module(f"placement_checks.report.formats.{name}").write(outcome, stream)

    return write


class Format(NamedTuple):
    """A format of the report.

    Attributes:
        write: writes the result of `verify`.
        has_errors: whether the report contains errors, for programs that do not read stderr.
    """

    write: Writer
    has_errors: bool = False


FORMATS: Mapping[str, Format] = {
    "text": Format(_text),
    "json": Format(_from_module("json"), has_errors=True),
    "html": Format(_html),
    "markdown": Format(_from_module("markdown")),
    "github": Format(_from_module("github"), has_errors=True),
    "sarif": Format(_from_module("sarif"), has_errors=True),
    "junit": Format(_from_module("junit"), has_errors=True),
}
