"""``placement-checks explain``."""

from __future__ import annotations

import click

from placement_checks.verification.policy import known_rule


@click.command("explain")
@click.argument("rule")
def command(rule: str) -> int:
    """Say what a rule means, what breaks it, and its parameters.

    The exit status is 0, and 2 where there is no such rule.
    """
    click.echo(known_rule(rule).explanation())
    return 0
