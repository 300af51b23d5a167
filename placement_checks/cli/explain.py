"""``placement-checks explain``."""

from __future__ import annotations

import click

from placement_checks.verification.policy import rule_named


@click.command("explain")
@click.argument("rule")
def command(rule: str) -> int:
    """Say what a rule means, what breaks it, and its parameters.

    The exit status is 0, and 2 where the rule does not exist.
    """
    click.echo(rule_named(rule).explanation())
    return 0
