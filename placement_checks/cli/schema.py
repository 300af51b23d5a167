"""``placement-checks schema``."""

from __future__ import annotations

import sys

import click

from placement_checks.report.schemas import NAMES, schema


@click.command("schema", short_help="Print the JSON Schema of what --format json prints.")
@click.argument("name", type=click.Choice(NAMES))
def command(name: str) -> int:
    """Print the JSON Schema of what a command prints with --format json.

    NAME is the command; `error` is what any of them prints where an error ends it.

    The exit status is 0.
    """
    sys.stdout.write(schema(name))
    return 0
