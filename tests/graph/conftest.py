"""Fixtures of tests that read graphs from files."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told by a process of its own, which takes seconds to start."""
    monkeypatch.setattr("placement_checks.graph.op_origins.outputs_of", lambda _: {})
