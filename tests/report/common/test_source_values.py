"""The lines of plain Python that give a line its values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.graphs import op, placement

from placement_checks.report.common.source import value_lines

PROGRAM = """
import tensorflow as tf

def build(num_gpus):
    optimizer = tf.train.AdamOptimizer(0.1)
    grads, losses = [], []
    weights = [1.0, *[0.0] * (num_gpus - 1)]
    other = [2.0] * num_gpus
    parts = tf.split(x, num_gpus)
    order = order[1:]
    for part, row in zip(parts, order):
        grads.append(part[row])
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


def texts(line: int, program: str = PROGRAM, built: Sequence[int] = (13,)) -> list[str]:
    """The statements that give a line its values, if ops were built on some lines."""
    ops = {f"op_{number}": f"main.py:1 train.py:{number}" for number in (line, *built)}
    graph = placement(*(op(name, "MatMul") for name in ops), lines=ops)
    found = (each.rpartition(":") for each in value_lines(f"train.py:{line}", graph))
    lines = program.split("\n")
    return [lines[int(number) - 1].strip() for _, _, number in found]


@pytest.mark.usefixtures("folder")
def test_values_of_names_in_a_statement_and_its_blocks() -> None:
    """Statements that may build ops, empty containers and unused names are omitted."""
    assert texts(17) == [
        'updates = tf.get_collection("updates", scope)',
        "grads.append(part[row])",
        "weights = [1.0, *[0.0] * (num_gpus - 1)]",
    ]


@pytest.mark.usefixtures("folder")
def test_the_iterable_of_a_loop() -> None:
    assert texts(12) == ["order = order[1:]"]


@pytest.mark.usefixtures("folder")
def test_a_loop_without_ops_may_not_have_run() -> None:
    assert "grads.append(part[row])" in texts(17)
    assert "grads.append(part[row])" not in texts(17, built=())


BRANCHES = """
def build(num_gpus, deep):
    size = small
    if deep:
        size = large
        x = tf.zeros([size])
    else:
        size = num_gpus
        x = tf.ones([size])
    rows = num_gpus
    if deep:
        rows = large
    try:
        cut = num_gpus
        read()
    except OSError:
        cut = small
    shape = [small]
    if deep:
        shape.append(large)
    first = small
    first = num_gpus
    for last in rows_of(x):
        tf.stack([size, rows, cut, last], shape, first)
        late = num_gpus
    with tf.device(late):
        name = late
    tf.identity(late, name)
"""


@pytest.mark.parametrize(
    ("built", "values"),
    [
        ((), ["first = num_gpus", "shape = [small]"]),
        ((6,), ["first = num_gpus", "shape = [small]", "size = large"]),
        ((9,), ["first = num_gpus", "shape = [small]", "size = num_gpus"]),
    ],
    ids=["no branch is known to have run", "the first branch ran", "the second branch ran"],
)
def test_only_values_of_executed_branches_are_named(
    folder: Path, built: Sequence[int], values: Sequence[str]
) -> None:
    """Not one of a skipped branch, nor one that a branch may have replaced."""
    write(folder, "train.py", BRANCHES)

    assert texts(24, BRANCHES, built) == values


def test_values_in_contexts_and_in_loops_without_ops(folder: Path) -> None:
    write(folder, "train.py", BRANCHES)

    assert texts(28, BRANCHES, ()) == ["name = late"]
    assert texts(28, BRANCHES, (24,)) == ["name = late", "late = num_gpus"]


@pytest.mark.parametrize(("leaves", "values"), [("continue", []), ("pass", ["scale = weight"])])
def test_a_branch_that_may_end_before_the_assignment(
    leaves: str, values: Sequence[str], folder: Path
) -> None:
    program = f"""
for part in parts:
    tf.identity(part)
    if skipped(part):
        {leaves}
    scale = weight
tf.add_n(parts, scale)
"""
    write(folder, "train.py", program)

    assert texts(7, program, built=(3,)) == values


def test_a_branch_of_one_line_has_no_value(folder: Path) -> None:
    program = """
if tf.constant(deep): scale = weight
tf.add_n(parts, scale)
"""
    write(folder, "train.py", program)

    assert texts(3, program, built=(2,)) == []


@pytest.mark.usefixtures("folder")
def test_an_inner_function_has_its_own_names() -> None:
    assert texts(20) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("broken.py", "def ("), ("short.py", "x = 1"), ("null.py", "x = 1\0"), ("empty.py", "")],
)
def test_invalid_source_gives_nothing(folder: Path, name: str, text: str) -> None:
    write(folder, name, text)

    assert list(value_lines(f"{name}:3")) == []


@pytest.mark.parametrize("line", ["gone.py:3", "<string>:3", "train.py", "train.py:x", "", ":"])
def test_a_line_outside_the_file_gives_nothing(folder: Path, line: str) -> None:
    assert list(value_lines(line)) == []


def test_a_changed_file_gives_nothing(folder: Path) -> None:
    (folder / "train.py").touch()

    assert list(value_lines("train.py:17")) == []
