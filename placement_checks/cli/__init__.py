"""The command ``placement-checks``: one module a command, loaded when it is called."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise

import click
from click.shell_completion import shell_complete

from placement_checks.cli.output import standard_streams, write_stderr
from placement_checks.core.errors import DEBUG, PlacementError, UsageError, as_error

_BY_SIGNAL = 128  # and the signal's number, as shells have it
FAILED = 2  # exit status: bad usage, configuration or input, or nothing could be checked
COMPLETE = "_PLACEMENT_CHECKS_COMPLETE"  # set by shells, to what they want to have completed
# The formats that other programs read, which are told in it of errors that end the command too.
_FOR_PROGRAMS = ("json", "github", "sarif", "junit")
_COMMANDS = ("verify", "time", "place", "log", "diff", "rules", "explain", "schema", "completion")


class _Ended(KeyboardInterrupt):
    """The command is ended by a signal; what it holds, such as files set aside, is put back."""


def _end(number: int, _frame: object) -> None:
    raise _Ended(number)


def main() -> None:
    """Run the command; every error is one line on stderr, and status 2."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _end)
    with standard_streams():
        status = _status(sys.argv[1:])
    raise SystemExit(status)  # the program under test may have replaced sys.exit


def _status(arguments: Sequence[str]) -> int:
    try:
        return _run(arguments)
    except _Ended as ended:
        return _BY_SIGNAL + int(ended.args[0])
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _BY_SIGNAL + signal.SIGINT
    except click.ClickException as error:
        return _fail(UsageError("", error.format_message().rstrip("."), _help(error)), arguments)
    except BaseException as fault:
        return _fail(as_error("", fault), arguments)


def _help(error: click.ClickException) -> str:
    """Where to read on; for an option that may be meant for the program, how to give it."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    fix = f"see {context.command_path} --help"
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        from placement_checks.cli.options import ProgramCommand

        if isinstance(context.command, ProgramCommand):
            fix += f"; what is meant for the program stands behind --: -- {error.option_name}"
    return fix


def _run(arguments: Sequence[str]) -> int:
    try:
        # Not cli.main(), which ends the process with 1 where a pipe was closed.
        if asked := os.environ.get(COMPLETE):
            return shell_complete(cli, {}, "placement-checks", COMPLETE, asked)
        with cli.make_context("placement-checks", list(arguments)) as context:
            status: int = cli.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        status = done.exit_code
    sys.stdout.flush()
    return status


class _Commands(click.Group):
    """Loads the module of the command that is called: a log is read without the rest."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{name}").command
        return command


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(package_name="placement_checks")
@click.pass_context
def cli(context: click.Context) -> None:
    """Tell where TensorFlow puts every op of multi-GPU code, on GPUs that need not exist.

    Begin with: placement-checks verify train.py

    The exit status is 0 where all is well, 1 where a rule is broken, placements differ or towers
    are too slow, and 2 where nothing could be checked or anything failed: bad usage, configuration
    or input, output that cannot be written, an internal error.
    """
    if context.invoked_subcommand is None:
        for line in context.get_help().splitlines():
            write_stderr(line)
        fix = "begin with: placement-checks verify train.py"
        raise UsageError("", "no command is given", fix)


def _fail(error: PlacementError, arguments: Sequence[str]) -> int:
    """Print an error that ended the command, also in a format for programs that is asked for."""
    format = _format(arguments)
    if format is not None:
        with contextlib.suppress(Exception):  # the line on stderr is printed all the same
            from placement_checks.report.formats.outcome import Outcome
            from placement_checks.report.formats.writers import WRITERS

            WRITERS[format](Outcome([], [error]), sys.stdout)
            sys.stdout.flush()
    print_error(error, details=format is None)
    return FAILED


def _format(arguments: Sequence[str]) -> str | None:
    """The format for programs that the arguments ask for."""
    for name in _FOR_PROGRAMS:
        if f"--format={name}" in arguments or ("--format", name) in pairwise(arguments):
            return name
    return None


def print_error(error: PlacementError, *, details: bool = False) -> None:
    """Print an error on stderr, with ``details`` also the user's own frames."""
    lines = error.details.splitlines() if details or DEBUG in os.environ else []
    if DEBUG in os.environ and error.__cause__:
        lines = "".join(traceback.format_exception(error.__cause__)).splitlines()
    for line in [*lines, f"placement-checks: {error}"]:
        write_stderr(line)
