from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import placement_checks
from placement_checks.rules.registry import NAMES

_WITHOUT_TENSORFLOW = """
import sys
import placement_checks
from placement_checks.report.common import json
from placement_checks.report.text import writer
runs = {"average_gradients", "simulated_gpus", "watch"}
for name in set(placement_checks.__all__) - runs:
    getattr(placement_checks, name)
assert "tensorflow" not in sys.modules
assert "numpy" not in sys.modules
"""


def test_public_names_load_no_tensorflow() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_TENSORFLOW], check=True)


def test_public_names_are_listed() -> None:
    assert {*placement_checks.__all__, "__version__"} <= set(dir(placement_checks))


def test_linters_and_python_see_the_same_names() -> None:
    """Linters read the imports under TYPE_CHECKING, which Python does not execute."""
    module = ast.parse(Path(placement_checks.__file__).read_text(encoding="utf-8"))
    homes = {
        name.name: str(statement.module)
        for block in module.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }

    assert homes.keys() == set(placement_checks.__all__)
    for name, home in homes.items():
        assert getattr(placement_checks, name) is getattr(import_module(home), name)


def test_every_rule_has_a_public_assertion_of_its_name() -> None:
    for name in NAMES:
        function = f"assert_{name.replace('-', '_')}"
        assert getattr(placement_checks, function).__name__ == function
        assert function in placement_checks.__all__


def test_training_takes_the_fields_of_both_its_rules() -> None:
    parameters = inspect.signature(placement_checks.assert_training_equal).parameters
    gradients = inspect.signature(placement_checks.assert_gradients_equal).parameters
    weights = inspect.signature(placement_checks.assert_weights_equal).parameters

    assert parameters.keys() == gradients.keys() | weights.keys()


def test_version_equals_the_installed_package() -> None:
    assert placement_checks.__version__ == version("placement_checks")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'placement_checks' has no attribute 'plcae'"):
        placement_checks.plcae  # type: ignore[attr-defined]  # noqa: B018
