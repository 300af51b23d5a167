"""``placement-checks rules``."""

from __future__ import annotations

import click

from placement_checks.rules import RULES


@click.command("rules")
def command() -> int:
    """List the rules."""
    for name, rule in RULES.items():
        click.echo(f"{name:<19}{rule.explanation().splitlines()[0]}")
    return 0
