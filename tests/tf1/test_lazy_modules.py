"""Names and modules are added and removed again."""

from __future__ import annotations

import sys

import pytest

from placement_checks.tf1.lazy_modules import LazyModule, attribute_of, lazy_alias


def test_an_attribute_of_an_attribute() -> None:
    assert attribute_of(sys, ["version_info", "major"]) == 3
    assert attribute_of(sys, []) is sys
    with pytest.raises(AttributeError):
        attribute_of(sys, ["no_such", "major"])


def test_a_module_on_demand() -> None:
    asked: list[str] = []

    def find(name: str) -> str:
        asked.append(name)
        return name.upper()

    module = LazyModule("made", find, lambda: ["a", "_b"])

    assert module.a == "A"
    assert vars(module)["__path__"] == []
    assert module.__all__ == ["a"]
    assert {"a", "_b"} <= {*dir(module)}
    with pytest.raises(AttributeError, match=r"module 'made' has no attribute '__wrapped__'"):
        _ = module.__wrapped__
    assert asked == ["a"]


def test_another_name_for_a_module() -> None:
    other = lazy_alias("other", lambda: sys)

    assert other.version is sys.version
    assert "version" in dir(other)
    with pytest.raises(AttributeError):
        _ = other.no_such
