"""Errors caused by the input or the environment, not by a broken rule."""

from __future__ import annotations

import os
import re
import traceback
from typing import Any, Literal, TypeVar

from placement_checks.core.missing import Missing
from placement_checks.util.text import printable

DEBUG = "PLACEMENT_CHECKS_DEBUG"  # environment variable: show tracebacks of internal errors


_Kind = TypeVar("_Kind", bound="PlacementError")
ErrorKind = Literal["usage", "config", "input", "internal"]


class PlacementError(Exception):
    """Base of every error this package raises on purpose.

    Attributes:
        object: the file, target, field or device that is at fault.
        message: the problem: a sentence, or a predicate of the object, such as "is a folder".
        fix: the remedy, one sentence, or ``""``.
        details: further lines for a terminal, such as the frames of a user's own traceback.
        is_predicate: whether the message is a predicate. Otherwise a colon separates the two.
    """

    kind: ErrorKind = "internal"

    def __init__(
        self,
        object: str,
        message: str,
        fix: str = "",
        *,
        details: str = "",
        is_predicate: bool = False,
    ) -> None:
        super().__init__(object, message, fix)
        self.object = object
        self.message = message
        self.fix = fix
        self.details = details
        self.is_predicate = is_predicate

    def __str__(self) -> str:
        return printable(f"{self.fault}; {self.fix}" if self.fix else self.fault)

    def copy(self, kind: type[_Kind], **changes: Any) -> _Kind:
        """The same error as another type, with some fields changed: ``copy(InputError, fix="")``.

        The exception that caused it is not copied.
        """
        fields: dict[str, Any] = {
            "object": self.object,
            "message": self.message,
            "fix": self.fix,
            "details": self.details,
            "is_predicate": self.is_predicate,
        }
        return kind(**(fields | changes))

    @property
    def fault(self) -> str:
        """The object and the message, without the fix."""
        if not self.object:
            return self.message
        return f"{self.object}{'' if self.is_predicate else ':'} {self.message}"


class UsageError(PlacementError):
    """An invalid option or argument."""

    kind = "usage"


class ConfigError(PlacementError):
    """An invalid field of ``[tool.placement_checks]`` or of a policy."""

    kind = "config"


class InputError(PlacementError):
    """A target, file or graph that cannot be read, built or placed."""

    kind = "input"


class MissingTargetError(InputError):
    """A target whose file, module or function does not exist."""


class PlacerError(PlacementError):
    """The placer process ended, hung or could not be started."""

    kind = "internal"


class Unavailable(Exception):
    """A part of the evidence is not available here."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason, fix)
        self.missing = Missing(reason, fix)  # the reason and the fix

    def __str__(self) -> str:
        return str(self.missing)


class CannotRun(Unavailable):
    """A program cannot be run here, so that rules on runs are not checked."""


def as_error(object: str, fault: BaseException) -> PlacementError:
    """Return a `PlacementError` unchanged; wrap any other exception in one.

    Args:
        object: the program or file that was being processed.
        fault: the exception, which becomes the cause of the error.
    """
    if isinstance(fault, PlacementError):
        return fault
    name, lines = type(fault).__name__, message_of(fault).splitlines()
    fix = f"set {DEBUG}=1 for the traceback, and report it"
    # As text, because errors from other processes lose their cause.
    details = "".join(traceback.format_exception(fault)) if DEBUG in os.environ else ""
    error = PlacementError(object, f"{name}: {lines[0]}" if lines else name, fix, details=details)
    error.__cause__ = fault
    return error


# The first lines of errors that a graph of TensorFlow reports, and other lines around the sentence
# that describes the problem: frames of the op, indented details, and the number of errors.
_GRAPH_ERROR = re.compile(r"Graph execution error:|Detected at node |\d+ root error")
_CONTEXT_LINE = re.compile(rf"{_GRAPH_ERROR.pattern}|<stack traces |Node: |=+$|\s|$")
_NUMBERED = re.compile(r"\s*\(\d+\) [A-Za-z_ ]+: +")


def graph_error_causes(message: str) -> list[str]:
    """Return the sentences that describe the problem in an error of a TensorFlow graph.

    The result is empty if the message is not from a graph, or has no such sentence.
    """
    lines = [_NUMBERED.sub("", line) for line in message.strip().splitlines()]
    if not lines or not _GRAPH_ERROR.match(lines[0]):
        return []
    return [line.strip() for line in lines if not _CONTEXT_LINE.match(line)]


def message_of(fault: BaseException) -> str:
    """The message of an exception; ``""`` if its ``__str__`` raises."""
    try:
        return str(fault).strip()
    except Exception:
        return ""
