"""``placement-checks schema``."""

from __future__ import annotations

import sys

import click

from placement_checks.report.schemas import NAMES, schema


@click.command("schema", short_help="Print the JSON Schema of the output of --format json.")
@click.argument("name", type=click.Choice(NAMES))
def command(name: str) -> int:
    """Print the JSON Schema of the output of a command with --format json.

    `error` is the output of any command that ends with an error.

    The exit status is 0.
    """
    sys.stdout.write(schema(name))
    return 0
