"""Tests of several projects in one repository, started in different directories."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from placement_checks import assert_placeable, place
from placement_checks.run.compare import pair  # noqa: F401
from placement_checks.verification import configuration  # noqa: F401

PROGRAM = """
import tensorflow as tf

def build(num_gpus=2):
    tf1 = tf.compat.v1
    x = tf1.placeholder(tf.float32, [48, 4], "x")
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [4, 1])
    for i, part in enumerate(tf.split(x, num_gpus)):
        with tf.device(f"/gpu:{i}"):
            tf.reduce_mean(part @ w, name="NAME")
"""
TESTS = """
import pytest
from placement_checks import assert_variables_on_host

def test_settings(place):
    assert str(place(TARGET).machine) == "gpu*GPUS"

def test_location(place):
    assert "NAME" in place(TARGET).ops

def test_reference(place):
    evidence = place(TARGET, reference=TARGET, batch=BATCH)
    assert evidence.reference

def test_baseline(place, placement_baseline):
    assert place(TARGET) == placement_baseline("of_test")
"""
BATCH = """
def batch(rng, n):
    return {"x": rng.normal(size=[n, 4])}
"""


def project(folder: Path, gpus: int, name: str, target: str) -> None:
    """Write a project with a number of GPUs in its settings; 0 for no settings."""
    tests = folder / "tests"
    tests.mkdir(parents=True)
    table = f"[tool.placement_checks]\ngpus = {gpus}\n" if gpus else ""
    (folder / "pyproject.toml").write_text(f"[project]\nname = '{name}'\n{table}")
    (folder / "train.py").write_text(PROGRAM.replace("NAME", name) + BATCH)
    text = TESTS.replace("TARGET", repr(f"{target}:build")).replace("NAME", name)
    text = text.replace("BATCH", repr(f"{target}:batch")).replace("GPUS", str(gpus or 3))
    (tests / f"test_{name}.py").write_text(text)
    if target == "near.py":
        (folder / "train.py").rename(tests / "near.py")


@pytest.fixture
def repository(pytester: pytest.Pytester) -> pytest.Pytester:
    """The rootdir has settings, and so has one of the two projects in it."""
    assert_placeable(place(lambda: tf.constant(1.0)))  # pytester forgets modules of its runs
    project(pytester.path, 3, "whole", "train.py")
    (pytester.path / "pyproject.toml").open("a").write("[tool.pytest.ini_options]\n")
    project(pytester.path / "first", 4, "first", "near.py")
    project(pytester.path / "second", 0, "second", "second/train.py")
    return pytester


@pytest.mark.parametrize("start", [".", "first", "first/tests", "second"])
def test_settings_and_programs_do_not_depend_on_the_directory(
    repository: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.chdir(repository.path / start)

    result = repository.runpytest_inprocess(
        "--import-mode=importlib", "-k", "not test_baseline", str(repository.path)
    )

    result.assert_outcomes(passed=9)


def test_a_changed_directory_comes_first(repository: pytest.Pytester) -> None:
    (repository.path / "test_moved.py").write_text(
        "def test_moved(place, monkeypatch, tmp_path):\n"
        "    program = open('train.py').read().replace('whole', 'moved')\n"
        "    (tmp_path / 'train.py').write_text(program)\n"
        "    monkeypatch.chdir(tmp_path)\n"
        "    assert 'moved' in place('train.py:build').ops\n"
    )

    repository.runpytest_inprocess("test_moved.py").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("start", "argument"),
    [
        (".", "first/tests/test_first.py::test_baseline"),
        ("first/tests", "test_first.py::test_baseline"),
        ("second", "../first/tests/test_first.py::test_baseline"),
    ],
)
def test_the_command_for_a_baseline_can_be_pasted(
    repository: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, start: str, argument: str
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(repository.path / start)
    test = str(repository.path / "first" / "tests" / "test_first.py")

    missing = repository.runpytest_inprocess("-k", "baseline", test)
    command = f"pytest --placement-update {argument}"
    missing.stdout.fnmatch_lines([f"*write it: {command}"])
    wrote = repository.runpytest_inprocess(*command.split()[1:])
    wrote.assert_outcomes(passed=1)
    repository.runpytest_inprocess("-k", "baseline", test).assert_outcomes(passed=1)
