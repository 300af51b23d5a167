"""Runs the command in the process of the tests, which spares a TensorFlow import each time."""

from __future__ import annotations

import sys

import pytest
from commands import Ran, Run

from placement_checks import cli


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["placement-checks", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capfd.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, captured.out, captured.err)

    return call
