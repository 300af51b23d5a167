"""``placement-checks diff``."""

from __future__ import annotations

import shlex
from dataclasses import replace

import click

from placement_checks.baseline import files
from placement_checks.baseline.compare import compare as compare_with_baseline
from placement_checks.capture.child_process.early import early_captures
from placement_checks.cli import FAILED
from placement_checks.cli.options import (
    FILE,
    JOBS,
    ProgramCommand,
    format_option,
    settings_options,
    with_defaults,
)
from placement_checks.core.errors import UsageError
from placement_checks.report.commands.diff import render_json, render_text
from placement_checks.report.common import baseline as baseline_report
from placement_checks.report.page.data import changes_data
from placement_checks.report.page.write import render_page
from placement_checks.targets.forms import parse_target
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.verification.baseline_rules import with_rules
from placement_checks.verification.configuration import Settings
from placement_checks.verification.diff import compare
from placement_checks.verification.placing import with_single_gpu
from placement_checks.verification.targets import announce, gather


@click.command("diff", cls=ProgramCommand, short_help="Compare two placements.")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@settings_options()
@JOBS
@format_option("text", "json", "html")
def command(old: str, new: str, settings: Settings, output_format: str, jobs: int | None) -> int:
    """Compare two placements: of programs, graphs or logs.

    Ops are compared by their names. If OLD is a baseline, NEW is compared with it, and names may
    have changed.
    --format html writes a page with a picture of NEW that highlights the moved ops.

    The exit status is 0 if every op is on the same device in both, 1 if placements differ, and 2
    if an error occurred, or if placements agree but one of them is a log that was only read in
    part.
    """
    settings = with_defaults(settings)
    baseline = files.read_target(old)
    if files.read_target(new) is not None:
        if baseline is None:
            raise UsageError(
                new,
                "is a baseline, which must be the first of the two targets",
                f"run {shlex.join(['placement-checks', 'diff', new, old])}",
                is_predicate=True,
            )
        raise UsageError(
            f"{old} and {new}",
            "are both baselines, and diff compares a baseline only with a program",
            f"compare the two files: {shlex.join(['git', 'diff', '--no-index', old, new])}",
            is_predicate=True,
        )
    if baseline is not None:
        if output_format == "html":
            raise UsageError(
                old,
                "is a baseline, which lists no ops that --format html could draw",
                "compare two programs or logs, or omit --format html",
                is_predicate=True,
            )
        target = parse_target(new)
        with stdout_for_report(), live():
            evidence = gather(target, settings)
            changes = compare_with_baseline(baseline, evidence.placement, old)
            if changes:
                changes = with_rules(changes, with_single_gpu(evidence), [settings.policy])
        if output_format == "json":
            click.echo(baseline_report.render_json(changes))
        else:
            click.echo(baseline_report.render_text(changes))
        return int(bool(changes))
    targets = [parse_target(old), parse_target(new)]
    kinds = [target.kind for target in targets]
    # A log takes no arguments: they are for the program that it is compared with.
    own = [
        replace(settings, args=()) if kind == "log" and set(kinds) != {"log"} else settings
        for kind in kinds
    ]
    with stdout_for_report(), live(), early_captures(jobs):
        for each in zip(targets, own, strict=True):
            announce(*each, ())
        placements = [gather(*each).placement for each in zip(targets, own, strict=True)]
        difference = compare(*placements)
    if output_format == "html":
        click.echo(render_page([changes_data(difference, *placements)]), nl=False)
    else:
        click.echo((render_json if output_format == "json" else render_text)(difference))
    if difference:
        return 1
    return FAILED if difference.unread else 0
