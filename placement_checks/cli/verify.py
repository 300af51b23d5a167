"""``placement-checks verify``: the main job.

What ``verify --declare`` prints in place of a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import click

from placement_checks.cli import FAILED, baselines, print_error
from placement_checks.cli.baselines import Baselines
from placement_checks.cli.options import (
    FILE,
    RULE,
    ProgramCommand,
    call_settings,
    format_option,
    machine_options,
    program_options,
    source_overrides,
)
from placement_checks.cli.output import open_output
from placement_checks.core.errors import PlacementError, UsageError, as_error
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.results import Report
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.formats.writers import WRITERS
from placement_checks.report.text.findings import DetailLevel
from placement_checks.util.progress import live, track
from placement_checks.util.streams import stdout_for_report
from placement_checks.verification import configuration
from placement_checks.verification.configuration import Settings
from placement_checks.verification.declare import declarations, declared_text
from placement_checks.verification.judging import verify
from placement_checks.verification.next_step import next_step
from placement_checks.verification.policy import parse_setting, policy_errors, rule_named
from placement_checks.verification.running import is_watched, with_numbers
from placement_checks.verification.targets import check_targets, gather


def write(reports: Sequence[Report], settings: Sequence[Settings], stream: TextIO) -> int:
    """Write the lines for pyproject.toml; the exit status is 1 where something is left to mend.

    Args:
        reports: the verdicts on some programs.
        settings: by which each was judged.
        stream: where to.

    Raises:
        UsageError: no rule is broken.
    """
    programs = [
        (report, own, declarations(report, own.policy))
        for report, own in zip(reports, settings, strict=True)
    ]
    declared = [each for _, _, of_program in programs for each in of_program]
    if not declared:
        raise UsageError(
            "--declare", "no rule is broken, and there is nothing to declare", "leave it out"
        )
    stream.write(declared_text(programs))
    return int(not all(each.fields for each in declared))


@click.command("verify", cls=ProgramCommand)
@click.argument("targets", nargs=-1, metavar="[TARGET]...", type=FILE)
@machine_options
@program_options
@click.option("--graph", metavar="TARGET", type=FILE, help="The program that printed the log.")
@click.option(
    "--reference",
    metavar="TARGET",
    type=FILE,
    help="The program for one GPU, to compare numbers with.",
)
@click.option(
    "--batch",
    metavar="TARGET",
    type=FILE,
    help="The function batch(rng, n) that gives rows, or a saved case (.npz).",
)
@click.option(
    "--rule", "rules", multiple=True, metavar="RULE", type=RULE, help="Check this rule only."
)
@click.option("--without", multiple=True, metavar="RULE", type=RULE, help="Leave this rule out.")
@click.option(
    "--set", "sets", multiple=True, metavar="RULE.FIELD=VALUE", help="The value of a rule's field."
)
@click.option(
    "--baseline",
    metavar="FOLDER",
    type=FILE,
    help="Compare with the baselines in this folder as well.",
)
@click.option("--update", is_flag=True, help="Write the baselines instead, where they differ.")
@click.option("--require-all", is_flag=True, help="A rule that could not be checked fails.")
@click.option(
    "--declare", is_flag=True, help="Print how to declare in pyproject.toml what is broken."
)
@format_option(*WRITERS)
@click.option(
    "--all",
    "-v",
    "--verbose",
    "everything",
    is_flag=True,
    help="Show every finding in the text report.",
)
@click.option(
    "-q", "--quiet", is_flag=True,
    help="Show only programs that fail in the text report, and the last line.",
)  # fmt: skip
@click.option("--output", metavar="FILE", type=FILE, help="Write the report to this file.")
def command(
    targets: tuple[str, ...],
    gpus: int | None,
    machine: str | None,
    soft: bool | None,
    v1: bool | None,
    let: tuple[str, ...],
    limit: float | None,
    args: tuple[str, ...],
    graph: str | None,
    reference: str | None,
    batch: str | None,
    rules: tuple[str, ...],
    without: tuple[str, ...],
    sets: tuple[str, ...],
    baseline: str | None,
    update: bool,
    require_all: bool,
    declare: bool,
    output_format: str,
    everything: bool,
    quiet: bool,
    output: str | None,
) -> int:
    """Judge programs, graphs and logs by the rules.

    TARGET is a program, path/to/file.py or package.module, which is run with ARGS until its first
    training step, in a process of its own; a function of either that builds the graph or trains,
    path/to/file.py:function; a graph file (.pb, .pbtxt, .meta), a SavedModel folder or a placement
    log; without one, the programs of [tool.placement_checks] in pyproject.toml. In ARGS {gpus}
    stands for the number of GPUs, {gpu_list} for 0,1,….

    A program that is run loses no files: what it deletes or overwrites is put back, and no
    checkpoint is saved. Event files and new files are still written.

    With --baseline each program is compared with the page in FOLDER that says where everything of
    it sits; --update writes these.

    The exit status is 0 where no rule is broken and at least one is kept, 1 where one is broken or
    anything is elsewhere than its baseline says, and 2 where nothing could be checked, a rule
    asked for with --rule could not, or anything failed. With --require-all it is 1 where any rule
    could not be checked. Of several targets the worst counts. With --declare it is 0 where all
    that is broken can be declared as meant.
    """
    if declare and output_format != "text":
        raise UsageError(
            "--declare", f"prints lines of TOML, not {output_format}", "leave out --format"
        )
    call = call_settings(
        gpus,
        machine,
        soft,
        rules=rules,
        without=without,
        policy=_policy(sets),
        reference=reference,
        batch=batch,
        v1=v1,
        let=source_overrides(let),
        limit=limit,
        args=args,
    )
    for name in (*rules, *without):
        rule_named(name)
    jobs = _jobs(targets, call)
    check_targets([graph, call.reference_target], batch)
    results = _Results(Baselines.of(baseline, update=update))
    with open_output(output) as stream:
        with stdout_for_report(), live():
            for target, settings in track(jobs, "program"):
                results.judge(target, settings, graph)
        if declare and results.reports:
            status = write(results.reports, results.settings, stream)
        else:
            step = next_step(results.reports, to_hold=bool(targets and not rules))
            outcome = Outcome(
                results.reports,
                results.errors,
                requested=rules,
                require_all=require_all,
                extent=DetailLevel.FULL if everything else DetailLevel.BRIEF,
                is_quiet=quiet,
                next_step=None if results.errors else step,
                explained=lambda rule: rule_named(rule).explanation(),
            )
            WRITERS[output_format](outcome, stream)
            told = filter(outcome.fails, results.reports) if quiet else results.reports
            baselines.write(told, stream, output_format)
            status = results.status(rules, require_all)
    for error in results.errors:
        print_error(error, details=output_format == "text")
    return max([status, *(FAILED for _ in results.errors)])


def _policy(sets: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The parameters that ``--set`` gives, by rule.

    Raises:
        UsageError: one has another form.
        ConfigError: there is no such rule or field, or it does not take the value.
    """
    policy: dict[str, dict[str, Any]] = {}
    for rule, parameter, value in map(parse_setting, sets):
        policy.setdefault(rule, {})[parameter] = value
    for wrong in policy_errors(policy, "--set "):
        raise wrong
    return policy


def _jobs(targets: Iterable[str], call: Settings) -> list[tuple[str, Settings]]:
    """What to verify, each with its settings; without targets the programs of pyproject.toml.

    Raises:
        UsageError: there is nothing.
        ConfigError: pyproject.toml is wrong.
    """
    configured = configuration.load(Path.cwd())
    jobs = [(target, call.defaulting_to(configured.settings)) for target in targets] or [
        (target, call.defaulting_to(own).defaulting_to(configured.settings))
        for target, own in configured.programs
    ]
    if call.args and not targets:
        raise UsageError(
            f"-- {call.args[0]}",
            "is for a program, and none is named",
            "name it before: placement-checks verify train.py -- " + call.args[0],
        )
    if not jobs:
        raise UsageError(
            "", "there is nothing to verify", "name a target such as train.py:build_towers"
        )
    return jobs


@dataclass
class _Results:
    """What verifying the targets gave; an error in one does not stop the others."""

    baselines: Baselines
    reports: list[Report] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)  # of each report
    errors: list[PlacementError] = field(default_factory=list)

    def judge(self, target: str, settings: Settings, graph: str | None) -> None:
        """Judge one target by the evidence that there is, also where a stage fails."""
        try:
            evidence = gather(target, settings, graph, on_placer_error=self._not_placed)
            evidence = self._with_numbers(evidence, target, settings)
            report = verify(
                evidence, [settings.policy], only=settings.rules, without=settings.without
            )
            report = self._with_baseline(target, report, settings)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # user code may raise what is not an Exception
            self._add(as_error(target, fault))
        else:
            self.reports.append(report)
            self.settings.append(settings)
            for error in report.errors:
                self._add(error)

    def _add(self, error: PlacementError) -> None:
        """Keep an error; one that several targets have, such as a missing TensorFlow, once."""
        if all(str(error) != str(other) for other in self.errors):
            self.errors.append(error)

    def _with_baseline(self, target: str, report: Report, settings: Settings) -> Report:
        """The report, also where there is no baseline to compare with."""
        try:
            return self.baselines.checked(report, settings)
        except Exception as fault:
            self._add(as_error(target, fault))
            return report

    def _not_placed(self, fault: Exception, requested: Evidence) -> Evidence:
        """What a program asks for, where the placer failed; an error of the input ends it."""
        placement = requested.placement
        error = as_error(placement.program, fault)
        if error.kind != "internal":
            raise error
        self._add(error)
        return replace(requested, placement=replace(placement, assigned=Missing(str(error))))

    def _with_numbers(self, evidence: Evidence, target: str, settings: Settings) -> Evidence:
        """The evidence with what running it gives, if a reference is named."""
        reference = settings.reference_target
        if reference is None and not is_watched(evidence):
            if settings.batch is not None:
                raise UsageError(
                    f"--batch {settings.batch}",
                    "gives rows for a comparison, and no reference is named",
                    "name the program for one GPU: --reference train.py:build_single",
                )
            return evidence
        try:
            return with_numbers(
                evidence,
                reference,
                settings.batch,
                policies=[settings.policy],
                only=settings.rules,
                without=settings.without,
            )
        except Exception as fault:
            error = as_error(target, fault)
            if error.kind not in ("input", "internal"):
                raise
            self._add(error)
            failed = Missing(str(error))
            return replace(evidence, measurement=failed, trace=failed)

    def status(self, named: Sequence[str], require_all: bool) -> int:
        statuses = [
            report.status(requested=named, require_all=require_all) for report in self.reports
        ]
        return max([*statuses, *(FAILED for _ in self.errors)])
