"""Imports find other modules while a redirector is installed, and are as before afterwards."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from placement_checks.util.imports import (
    Load,
    Others,
    Redirector,
    around_loading,
    created_module,
    without_modules,
)

NAME = "made_by_a_test"


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])


def value() -> object:
    sys.modules.pop(NAME, None)
    return importlib.import_module(NAME).value


def test_a_created_module_in_a_block() -> None:
    done: list[ModuleType] = []

    def create() -> ModuleType:
        module = ModuleType(NAME)
        vars(module)["value"] = 2
        return module

    def then(module: ModuleType) -> None:
        assert sys.modules[NAME] is module
        done.append(module)

    def find(name: str, _others: Others) -> ModuleSpec | None:
        return created_module(NAME, create, then) if name == NAME else None

    before = [*sys.meta_path]
    with Redirector(find):
        assert value() == 2
        assert done == [sys.modules[NAME]]
        assert sys.modules[NAME].__spec__ == importlib.util.find_spec(NAME)

    assert value() == 1
    assert sys.meta_path == before


def test_a_module_with_another_name_keeps_its_spec() -> None:
    spec = json.__spec__
    with Redirector(lambda *_: created_module(NAME, lambda: json)):
        assert importlib.import_module(NAME) is json

    assert json.__spec__ is spec


def test_the_others_are_the_finders_after_this_one() -> None:
    asked: list[str] = []

    def first(name: str, others: Others) -> ModuleSpec | None:
        asked.append(f"first {name}")
        return others()

    def second(name: str, _others: Others) -> None:
        asked.append(f"second {name}")

    with Redirector(second), Redirector(first):
        assert value() == 1
        assert importlib.util.find_spec("no_such_module") is None

    names = (NAME, "no_such_module")
    # An answer of None leaves the import to the others, which are asked again.
    assert asked == [
        *(f"{finder} {names[0]}" for finder in ("first", "second")),
        *(f"{finder} {names[1]}" for finder in ("first", "second", "second")),
    ]


def test_code_around_loading_and_a_redirector_that_removes_itself() -> None:
    def load(own: Load, module: ModuleType) -> None:
        redirector.remove()
        assert not hasattr(module, "value")
        own(module)
        vars(module)["value"] += 10

    def find(name: str, others: Others) -> ModuleSpec | None:
        spec = others() if name == NAME else None
        return spec and around_loading(spec, load)

    redirector = Redirector(find)
    redirector.install()
    assert importlib.util.find_spec(NAME) is not None  # a search alone does not load
    assert redirector in sys.meta_path

    assert value() == 11
    assert value() == 1
    redirector.remove()


def test_a_loader_of_several_modules() -> None:
    class Both(Loader):
        def exec_module(self, module: ModuleType) -> None:
            vars(module)["value"] = 5

    loader = Both()

    def double(own: Load, module: ModuleType) -> None:
        own(module)
        vars(module)["value"] *= 2

    def find(name: str, _others: Others) -> ModuleSpec | None:
        spec = ModuleSpec(name, loader)
        return around_loading(spec, double) if name == NAME else spec

    with without_modules(lambda name: name == "another"), Redirector(find):
        assert value() == 10
        assert importlib.import_module("another").value == 5
        assert value() == 10


def test_an_error_of_the_function_ends_the_import() -> None:
    def find(name: str, _others: Others) -> None:
        raise ModuleNotFoundError(f"no {name} here", name=name)

    with Redirector(find), pytest.raises(ModuleNotFoundError, match=f"no {NAME} here"):
        value()


def test_modules_are_restored() -> None:
    with without_modules(lambda name: name in ("json", NAME)):
        assert "json" not in sys.modules
        sys.modules["json"] = ModuleType("json")
        value()

    assert sys.modules["json"] is json
    assert NAME not in sys.modules
