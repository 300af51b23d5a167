"""The lines of plain Python that give a line its values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from placement_checks.report.text.source_values import lines_of_values

PROGRAM = """
import tensorflow as tf

def build(num_gpus):
    optimizer = tf.train.AdamOptimizer(0.1)
    grads, losses = [], []
    weights = [1.0, *[0.0] * (num_gpus - 1)]
    other = [2.0] * num_gpus
    parts = tf.split(x, num_gpus)
    for part, row in zip(parts, order):
        grads.append(part[row])
        order = order[1:]
        losses.append(loss_of(part))
    updates = tf.get_collection("updates", scope)
    with tf.control_dependencies(updates):
        step = optimizer.apply_gradients(
            weighted(grads, weights)
        )
    def later():
        weights = other
    return step
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "train.py", PROGRAM)
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    """A file that was there before this process."""
    (folder / name).write_text(text)
    os.utime(folder / name, (1, 1))


def texts(line: int) -> list[str]:
    told = (each.rpartition(":") for each in lines_of_values(f"train.py:{line}"))
    lines = PROGRAM.split("\n")
    return [lines[int(number) - 1].strip() for _, _, number in told]


@pytest.mark.usefixtures("folder")
def test_what_the_names_of_a_statement_and_of_the_blocks_around_it_are_given() -> None:
    """Not what may build ops, which is told there, nor what is empty, nor what is not used."""
    assert texts(17) == [
        'updates = tf.get_collection("updates", scope)',
        "grads.append(part[row])",
        "weights = [1.0, *[0.0] * (num_gpus - 1)]",
    ]


@pytest.mark.usefixtures("folder")
def test_what_a_loop_goes_over() -> None:
    assert texts(11) == ["order = order[1:]"]


@pytest.mark.usefixtures("folder")
def test_a_function_within_has_names_of_its_own() -> None:
    assert texts(20) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("broken.py", "def ("), ("short.py", "x = 1"), ("null.py", "x = 1\0"), ("empty.py", "")],
)
def test_what_is_no_program_gives_none(folder: Path, name: str, text: str) -> None:
    write(folder, name, text)

    assert list(lines_of_values(f"{name}:3")) == []


@pytest.mark.parametrize("line", ["gone.py:3", "<string>:3", "train.py", "train.py:x", "", ":"])
def test_what_is_no_line_of_a_file_gives_none(folder: Path, line: str) -> None:
    assert list(lines_of_values(line)) == []


def test_a_file_that_was_changed_since_gives_none(folder: Path) -> None:
    (folder / "train.py").touch()

    assert list(lines_of_values("train.py:17")) == []
