"""Shared by all tests: the programs in fixtures/, and a pytest to run plugin tests in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of the programs that the suite is judged on."""
    return Path(__file__).parent / "fixtures"
