"""What a user is told when the input, and not the program under test, is at fault."""

from __future__ import annotations

from placement_checks.util.printable import printable

DEBUG = "PLACEMENT_CHECKS_DEBUG"  # the variable that asks for tracebacks of our own faults


class PlacementError(Exception):
    """Base of every error this package raises on purpose.

    Attributes:
        object: the file, target, field or device that is at fault.
        message: what is wrong with it, one sentence.
        fix: what to do about it, one sentence, or ``""``.
        details: further lines for a terminal, such as the frames of a user's own traceback.
    """

    kind = "internal"

    def __init__(self, object: str, message: str, fix: str = "", *, details: str = "") -> None:
        super().__init__(object, message, fix)
        self.object = object
        self.message = message
        self.fix = fix
        self.details = details

    def __str__(self) -> str:
        text = f"{self.object}: {self.message}" if self.object else self.message
        return printable(f"{text}; {self.fix}" if self.fix else text)


class UsageError(PlacementError):
    """An option or argument that makes no sense."""

    kind = "usage"


class ConfigError(PlacementError):
    """A field of ``[tool.placement_checks]`` or of a policy that makes no sense."""

    kind = "config"


class InputError(PlacementError):
    """A target, file or graph that cannot be read, built or placed."""

    kind = "input"


class PlacerError(PlacementError):
    """The placer process died, hung or could not be started."""

    kind = "internal"


class CannotRun(Exception):
    """Why a sound program cannot be run here for numbers; rules on runs are then not checked."""


def as_error(object: str, fault: BaseException) -> PlacementError:
    """What a user is told of an exception: itself if it was raised on purpose, else our fault.

    Args:
        object: what was being looked at.
        fault: the exception; it becomes the cause of the error.
    """
    if isinstance(fault, PlacementError):
        return fault
    name, told = type(fault).__name__, text_of(fault).splitlines()
    fix = f"set {DEBUG}=1 for the traceback, and report it"
    error = PlacementError(object, f"{name}: {told[0]}" if told else name, fix)
    error.__cause__ = fault
    return error


def text_of(fault: BaseException) -> str:
    """What an exception says; nothing, if not even that goes well."""
    try:
        return str(fault).strip()
    except Exception:
        return ""
