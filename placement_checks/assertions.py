"""Assertions for tests: each lists every offender once, with its source line and the cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from placement_checks.judging import verify
from placement_checks.placement import Placement
from placement_checks.report.lines import counted, finding_lines
from placement_checks.rules import Verdict

# Told of every verdict; the pytest plugin listens, for its summary.
observers: list[Callable[[Placement, Verdict], None]] = []


def assert_rules(placement: Placement, *rules: str) -> None:
    """Assert that a placement keeps the named rules, or all of them that can be checked.

    The program's own policy counts. A rule that is named and cannot be checked fails.

    Raises:
        AssertionError: a rule is broken, or a named one could not be checked.
        UsageError: there is no such rule.
        ConfigError: the program's policy is wrong.
    """
    __tracebackhide__ = True
    verdicts = verify(placement, only=rules).verdicts
    for verdict in verdicts:
        _observe(placement, verdict)
    broken = [_message(placement, each) for each in verdicts if each.state == "broken"]
    if broken:
        raise AssertionError("\n\n".join(broken))
    unchecked = [each for each in verdicts if each.state == "not-checked"]
    for verdict in unchecked:
        if verdict.rule in rules or len(unchecked) == len(verdicts):
            _refuse(placement, verdict)


def assert_placeable(placement: Placement) -> None:
    """Assert that TensorFlow's placer can place every op where the program asks for it.

    Raises:
        AssertionError: it cannot; the message has the placer's reason for each op.
    """
    __tracebackhide__ = True
    _assert(placement, "placeable")


def assert_no_fallback(placement: Placement, *, allow: tuple[str, ...] | None = None) -> None:
    """Assert that no op that asks for a GPU ends on a CPU.

    Args:
        placement: what `place` or the fixture ``place`` made.
        allow: op types and op names that may.

    Raises:
        AssertionError: some do; the message says why, for each.
    """
    __tracebackhide__ = True
    _assert(placement, "no-fallback", allow=allow)


def assert_variables_on_host(
    placement: Placement,
    device: str | tuple[str, ...] | None = None,
    *,
    allow: tuple[str, ...] | None = None,
) -> None:
    """Assert that every variable sits on the device named.

    Args:
        placement: what `place` or the fixture ``place`` made.
        device: a whole or partial device name, or several that are allowed; by default what the
            program's policy says, else ``/cpu:0``.
        allow: variables that may sit anywhere.

    Raises:
        AssertionError: some do not; the message names variable, device and source line.
        ConfigError: ``device`` is no device name.
    """
    __tracebackhide__ = True
    _assert(placement, "variables-on-host", device=device, allow=allow)


def assert_variables_shared(
    placement: Placement, *, private: tuple[str, ...] | None = None
) -> None:
    """Assert that all towers read the same variables.

    Args:
        placement: what `place` or the fixture ``place`` made.
        private: variables, or patterns of names, that towers have of their own on purpose.

    Raises:
        AssertionError: some tower has its own; the message pairs each with the one it doubles.
    """
    __tracebackhide__ = True
    _assert(placement, "variables-shared", private=private)


def assert_no_idle_device(placement: Placement, *, idle: tuple[str, ...] | None = None) -> None:
    """Assert that every GPU computes.

    Args:
        placement: what `place` or the fixture ``place`` made.
        idle: devices that may do nothing.

    Raises:
        AssertionError: some GPU does nothing.
    """
    __tracebackhide__ = True
    _assert(placement, "no-idle-device", idle=idle)


def _assert(placement: Placement, rule: str, **parameters: Any) -> None:
    """Assert one rule; parameters that are not given are those of the program's policy."""
    __tracebackhide__ = True
    given = {name: value for name, value in parameters.items() if value is not None}
    (verdict,) = verify(placement, [{rule: given}], only=[rule]).verdicts
    _observe(placement, verdict)
    if verdict.state == "not-checked":
        _refuse(placement, verdict)
    if verdict.state == "broken":
        raise AssertionError(_message(placement, verdict))


def _observe(placement: Placement, verdict: Verdict) -> None:
    for observer in observers:
        observer(placement, verdict)


def _refuse(placement: Placement, verdict: Verdict) -> NoReturn:
    """Nothing was looked at: that is no pass. Where no placer can answer here, it is a skip."""
    __tracebackhide__ = True
    message = f"{verdict.rule} could not be checked on {placement.program}: {verdict.reason}"
    if placement.unplaced and not placement.refusals:
        import pytest

        pytest.skip(message)
    raise AssertionError(message)


def _message(placement: Placement, verdict: Verdict) -> str:
    machine = f" on {placement.machine}" if placement.machine else ""
    headline = (
        f"{verdict.rule} is broken by {placement.program}{machine}: "
        f"{counted(len(verdict.findings), 'finding')}"
    )
    return "\n".join([headline, *finding_lines(verdict.findings)])
