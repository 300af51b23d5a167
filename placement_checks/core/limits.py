"""Limits on files from any source, so that a small file costs little time and memory.

SECURITY.md lists all of them. Numbers are far above real programs, logs and baselines.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from placement_checks.core.errors import InputError


class Limit(NamedTuple):
    """A limit."""

    most: int  # the largest number that is accepted
    of: str  # the counted things, a noun in the plural with its place: `tasks of a machine`

    def __str__(self) -> str:
        return f"{self.most:,} {self.of}"

    def check(self, number: int, object: str, fix: str = "") -> None:
        """Check a number.

        Args:
            number: the number that was counted so far.
            object: the file, with its line if the fault is in a line.
            fix: the remedy.

        Raises:
            InputError: the number exceeds the limit.
        """
        if number > self.most:
            raise self.error(object, fix)

    def error(self, object: str, fix: str = "") -> InputError:
        """Return the error for ``object``, which exceeds the limit."""
        return InputError(object, f"exceeds the limit of {self}", fix, is_predicate=True)


GPUS: Final = Limit(256, "devices of one type in a task")
TASKS: Final = Limit(10_000, "tasks of a machine")
# TensorFlow's placer takes a megabyte and some milliseconds for each task.
PLACED_TASKS: Final = Limit(1_000, "tasks of a machine on which a graph is placed")
DEVICES: Final = Limit(100_000, "devices of a machine")

LOG_LINE: Final = Limit(1 << 24, "bytes of a line of a log")
LOG_UNPACKED: Final = Limit(1 << 32, "bytes of a log that are unpacked")
LOG_PIECES: Final = Limit(1 << 20, "bytes of a log line in JSON or in pieces")
LOG_STREAMS: Final = Limit(16, "streams of a log whose lines are in pieces")
LOG_PLACEMENTS: Final = Limit(1_000_000, "different placements of a log")
LOG_TEXT: Final = Limit(1 << 28, "bytes of the different placements of a log")
LOG_TORN: Final = Limit(100_000, "different torn records of a log")

BASELINE_BYTES: Final = Limit(1 << 24, "bytes of a baseline")
BASELINE_ENTRIES: Final = Limit(1_000_000, "towers of all lines of a baseline")

# Large programs have a million ops, which take 5 GB to place, and nest about ten calls. The
# shapes of a million ops would take 4 GB.
GRAPH_BYTES: Final = Limit((1 << 31) - 1, "bytes of a graph")
INLINED_OPS: Final = Limit(2_000_000, "ops of a graph in bodies of called functions")
CALL_DEPTH: Final = Limit(100, "levels of calls of a graph")
INFERRED_OPS: Final = Limit(200_000, "ops of a graph whose shapes are inferred")
CONSTANT_ELEMENTS: Final = Limit(1 << 16, "elements of a constant that are read")

CONFIG_BYTES: Final = Limit(1 << 19, "bytes of a pyproject.toml")
TOML_KEY: Final = Limit(100, "parts of a key of a TOML file")

CASE_ARRAYS: Final = Limit(20_000, "arrays of a saved case")


def all_limits() -> dict[str, Limit]:
    """The limits by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Limit)}
