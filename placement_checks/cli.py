"""The command ``placement-checks``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console

from placement_checks import config
from placement_checks.capture import place, prepare
from placement_checks.config import Settings
from placement_checks.errors import InputError, PlacementError, UsageError
from placement_checks.judging import Report, verify
from placement_checks.machines import Machine, checked_gpus
from placement_checks.placement import Placement
from placement_checks.policy import known_rule, parse_setting, policy_errors
from placement_checks.report import json as json_report
from placement_checks.report import text as text_report
from placement_checks.rules import RULES
from placement_checks.streams import report_stream

FAILED = 2  # exit status: bad usage, configuration or input, or nothing could be checked


def main() -> None:
    """Run the command; every error is one line on stderr, and status 2."""
    arguments = sys.argv[1:]
    try:
        # Not cli.main(), which ends the process with 1 where a pipe was closed.
        with cli.make_context("placement-checks", arguments) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        status = done.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        status = 130
    except click.ClickException as wrong:
        where = getattr(wrong, "ctx", None)
        cure = f"see {where.command_path} --help" if where else ""
        status = _fail(UsageError("", wrong.format_message().rstrip("."), cure), arguments)
    except PlacementError as wrong:
        status = _fail(wrong, arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the last flush does not fail
        status = FAILED
    except Exception as bug:
        if "PLACEMENT_CHECKS_DEBUG" in os.environ:
            raise
        message = f"{type(bug).__name__}: {bug}".splitlines()[0]
        cure = "set PLACEMENT_CHECKS_DEBUG=1 for the traceback, and report it"
        status = _fail(PlacementError("", message, cure), arguments)
    sys.exit(status)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="placement_checks")
def cli() -> None:
    """Where TensorFlow puts every op of multi-GPU code, on GPUs that need not exist."""


def _machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--gpus", type=int, metavar="N", help="GPUs of the host or of each worker."),
        click.option(
            "--machine", metavar="M", help='Devices, such as "gpu*4" or "ps*2; worker*8: gpu*4".'
        ),
        click.option(
            "--soft/--strict",
            "soft",
            default=None,
            help="Whether the placer may go elsewhere than asked; default: as the program says.",
        ),
    ):
        command = option(command)
    return command


@cli.command("verify")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@_machine_options
@click.option("--rule", "rules", multiple=True, metavar="R", help="Check this rule only.")
@click.option("--without", multiple=True, metavar="R", help="Leave this rule out.")
@click.option("--set", "sets", multiple=True, metavar="RULE.FIELD=VALUE", help="A rule's field.")
@click.option("--require-all", is_flag=True, help="A rule that could not be checked fails.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("--output", type=click.Path(dir_okay=False), help="Write the report to this file.")
def verify_command(
    targets: tuple[str, ...],
    gpus: int | None,
    machine: str | None,
    soft: bool | None,
    rules: tuple[str, ...],
    without: tuple[str, ...],
    sets: tuple[str, ...],
    require_all: bool,
    form: str,
    output: str | None,
) -> int:
    """Judge programs and graphs by the rules.

    TARGET is package.module:function, path/to/file.py:function, a graph file (.pb, .pbtxt, .meta)
    or a SavedModel folder; without one, the programs of [tool.placement_checks] in pyproject.toml.
    """
    policy: dict[str, dict[str, Any]] = {}
    for rule, parameter, value in map(parse_setting, sets):
        policy.setdefault(rule, {})[parameter] = value
    for wrong in policy_errors(policy, "--set "):
        raise wrong
    call = Settings(*_checked_machine(gpus, machine), soft, rules, without, policy)
    for name in (*rules, *without):
        known_rule(name)
    configured = config.load(Path.cwd())
    jobs = [(target, call.within(configured.settings)) for target in targets] or [
        (target, call.within(own).within(configured.settings))
        for target, own in configured.programs
    ]
    if not jobs:
        raise UsageError(
            "", "there is nothing to verify", "name a target such as train.py:build_towers"
        )
    with report_stream() as stdout:
        outcome = _Outcome()
        prepare()
        for target, settings in jobs:
            try:
                placement = _captured(target, settings)
                outcome.reports.append(
                    verify(
                        placement, [settings.policy], only=settings.rules, without=settings.without
                    )
                )
            except PlacementError as error:
                outcome.errors.append(error)
        _write(outcome, form, output, stdout)
    return outcome.status(rules, require_all)


@cli.command("place")
@click.argument("target")
@_machine_options
def place_command(target: str, gpus: int | None, machine: str | None, soft: bool | None) -> int:
    """Print where the placer puts every op, in TensorFlow's words: `name: (Op): device`."""
    call = Settings(*_checked_machine(gpus, machine), soft)
    settings = call.within(config.load(Path.cwd()).settings)
    with report_stream() as stdout:
        prepare()
        placement = _captured(target, settings)
        if placement.unplaced and not placement.refusals:
            raise InputError(target, placement.unplaced)
        if placement.refusals:
            refusal = placement.refusals[0]
            where = placement.where(refusal.op)
            raise InputError(
                target,
                f"cannot be placed on {placement.machine}: {refusal.message.splitlines()[0]}"
                + (f" (built at {where})" if where else ""),
                "" if placement.soft else "build it under another device, or allow --soft",
            )
        for op in placement.ops.values():
            if op.assigned is not None:
                stdout.write(f"{op.name}: ({op.type}): {op.assigned}\n")
    return 0


@cli.command("rules")
def rules_command() -> int:
    """List the rules."""
    for name, rule in RULES.items():
        click.echo(f"{name:<19}{rule.explanation().splitlines()[0]}")
    return 0


@cli.command("explain")
@click.argument("rule")
def explain_command(rule: str) -> int:
    """Say what a rule means, what breaks it, and its parameters."""
    click.echo(known_rule(rule).explanation())
    return 0


@dataclass
class _Outcome:
    """What became of the targets of one run."""

    reports: list[Report] = field(default_factory=list)
    errors: list[PlacementError] = field(default_factory=list)

    def status(self, asked: Sequence[str], require_all: bool) -> int:
        statuses = [report.status(asked=asked, require_all=require_all) for report in self.reports]
        return max([*statuses, *(FAILED for _ in self.errors)])


def _checked_machine(gpus: int | None, machine: str | None) -> tuple[int | None, str | None]:
    if gpus is not None and machine is not None:
        raise UsageError("--gpus and --machine", "say the same thing twice", "give one of them")
    if gpus is not None:
        checked_gpus(gpus)
    if machine is not None:
        Machine.parse(machine)
    return gpus, machine


def _captured(target: str, settings: Settings) -> Placement:
    return place(
        target,
        gpus=settings.gpus or 2,
        machine=Machine.parse(settings.machine) if settings.machine else None,
        soft=settings.soft,
    )


def _write(outcome: _Outcome, form: str, output: str | None, stdout: TextIO) -> None:
    try:
        stream = open(output, "w", encoding="utf-8") if output else stdout  # noqa: SIM115
    except OSError as reason:
        raise UsageError(f"--output {output}", reason.strerror or "cannot be written") from None
    if form == "json":
        stream.write(json_report.render(outcome.reports, outcome.errors) + "\n")
    elif outcome.reports:
        text_report.write(outcome.reports, Console(file=stream))
    stream.flush()
    for error in outcome.errors:
        _say(error, details=form == "text")


def _fail(error: PlacementError, arguments: Sequence[str]) -> int:
    """Tell an error that ended the command, also in JSON where that was asked for."""
    as_json = "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    if as_json:
        print(json_report.render([], [error]))
    _say(error, details=not as_json)
    return FAILED


def _say(error: PlacementError, *, details: bool) -> None:
    if details and error.details:
        print(error.details, file=sys.stderr)
    print(f"placement-checks: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
