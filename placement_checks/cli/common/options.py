"""Options that several commands share, and the objects that commands get instead of options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from placement_checks.core.cluster_spec import TF_CONFIG
from placement_checks.core.errors import UsageError
from placement_checks.core.settings import Settings
from placement_checks.rules.registry import RULES
from placement_checks.verification import configuration
from placement_checks.verification.policy import parse_setting, valid_policy
from placement_checks.verification.trust import trusting

Command = Callable[..., Any]


class ProgramCommand(click.Command):
    """A command that passes the arguments after ``--`` to the program, as ``args``."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(context, args[:end])
        context.params["args"] = tuple(args[end + 1 :])
        return rest

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(context), "[-- ARGS]"]


class _File(StringParamType):
    """A path or target; the shell completes file names."""

    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, text: str
    ) -> list[CompletionItem]:
        return [CompletionItem(text, type="file")]


class _Rule(StringParamType):
    """The name of a rule; the shell completes it, the command checks it."""

    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, text: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in RULES if name.startswith(text)]


FILE = _File()
RULE = _Rule()


def _trust(context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> None:
    context.with_resource(trusting(value))


_TRUST = click.option(
    "--trust",
    multiple=True,
    metavar="DIRECTORY",
    type=click.Path(),
    expose_value=False,
    callback=_trust,
    help="Use the pyproject.toml and programs below this directory although they belong to "
    "another user; may be repeated.",
)
GRAPH = click.option(
    "--graph", metavar="TARGET", type=FILE, help="The program that printed the log."
)
_MACHINE_OPTIONS = (
    click.option(
        "--soft/--strict",
        "soft",
        default=None,
        help="Let TensorFlow put an op on another device if it cannot run on the requested one "
        "(--soft), or refuse it (--strict); default: the program's setting.",
    ),
    click.option(
        "--machine",
        metavar="MACHINE",
        help='Devices, such as "gpu*4" or "ps*2; worker*8: gpu*4", or the word TF_CONFIG to read '
        "that environment variable.",
    ),
    click.option(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of the host or of each worker; default: 2, or 1 if a strategy has one device.",
    ),
)
_PROGRAM_OPTIONS = (
    click.option(
        "--v1",
        is_flag=True,
        default=None,
        help="Run the program with the API of TensorFlow 1.",
    ),
    click.option(
        "--let",
        multiple=True,
        metavar="NAME=VALUE",
        help="Replace the value that the program's source assigns to NAME; may be repeated.",
    ),
    click.option(
        "--horovod",
        type=int,
        metavar="N",
        help="Run the program as N ranks of Horovod, with one GPU each.",
    ),
    click.option(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="The longest time until the first training step of a program; default: 300.",
    ),
)
JOBS = click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1),
    metavar="N",
    help="How many captures of programs to run at the same time; default: the number of cores.",
)
SETS = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="RULE.FIELD=VALUE",
    help="Set a field of a rule; may be repeated.",
)
_COMPARISON_OPTIONS = (
    click.option(
        "--reference",
        metavar="TARGET",
        type=FILE,
        help="The program for one GPU, to compare with.",
    ),
    click.option(
        "--batch",
        metavar="TARGET",
        type=FILE,
        help="The function batch(rng, n) that returns rows, or the .npz file that a failed "
        "comparison saved.",
    ),
)


def settings_options(
    *, machine: bool = True, comparison: bool = False
) -> Callable[[Command], Command]:
    """Add the options for placing and running programs.

    The command gets its options that are fields of `Settings` as one argument, ``settings``.

    Args:
        machine: whether to add --gpus, --machine and --soft/--strict too.
        comparison: whether to add --reference and --batch too.
    """
    options = (
        *(_MACHINE_OPTIONS if machine else ()),
        *_PROGRAM_OPTIONS,
        *(_COMPARISON_OPTIONS if comparison else ()),
        _TRUST,
    )

    def decorate(command: Command) -> Command:
        names = {field.name for field in fields(Settings)} | {"sets"}
        decorated = _gather(command, "settings", names, _settings)
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def options_as(kind: type[Any]) -> Callable[[Command], Command]:
    """Pass the options that are fields of the dataclass ``kind`` as one argument, ``options``."""
    names = {field.name for field in fields(kind)}
    return lambda command: _gather(command, "options", names, kind)


def format_option(*formats: str) -> Callable[[Command], Command]:
    """Add --format; the first format is the default."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="The format of the report.",
    )


def report_options(*formats: str) -> Callable[[Command], Command]:
    """Add --format and --output; `output.parse_outputs` combines them."""

    def decorate(command: Command) -> Command:
        decorated = click.option(
            "--output",
            "files",
            multiple=True,
            metavar="FILE",
            type=FILE,
            help="Write a report to this file, in the format of its suffix; - is standard output; "
            "may be repeated.",
        )(command)
        return click.option(
            "--format",
            "output_format",
            type=click.Choice(formats),
            help="The format of standard output, and of a FILE without such a suffix; "
            f"default: {formats[0]}.",
        )(decorated)

    return decorate


def with_defaults(settings: Settings, target: str) -> Settings:
    """Complete the settings of a call with the settings of a target in pyproject.toml.

    Raises:
        ConfigError: pyproject.toml is invalid.
    """
    return configuration.load(Path.cwd()).complete_for(target, settings)


def _gather(
    command: Command, parameter: str, names: set[str], make: Callable[..., object]
) -> Command:
    """Let a command get one object that ``make`` creates from the named options."""

    @wraps(command)
    def with_object(**values: Any) -> Any:
        given = {name: values.pop(name) for name in names & values.keys()}
        return command(**values, **{parameter: make(**given)})

    return with_object


def _settings(
    *,
    gpus: int | None = None,
    machine: str | None = None,
    let: Iterable[str] = (),
    sets: Iterable[str] = (),
    **others: Any,
) -> Settings:
    """The settings that a call names."""
    if gpus is not None and machine is not None and machine.strip() != TF_CONFIG:
        raise UsageError(
            "--gpus and --machine", "are mutually exclusive", "give one of them", is_predicate=True
        )
    given: dict[str, dict[str, Any]] = {}
    for rule, field, value in map(parse_setting, sets):
        given.setdefault(rule, {})[field] = value
    policy = valid_policy(given, "--set ")
    overrides = {}
    for pair in let:
        name, equals, value = pair.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            fix = "write it like --let NUM_GPUS={gpus}"
            raise UsageError(
                f"--let {pair}", "is not of the form NAME=VALUE", fix, is_predicate=True
            )
        overrides[name] = value
    settings = Settings(gpus=gpus, machine=machine, policy=policy, let=overrides, **others)
    return settings.check()
