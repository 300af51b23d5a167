"""``placement-checks place``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

import click

from placement_checks.analysis.step.transfers import copies, sent_tensors
from placement_checks.cli.common.options import (
    FILE,
    ProgramCommand,
    report_options,
    settings_options,
    with_defaults,
)
from placement_checks.cli.common.output import open_outputs, parse_outputs
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Report
from placement_checks.core.settings import Settings
from placement_checks.logs import Record, text_of
from placement_checks.report.commands.place import render_json, render_text
from placement_checks.report.page.data import program_data
from placement_checks.report.page.write import render_page
from placement_checks.rules.devices.placeable import Placeable
from placement_checks.targets.forms import parse_target
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.util.text import plural, printable
from placement_checks.verification.targets import gather

_FORMATS = ("text", "json", "html")


@click.command("place", cls=ProgramCommand)
@click.argument("target", type=FILE)
@settings_options()
@click.option(
    "--transfers",
    "shows_transfers",
    is_flag=True,
    help="Print the tensors that one step copies between devices, instead of the ops.",
)
@click.option(
    "--rows", type=click.IntRange(1), metavar="N", help="Rows of the batch, for --transfers."
)
@click.option(
    "--tensorboard",
    metavar="FOLDER",
    type=FILE,
    help="Write the graph with its assigned devices to this directory, for TensorBoard.",
)
@report_options(*_FORMATS)
def command(
    target: str,
    settings: Settings,
    shows_transfers: bool,
    rows: int | None,
    tensorboard: str | None,
    output_format: str | None,
    files: tuple[str, ...],
) -> int:
    """Print the device that the placer assigns to each op.

    Each line is an op in the format of TensorFlow's log: `name: (Op): device`.

    --transfers prints a line for each pair of devices, with the bytes and the number of copies
    that one step sends between them, and the layer, phase and source line of the copies.
    --format json requires --transfers. --format html writes a page with a picture of all devices
    and copies. --tensorboard writes the graph as an event file in which each op has its assigned
    device, so that TensorBoard can color the graph by device.

    The exit status is 0, and 2 if the program cannot be placed as requested, or if an error
    occurred.
    """
    outputs = parse_outputs(files, output_format, _FORMATS)
    _check_options(shows_transfers, rows, tensorboard, {each.format for each in outputs})
    settings = with_defaults(settings, target)
    with open_outputs(outputs) as streams:
        with stdout_for_report(), live():
            evidence = gather(parse_target(target), settings, rows="none")
        placement = evidence.placement
        if placement.refusals:
            raise _refusal(placement, target)
        if not placement.assigned:
            raise InputError(target, str(placement.assigned))
        for format, stream in streams:
            if format == "html":
                stream.write(render_page([program_data(Report(evidence, ()))]))
                continue
            if tensorboard is not None:
                lines = _write_for_tensorboard(evidence, tensorboard)
            elif shows_transfers:
                render = render_json if format == "json" else render_text
                lines = iter(render(placement, sent_tensors(placement, copies(placement, rows))))
            else:
                lines = (
                    text_of(Record(op.name, op.type, str(op.assigned)))
                    for op in placement.ops.values()
                    if op.assigned is not None
                )
            stream.writelines(f"{printable(line)}\n" for line in lines)
    return 0


def _check_options(
    shows_transfers: bool, rows: int | None, tensorboard: str | None, formats: Collection[str]
) -> None:
    if rows is not None and not shows_transfers:
        raise UsageError(
            "--rows", "requires --transfers", "add --transfers, or omit --rows", is_predicate=True
        )
    if "json" in formats and not shows_transfers:
        raise UsageError(
            "the format json",
            "requires --transfers",
            "add --transfers, or choose another format",
            is_predicate=True,
        )
    if formats == {"html"} and shows_transfers:
        raise UsageError(
            "--transfers",
            "is not needed: the HTML page always has the transfers",
            "omit it",
            is_predicate=True,
        )
    if tensorboard is not None and (shows_transfers or "html" in formats):
        fix = "omit the other option, or run the command twice"
        raise UsageError("--tensorboard", "writes only the graph", fix, is_predicate=True)


def _refusal(placement: Placement, target: str) -> InputError:
    """The error for the first op that the placer refuses, from the finding of the rule."""
    finding = Placeable().judge(placement).findings[0]
    reason = finding.message.splitlines()[0].replace(" cannot be placed: ", ": ", 1)
    at = f" (built at {finding.where})" if finding.where and "(built at" not in reason else ""
    return InputError(
        target,
        f"cannot be placed on {placement.machine}: {reason}{at}",
        finding.fix,
        is_predicate=True,
    )


def _write_for_tensorboard(evidence: Evidence, folder: str) -> Iterator[str]:
    """Write the event file, and yield the lines to print."""
    placement = evidence.placement
    if not evidence.program:
        raise InputError(
            placement.program,
            "is a placement log, which has no graph",
            "name the program that printed it",
            is_predicate=True,
        )
    from placement_checks.graph.event_files import write_event_file

    graph_def = evidence.program.graph_def
    try:
        file = write_event_file(Path(folder), placement.program, graph_def, placement.ops)
    except OSError as error:
        reason = error.strerror or "cannot be written"
        raise UsageError(f"--tensorboard {folder}", reason, "name a writable directory") from None
    devices = {op.assigned for op in placement.ops.values() if op.assigned}
    yield f"{file}: {plural(len(placement.ops), 'op')} on {plural(len(devices), 'device')}"
    yield f"tensorboard --logdir {shlex.quote(folder)}"
