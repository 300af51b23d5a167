"""``--placement-report`` and its hook: the same document whichever process ran the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.pictures import with_data
from support.schemas import valid

WORKERS = [["-n", "0"], ["-n", "2"]]

TESTS = """
import pytest
from placement_checks import (
    Device, Machine, Op, Placement, assert_placeable, assert_variables_on_host,
)
from placement_checks.core.variables import Variable, Variables

def placed(program, device):
    put = Device.parse(f"/job:localhost/replica:0/task:0/{device}")
    op = Op("w", "VarHandleOp", Device.parse(device), assigned=put)
    return Placement(program, {"w": op}, Variables([Variable("w", "float32", (4,))]),
                     machine=Machine.local(2), placer="phantom", assigned=True)

def test_b_sound():
    graph = placed("sound.py:build", "/cpu:0")
    assert_placeable(graph)
    assert_variables_on_host(graph)

def test_a_broken():
    graph = placed("broken.py:build", "/gpu:1")
    with pytest.raises(AssertionError):
        assert_variables_on_host(graph)
    assert_variables_on_host(graph, "/gpu:1")
    assert_variables_on_host(placed("other.py:build", "/gpu:0"))

def test_of_nothing():
    pass
"""
HOOK = """
import json

def pytest_placement_report(report, config):
    tests = [(program["test"], program["program"]) for program in report["programs"]]
    (config.rootpath / "hook.json").write_text(json.dumps(tests))
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_it=TESTS)
    return pytester


def run(suite: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the tests in this process, or with workers."""
    is_here = "2" not in options
    run_pytest = suite.runpytest_inprocess if is_here else suite.runpytest_subprocess
    return run_pytest(*options, "-p", "no:cacheprovider")


@pytest.mark.parametrize("workers", WORKERS, ids=" ".join)
def test_json_has_the_verdicts_of_each_test(suite: pytest.Pytester, workers: list[str]) -> None:
    suite.makeconftest(HOOK)

    result = run(suite, "--placement-report=out.json", *workers)

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "=*= placement checks =*=",
            "rules: 3 kept, 2 broken, 0 not checked, on gpu[*]2 (phantom)",
            f"placement report: written to {suite.path / 'out.json'}",
        ],
        consecutive=True,
    )
    document = valid("verify", (suite.path / "out.json").read_text())
    assert document["schema"] == 2
    assert document["versions"].keys() == {"placement_checks", "tensorflow"}
    tests = [
        (
            program["test"],
            program["outcome"],
            program["program"],
            program["machine"],
            [(rule["rule"], rule["state"], len(rule["findings"])) for rule in program["rules"]],
        )
        for program in document["programs"]
    ]
    broken = [("variables-on-host", "broken", 1)]
    kept = [("placeable", "kept", 0), ("variables-on-host", "kept", 0)]
    assert tests == [
        ("test_it.py::test_a_broken", "failed", "broken.py:build", "gpu*2", broken),
        ("test_it.py::test_a_broken", "failed", "other.py:build", "gpu*2", broken),
        ("test_it.py::test_b_sound", "passed", "sound.py:build", "gpu*2", kept),
    ]
    assert json.loads((suite.path / "hook.json").read_text()) == [[a, c] for a, _, c, *_ in tests]
    assert not list(suite.path.glob(".placement-checks.*"))


@pytest.mark.parametrize(("name", "workers"), [("out.HTML", WORKERS[1]), ("out", WORKERS[0])])
def test_a_page_or_text_names_the_test(
    suite: pytest.Pytester, name: str, workers: list[str]
) -> None:
    run(suite, f"--placement-report={name}", *workers)

    written = with_data((suite.path / name).read_text())
    is_page = name == "out.HTML"
    assert written.startswith("<!DOCTYPE html>") is is_page
    assert "broken.py:build in test_it.py::test_a_broken" in written
    assert "variable w sits on /device:GPU:1, not on /device:CPU:0" in written
    if is_page:
        assert written.count('class="program"') == 3
        assert "\nVarHandleOp\n" in written  # the page has the ops, which are in other processes
    else:
        assert "3 programs, rules: 2 kept, 2 broken, 0 not checked." in written


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere/out.json", "No such file or directory"),
        (".", "it is not a file"),
        ("/proc/out.json", "No such file or directory"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_first(
    suite: pytest.Pytester, path: str, reason: str
) -> None:
    result = run(suite, f"--placement-report={path}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --placement-report={path}: {reason}"])


@pytest.mark.parametrize("workers", WORKERS, ids=" ".join)
def test_an_interrupted_run_leaves_the_old_file(
    suite: pytest.Pytester, workers: list[str]
) -> None:
    suite.makepyfile(test_stopped=f"{TESTS}\n\ndef test_c():\n    raise KeyboardInterrupt\n")
    old = suite.path / "out.json"
    old.write_text("old")

    result = suite.runpytest_subprocess("--placement-report=out.json", *workers)

    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert old.read_text() == "old"
    result.stdout.fnmatch_lines(
        ["placement report: not written, because the run was not finished"]
    )


def test_a_failed_write_at_the_end_fails_the_run(suite: pytest.Pytester) -> None:
    suite.mkdir("gone")
    suite.makepyfile(test_it="import shutil\n\ndef test_it():\n    shutil.rmtree('gone')\n")

    result = run(suite, "--placement-report=gone/out.json", "-n0")

    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    path = suite.path / "gone" / "out.json"
    result.stdout.fnmatch_lines(
        [f"placement report: not written to {path}: No such file or directory"]
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("out.json", '"programs": []'),
        ("out.html", "No test verified a program."),
        ("out", "0 programs, rules: 0 kept, 0 broken, 0 not checked."),
    ],
)
def test_a_run_without_checks_writes_an_empty_report(
    suite: pytest.Pytester, name: str, text: str
) -> None:
    run(suite, f"--placement-report={name}", "-n0", "-k", "nothing")

    assert text in (suite.path / name).read_text()


def test_nothing_is_sent_without_the_option(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        "def pytest_runtest_logreport(report):\n"
        "    assert 'placement_reports' not in vars(report)\n"
    )

    run(suite, "-n0").assert_outcomes(passed=2, failed=1)
    assert not Path(suite.path / "out.json").exists()
