"""The hooks that a conftest.py or a plugin can implement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def pytest_placement_report(report: Mapping[str, Any], config: pytest.Config) -> None:
    """Receive the verdicts of all tests at the end of the run, in the process that reports them::

        def pytest_placement_report(report, config):
            for program in report["programs"]:
                broken = [rule["rule"] for rule in program["rules"] if rule["state"] == "broken"]
                send_to_dashboard(program["test"], program["program"], broken)

    With xdist, that process does not load a conftest.py below the directory where pytest is
    started: implement the hook in that directory, or in a plugin.

    Args:
        report: the content of the file that ``--placement-report=report.json`` writes.
        config: the configuration of this pytest run.
    """
