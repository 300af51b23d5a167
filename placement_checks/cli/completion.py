"""``placement-checks completion``."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

from placement_checks.cli import COMPLETE, cli

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> int:
    """Print a script that completes commands, options, rules and file names in a shell.

    For bash, append it to ~/.bash_completion.

    For zsh, write it to _placement-checks in a directory such as ~/.zfunc, which must be in fpath
    before compinit is called.

    For fish, write it to ~/.config/fish/completions/placement-checks.fish.

    The exit status is 0.
    """
    completion = get_completion_class(shell)
    assert completion is not None
    sys.stdout.write(completion(cli, {}, "placement-checks", COMPLETE).source() + "\n")
    return 0
