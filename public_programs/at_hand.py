"""Skips the tests of programs with missing sources or imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement_checks.tf.keras import comes_with_keras_2
from public_programs.programs import Program
from public_programs.sources import SOURCES, extract, repository, sources


def extracted(program: Program, into: Path) -> Path:
    """The start directory of a program, with its files and data."""
    folder = sources()
    if folder is None:
        pytest.skip(f"{SOURCES} names no folder with their sources")
    git = repository(program, folder)
    if git is None:
        pytest.skip(f"{folder} has no {program.repository} with its commit {program.commit:.7}")
    for package in ("tf_slim", *program.packages):
        pytest.importorskip(package)
    if program.needs_keras_2 and not comes_with_keras_2():
        pytest.skip("it needs Keras 2 as a part of TensorFlow")
    return extract(program, git, into)
