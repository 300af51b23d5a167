"""The options that the commands share for placing.

The option --format, which is the same for all commands that have it.

Arguments for which a shell offers what there is; they are texts, and checked later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.devices import checked_gpus
from placement_checks.core.errors import UsageError
from placement_checks.core.machines import Machine
from placement_checks.rules.registry import RULES
from placement_checks.verification.configuration import Settings


def machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --gpus, --machine and --soft/--strict."""
    for option in (
        click.option(
            "--gpus", type=int, metavar="N", help="GPUs of the host or of each worker; default: 2."
        ),
        click.option(
            "--machine",
            metavar="MACHINE",
            help='Devices, such as "gpu*4" or "ps*2; worker*8: gpu*4", or TF_CONFIG.',
        ),
        click.option(
            "--soft/--strict",
            "soft",
            default=None,
            help="Whether ops may go elsewhere than requested; default: as the program says.",
        ),
    ):
        command = option(command)
    return command


class ProgramCommand(click.Command):
    """A command that takes the arguments of a program behind ``--``, as ``args``."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        own, behind = args, list[str]()
        if "--" in args:
            at = args.index("--")
            own, behind = args[:at], args[at + 1 :]
        rest = super().parse_args(context, own)
        context.params["args"] = tuple(behind)
        return rest

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(context), "[-- ARGS]"]


def program_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --v1, --let and --limit."""
    for option in (
        click.option(
            "--limit",
            type=click.FloatRange(0, min_open=True),
            metavar="SECONDS",
            help="What a program may take until its first training step; default: 300.",
        ),
        click.option(
            "--let",
            multiple=True,
            metavar="NAME=VALUE",
            help="VALUE in place of what the program's source assigns to NAME.",
        ),
        click.option(
            "--v1",
            is_flag=True,
            default=None,
            help="The program means TensorFlow 1 by import tensorflow.",
        ),
    ):
        command = option(command)
    return command


def source_overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    """The values that ``--let`` gives, by name.

    Raises:
        UsageError: one is no pair.
    """
    let: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(
                f"--let {pair}", "is not NAME=VALUE", "write it like --let NUM_GPUS={gpus}"
            )
        let[name] = value
    return let


def call_settings(
    gpus: int | None, machine: str | None, soft: bool | None = None, **others: Any
) -> Settings:
    """What the options of a call say.

    Raises:
        UsageError: both a machine and a number of GPUs, or one that makes no sense.
    """
    if gpus is not None and machine is not None and machine.strip() != TF_CONFIG:
        raise UsageError("--gpus and --machine", "say the same thing twice", "give one of them")
    if gpus is not None:
        checked_gpus(gpus)
    if machine is not None:
        Machine.parse(machine)
    return Settings(gpus, machine, soft, **others)


def format_option(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option, of the formats of a command; the first is the one by default."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="How the report is written.",
    )


class _File(StringParamType):
    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, text: str
    ) -> list[CompletionItem]:
        """What the shell knows of files."""
        return [CompletionItem(text, type="file")]


class _Rule(StringParamType):
    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, text: str
    ) -> list[CompletionItem]:
        """The names that begin with a text."""
        return [CompletionItem(name) for name in RULES if name.startswith(text)]


FILE = _File()
RULE = _Rule()
