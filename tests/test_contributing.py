"""The example rule of CONTRIBUTING.md has the verdicts that its test expects."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.verdicts import Case, verdict_text

from placement_checks.rules.base import Rule

_TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
_MODULE = "placement_checks.rules.devices.counter_on_host"


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> type[Rule]:
    """The example rule, in a module that its test can import."""
    module = ModuleType(_MODULE)
    monkeypatch.setitem(sys.modules, _MODULE, module)
    exec(_BLOCKS[0], vars(module))
    found: type[Rule] = module.CounterOnHost
    return found


@pytest.fixture
def cases(rule: type[Rule]) -> dict[str, Case]:
    """The cases in the test of the example rule."""
    test = ModuleType("test_counter_on_host")
    exec(_BLOCKS[1], vars(test))
    assert callable(test.test_verdicts)
    found: dict[str, Case] = test.CASES
    return found


def test_the_verdicts_of_the_example(rule: type[Rule], cases: dict[str, Case]) -> None:
    states = {
        name: rule(**case.parameters).judge(case.program).state for name, case in cases.items()
    }

    assert states == {name: case.state for name, case in cases.items()}
    assert {*states.values()} == {"kept", "broken", "not-checked"}


def test_the_snapshot_of_the_example(rule: type[Rule], cases: dict[str, Case]) -> None:
    verdict = rule().judge(cases["on a GPU"].program)

    assert f"```\n{verdict_text(verdict)}\n```" in _TEXT
