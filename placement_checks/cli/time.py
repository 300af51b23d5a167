"""``placement-checks time``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console

from placement_checks.cli import FAILED
from placement_checks.cli.options import (
    FILE,
    ProgramCommand,
    format_option,
    program_options,
    source_overrides,
)
from placement_checks.cli.output import open_output, write_stderr
from placement_checks.core.devices import checked_gpus
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.timing import Timing
from placement_checks.report.commands import time as timing_report
from placement_checks.report.commands.time import chrome_trace, page, picture
from placement_checks.run.timing.thread_pools import set_thread_pools
from placement_checks.targets.names import is_program
from placement_checks.util.progress import live, step, track
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import plural
from placement_checks.verification import configuration, placing
from placement_checks.verification.configuration import Settings
from placement_checks.verification.targets import check_targets

if TYPE_CHECKING:
    from placement_checks.core.program import BatchFunction
    from placement_checks.run.compare.pair import ProgramPair


_ROUNDS = 30


@click.command("time", cls=ProgramCommand)
@click.argument("target", type=FILE)
@click.option("--gpus", type=int, metavar="N", help="GPUs that the program is built for.")
@program_options
@click.option("--reference", metavar="TARGET", type=FILE, help="The program for one GPU.")
@click.option(
    "--batch", metavar="TARGET", type=FILE, help="The function batch(rng, n) that gives rows."
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Rows of the global batch; may be given several times. Default: about 128.",
)
@click.option(
    "--rounds", type=click.IntRange(3), default=_ROUNDS, show_default=True, metavar="N",
    help="Steps that are timed of each program.",
)  # fmt: skip
@click.option(
    "--fail-over",
    type=click.FloatRange(0, min_open=True),
    metavar="RATIO",
    help="Fail if the measured ratio is larger.",
)
@click.option(
    "--against", metavar="FILE", type=FILE, help="A run saved with --format json, to compare with."
)
@click.option(
    "--timeline", metavar="FILE", type=FILE, help="Write one step as a Chrome trace (JSON)."
)
@format_option("text", "json", "html")
@click.option("--output", metavar="FILE", type=FILE, help="Write the report to this file.")
def command(
    target: str,
    gpus: int | None,
    v1: bool | None,
    let: tuple[str, ...],
    limit: float | None,
    args: tuple[str, ...],
    reference: str | None,
    batch: str | None,
    rows: tuple[int, ...],
    rounds: int,
    fail_over: float | None,
    against: str | None,
    timeline: str | None,
    output_format: str,
    output: str | None,
) -> int:
    """Time training steps of towers beside those of one GPU.

    Both programs take steps in turn on the same rows, on the GPUs here or on CPU devices of one
    core each. The exit status is 1 if a measured ratio is over --fail-over, and 2 if one could not
    be measured there, because the machine was busy, or if anything failed.
    """
    call = Settings(
        gpus=gpus,
        reference=reference,
        batch=batch,
        v1=v1,
        let=source_overrides(let),
        limit=limit,
        args=args,
    )
    settings = _settings(target, call)
    before = _saved(against) if against else ()
    set_thread_pools()
    check_targets([target, settings.reference_target], settings.batch)
    with open_output(output) as stream, _timeline(timeline) as step:
        with stdout_for_report(), live():
            placing.prepare(placer=False)
            timings = _timed(target, settings, rows, rounds)
        step.write(chrome_trace(timings[-1].trace.shortest, target))
        _write(timings, output_format, stream, partial(_compare, timings, before, against))
    return 0 if fail_over is None else _status(timings, fail_over)


def _timeline(path: str | None) -> AbstractContextManager[TextIO]:
    """What a step is written to; nothing that anybody sees where no file is named."""
    return nullcontext(StringIO()) if path is None else open_output(path, "--timeline")


def _settings(target: str, call: Settings) -> Settings:
    """The settings of the call, and where it says nothing those of the configured program."""
    configured = configuration.load(Path.cwd())
    own = (settings for name, settings in configured.programs if name == target)
    settings = call.defaulting_to(next(own, Settings())).defaulting_to(configured.settings)
    checked_gpus(settings.gpus or 2)
    if settings.machine is not None and settings.gpus is None:
        raise UsageError(
            f"machine '{settings.machine}'",
            "is not used: programs are timed on this machine",
            "give --gpus N",
        )
    if settings.reference is None and not is_program(target):
        raise UsageError(
            "",
            "no program to compare the times with is named",
            "name the program for one GPU: --reference train.py:build_single",
        )
    return settings


def _timed(target: str, settings: Settings, rows: Sequence[int], rounds: int) -> list[Timing]:
    """The timings for each size of batch.

    Raises:
        InputError: a program is at fault, or cannot be run.
    """
    from placement_checks.capture.programs import load, load_reference
    from placement_checks.core.errors import CannotRun
    from placement_checks.run.compare.pair import ProgramPair
    from placement_checks.run.feeding.batches import load_batch_function

    program = settings.script_of(target)
    reference = settings.reference_target or program
    try:
        towers = load(program, settings.gpus or 2)
        pair = ProgramPair.from_programs(towers, load_reference(reference, towers), "auto")
        rows_of = load_batch_function(settings.batch, towers.gpus)
        with step(f"timing {target}"):
            return [_time_pair(pair, rows_of, size, rounds) for size in rows or [0]]
    except CannotRun as reason:
        raise InputError(target, f"cannot be timed: {reason}") from None


def _time_pair(pair: ProgramPair, batch: BatchFunction | None, rows: int, rounds: int) -> Timing:
    from placement_checks.run.timing.benchmark import TimedPair

    with TimedPair(pair, batch, rows=rows) as timed, step(plural(timed.rows, "row")):
        for _ in track(range(rounds), "step"):
            timed.run_others()
            timed.run_towers()
        with step("tracing"):
            for _ in timed.trace():
                pass
        return timed.timing()


def _write(
    timings: Sequence[Timing],
    output_format: str,
    stream: TextIO,
    compare: Callable[[Console], None],
) -> None:
    def write(console: Console) -> None:
        timing_report.write(timings, console)
        compare(console)

    if output_format == "json":
        stream.write(timing_report.render(timings) + "\n")
    elif output_format == "html":
        pictures = [picture(timing.trace, timing.at.program) for timing in timings]
        stream.write(page(f"{timings[0].at.program}, timed", write, pictures))
    else:
        write(Console(file=stream))


def _compare(
    timings: Sequence[Timing],
    before: Sequence[Mapping[str, Any]],
    file: str | None,
    console: Console,
) -> None:
    if file is not None:
        timing_report.write_against(timings, before, file, console)


def _saved(file: str) -> Sequence[Mapping[str, Any]]:
    """The timings of a saved run.

    Raises:
        InputError: the file is not a saved run, or one of another schema.
    """
    fix = "save a run with placement-checks time … --format json --output FILE"
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        timings, schema = document["timings"], document["schema"]
        if schema == timing_report.SCHEMA:
            return [timing_report.checked(timing) for timing in timings]
    except OSError as reason:
        raise InputError(file, reason.strerror or "cannot be read", fix) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(file, "is not a saved run", fix) from None
    raise InputError(
        file,
        f"is a run of schema {schema}, and this version reads {timing_report.SCHEMA}",
        "run it again: placement-checks time … --format json --output FILE",
    )


def _status(timings: Sequence[Timing], most: float) -> int:
    """The exit status where a ratio is set; a figure that was not measured is no pass."""
    over = [
        (timing.rows, timing.ratio.median)
        for timing in timings
        if timing.ratio is not None and timing.ratio.median > most
    ]
    for rows, ratio in over:
        text = f"the measured ratio {ratio:.3f} is over {most:g}"
        write_stderr(f"placement-checks: {plural(rows, 'row')}: {text}")
    if over:
        return 1
    return FAILED if any(timing.unmeasured for timing in timings) else 0
