"""The pytest that these tests run."""

from __future__ import annotations

import pytest


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Without the plugins of this suite, which take half of the start time."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:syrupy")
    return pytester
