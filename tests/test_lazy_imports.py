"""Modules are loaded only if they are needed, because each command imports the package."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from textwrap import dedent

import pytest


def printed(code: str) -> str:
    """The output of code in a new Python process."""
    command = [sys.executable, "-c", dedent(code)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.parametrize(
    "module",
    [
        "cli",
        "report.formats.json",
        "report.text",
        "testing.assertions",
        "testing.pytest_plugin",
        "verification.configuration",
        "verification.judging",
    ],
)
def test_rules_and_reports_load_no_tensorflow(module: str) -> None:
    printed(
        f"""
        import sys, placement_checks.{module}
        assert not {{'tensorflow', 'google.protobuf', 'keras'}} & sys.modules.keys()
        """
    )


def test_versions_are_reported_without_importing_tensorflow() -> None:
    found = printed(
        """
        import sys
        from placement_checks.core.versions import versions
        v = versions()
        print(v["placement_checks"], v["tensorflow"], "tensorflow" in sys.modules)
        """
    )

    expected = (metadata.version("placement_checks"), metadata.version("tensorflow"), "False")
    assert found.split() == list(expected)


def test_rules_are_listed_without_importing_one() -> None:
    printed(
        """
        import sys
        from placement_checks.rules.registry import NAMES, RULES, rule_class
        assert list(RULES) == list(NAMES) and len(RULES) == len(NAMES)
        rooms = {"registry", "entry_points", "devices", "towers", "runs"}
        assert {name for name in sys.modules if name.startswith("placement_checks.rules.")} <= {
            f"placement_checks.rules.{name}" for name in rooms}
        rule_class("no-fallback")
        assert "placement_checks.rules.devices.no_fallback" in sys.modules
        assert "placement_checks.rules.devices.placeable" not in sys.modules
        """
    )


def test_commands_and_formats_are_listed_without_importing_one() -> None:
    printed(
        """
        import sys
        from placement_checks.cli import cli
        from placement_checks.report.formats import FORMATS
        assert {"verify", "log"} <= {*cli.list_commands(None)}
        assert {"text", "json"} <= {*FORMATS}
        for package in ("cli", "report.formats"):
            prefix = f"placement_checks.{package}."
            assert not [name for name in sys.modules if name.startswith(prefix)
                        and not name.startswith(prefix + "common")]
        """
    )


def test_msgspec_is_loaded_only_for_values() -> None:
    printed(
        """
        import sys
        from placement_checks.testing import assertions, pytest_plugin
        from placement_checks.verification import configuration, judging, policy
        from placement_checks.core.settings import Settings
        policy.rules_for(Settings())
        assert "msgspec" not in sys.modules
        policy.valid_policy({"no-fallback": {"allow": "a"}})
        policy.valid_policy({"no-fallback": {"allow": ["a"]}})
        assert "msgspec" in sys.modules
        """
    )


def test_difflib_is_loaded_only_for_wrong_words() -> None:
    printed(
        """
        import sys
        from placement_checks.util import text
        assert "difflib" not in sys.modules
        text.did_you_mean("a", "b")
        assert "difflib" in sys.modules
        """
    )
