"""TensorFlow's log records are delayed until it is known whether they matter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from placement_checks.capture.in_process.builder import hold_logs

LOGGER = tf.get_logger()


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """The records so far."""
    monkeypatch.setattr(LOGGER, "propagate", True)
    return lambda: caplog.messages


@pytest.mark.parametrize("error", [None, KeyError, SystemExit])
def test_records_are_logged_at_the_end(
    logged: Callable[[], list[str]],
    error: type[BaseException] | None,
) -> None:
    with contextlib.suppress(KeyError, SystemExit), hold_logs(unless=ValueError):
        LOGGER.warning("one")
        LOGGER.warning("two")
        assert logged() == []
        if error is not None:
            raise error

    LOGGER.warning("three")
    assert logged() == ["one", "two", "three"]


def test_irrelevant_records_are_dropped(logged: Callable[[], list[str]]) -> None:
    with contextlib.suppress(ValueError), hold_logs(unless=ValueError):
        LOGGER.warning("one")
        raise ValueError

    LOGGER.warning("two")
    assert logged() == ["two"]


def test_records_can_be_logged_before_the_end(logged: Callable[[], list[str]]) -> None:
    with hold_logs(unless=ValueError) as log:
        LOGGER.warning("one")
        log()
        LOGGER.warning("two")
        assert logged() == ["one", "two"]
    assert logged() == ["one", "two"]
