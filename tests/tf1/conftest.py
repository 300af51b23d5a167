"""Fixtures for programs of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.tf1.activate import as_tensorflow_1
from placement_checks.tf1.lazy_modules import UsedNames

Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def used() -> Iterator[UsedNames]:
    """An open `as_tensorflow_1` block with its own graph."""
    with as_tensorflow_1() as used, tf.Graph().as_default():
        yield used


@pytest.fixture
def run(used: UsedNames) -> Run:
    """Runs a program in the block, and returns its names."""

    def program(text: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(dedent(text), "program.py", "exec"), names)
        return names

    return program
