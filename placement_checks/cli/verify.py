"""``placement-checks verify``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self, TextIO, TypeAlias

import click

from placement_checks.baseline import files
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.compare import compare
from placement_checks.capture.child_process.early import early_captures
from placement_checks.cli import FAILED, print_error
from placement_checks.cli.common.options import (
    FILE,
    GRAPH,
    JOBS,
    RULE,
    SETS,
    ProgramCommand,
    options_as,
    report_options,
    settings_options,
)
from placement_checks.cli.common.output import Output, open_outputs, parse_outputs, write_stderr
from placement_checks.core.errors import InputError, PlacementError, UsageError, as_error
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.results import Report
from placement_checks.core.settings import Settings
from placement_checks.core.target import Target
from placement_checks.report.formats import FORMATS
from placement_checks.report.outcome import Outcome
from placement_checks.rules.requirements import Need
from placement_checks.targets.forms import parse_target, resolve_reference
from placement_checks.util.progress import live, track
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import plural
from placement_checks.verification import configuration
from placement_checks.verification.baseline_rules import with_rules
from placement_checks.verification.declare import declarations, declared_text
from placement_checks.verification.judging import judge
from placement_checks.verification.next_step import next_step
from placement_checks.verification.policy import evidence_used, rows_used, rule_named
from placement_checks.verification.running import with_runs
from placement_checks.verification.targets import (
    MOST_ANNOUNCED,
    announce,
    check_comparison,
    gather,
)

_Program: TypeAlias = tuple[str, Settings]  # a target, and its settings


class Shard(NamedTuple):
    """The part ``number`` of ``total`` parts of all programs; the first part has the number 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``I/N``.

        Raises:
            UsageError: the text has another form, or there is no such part.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(
                f"--shard {text}",
                "is not of the form I/N, with I from 1 to N",
                "write it like --shard 1/4",
                is_predicate=True,
            )
        return cls(int(match[1]), int(match[2]))

    def select(self, programs: Sequence[_Program]) -> list[_Program]:
        """The programs of this part, in their order.

        Parts depend only on the names and settings of the programs, and differ in size by at most
        one program.

        Raises:
            UsageError: the part is empty.
        """
        by_name = sorted(range(len(programs)), key=lambda each: tuple(map(str, programs[each])))
        selected = sorted(by_name[self.number - 1 :: self.total])
        if not selected:
            raise UsageError(
                f"--shard {self.number}/{self.total}",
                f"is empty: there {'is' if len(programs) == 1 else 'are'} "
                f"{plural(len(programs), 'program')}",
                f"use at most {plural(len(programs), 'shard')}",
                is_predicate=True,
            )
        return [programs[each] for each in selected]


@dataclass(frozen=True)
class _Options:
    """The options of the command, except for the settings of a program."""

    graph: str | None
    baseline: str | None
    update: bool
    require_all: bool
    declare: bool
    output_format: str | None
    files: tuple[str, ...]
    everything: bool
    quiet: bool
    jobs: int | None
    shard: Shard | None


@click.command("verify", cls=ProgramCommand)
@click.argument("targets", nargs=-1, metavar="[TARGET]...", type=FILE)
@settings_options(comparison=True)
@GRAPH
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="RULE",
    type=RULE,
    help="Check only this rule; may be repeated.",
)
@click.option(
    "--without", multiple=True, metavar="RULE", type=RULE, help="Skip this rule; may be repeated."
)
@SETS
@click.option(
    "--baseline",
    metavar="FOLDER",
    type=FILE,
    help="Also compare with the baselines in this directory.",
)
@click.option(
    "--update",
    is_flag=True,
    help="Write the baselines that are missing or differ, instead of comparing.",
)
@click.option("--require-all", is_flag=True, help="Fail if a rule could not be checked.")
@click.option(
    "--declare",
    is_flag=True,
    help="Print lines for pyproject.toml that declare broken rules as intended.",
)
@report_options(*FORMATS)
@click.option(
    "--all",
    "-v",
    "--verbose",
    "everything",
    is_flag=True,
    help="Show every finding in the text report.",
)
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="In the text report, show only failing programs and the last line.",
)
@JOBS
@click.option(
    "--shard",
    metavar="I/N",
    callback=lambda _context, _option, text: None if text is None else Shard.parse(text),
    help="Check only shard I of N shards of the programs, to split the work over N CI jobs.",
)
@options_as(_Options)
def command(targets: tuple[str, ...], settings: Settings, options: _Options) -> int:
    """Check programs, graphs and logs against the rules.

    TARGET is one of: a program, path/to/file.py or package.module, which runs with ARGS in its own
    process until its first training step; a function in a program that builds the graph or trains,
    path/to/file.py:function; a graph file (.pb, .pbtxt, .meta); a SavedModel directory; a
    placement log. Without a TARGET, the programs of [tool.placement_checks] in pyproject.toml are
    checked. In ARGS, {gpus} is replaced by the number of GPUs, and {gpu_list} by 0,1,…. An
    argument with {each_gpu} is repeated for each GPU: --gpu_ids {each_gpu} is --gpu_ids 0 1 ….

    The files of a program are preserved: files that it changes or deletes are restored, and no
    checkpoint is saved. Event files and new files are still written.

    With --baseline, each program is compared with its baseline in FOLDER, a file that records the
    device of every op and variable. --update writes these files.

    The exit status is 0 if no rule is broken and at least one is kept, 1 if a rule is broken or a
    placement differs from its baseline, and 2 if nothing could be checked, if a rule named by
    --rule could not be checked, or if an error occurred. With --require-all it is 1 if any rule
    could not be checked. For several targets, it is the highest status. With --declare it is 0 if
    every broken rule can be declared as intended.
    """
    if options.declare and options.output_format not in (None, "text"):
        raise UsageError(
            "--declare",
            f"prints TOML, not {options.output_format}",
            "omit --format",
            is_predicate=True,
        )
    if options.declare:
        outputs = [Output("text", file) for file in options.files or [None]]
    else:
        outputs = parse_outputs(options.files, options.output_format, list(FORMATS))
    for name in (*settings.rules, *settings.without):
        rule_named(name)
    configured = configuration.load(Path.cwd())
    programs = configured.select(targets, settings, "placement-checks verify")
    if options.shard is not None:
        programs = options.shard.select(programs)
    graph = None if options.graph is None else parse_target(options.graph)
    check_comparison(settings)
    if options.update:
        _check_update(options)
    results = _Results(options)
    with open_outputs(outputs) as streams:
        with stdout_for_report(), live(), early_captures(options.jobs):
            for number, (target, own) in enumerate(track(programs, "program")):
                for each in programs[number : number + MOST_ANNOUNCED]:
                    _announce(*each)
                results.add(target, own, graph)
        if options.declare and results.reports:
            status = _write_declarations(results, streams)
        else:
            new = [each for each in targets if configured.entry_of(each, settings.args) is None]
            to_add = [] if settings.rules else [(target, settings) for target in new]
            status = _write_report(
                results, settings.rules, options, streams, to_add, are_declared=not new
            )
    for error in results.errors:
        print_error(error, details=any(each.format == "text" for each in outputs))
    return max(status, FAILED) if results.errors else status


def _check_update(options: _Options) -> None:
    if options.baseline is None:
        raise UsageError(
            "--update",
            "writes baselines, but no directory is named",
            "add --baseline FOLDER",
            is_predicate=True,
        )
    if files.is_ci():
        raise UsageError(
            "--update",
            "writes no baselines if CI is set, because nobody would review them",
            "run it where you commit from, or set CI= before the command",
            is_predicate=True,
        )


def _announce(target: str, settings: Settings) -> None:
    """Let the captures of a program start early; `_Results.add` reports their errors later."""
    with contextlib.suppress(PlacementError):
        used = evidence_used(settings)
        announce(parse_target(target), settings, used, rows=rows_used(used))


@dataclass
class _Results:
    """The reports and errors of all targets; an error in one target does not stop the others."""

    options: _Options
    reports: list[Report] = field(default_factory=list)
    judged: list[_Program] = field(default_factory=list)  # the program of each report
    errors: list[PlacementError] = field(default_factory=list)
    programs: dict[Path, str] = field(default_factory=dict)  # by baseline file

    def add(self, target: str, settings: Settings, graph: Target | None) -> None:
        """Verify a target; if the placer or a run fails, the rules judge the other evidence."""
        try:
            used = evidence_used(settings)
            evidence = gather(
                parse_target(target),
                settings,
                graph,
                for_one_gpu=Need.SINGLE_GPU in used,
                rows=rows_used(used),
                on_placer_error=self._without_placement,
            )
            evidence = self._with_numbers(evidence, target, settings)
            report = judge(evidence)
            try:
                report = self._with_baseline(report)
            except Exception as fault:  # the report is added without a comparison
                self._add_error(as_error(target, fault))
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # user code may raise more than Exception
            self._add_error(as_error(target, fault))
        else:
            self.reports.append(report)
            self.judged.append((target, settings))
            for error in report.errors:
                self._add_error(error)

    def _add_error(self, error: PlacementError) -> None:
        """Record an error once, even if several targets have it, such as a missing TensorFlow."""
        if all(str(error) != str(other) for other in self.errors):
            self.errors.append(error)

    def _with_baseline(self, report: Report) -> Report:
        """Add the differences from the program's baseline, or write the baseline."""
        if self.options.baseline is None:
            return report
        placement = report.evidence.placement
        name = files.file_name(placement.program, str(placement.machine))
        file = Path(self.options.baseline) / name
        other = self.programs.setdefault(file, placement.program)
        if other != placement.program:
            raise InputError(
                placement.program,
                f"has the same baseline file as {other}: {file}",
                "verify them with two directories",
                is_predicate=True,
            )
        if self.options.update:
            is_new = files.write(file, baseline_from_placement(placement))
            write_stderr(f"placement-checks: {'wrote' if is_new else 'up to date:'} {file}")
            return report
        old = files.read(file)
        if old is None:
            raise InputError(
                str(file),
                "does not exist: this program has no baseline",
                "write it: the same command with --update",
                is_predicate=True,
            )
        difference = compare(old, placement, str(file))
        return replace(report, baseline=with_rules(difference, report.verdicts))

    def _without_placement(self, fault: Exception, requested: Evidence) -> Evidence:
        """The evidence after an internal failure of the placer; an input error is raised."""
        placement = requested.placement
        error = as_error(placement.program, fault)
        if error.kind != "internal":
            raise error
        self._add_error(error)
        return replace(requested, placement=replace(placement, assigned=Missing(str(error))))

    def _with_numbers(self, evidence: Evidence, target: str, settings: Settings) -> Evidence:
        """Run the program and its reference, if there is a reference."""
        try:
            reference = resolve_reference(settings)
            program = evidence.program and evidence.program.program
            if reference is None and not (program and program.in_own_process):
                if settings.batch is not None:
                    raise UsageError(
                        f"--batch {settings.batch}",
                        "requires a reference program",
                        "name the program for one GPU: --reference train.py:build_single",
                        is_predicate=True,
                    )
                return evidence
            return with_runs(evidence, reference, settings.batch)
        except Exception as fault:
            error = as_error(target, fault)
            if error.kind not in ("input", "internal"):
                raise
            self._add_error(error)
            failed = Missing(str(error))
            return replace(evidence, measurement=failed, trace=failed)


def _write_report(
    results: _Results,
    rules: Sequence[str],
    options: _Options,
    streams: Sequence[tuple[str, TextIO]],
    to_add: Sequence[_Program],
    *,
    are_declared: bool,
) -> int:
    """Write the report in each format, and return the exit status."""
    step = None
    if not results.errors:
        step = next_step(results.reports, to_add, are_declared=are_declared)
    outcome = Outcome(
        results.reports,
        results.errors,
        requested=rules,
        require_all=options.require_all,
        everything=options.everything,
        is_quiet=options.quiet,
        next_step=step,
        explained=lambda rule: rule_named(rule).explanation(),
    )
    for format, stream in streams:
        FORMATS[format].write(outcome, stream)
    return max(map(outcome.status, results.reports), default=0)


def _write_declarations(results: _Results, streams: Sequence[tuple[str, TextIO]]) -> int:
    """Write lines for pyproject.toml; the exit status is 1 if a rule cannot be declared."""
    programs = [
        (target, report, settings, declarations(report))
        for report, (target, settings) in zip(results.reports, results.judged, strict=True)
    ]
    declared = [each for *_, of_program in programs for each in of_program]
    if not declared and results.errors:
        return FAILED
    if not declared:
        raise UsageError(
            "--declare", "no rule is broken, so there is nothing to declare", "omit it"
        )
    for _, stream in streams:
        stream.write(declared_text(programs))
    return int(not all(each.fields for each in declared))
