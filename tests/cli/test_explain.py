"""``explain``: a rule with its example, and an object of a program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.commands import Run

TOWERS = """
import tensorflow as tf
tf1 = tf.compat.v1

def build(num_gpus):
    x = tf1.placeholder(tf.float32, [64, 8])
    grads = []
    for i, part in enumerate(tf.split(x, num_gpus)):
        with tf.device(f"/gpu:{i}"), tf1.variable_scope("model", reuse=i > 0):
            w = tf1.get_variable("w", [8, 1])
            grads += tf.gradients(tf.reduce_mean(tf.matmul(part, w)), w)
    with tf.device("/cpu:0"):
        return w.assign_sub(tf.add_n(grads) / num_gpus)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TOWERS)
    os.utime("train.py", (0, 0))  # before it is run


def rows(out: str) -> dict[str, str]:
    """The first line of each row, by its label."""
    lines = [line.strip().split("  ", 1) for line in out.splitlines()[2:] if line[2] != " "]
    return {label: text.strip() for label, text in lines}


def test_a_rule_ends_with_its_example(run: Run) -> None:
    lines = run("explain", "no-idle-device").out.splitlines()

    assert lines[0] == "Every GPU of the machine computes."
    assert '-        with tf.device("/gpu:0"):' in lines
    assert '+        with tf.device(f"/gpu:{i}"):' in lines


def test_a_variable_of_a_program(run: Run) -> None:
    ran = run("explain", "model/w", "train.py:build", "--gpus", 4)

    found = rows(ran.out)
    assert ran.status == 0
    assert ran.out.startswith("model/w (VarHandleOp): float32 [8, 1], 32 bytes\n")
    assert found["built at"] == 'train.py:10  w = tf1.get_variable("w", [8, 1])'
    assert found["requests"].startswith("/device:GPU:0, by train.py:9  with tf.device(f")
    assert found["placed on"] == "/device:GPU:0, as requested"
    assert "the tower on /device:GPU:3: " in ran.out
    assert found["findings"].startswith("variables-on-host: ")
    assert max(map(len, ran.out.splitlines())) <= 120
    assert len(ran.out.splitlines()) <= 24


def test_findings_of_a_rule_that_is_left_out(run: Run) -> None:
    Path("pyproject.toml").write_text('[tool.placement_checks]\nwithout = ["variables-on-host"]\n')

    found = rows(run("explain", "model/w", "train.py:build").out)

    assert "variables-on-host" not in found.get("findings", "")


def test_a_variable_of_a_log(run: Run) -> None:
    Path("outputlog").write_text(run("place", "train.py:build").out)

    alone = run("explain", "model/w", "outputlog").out
    found = rows(run("explain", "model/w", "outputlog", "--graph", "train.py:build").out)

    assert "add the program that printed the log: --graph train.py:build" in " ".join(
        alone.split()
    )
    assert found["requests"].startswith("/device:GPU:0, by train.py:9  with tf.device(f")
    assert found["placed on"] == "/device:GPU:0, as requested"


def test_a_device_of_a_program(run: Run) -> None:
    found = rows(run("explain", "/gpu:1", "train.py:build").out)

    assert "by train.py:9  with tf.device(f" in found["requested by"]
    assert found["tower"] == "the tower on /device:GPU:1, which reads 1 variable"


BAD = {
    "variables-on-hots": "rule 'variables-on-hots' is not a known rule; did you mean "
    "'variables-on-host'?",
    "model/w": "'model/w' is not a rule; to explain an op, variable or device, name its program: "
    "placement-checks explain model/w train.py:build",
    "no-fallback --gpus 2": "'no-fallback' is a rule, and options of programs such as --gpus do "
    "not apply to a rule; omit these options",
    "model/v train.py:build": "'model/v' is not an op or device of train.py:build; did you mean "
    "'model/w'?",
    "no-fallback train.py:build": "'no-fallback' is the name of a rule; train.py:build has no op, "
    "variable or device of that name; to check the rule: placement-checks verify train.py:build "
    "--rule no-fallback",
    "model/w nosuch.py:build": "nosuch.py: there is no such file",
}


@pytest.mark.parametrize("arguments", BAD)
def test_an_unknown_object_is_an_error_of_one_line(run: Run, arguments: str) -> None:
    ran = run("explain", *arguments.split())

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == f"placement-checks: {BAD[arguments]}"


def test_a_program_has_the_settings_of_its_entry(run: Run) -> None:
    Path("pyproject.toml").write_text(
        "[tool.placement_checks]\nprograms = [{ target = 'train.py:build', gpus = 4 }]\n"
    )

    assert run("explain", "/gpu:3", "train.py:build").status == 0
    assert run("place", "train.py:build").out.count("/device:GPU:3") > 0
