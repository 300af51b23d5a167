"""``--placement-since``: the programs of the tests, compared with a git revision."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import tensorflow as tf  # once, for all runs in this process
from support.forked import run_pytest_forked
from support.repositories import commit, write
from support.tower_programs import towers, whole

from placement_checks import place
from placement_checks.testing.revision import PlacedPrograms

assert tf

TESTS = """
import placement_checks
from train import build


def test_a_function(place):
    place(build, gpus=2)


def test_a_function_twice():
    placement_checks.assert_placeable(placement_checks.place("src/train.py:build"))


def test_a_whole_program(place):
    place("src/train.py", args=["{gpus}"])


def test_a_closure(place):
    place(lambda num_gpus: build(num_gpus))
"""
OLD = whole(towers())
RENAMED = whole(towers(scope="dense"))
MOVED = whole(towers(scope="dense", tower_on="0"))
SECTION = "*= placement since HEAD =*"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A repository with a program in ``src`` and its tests."""
    ini = "[pytest]\npythonpath = src\n"
    commit(pytester.path, {"src/train.py": OLD, "test_train.py": TESTS, "pytest.ini": ini})
    return pytester


def test_refactors(project: pytest.Pytester) -> None:
    """In one test, because each directory of tests needs another import of TensorFlow."""
    write(project.path, {"src/train.py": RENAMED})

    same = project.runpytest_inprocess("--placement-since=HEAD")

    assert same.ret == 0
    same.stdout.fnmatch_lines(
        [
            SECTION,
            "not compared: *<lambda>, which no other process can import; name it by a target, "
            "such as 'train.py:build'",
            "train:build: nothing has moved: 88 ops placed as in HEAD",
            "  1 variable renamed: fc/weights -> dense/weights",
            "src/train.py:build: nothing has moved: 88 ops placed as in HEAD",
            "src/train.py: nothing has moved: * ops placed as in HEAD",
            "3 programs compared with HEAD (*): 3 same.",
        ]
    )

    write(project.path, {"src/train.py": MOVED})

    moved = project.runpytest_inprocess("--placement-since=HEAD", "-k", "function")

    assert moved.ret == pytest.ExitCode.TESTS_FAILED
    moved.assert_outcomes(passed=2, deselected=2)
    moved.stdout.fnmatch_lines(
        [
            SECTION,
            "train:build: 1 moved, 0 new, 0 gone; 88 ops placed as in HEAD; 2 rules newly broken",
            "newly broken: no-idle-device (kept at HEAD)",
            "2 programs compared with HEAD (*): 2 changed.",
        ]
    )

    left_out = '[tool.placement_checks]\nwithout = ["no-idle-device", "averaging-on-host"]\n'
    write(project.path, {"pyproject.toml": left_out})

    without = project.runpytest_inprocess("--placement-since=HEAD", "-k", "twice")

    without.stdout.fnmatch_lines(
        ["src/train.py:build: 1 moved, 0 new, 0 gone; 88 ops placed as in HEAD"]
    )


@pytest.mark.parametrize(("gpus", "machine"), [(None, None), (2, "ps*1: cpu*1; worker*1: gpu*2")])
def test_a_cluster_is_compared_on_the_machine_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int | None, machine: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.py").write_text(
        "import tensorflow as tf\n\ndef build():\n"
        "    with tf.device('/job:ps/cpu:0'):\n        x = tf.constant(1.0)\n"
        "    with tf.device('/job:worker/gpu:0'):\n        tf.sqrt(x)\n"
    )
    programs = PlacedPrograms()

    programs.add(place("cluster.py:build", gpus=gpus))

    ((_, settings),) = programs.jobs.values()
    assert (settings["gpus"], settings["machine"]) == (None, machine)


def test_a_horovod_program_is_compared_with_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ranks.py").write_text(
        "import horovod.tensorflow as hvd\nimport tensorflow as tf\n\ntf1 = tf.compat.v1\n"
        "tf1.disable_eager_execution()\nhvd.init()\nw = tf1.get_variable('w', [4])\n"
        "optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1))\n"
        "train = optimizer.minimize(tf.reduce_sum(w))\n"
        "with tf1.Session() as session:\n    session.run(train)\n"
    )
    programs = PlacedPrograms()

    programs.add(place("ranks.py", horovod=2))

    ((_, settings),) = programs.jobs.values()
    assert (settings["horovod"], settings["gpus"], settings["machine"]) == (2, None, None)


def test_an_unknown_revision_fails_the_run(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--placement-since=nothing", "-k", "function_twice")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--since nothing is not a revision of this repository; *"])


def test_without_programs_nothing_is_compared(project: pytest.Pytester) -> None:
    project.makepyfile(test_nothing="def test_nothing(): pass")

    result = project.runpytest_inprocess("--placement-since=HEAD", "test_nothing.py")

    assert result.ret == 0
    result.stdout.fnmatch_lines([SECTION, "no program to compare"])


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=" ".join)
def test_programs_outside_of_the_repository(
    project: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, workers: list[str]
) -> None:
    """Workers of pytest-xdist send their programs, and no worker compares them."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "other.py"
    elsewhere.write_text(OLD)
    project.makepyfile(f"def test_it(place): place('{elsewhere}:build')")
    run = partial(run_pytest_forked, project) if workers else project.runpytest_inprocess

    result = run("--placement-since=HEAD", "-k", "test_it", *workers)

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [SECTION, f"not compared, outside of the repository: {elsewhere}:build"]
    )
    assert result.stdout.str().count("not compared") == 1
