"""``placement-checks diff``."""

from __future__ import annotations

from dataclasses import replace

import click

from placement_checks.baseline import files
from placement_checks.cli import FAILED
from placement_checks.cli.baselines import diff_with_baseline
from placement_checks.cli.options import (
    FILE,
    ProgramCommand,
    format_option,
    settings_options,
    with_defaults,
)
from placement_checks.core.errors import UsageError
from placement_checks.report.commands.diff import render_json, render_text
from placement_checks.report.page.data import changes_data
from placement_checks.report.page.write import render_page
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.verification.configuration import Settings
from placement_checks.verification.diff import compare
from placement_checks.verification.targets import check_targets, gather, is_log


@click.command("diff", cls=ProgramCommand, short_help="Compare two placements.")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@settings_options()
@format_option("text", "json", "html")
def command(old: str, new: str, settings: Settings, output_format: str) -> int:
    """Compare two placements: of programs, graphs, logs or baselines.

    Ops are matched by name. If either target is a baseline, names need not match.
    --format html writes a page with a picture of NEW that highlights the moved ops.

    The exit status is 0 if every op is on the same device in both, 1 if placements differ, and 2
    if an error occurred, or if placements agree but one of them is a log that was only read in
    part.
    """
    settings = with_defaults(settings)
    targets = (old, new)
    pages = [files.read_target(target) for target in targets]
    check_targets(target for target, page in zip(targets, pages, strict=True) if page is None)
    if any(pages):
        if output_format == "html":
            raise UsageError(
                old,
                "is a baseline, which lists no ops that --format html could draw",
                "compare two programs or logs, or leave out --format",
            )
        check_targets([new])
        with stdout_for_report(), live():
            text, differs = diff_with_baseline(targets, pages, settings, output_format)
        click.echo(text)
        return int(differs)
    has_program = not all(map(is_log, targets))
    with stdout_for_report(), live():
        placements = [
            # A log takes no arguments: they are for the program that it is compared with.
            gather(
                target, replace(settings, args=()) if has_program and is_log(target) else settings
            ).placement
            for target in targets
        ]
        difference = compare(*placements)
    if output_format == "html":
        click.echo(render_page([changes_data(difference, *placements)]), nl=False)
    else:
        click.echo((render_json if output_format == "json" else render_text)(difference))
    if difference:
        return 1
    return FAILED if difference.unread else 0
