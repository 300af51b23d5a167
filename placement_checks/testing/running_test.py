"""Passes the settings of a run of pytest, and an observer of verdicts, to the assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placement_checks.core.devices import Devices
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict


@dataclass(frozen=True)
class RunningTest:
    """The settings of the test that runs now, for assertions; outside of pytest, the defaults.

    Attributes:
        devices: the devices on which programs run, as --placement-devices names them.
        all_findings: whether messages list every finding, as with ``-vv``.
        record: called with every verdict.
    """

    devices: Devices = "auto"
    all_findings: bool = False
    record: Callable[[Evidence, Verdict], None] | None = None


_stack = [RunningTest()]  # a test may itself run pytest


def current() -> RunningTest:
    """The innermost test that runs now."""
    return _stack[-1]


@contextmanager
def run_as(test: RunningTest) -> Iterator[None]:
    """Make a test the running test during this block."""
    _stack.append(test)
    try:
        yield
    finally:
        _stack.pop()
