"""``placement-checks rules``."""

from __future__ import annotations

import click

from placement_checks.cli import FAILED, print_error
from placement_checks.rules.plugins import FailedPlugin
from placement_checks.rules.registry import RULES


@click.command("rules")
def command() -> int:
    """List the rules; rules of plugins come last.

    The exit status is 0, and 2 if a rule of a plugin cannot be loaded.
    """
    width = 2 + max(map(len, RULES))
    status = 0
    for name, rule in RULES.items():
        if issubclass(rule, FailedPlugin):
            print_error(rule.error)
            status = FAILED
        else:
            click.echo(f"{name:<{width}}{rule.explanation().splitlines()[0]}")
    return status
