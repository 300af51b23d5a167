"""What the options of a run of pytest and the marks of a test ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from placement_checks.core.devices import Devices

_ARGUMENTS = ("gpus", "machine", "soft")


def validate_marks(item: pytest.Item) -> None:
    """Check the marks of a test.

    Raises:
        pytest.UsageError: one is not valid.
    """
    for mark in item.iter_markers("gpu"):
        if len(mark.args) != 1 or type(mark.args[0]) is not int or mark.args[0] < 1:
            raise pytest.UsageError(f"{item.nodeid}: write @pytest.mark.gpu(2)")
    for mark in item.iter_markers("placement"):
        if unknown := mark.kwargs.keys() - set(_ARGUMENTS):
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.placement has no {' and no '.join(unknown)}, "
                f"only {', '.join(_ARGUMENTS)}"
            )
        _check_rules(item, mark.args)


def devices_of(config: pytest.Config) -> Devices:
    """The devices that programs are placed and run on: auto, real or simulated."""
    devices: Devices = config.getoption("--placement-devices")
    return devices


def gpus_wanted(item: pytest.Item) -> int:
    """How many GPUs a test is about; 0 where it does not say."""
    return max((mark.args[0] for mark in item.iter_markers("gpu")), default=0)


def resolve_machine(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call; a number of GPUs takes the place of an outer machine."""
    return {"machine": None, **keywords} if "gpus" in keywords else dict(keywords)


def is_single_gpu(mark: pytest.Mark) -> bool:
    """Whether a mark asks for rules on one GPU, where nothing compares towers."""
    return mark.kwargs.get("gpus") == 1 or str(mark.kwargs.get("machine")) == "gpu*1"


def _check_rules(item: pytest.Item, rules: tuple[object, ...]) -> None:
    from placement_checks.core.errors import UsageError
    from placement_checks.verification.policy import rule_named

    for rule in rules:
        try:
            rule_named(str(rule))
        except UsageError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
