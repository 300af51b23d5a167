"""Reads the options of a pytest run and the marks of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from placement_checks.core.devices import Devices
from placement_checks.util.text import join_and

_ARGUMENTS = ("gpus", "machine", "soft")


def validate_marks(item: pytest.Item) -> None:
    """Check the marks of a test.

    Raises:
        pytest.UsageError: a mark is invalid.
    """
    for mark in item.iter_markers("gpu"):
        if len(mark.args) != 1 or type(mark.args[0]) is not int or mark.args[0] < 1:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.gpu needs one whole number above 0, such as "
                "@pytest.mark.gpu(2)"
            )
    placement_marks = list(item.iter_markers("placement"))
    if not placement_marks:
        return
    from placement_checks.core.errors import UsageError
    from placement_checks.verification.policy import rule_named

    for mark in placement_marks:
        if unknown := mark.kwargs.keys() - set(_ARGUMENTS):
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.placement has no argument "
                f"{join_and(sorted(unknown))}; its arguments are {join_and(_ARGUMENTS)}"
            )
        for rule in mark.args:
            try:
                rule_named(str(rule))
            except UsageError as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from None
    _check_that_rules_apply(item)


def _check_that_rules_apply(item: pytest.Item) -> None:
    """Check that a test uses the fixture `place` if a mark on the test function names rules.

    A mark on a class or module may also apply to tests that place nothing.
    """
    own = getattr(getattr(item, "function", None), "pytestmark", ())
    names_rules = any(mark.name == "placement" and mark.args for mark in own)
    # With `request`, a fixture may get `place` by its name.
    if names_rules and not {"place", "request"} & {*getattr(item, "fixturenames", ())}:
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.placement checks programs that the fixture `place` "
            "places, but the test does not use it; add the argument place, or use assert_rules"
        )


def devices_of(config: pytest.Config) -> Devices:
    """The value of --placement-devices."""
    devices: Devices = config.getoption("--placement-devices")
    return devices


def needed_gpus(item: pytest.Item) -> int:
    """The number of GPUs that the marks of a test name; 0 without a mark."""
    return max((mark.args[0] for mark in item.iter_markers("gpu")), default=0)


def resolve_machine(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call; ``gpus`` also replaces a machine from outer defaults."""
    return {"machine": None, **keywords} if "gpus" in keywords else dict(keywords)


def is_single_gpu(mark: pytest.Mark) -> bool:
    """Whether a mark names one GPU, so that rules that compare towers cannot be checked."""
    return mark.kwargs.get("gpus") == 1 or str(mark.kwargs.get("machine")) == "gpu*1"
