"""The project: files at its top, dependencies, and imports between subpackages."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import placement_checks

ROOT = Path(__file__).parents[1]
TOP = {
    "placement_checks",
    "tests",
    "fixtures",
    "conftest.py",
    "tox.ini",
    "pyproject.toml",
    "README.md",
}


def test_the_top_of_the_project_explains_itself() -> None:
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}

    assert names >= TOP
    assert (ROOT / "placement_checks" / "py.typed").is_file()


def test_the_extras_and_the_entry_point_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert set(project["optional-dependencies"]) == {"benchmark", "data", "tensorflow", "v1"}
    plugin = "placement_checks.testing.pytest_plugin"
    assert project["entry-points"]["pytest11"] == {"placement": plugin}


def test_the_pre_commit_hook_names_an_existing_command() -> None:
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text()

    found = re.search(r"^  entry: placement-checks (\S+) (\S+)$", hook, re.MULTILINE)
    assert found
    command = import_module(f"placement_checks.cli.{found[1]}").command
    assert any(found[2] in parameter.opts for parameter in command.params)
    assert "pass_filenames: false" in hook


# Import names that differ from the distribution; Keras comes with TensorFlow.
INSTALLED_AS = {"google": "protobuf", "grpc": "grpcio", "keras": "tensorflow"}


def test_every_imported_package_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with_tensorflow = project["optional-dependencies"]["tensorflow"]
    declared = {
        re.split(r"\W", dependency)[0]
        for dependency in [*project["dependencies"], *with_tensorflow]
    }
    own = {*sys.stdlib_module_names, "placement_checks"}

    imported = {
        INSTALLED_AS.get(name, name)
        for path in (ROOT / "placement_checks").rglob("*.py")
        for name in _imported(ast.parse(path.read_text(encoding="utf-8")))
        if name not in own
    }

    assert imported == declared


def _imported(module: ast.Module) -> Iterator[str]:
    """The packages that a module imports, in functions and for its types as well."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_every_public_name_exists() -> None:
    for name in placement_checks.__all__:
        assert getattr(placement_checks, name).__doc__
