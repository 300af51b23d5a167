"""The errors that a user gets where the input, and not the program under test, is at fault."""

from __future__ import annotations

import os
import traceback

from placement_checks.util.text import printable

DEBUG = "PLACEMENT_CHECKS_DEBUG"  # set in the environment: show tracebacks of our own faults

# With one of these a message begins whose subject is the object.
_VERBS = frozenset(
    (
        *("answered", "are", "builds", "built", "calls", "came", "cannot", "could", "describes"),
        *("did", "does", "ended", "gave", "gives", "has", "holds", "is", "names", "needs"),
        *("opened", "prints", "say", "says", "took", "trains", "was", "writes"),
    )
)


class PlacementError(Exception):
    """Base of every error this package raises on purpose.

    Attributes:
        object: the file, target, field or device that is at fault.
        message: what is wrong with it: a sentence, or one that lacks the object as its subject,
            such as "is a folder".
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
        return printable(f"{self.fault}; {self.fix}" if self.fix else self.fault)

    @property
    def fault(self) -> str:
        """The object with what is wrong with it, without the fix."""
        if not self.object:
            return self.message
        colon = "" if self.message.partition(" ")[0] in _VERBS else ":"
        return f"{self.object}{colon} {self.message}"


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
    """A sound program cannot be run here; the rules on runs are then not checked."""


def as_error(object: str, fault: BaseException) -> PlacementError:
    """The error for an exception: itself if it was raised on purpose, else one of this package.

    Args:
        object: what was checked when it was raised.
        fault: the exception; it becomes the cause of the error.
    """
    if isinstance(fault, PlacementError):
        return fault
    name, lines = type(fault).__name__, message_of(fault).splitlines()
    fix = f"set {DEBUG}=1 for the traceback, and report it"
    # As text, since an error that comes from another process comes without its cause.
    details = "".join(traceback.format_exception(fault)) if DEBUG in os.environ else ""
    error = PlacementError(object, f"{name}: {lines[0]}" if lines else name, fix, details=details)
    error.__cause__ = fault
    return error


def message_of(fault: BaseException) -> str:
    """The message of an exception; ``""`` if its ``__str__`` raises."""
    try:
        return str(fault).strip()
    except Exception:
        return ""
