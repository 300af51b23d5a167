"""``placement-checks doctor``."""

from __future__ import annotations

from dataclasses import replace

import click

from placement_checks.cli.options import FILE, format_option
from placement_checks.cli.output import open_output
from placement_checks.core.errors import UsageError
from placement_checks.report.commands.doctor import render_json, render_text
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.verification.doctor import examine
from placement_checks.verification.gpu_comparison import compare_with_gpus


@click.command("doctor", short_help="Check that programs can be checked here.")
@click.option(
    "--gpus",
    "with_gpus",
    is_flag=True,
    help="Also run small programs on the GPUs of this machine, and compare the devices of their "
    "ops with the predictions.",
)
# Tests the comparison on a machine without GPUs; it shows nothing about GPUs.
@click.option("--simulated", is_flag=True, hidden=True)
@format_option("text", "json")
@click.option("--output", metavar="FILE", type=FILE, help="Write the report to this file.")
def command(with_gpus: bool, simulated: bool, output_format: str, output: str | None) -> int:
    """Check that programs can be checked on this machine.

    Each part is tried once: TensorFlow, the placer, the capture of a program, and its run. Each
    line shows the state of a part, details, and the fix. A limited part works with restrictions.
    If a part is missing, some programs or none can be checked.

    --gpus takes some minutes. It places small programs on GPUs that need not exist, runs them on
    two GPUs of this machine, and compares the device of each op. A single GPU is split into two
    logical GPUs. The report then states which assumptions about GPUs hold on this machine.

    --format json is for bug reports. It contains no paths, no user name and no host name.

    The exit status is 0 if programs can be checked, 1 if a part is missing or a prediction was
    wrong, and 2 if an error occurred, for example if there is no GPU for --gpus.
    """
    if simulated and not with_gpus:
        raise UsageError("--simulated", "requires --gpus", "add --gpus", is_predicate=True)
    with open_output(output) as stream:
        with stdout_for_report(), live():
            gpus = compare_with_gpus(simulated=simulated) if with_gpus else None
            checkup = replace(examine(), gpus=gpus)
        stream.write((render_json if output_format == "json" else render_text)(checkup))
    return checkup.status
