"""``placement-checks doctor``."""

from __future__ import annotations

import click

from placement_checks.cli.options import FILE, format_option
from placement_checks.cli.output import open_output
from placement_checks.report.commands.doctor import render_json, render_text
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.verification.doctor import examine


@click.command("doctor", short_help="Check that programs can be checked here.")
@format_option("text", "json")
@click.option("--output", metavar="FILE", type=FILE, help="Write the report to this file.")
def command(output_format: str, output: str | None) -> int:
    """Check that programs can be checked on this machine.

    Each part is tried once: TensorFlow, the placer, the capture of a program, and its run. A line
    has the state of a part, the facts found, and the fix. A limited part works with a restriction.
    If a part is missing, programs cannot be checked, or only in part.

    --format json is for bug reports. It has no paths, and neither the name of the user nor the
    name of the machine.

    The exit status is 0 if programs can be checked, 1 if a part is missing, and 2 if an error
    occurred.
    """
    with open_output(output) as stream:
        with stdout_for_report(), live():
            checkup = examine()
        stream.write((render_json if output_format == "json" else render_text)(checkup))
    return checkup.status
