"""``placement-checks place``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import click

from placement_checks.analysis.step.transfers import copies, sent_tensors
from placement_checks.cli.options import (
    FILE,
    ProgramCommand,
    call_settings,
    format_option,
    machine_options,
    program_options,
    source_overrides,
)
from placement_checks.cli.output import open_output
from placement_checks.cli.tensorboard import write_for_tensorboard
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.placement import Placement
from placement_checks.core.results import Report
from placement_checks.logs import Record, text_of
from placement_checks.report.commands.place import render_json, render_text
from placement_checks.report.page.data import program_data
from placement_checks.report.page.write import render_page
from placement_checks.rules.devices.placeable import Placeable
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import printable
from placement_checks.verification import configuration
from placement_checks.verification.targets import gather


@click.command("place", cls=ProgramCommand)
@click.argument("target", type=FILE)
@machine_options
@program_options
@click.option("--transfers", "shows_transfers", is_flag=True, help="What a step copies instead.")
@click.option(
    "--rows",
    type=click.IntRange(1),
    metavar="N",
    help="Rows of the batch, for --transfers.",
)
@click.option(
    "--tensorboard",
    metavar="FOLDER",
    type=FILE,
    help="Write the graph with these devices there, for TensorBoard, instead.",
)
@format_option("text", "json", "html")
@click.option("--output", metavar="FILE", type=FILE, help="Write to this file.")
def command(
    target: str,
    gpus: int | None,
    machine: str | None,
    soft: bool | None,
    v1: bool | None,
    let: tuple[str, ...],
    limit: float | None,
    args: tuple[str, ...],
    shows_transfers: bool,
    rows: int | None,
    tensorboard: str | None,
    output_format: str,
    output: str | None,
) -> int:
    """Print where the placer puts every op.

    One op a line, in TensorFlow's words: `name: (Op): device`. With --transfers, one line for
    each pair of devices: how many bytes one step copies from one to the other, in how many copies;
    and which layer sends how much, for which phase of the step, and at which line. With --format
    html, one page with a picture of all of it. With --tensorboard, the graph is written as an
    event file in which each op has the device that the placer gave it, so that TensorBoard can
    colour it by device.

    The exit status is 0, and 2 where the program cannot be placed as it asks, or anything failed.
    """
    if rows is not None and not shows_transfers:
        raise UsageError("--rows", "is for --transfers", "add --transfers, or leave it out")
    if output_format == "json" and not shows_transfers:
        raise UsageError("--format json", "is for --transfers", "add --transfers, or leave it out")
    if output_format == "html" and shows_transfers:
        raise UsageError("--transfers", "is part of the page", "leave it out")
    if tensorboard is not None and (shows_transfers or output_format == "html"):
        fix = "leave out the other option, or type the command twice"
        raise UsageError("--tensorboard", "writes the graph alone", fix)
    call = call_settings(
        gpus, machine, soft, v1=v1, let=source_overrides(let), limit=limit, args=args
    )
    settings = call.defaulting_to(configuration.load(Path.cwd()).settings)
    with open_output(output) as stream:
        with stdout_for_report(), live():
            evidence = gather(target, settings)
        placement = evidence.placement
        if not placement.assigned and not placement.refusals:
            raise InputError(target, str(placement.assigned))
        if placement.refusals:
            raise _refused(placement, target)
        if output_format == "html":
            stream.write(render_page([program_data(Report(evidence, ()))]))
        elif tensorboard is not None:
            _print(stream, write_for_tensorboard(evidence, tensorboard))
        elif shows_transfers:
            render = render_json if output_format == "json" else render_text
            _print(stream, render(placement, sent_tensors(placement, copies(placement, rows))))
        else:
            _print(stream, _lines(placement))
    return 0


def _print(stream: TextIO, lines: Iterable[str]) -> None:
    stream.writelines(f"{printable(line)}\n" for line in lines)


def _lines(placement: Placement) -> Iterator[str]:
    """Each op that has a device, in TensorFlow's words."""
    for op in placement.ops.values():
        if op.assigned is not None:
            yield text_of(Record(op.name, op.type, str(op.assigned)))


def _refused(placement: Placement, target: str) -> InputError:
    """The first op that the placer refuses, in the words of the rule that judges it."""
    finding = Placeable().judge(placement).findings[0]
    reason = finding.message.splitlines()[0].replace(" cannot be placed: ", ": ", 1)
    at = f" (built at {finding.where})" if finding.where and "(built at" not in reason else ""
    return InputError(
        target, f"cannot be placed on {placement.machine}: {reason}{at}", finding.fix
    )
