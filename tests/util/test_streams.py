"""Redirected file descriptors."""

from __future__ import annotations

import os
import sys
from unittest.mock import Mock

import pytest

from placement_checks.util.streams import redirected, unnamed_file


def test_a_descriptor_is_restored_although_its_reader_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.fstat(1)
    broken = Mock(closed=False, flush=Mock(side_effect=BrokenPipeError))
    with unnamed_file() as file, monkeypatch.context() as patch:
        with redirected(1, file.fileno()):
            os.write(1, b"text")
            patch.setattr(sys, "stdout", broken)
        file.seek(0)
        written = file.read()

    assert written == b"text"
    assert os.path.samestat(os.fstat(1), before)
