"""``placement-checks time``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console

from placement_checks.capture.child_process.early import early_captures
from placement_checks.cli import FAILED
from placement_checks.cli.common.options import (
    FILE,
    JOBS,
    SETS,
    ProgramCommand,
    options_as,
    report_options,
    settings_options,
)
from placement_checks.cli.common.output import (
    open_output,
    open_outputs,
    parse_outputs,
    write_stderr,
)
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.settings import Settings
from placement_checks.core.target import Target
from placement_checks.core.timing import Timing
from placement_checks.report.commands import time as timing_report
from placement_checks.report.commands.time import TimingObject, chrome_trace
from placement_checks.rules.requirements import Need
from placement_checks.run.timing.thread_pools import set_thread_pools
from placement_checks.targets.forms import parse_target, resolve, resolve_reference
from placement_checks.util.progress import live, step, track
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import plural
from placement_checks.verification import configuration, placing
from placement_checks.verification.policy import RUNS
from placement_checks.verification.targets import announce, check_comparison

if TYPE_CHECKING:
    from placement_checks.core.program import BatchFunction
    from placement_checks.run.compare.pair import ProgramPair


_FORMATS = ("text", "json")
_ROUNDS = 30


@dataclass(frozen=True)
class _Options:
    """The options of the command, except for the settings of a program."""

    rows: tuple[int, ...]
    rounds: int
    fail_over: float | None
    against: str | None
    timeline: str | None
    output_format: str | None
    files: tuple[str, ...]
    jobs: int | None


@click.command("time", cls=ProgramCommand)
@click.argument("target", type=FILE)
@click.option(
    "--gpus", type=int, metavar="N", help="The number of GPUs that the program is built for."
)
@settings_options(machine=False, comparison=True)
@SETS
@click.option(
    "--rows",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Rows of the global batch; may be repeated. Default: about 128.",
)
@click.option(
    "--rounds",
    type=click.IntRange(3),
    default=_ROUNDS,
    show_default=True,
    metavar="N",
    help="The number of timed steps of each program.",
)
@click.option(
    "--fail-over",
    type=click.FloatRange(0, min_open=True),
    metavar="RATIO",
    help="Exit with 1 if the step time, divided by the step time on one GPU, exceeds RATIO.",
)
@click.option(
    "--against", metavar="FILE", type=FILE, help="Compare with a run saved by --format json."
)
@click.option(
    "--timeline", metavar="FILE", type=FILE, help="Write one step as a Chrome trace (JSON)."
)
@report_options(*_FORMATS)
@JOBS
@options_as(_Options)
def command(target: str, settings: Settings, options: _Options) -> int:
    """Compare the step time of towers with the step time of one GPU.

    Both programs take steps in turn on the same rows, on the GPUs of this machine or on CPU
    devices of one core each. The exit status is 1 if a measured ratio is over --fail-over, and 2
    if that ratio could not be measured because the machine was busy, or if an error occurred.
    """
    parsed = parse_target(target)
    settings = _complete(settings, parsed)
    check_comparison(settings)
    before = _read_saved(options.against) if options.against else ()
    outputs = parse_outputs(options.files, options.output_format, _FORMATS)
    set_thread_pools()
    timeline = options.timeline
    with (
        open_outputs(outputs) as streams,
        open_output(timeline, "--timeline") if timeline else nullcontext(StringIO()) as trace_file,
    ):
        with stdout_for_report(), live():
            placing.prepare(placer=False)
            timings = _time(parsed, settings, options)
        trace_file.write(chrome_trace(timings[-1].trace.shortest, target))
        for format, stream in streams:
            _write(timings, before, options, format, stream)
    return 0 if options.fail_over is None else _status(timings, options.fail_over)


def _complete(call: Settings, target: Target) -> Settings:
    """Complete the settings of the call with the target's settings in pyproject.toml."""
    configured = configuration.load(Path.cwd())
    settings = configured.complete_for(target.name, call)
    if settings.machine is not None and settings.gpus is None:
        raise UsageError(
            f"machine = '{settings.machine}'",
            "in pyproject.toml does not apply to timings, which run on this computer",
            "pass --gpus N",
            is_predicate=True,
        )
    runs_itself = target.kind == "program" or settings.let  # with another number of GPUs
    if settings.reference is None and not runs_itself:
        raise UsageError(
            "",
            "no reference program is named",
            "name the program for one GPU: --reference train.py:build_single",
        )
    return settings


def _time(target: Target, settings: Settings, options: _Options) -> list[Timing]:
    """Time a program and its reference with each batch size."""
    from placement_checks.capture.programs import load, load_reference
    from placement_checks.core.errors import CannotRun
    from placement_checks.run.compare.pair import ProgramPair
    from placement_checks.run.feeding.batches import load_batch_function
    from placement_checks.verification.policy import declared_by
    from placement_checks.verification.running import conditions_of

    program = resolve(target, settings)
    reference = resolve_reference(settings) or program
    try:
        with early_captures(options.jobs):  # no capture may run while steps are timed
            announce(target, settings, RUNS if settings.reference else {Need.SINGLE_GPU})
            towers = load(program, settings.gpus or 2)
            single = load_reference(reference, towers)
        pair = ProgramPair.from_programs(towers, single, "auto")
        batch = load_batch_function(settings.batch, towers.gpus, v1=towers.v1)
        conditions = conditions_of(settings.policy.over(declared_by(towers)))
        with step(f"timing {target.name}"):
            return [
                _time_pair(pair, batch, rows, conditions.shares, options.rounds)
                for rows in options.rows or [conditions.rows]
            ]
    except CannotRun as reason:
        raise InputError(target.name, f"cannot be timed: {reason}", is_predicate=True) from None


def _time_pair(
    pair: ProgramPair,
    batch: BatchFunction | None,
    rows: int,
    shares: Sequence[int],
    rounds: int,
) -> Timing:
    from placement_checks.run.timing.benchmark import TimedPair

    timed_pair = TimedPair(pair, batch, rows=rows, shares=shares)
    with timed_pair as timed, step(plural(timed.rows, "row")):
        for _ in track(range(rounds), "step"):
            timed.run_others()
            timed.run_towers()
        with step("tracing"):
            for _ in timed.trace():
                pass
        return timed.timing()


def _write(
    timings: Sequence[Timing],
    before: Sequence[TimingObject],
    options: _Options,
    format: str,
    stream: TextIO,
) -> None:
    if format == "json":
        stream.write(timing_report.render_json(timings) + "\n")
        return
    console = Console(file=stream)
    timing_report.write(timings, console)
    if options.against is not None:
        timing_report.write_comparison(timings, before, options.against, console)


def _read_saved(file: str) -> Sequence[TimingObject]:
    """Read the timings of a saved run."""
    fix = "save a run with placement-checks time … --format json --output FILE"
    try:
        saved = timing_report.read_json(Path(file).read_bytes())
    except OSError as error:
        raise InputError(file, error.strerror or "cannot be read", fix) from None
    except (ValueError, RecursionError):
        raise InputError(file, "is not a saved run", fix, is_predicate=True) from None
    if not isinstance(saved, int):
        return saved
    raise InputError(
        file,
        f"has schema {saved}, but this version reads schema {timing_report.SCHEMA}",
        "run it again: placement-checks time … --format json --output FILE",
        is_predicate=True,
    )


def _status(timings: Sequence[Timing], most: float) -> int:
    """The exit status with --fail-over; an unmeasured ratio does not pass."""
    status = FAILED if any(timing.unmeasured for timing in timings) else 0
    for timing in timings:
        if timing.ratio is not None and timing.ratio.median > most:
            message = f"the measured ratio {timing.ratio.median:.3f} is over {most:g}"
            write_stderr(f"placement-checks: {plural(timing.rows, 'row')}: {message}")
            status = 1
    return status
