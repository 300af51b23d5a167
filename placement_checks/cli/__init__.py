"""The command ``placement-checks``. Its subcommands are modules, imported when they are called."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path

import click
from click.shell_completion import shell_complete

from placement_checks.cli.common.output import standard_streams, write_stderr
from placement_checks.core.errors import DEBUG, InputError, PlacementError, UsageError, as_error
from placement_checks.util.text import did_you_mean, join_and

FAILED = 2  # exit status: invalid usage, configuration or input, or nothing could be checked
COMPLETE = "_PLACEMENT_CHECKS_COMPLETE"  # environment variable of shells that request a completion
_SIGNALED = 128  # plus the number of the signal: exit status by the convention of shells
_DEFAULT = "verify"  # comes first, and is suggested for a target


class _Signaled(KeyboardInterrupt):
    """A signal ends the command; context managers still run, for example to restore files."""


_signals: list[int] = []  # received by this process, even if code of a library or the user goes on


def _raise_signaled(number: int, _frame: object) -> None:
    _signals.append(number)
    raise _Signaled(number)


def _exit_after_signal(owner: int) -> None:
    if _signals and os.getpid() == owner:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(_SIGNALED + _signals[0])


def main() -> None:
    """Run the command. An error is one line on stderr and exit status 2."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _raise_signaled)
    atexit.register(_exit_after_signal, os.getpid())  # before others, so it is called last
    with standard_streams():
        status = _status(sys.argv[1:])
    raise SystemExit(status)  # the program under test may have replaced sys.exit


def _status(arguments: Sequence[str]) -> int:
    try:
        _check_directory()
        # Not cli.main(), which ends the process with 1 if a pipe was closed.
        if instruction := os.environ.get(COMPLETE):
            return shell_complete(cli, {}, "placement-checks", COMPLETE, instruction)
        try:
            with cli.make_context("placement-checks", list(arguments)) as context:
                status: int = cli.invoke(context)
        except click.exceptions.Exit as done:  # --help, --version
            status = done.exit_code
        sys.stdout.flush()
        return status
    except _Signaled as signaled:
        return _SIGNALED + int(signaled.args[0])
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _SIGNALED + signal.SIGINT
    except click.ClickException as error:
        return _fail(UsageError("", error.format_message().rstrip("."), _fix(error)), arguments)
    except BaseException as fault:
        return _fail(as_error("", fault), arguments)


def _check_directory() -> None:
    try:
        os.getcwd()  # noqa: PTH109
    except OSError as error:
        raise InputError(
            "",
            f"the working directory cannot be used: {error.strerror}; maybe it has been deleted",
            "change to another directory",
        ) from None


def _fix(error: click.ClickException) -> str:
    """Names the help page; for an unknown option, also how to pass it to the program."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    fix = f"see {context.command_path} --help"
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        from placement_checks.cli.common.options import ProgramCommand

        if isinstance(context.command, ProgramCommand):
            fix += f"; arguments of the program follow --: -- {error.option_name}"
    return fix


class _Commands(click.Group):
    """Imports the module of the called command only, so that `log` starts fast."""

    @cached_property
    def _modules(self) -> Mapping[str, str]:
        from placement_checks.util.modules import find_modules  # not for --version

        return find_modules(__name__, first=_DEFAULT)

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in self._modules:
            return None
        command: click.Command = import_module(self._modules[name]).command
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name a similar command if there is none of this name; ``verify`` if it is a target."""
        name, known = arguments[0], self._modules
        if name not in known and not name.startswith("-") and not context.resilient_parsing:
            is_target = ".py" in name or ":" in name or Path(name).exists()
            fix = (
                f"did you mean: placement-checks {_DEFAULT} {shlex.join(arguments)}"
                if is_target
                else did_you_mean(name, known) or f"the commands are {join_and(known)}"
            )
            raise UsageError(f"'{name}'", "is not a command", fix, is_predicate=True)
        return super().resolve_command(context, arguments)


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(package_name="placement_checks")
@click.pass_context
def cli(context: click.Context) -> None:
    """Check where TensorFlow places every op of multi-GPU code, on GPUs that need not exist.

    Begin with: placement-checks verify train.py

    The exit status is 0 on success, 1 if a rule is broken, placements differ or towers are too
    slow, and 2 if nothing could be checked or an error occurred: invalid usage, configuration or
    input, output that cannot be written, or an internal error.
    """
    if context.invoked_subcommand is None:
        for line in context.get_help().splitlines():
            write_stderr(line)
        raise UsageError("", "no command is given", "begin with: placement-checks verify train.py")


def _fail(error: PlacementError, arguments: Sequence[str]) -> int:
    """Print an error that ended the command; if the report format has errors, also on stdout."""
    # click may not have parsed the arguments. Arguments after -- belong to the program.
    own = takewhile(lambda argument: argument != "--", arguments)
    words = [word for argument in own for word in argument.split("=", 1)]
    name = next((value for option, value in pairwise(words) if option == "--format"), None)
    is_written = False
    if name is not None:
        with contextlib.suppress(Exception):  # the line on stderr is printed in any case
            from placement_checks.report.formats import FORMATS
            from placement_checks.report.outcome import Outcome

            is_written = name in FORMATS and FORMATS[name].has_errors
            if is_written:
                FORMATS[name].write(Outcome([], [error]), sys.stdout)
                sys.stdout.flush()
    print_error(error, details=not is_written)
    return FAILED


def print_error(error: PlacementError, *, details: bool = False) -> None:
    """Print an error on stderr; ``details`` adds the stack frames of user code."""
    lines = error.details.splitlines() if details or DEBUG in os.environ else []
    if DEBUG in os.environ and error.__cause__:
        lines = "".join(traceback.format_exception(error.__cause__)).splitlines()
    for line in [*lines, f"placement-checks: {error}"]:
        write_stderr(line)
