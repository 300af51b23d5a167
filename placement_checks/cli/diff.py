"""``placement-checks diff``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from placement_checks.baseline import files
from placement_checks.baseline.compare import compare as compare_with_baseline
from placement_checks.capture.child_process.early import early_captures
from placement_checks.cli import FAILED, print_error
from placement_checks.cli.common.options import (
    FILE,
    JOBS,
    ProgramCommand,
    options_as,
    report_options,
    settings_options,
    with_defaults,
)
from placement_checks.cli.common.output import Output, open_outputs, parse_outputs
from placement_checks.core.errors import UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.settings import Settings
from placement_checks.report.common.baseline import headline, render_json, render_text
from placement_checks.report.formats import FORMATS
from placement_checks.report.outcome import Outcome
from placement_checks.report.page.data import difference_data
from placement_checks.report.page.write import render_page
from placement_checks.targets.forms import parse_target
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import join_and
from placement_checks.verification.baseline_rules import with_rules
from placement_checks.verification.diff import compare
from placement_checks.verification.judging import judge
from placement_checks.verification.placing import with_single_gpu
from placement_checks.verification.policy import rule_named
from placement_checks.verification.since import compare_since
from placement_checks.verification.targets import announce, gather

_FORMATS = ("text", "json", "html")  # of the comparison of two targets


@dataclass(frozen=True)
class _Options:
    """The options of the command, except for the settings of a program."""

    since: str | None
    old: str | None
    links: tuple[str, ...]
    numbers: bool
    output_format: str | None
    files: tuple[str, ...]
    jobs: int | None


@click.command("diff", cls=ProgramCommand, short_help="Compare two placements.")
@click.argument("targets", nargs=-1, metavar="OLD NEW | [TARGET]...", type=FILE)
@settings_options()
@JOBS
@click.option(
    "--since",
    metavar="REV",
    help="Compare each program with itself at this git revision.",
)
@click.option(
    "--old", metavar="TARGET", type=FILE, help="The name of the program at REV, if it was renamed."
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="PATH",
    type=FILE,
    help="Make this uncommitted file or directory available to the program at REV, too; may be "
    "repeated.",
)
@click.option(
    "--numbers",
    is_flag=True,
    help="Also run both revisions on the same rows, and compare gradients and weights.",
)
@report_options(*FORMATS)
@options_as(_Options)
def command(targets: tuple[str, ...], settings: Settings, options: _Options) -> int:
    """Compare two placements: of programs, graphs or logs.

    OLD may also be a baseline. Ops are matched by their part of the step, tower, layer and type,
    so names may differ. A log lacks the data flow: if OLD or NEW is a log, ops are matched by
    name.

    --format html writes a page with a picture of NEW that highlights the changes.
    The formats text, json and html are for all comparisons, the others for --since.

    With --since, each TARGET is placed twice: from the working tree and from a temporary copy of
    the git revision REV. The default is all programs of [tool.placement_checks] in pyproject.toml.
    The report lists variables, towers and ops that moved, even if they were renamed; changed
    objectives; and rules that are newly broken, newly kept or no longer checked. It also states
    whether the training step is proved to be the step at REV, for every batch. The repository is
    not changed. --numbers also runs both versions, with the same number of GPUs and the same rows:
    random rows, or the rows of the batch function in pyproject.toml.

    The exit status is 0 if nothing has moved, 1 if placements or objectives differ, and 2
    if an error occurred, or if placements agree but one of them is a log that was only read in
    part. With --since it is also 1 if a rule is newly broken or no longer checked, if the training
    step or numbers differ, or if pyproject.toml no longer lists a program.
    """
    outputs = parse_outputs(options.files, options.output_format, list(FORMATS))
    if options.since is not None:
        return _compare_since(options.since, targets, settings, options, outputs)
    needing = {"--old": options.old, "--link": options.links, "--numbers": options.numbers}
    for name, given in needing.items():
        if given:
            raise UsageError(
                name,
                "requires a git revision",
                "add --since REV",
                is_predicate=True,
            )
    for each in outputs:
        if each.format in _FORMATS:
            continue
        raise UsageError(
            f"--format {each.format}" if each.file is None else f"--output {each.file}",
            "is for a comparison with a git revision",
            f"choose one of {join_and(_FORMATS)}, or add --since REV",
            is_predicate=True,
        )
    if len(targets) != 2:
        raise UsageError(
            "",
            f"diff compares two targets, and {len(targets) or 'none'} "
            f"{'is' if len(targets) < 2 else 'are'} given",
            "run placement-checks diff OLD NEW, or compare with a git revision: --since HEAD",
        )
    return _compare_two(*targets, settings=settings, options=options, outputs=outputs)


def _compare_since(
    revision: str,
    targets: Sequence[str],
    settings: Settings,
    options: _Options,
    outputs: Sequence[Output],
) -> int:
    with open_outputs(outputs) as streams:
        with stdout_for_report(), live():
            since = compare_since(
                revision,
                targets,
                settings,
                old_target=options.old,
                links=options.links,
                numbers=options.numbers,
                captures=options.jobs,
            )
        outcome = Outcome(
            since.reports,
            since.errors,
            explained=lambda rule: rule_named(rule).explanation(),
            since=since,
        )
        for format, stream in streams:
            FORMATS[format].write(outcome, stream)
    for error in since.errors:
        print_error(error, details=any(each.format == "text" for each in outputs))
    return since.status


def _compare_two(
    old: str, new: str, *, settings: Settings, options: _Options, outputs: Sequence[Output]
) -> int:
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
    with open_outputs(outputs) as streams:
        with stdout_for_report(), live(), early_captures(options.jobs):
            if baseline is not None:
                compared = [gather(parse_target(new), with_defaults(settings, new), rows="none")]
                difference = compare_with_baseline(baseline, compared[0].placement, old)
            else:
                compared = _gather_both(old, new, settings)
                difference = compare(*(each.placement for each in compared))
            evidence = compared[-1]
            if difference and evidence.placement.requested:
                report = judge(with_single_gpu(evidence))
                difference = with_rules(difference, report.verdicts)
        before = compared[0].placement if len(compared) > 1 else None
        for format, stream in streams:
            if format == "html":
                placement, title = evidence.placement, headline(difference)
                page = difference_data(difference, placement, title, before)
                stream.write(render_page([page]))
            else:
                render = render_json if format == "json" else render_text
                stream.write(render(difference) + "\n")
    if difference:
        return 1
    return 0 if all(each.placement.complete for each in compared) else FAILED


def _gather_both(old: str, new: str, settings: Settings) -> list[Evidence]:
    targets = [parse_target(old), parse_target(new)]
    kinds = [target.kind for target in targets]
    sides = [with_defaults(settings, name) for name in (old, new)]
    # A log has no arguments: they belong to the program that the log is compared with.
    own = [
        replace(each, args=()) if kind == "log" and set(kinds) != {"log"} else each
        for kind, each in zip(kinds, sides, strict=True)
    ]
    for each in zip(targets, own, strict=True):
        announce(*each, (), rows="none")
    return [gather(*each, rows="none") for each in zip(targets, own, strict=True)]
