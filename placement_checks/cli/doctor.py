"""``placement-checks doctor``."""

from __future__ import annotations

import click

from placement_checks.cli.common.options import report_options
from placement_checks.cli.common.output import open_outputs, parse_outputs
from placement_checks.report.commands.doctor import render_json, render_text
from placement_checks.util.progress import live
from placement_checks.util.streams import stdout_for_report
from placement_checks.verification.doctor import examine

_RENDER = {"text": render_text, "json": render_json}


@click.command("doctor", short_help="Check that programs can be checked here.")
@report_options(*_RENDER)
def command(output_format: str | None, files: tuple[str, ...]) -> int:
    """Check that programs can be checked on this machine.

    Each part is tried once: TensorFlow, the placer, the capture of a program, and its run. Each
    line shows the state of a part, details, and the fix. A limited part works with restrictions.
    If a part is missing, some programs or none can be checked.

    --format json is for bug reports. It contains no paths, no user name and no host name.

    The exit status is 0 if programs can be checked, 1 if a part is missing, and 2 if an error
    occurred.
    """
    with open_outputs(parse_outputs(files, output_format, list(_RENDER))) as streams:
        with stdout_for_report(), live():
            checkup = examine()
        for format, stream in streams:
            stream.write(_RENDER[format](checkup))
    return checkup.status
