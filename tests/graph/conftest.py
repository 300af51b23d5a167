"""Fixtures for tests that read graphs from files."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip shape inference, because its process takes seconds to start."""
    monkeypatch.setattr("placement_checks.graph.details.infer_outputs", lambda _: {})
