"""``placement-checks diff``."""

from __future__ import annotations

import shlex
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
from placement_checks.report.page.write import render_page
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
    """Compare two placements: of programs, graphs or logs.

    Ops are compared by their names. If OLD is a baseline, NEW is compared with it, and names may
    have changed.
    With --format html, one page with a picture of NEW, in which what has moved is lit.

    The exit status is 0 where every op is on the same device in both, 1 where they differ, and 2
    where anything failed, or where no difference is found and one of them is a log that could not
    be read in full.
    """
    call = call_settings(
        gpus, machine, soft, v1=v1, let=source_overrides(let), limit=limit, args=args
    )
    settings = call.defaulting_to(configuration.load(Path.cwd()).settings)
    baseline = files.read_target(old)
    if files.read_target(new) is not None:
        raise _baseline_as_new(old, new, is_second=baseline is not None)
    if baseline is not None:
        if output_format == "html":
            raise UsageError(
                old,
                "is a baseline, which lists no ops that --format html could draw",
                "compare two programs or logs, or omit --format html",
            )
        check_targets([new])
        with stdout_for_report(), live():
            text, differs = baselines.compare_target(baseline, old, new, settings, output_format)
        click.echo(text)
        return int(differs)
    check_targets([old, new])
    with stdout_for_report(), live():
        placements = [gather(*each).placement for each in _with_settings((old, new), settings)]
        difference = compare(*placements)
    if output_format == "html":
        click.echo(render_page([changes_data(difference, *placements)]), nl=False)
    else:
        click.echo((render_json if output_format == "json" else render_text)(difference))
    if difference:
        return 1
    return FAILED if difference.unread else 0


def _baseline_as_new(old: str, new: str, *, is_second: bool) -> UsageError:
    if is_second:
        return UsageError(
            f"{old} and {new}",
            "are both baselines, and diff compares a baseline only with a program",
            f"compare the two files: {shlex.join(['git', 'diff', '--no-index', old, new])}",
        )
    return UsageError(
        new,
        "is a baseline, which must be the first of the two targets",
        f"run {shlex.join(['placement-checks', 'diff', new, old])}",
    )


def _with_settings(targets: Sequence[str], settings: Settings) -> Iterator[tuple[str, Settings]]:
    """Each target with the settings for it: a log beside a program takes no arguments."""
    has_program = not all(map(is_log, targets))
    for target in targets:
        is_beside = has_program and is_log(target)
        yield target, replace(settings, args=()) if is_beside else settings
