"""The hooks that a conftest.py or a plugin may implement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def pytest_placement_report(report: Mapping[str, Any], config: pytest.Config) -> None:
    """Get what all tests have judged, at the end of the run and in the process that reports it::

        def pytest_placement_report(report, config):
            for program in report["programs"]:
                broken = [rule["rule"] for rule in program["rules"] if rule["state"] == "broken"]
                send_to_dashboard(program["test"], program["program"], broken)

    With xdist a conftest.py below the folder in which pytest is started is not loaded in that
    process: put it there, or into a plugin.

    Args:
        report: the document that ``--placement-report=report.json`` writes.
        config: of this run of pytest.
    """
