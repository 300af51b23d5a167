"""Reads the options of a pytest run and the marks of a test, and recognizes tests of users.

The plugin is also installed where projects do not use it. Their tests may have marks and fixtures
with any name, so the plugin reads only marks with the prefix ``placement_``, and does not change
tests that do not use this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

import pytest

from placement_checks.core.devices import Devices
from placement_checks.util.text import did_you_mean, join_and

GPU: Final = "placement_gpu"
CHECKS: Final = "placement_checks"
FIXTURES: Final = ("place", "placement_baseline", "placement_log", "tower_benchmark")

_PACKAGE: Final = __name__.partition(".")[0]
_ARGUMENTS: Final = ("gpus", "machine", "soft")


def uses_package(item: pytest.Item) -> bool:
    """Whether a test has a fixture of the plugin, or its module imports something of the package.

    A fixture of a project that only has the same name is not a fixture of the plugin.
    """
    if any(_has_fixture(item, name) for name in FIXTURES):
        return True
    namespace = vars(getattr(item, "module", None) or object)
    return any(_module_of(value).partition(".")[0] == _PACKAGE for value in namespace.values())


def _has_fixture(item: pytest.Item, name: str) -> bool:
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.get(name, ()) if info else ()
    for definition in reversed(definitions):  # each one may request the one before
        if _module_of(definition.func).partition(".")[0] == _PACKAGE:
            return True
        if name not in definition.argnames:
            break
    return False


def _module_of(value: object) -> str:
    """The name of a module, or of the module that defines a function, a class or an instance."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, type | FunctionType):
        return str(value.__module__)
    return str(type(value).__module__)


def check_marks(item: pytest.Item) -> None:
    """Fail a test if one of its marks is invalid."""
    if fault := _fault_of_marks(item):
        pytest.fail(fault, pytrace=False)


def _fault_of_marks(item: pytest.Item) -> str:
    for mark in item.iter_markers(GPU):
        if len(mark.args) != 1 or type(mark.args[0]) is not int or mark.args[0] < 1:
            return (
                f"@pytest.mark.{GPU} needs one whole number above 0, such as @pytest.mark.{GPU}(2)"
            )
    placement_marks = list(placement_marks_of(item))
    if not placement_marks:
        return ""
    from placement_checks.core.errors import UsageError
    from placement_checks.verification.policy import rule_named

    for mark in placement_marks:
        if unknown := sorted(mark.kwargs.keys() - set(_ARGUMENTS)):
            near = did_you_mean(unknown[0], _ARGUMENTS)
            return (
                f"@pytest.mark.{CHECKS} has no argument {join_and(unknown)}; "
                f"{near or f'its arguments are {join_and(_ARGUMENTS)}'}"
            )
        for rule in mark.args:
            try:
                rule_named(str(rule))
            except UsageError as error:
                return f"@pytest.mark.{CHECKS}: {error}"
    # A mark on a class or module may also apply to tests that place nothing.
    own = getattr(getattr(item, "function", None), "pytestmark", ())
    names_rules = any(mark.name == CHECKS and mark.args for mark in own)
    # With `request`, a fixture may get `place` by its name.
    if names_rules and not {"place", "request"} & {*getattr(item, "fixturenames", ())}:
        return (
            f"@pytest.mark.{CHECKS} checks programs that the fixture `place` places, but the test "
            "does not use it; add the argument place, or use assert_rules"
        )
    return ""


def placement_marks_of(item: pytest.Item) -> Iterator[pytest.Mark]:
    """The marks with rules and defaults for `place`, the closest first."""
    return item.iter_markers(CHECKS)


def devices_of(config: pytest.Config) -> Devices:
    """The value of --placement-devices."""
    devices: Devices = config.getoption("--placement-devices")
    return devices


def needed_gpus(item: pytest.Item) -> int:
    """The number of GPUs that the marks of a test name; 0 without a mark."""
    return max((mark.args[0] for mark in item.iter_markers(GPU)), default=0)


def resolve_machine(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call; ``gpus`` also replaces a machine from outer defaults."""
    return {"machine": None, **keywords} if "gpus" in keywords else dict(keywords)


def is_single_gpu(mark: pytest.Mark) -> bool:
    """Whether a mark names one GPU, so that rules that compare towers cannot be checked."""
    return mark.kwargs.get("gpus") == 1 or str(mark.kwargs.get("machine")) == "gpu*1"
