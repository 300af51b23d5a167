"""The pytest that these tests run."""

from __future__ import annotations

import pytest

# pytester forgets what the tests of a test import, and a second import would make other classes.
from placement_checks.verification import configuration  # noqa: F401


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Without the plugins of this suite, which take half of the start time."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:syrupy")
    return pytester
