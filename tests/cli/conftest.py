"""Runs the command in the process of the tests, which spares a TensorFlow import each time."""

from __future__ import annotations

import sys

import pytest
from support.commands import Ran, Run
from support.schemas import valid

from placement_checks import cli

_LARGEST = 1_000_000  # characters; longer documents are not checked with their schema


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["placement-checks", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capfd.readouterr()
        assert isinstance(exited.value.code, int)
        if "json" in arguments and 0 < len(captured.out) < _LARGEST:
            valid(str(arguments[0]), captured.out)
        return Ran(exited.value.code, captured.out, captured.err)

    return call
