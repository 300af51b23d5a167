"""The example rule of CONTRIBUTING.md works, and so does its test."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

_TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
_MODULE = "placement_checks.rules.devices.counter_on_host"


@pytest.fixture
def tests(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the test, next to the module of the rule."""
    rule, test = _BLOCKS
    for name, code in ((_MODULE, rule), ("test_counter_on_host", test)):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        exec(code, vars(sys.modules[name]))
    return sys.modules["test_counter_on_host"]


@pytest.mark.parametrize(("at", "state"), [("/cpu:0", "kept"), ("/gpu:0", "broken")])
def test_the_verdicts_of_the_example(tests: ModuleType, at: str, state: str) -> None:
    tests.test_where_the_counter_is(at, state)


def test_a_program_without_counter(tests: ModuleType) -> None:
    tests.test_no_counter()
