"""``placement-checks rules``."""

from __future__ import annotations

import click

from placement_checks.rules.registry import RULES


@click.command("rules")
def command() -> int:
    """List the rules.

    The exit status is 0.
    """
    width = 2 + max(map(len, RULES))
    for name, rule in RULES.items():
        click.echo(f"{name:<{width}}{rule.explanation().splitlines()[0]}")
    return 0
