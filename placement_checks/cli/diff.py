"""``placement-checks diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from placement_checks.baseline import files
from placement_checks.cli import FAILED, baselines
from placement_checks.cli.options import (
    FILE,
    ProgramCommand,
    call_settings,
    format_option,
    machine_options,
    program_options,
    source_overrides,
)
from placement_checks.core.errors import UsageError
from placement_checks.report.commands.diff import render_json, render_text
from placement_checks.report.page.data import changes_data
from placement_checks.report.page.write import page
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.verification import configuration
from placement_checks.verification.configuration import Settings
from placement_checks.verification.diff import compare
from placement_checks.verification.targets import check_targets, gather, is_log


@click.command("diff", cls=ProgramCommand, short_help="Compare two placements.")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@machine_options
@program_options
@format_option("text", "json", "html")
def command(
    old: str,
    new: str,
    gpus: int | None,
    machine: str | None,
    soft: bool | None,
    v1: bool | None,
    let: tuple[str, ...],
    limit: float | None,
    args: tuple[str, ...],
    output_format: str,
) -> int:
    """Compare two placements: of programs, graphs, logs or baselines.

    Ops are compared by their names, unless either is a baseline: then names may have changed.
    With --format html, one page with a picture of NEW, in which what has moved is lit.

    The exit status is 0 where every op is on the same device in both, 1 where they differ, and 2
    where anything failed, or where no difference is found and one of them is a log that could not
    be read in full.
    """
    call = call_settings(
        gpus, machine, soft, v1=v1, let=source_overrides(let), limit=limit, args=args
    )
    settings = call.defaulting_to(configuration.load(Path.cwd()).settings)
    pages = [files.read_target(target) for target in (old, new)]
    check_targets(target for target, page in zip((old, new), pages, strict=True) if page is None)
    if any(pages):
        if output_format == "html":
            raise UsageError(
                old if pages[0] else new,
                "is a baseline, which lists no ops that --format html could draw",
                "compare two programs or logs, or leave the format out",
            )
        with stdout_for_report(), live():
            text, differs = baselines.compared(old, new, pages, settings, output_format)
        click.echo(text)
        return int(differs)
    with stdout_for_report(), live():
        placements = [gather(*each).placement for each in _with_settings((old, new), settings)]
        difference = compare(*placements)
    if output_format == "html":
        click.echo(page([changes_data(difference, *placements)]), nl=False)
    else:
        click.echo((render_json if output_format == "json" else render_text)(difference))
    if difference:
        return 1
    return FAILED if difference.unread else 0


def _with_settings(targets: Sequence[str], settings: Settings) -> Iterator[tuple[str, Settings]]:
    """Each target with the settings for it: a log beside a program takes no arguments."""
    has_program = not all(map(is_log, targets))
    for target in targets:
        is_beside = has_program and is_log(target)
        yield target, replace(settings, args=()) if is_beside else settings
