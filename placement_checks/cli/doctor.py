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

    Each part is tried once: TensorFlow, the placer, the capture of a program, and its run. Each
    line shows the state of a part, details, and the fix. A limited part works with restrictions.
    If a part is missing, some programs or none can be checked.

    --format json is for bug reports. It contains no paths, no user name and no host name.

    The exit status is 0 if programs can be checked, 1 if a part is missing, and 2 if an error
    occurred.
    """
    with open_output(output) as stream:
        with stdout_for_report(), live():
            checkup = examine()
        stream.write((render_json if output_format == "json" else render_text)(checkup))
    return checkup.status
