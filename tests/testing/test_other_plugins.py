"""Counts, reports and exit statuses together with other plugins and options of pytest.

Each case is a row of a table in docs/pytest.md. A case is skipped if its plugin is not installed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.schemas import valid

HEAD = """
import os
import time
import unittest
from pathlib import Path
import pytest
from placement_checks import Device, Machine, Op, Placement, assert_variables_on_host
from placement_checks.core.variables import Variable, Variables

def check(program, device="/cpu:0"):
    put = Device.parse(f"/job:localhost/replica:0/task:0/{device}")
    op = Op("w", "VarHandleOp", Device.parse(device), assigned=put)
    assert_variables_on_host(
        Placement(program, {"w": op}, Variables([Variable("w", "float32", (4,))]),
                  machine=Machine.local(2), placer="phantom", assigned=True))

def attempt(name):  # 1, 2, ...
    file = Path(name)
    file.write_text("x" + (file.read_text() if file.exists() else ""))
    return len(file.read_text())
"""
TWO = """
def test_sound():
    check("first")
    check("second")

def test_broken():
    check("third", "/gpu:1")
"""
FLAKY = """
@pytest.fixture
def checked():
    check("of the fixture")

def test_flaky(checked):
    check("flaky", "/cpu:0" if attempt("attempts") == 3 else "/gpu:0")

def test_sound():
    check("sound")
"""
FLAKY_SETUP = """
@pytest.fixture
def checked():
    check("of the fixture", "/cpu:0" if attempt("attempts") == 2 else "/gpu:0")

def test_flaky(checked):
    check("flaky")
"""
FLAKY_TEARDOWN = """
@pytest.fixture
def checked():
    yield
    check("of the fixture", "/cpu:0" if attempt("attempts") == 2 else "/gpu:0")

def test_flaky(checked):
    check("flaky")
"""
SUBTESTS = """
def test_all(subtests):
    for i in range(6):
        with subtests.test(i=i):
            check(f"program {i}", "/gpu:0" if i == 3 else "/cpu:0")
    check("last")
"""
UNITTEST = """
class TestAll(unittest.TestCase):
    def test_all(self):
        for i in range(6):
            with self.subTest(i=i):
                check(f"program {i}", "/gpu:0" if i == 3 else "/cpu:0")
"""
FLAKY_SUBTESTS = """
def test_all(subtests):
    number = attempt("attempts")
    for i in range(3):
        with subtests.test(i=i):
            check(f"program {i}", "/gpu:0" if i == 1 and number == 1 else "/cpu:0")
"""
FIRST_OF_THREE = """
def test_1():
    check("first", "/gpu:0")

@pytest.mark.parametrize("i", range(20))
def test_2(i):
    time.sleep(0.2)
    check("second")
"""
SLOW = """
def test_slow():
    check("slow")
    time.sleep(60)

def test_sound():
    check("sound")
"""
CRASH = """
def test_crash():
    check("lost")
    os._exit(3)

def test_sound():
    check("sound")
"""
SKIPS = """
def test_skipped():
    check("skipped")
    pytest.skip("later")

@pytest.mark.xfail
def test_fails():
    check("fails", "/gpu:0")

@pytest.mark.skip
def test_never():
    check("never")
"""
EXIT = """
def test_sound():
    check("sound")

def test_stop():
    pytest.exit("enough", returncode=0)
"""
XDIST = "xdist.plugin"


@dataclass(frozen=True)
class Case:
    """A run of pytest.

    Attributes:
        tests: the test module.
        options: the options of the run.
        plugins: modules of plugins.
        kept, broken: the counts on the terminal; both 0 if there is none.
        report: the outcomes in the report, by program; None if no report is written.
        status: the exit status.
        note: the end of the line about the report, after the path.
        other: another test module.
    """

    tests: str
    options: str = ""
    plugins: tuple[str, ...] = ()
    kept: int = 0
    broken: int = 0
    report: dict[str, str] | None = None
    status: int = 0
    note: str = ""
    other: str = ""


BOTH = {"first": "passed", "second": "passed", "third": "failed"}
SIX = {f"program {i}": "failed" for i in range(6)}
FIRST = {"first": "failed"}
STOPPED = "; pytest did not run all tests: stopping after 1 failures"
CASES = {
    "pytest alone": Case(TWO, kept=2, broken=1, report=BOTH, status=1),
    "skip and xfail": Case(
        SKIPS, kept=1, broken=1, report={"skipped": "skipped", "fails": "skipped"}
    ),
    "subtests": Case(SUBTESTS, kept=6, broken=1, report={**SIX, "last": "failed"}, status=1),
    "unittest subTest": Case(UNITTEST, kept=5, broken=1, report=SIX, status=1),
    "--exitfirst": Case(FIRST_OF_THREE, "-x", broken=1, report=FIRST, status=1, note=STOPPED),
    "--maxfail": Case(
        FIRST_OF_THREE, "--maxfail=1", broken=1, report=FIRST, status=1, note=STOPPED
    ),
    "--last-failed": Case(TWO, "--lf", broken=1, report={"third": "failed"}, status=1),
    "error during collection": Case(TWO, status=2, other="import nowhere"),
    "--continue-on-collection-errors": Case(
        TWO, "--continue-on-collection-errors", kept=2, broken=1, report=BOTH, status=1,
        note="; test_other.py could not be collected", other="import nowhere",
    ),
    "KeyboardInterrupt": Case(
        TWO, kept=2, broken=1, status=2, other="def test_it():\n    raise KeyboardInterrupt"
    ),
    "pytest.exit": Case(EXIT, kept=1, status=0),
    "pytest-xdist": Case(TWO, "-n2", (XDIST,), kept=2, broken=1, report=BOTH, status=1),
    "pytest-xdist, subtests": Case(
        SUBTESTS, "-n1", (XDIST,), kept=6, broken=1, report={**SIX, "last": "failed"}, status=1
    ),
    "pytest-xdist, --dist=each": Case(
        TWO, "--dist=each --tx=2*popen", (XDIST,), kept=4, broken=2, report=BOTH, status=1
    ),
    "pytest-xdist, --exitfirst": Case(
        FIRST_OF_THREE, "-x -n1", (XDIST,), broken=1, report=FIRST, status=2, note=STOPPED
    ),
    "pytest-xdist, KeyboardInterrupt": Case(
        TWO, "-n1", (XDIST,), kept=2, broken=1, status=2,
        other="def test_it():\n    raise KeyboardInterrupt",
    ),
    "pytest-xdist, lost worker": Case(
        CRASH, "-n1", (XDIST,), kept=1, report={"sound": "passed"}, status=1,
        note="; test_it.py::test_crash ended its process",
    ),
    "pytest-rerunfailures": Case(
        FLAKY, "--reruns=2", ("pytest_rerunfailures",), kept=3,
        report={"of the fixture": "passed", "flaky": "passed", "sound": "passed"},
    ),
    "pytest-rerunfailures, still broken": Case(
        TWO, "--reruns=2", ("pytest_rerunfailures",), kept=2, broken=1, report=BOTH, status=1
    ),
    "pytest-rerunfailures, setup": Case(
        FLAKY_SETUP, "--reruns=2", ("pytest_rerunfailures",), kept=2,
        report={"of the fixture": "passed", "flaky": "passed"},
    ),
    "pytest-rerunfailures, teardown": Case(
        FLAKY_TEARDOWN, "--reruns=2", ("pytest_rerunfailures",), kept=2,
        report={"of the fixture": "passed", "flaky": "passed"},
    ),
    "pytest-rerunfailures, subtests": Case(
        FLAKY_SUBTESTS, "--reruns=2", ("pytest_rerunfailures",), kept=3,
        report={f"program {i}": "passed" for i in range(3)},
    ),
    "pytest-rerunfailures, pytest-xdist": Case(
        FLAKY, "--reruns=2 -n2", ("pytest_rerunfailures", XDIST), kept=3,
        report={"of the fixture": "passed", "flaky": "passed", "sound": "passed"},
    ),
    "pytest-repeat": Case(
        TWO, "--count=3", ("pytest_repeat",), kept=6, broken=3, report=BOTH, status=1
    ),
    "pytest-subtests": Case(
        SUBTESTS, "", ("pytest_subtests.plugin",), kept=6, broken=1,
        report={**SIX, "last": "failed"}, status=1,
    ),
    "pytest-forked": Case(
        TWO, "--forked", ("pytest_forked",), kept=2, broken=1, report=BOTH, status=1
    ),
    "pytest-forked, lost process": Case(
        CRASH, "--forked", ("pytest_forked",), kept=1, report={"sound": "passed"}, status=1,
        note="; test_it.py::test_crash ended its process",
    ),
    "pytest-timeout": Case(
        SLOW, "--timeout=2", ("pytest_timeout",), kept=2,
        report={"slow": "failed", "sound": "passed"}, status=1,
    ),
    "pytest-timeout, --timeout-method=thread": Case(
        SLOW, "--timeout=2 --timeout-method=thread", ("pytest_timeout",), status=1
    ),
    "pytest-randomly": Case(
        TWO, "", ("pytest_randomly",), kept=2, broken=1, report=BOTH, status=1
    ),
    "pytest-cov": Case(
        TWO, "--cov=.", ("pytest_cov.plugin",), kept=2, broken=1, report=BOTH, status=1
    ),
}  # fmt: skip


# Two cases show that results of workers are merged; the other cases with workers are nightly.
OF_A_CHANGE = {"pytest-xdist", "pytest-xdist, lost worker"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly)
        if XDIST in case.plugins and name not in OF_A_CHANGE
        else name
        for name, case in CASES.items()
    ],
)
def test_counts_report_and_status(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    for plugin in case.plugins:
        pytest.importorskip(plugin.partition(".")[0])
    if (
        re.search("sub_?test", name, re.IGNORECASE)
        and "pytest_subtests.plugin" not in case.plugins
    ):
        pytest.importorskip("_pytest.subtests", reason="subtests are new in pytest 9")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = [f"-p{plugin}" for plugin in case.plugins]
    if "pytest_forked" in case.plugins:
        pytester.makepyfile(test_it="def test_it(): pass")
        if pytester.runpytest_subprocess(*plugins, "--forked").ret:
            pytest.skip("this pytest-forked does not work with this pytest")
    options = ["-pplacement_checks.testing.pytest_plugin", *plugins]
    pytester.makepyfile(test_it=HEAD + case.tests)
    if "--lf" in case.options:
        pytester.runpytest_subprocess(*options)
    if case.other:
        pytester.makepyfile(test_other=case.other)

    result = pytester.runpytest_subprocess(
        *options, *case.options.split(), "--placement-report=out.json", "--junit-xml=junit.xml"
    )

    output = result.stdout.str()
    counts = re.search(r"^rules: (\d+) kept, (\d+) broken, 0 not checked", output, re.MULTILINE)
    assert tuple(map(int, counts.groups() if counts else (0, 0))) == (case.kept, case.broken)
    assert result.ret == case.status
    file = pytester.path / "out.json"
    if case.report is None:
        assert not file.exists()
        return
    document = valid("verify", file.read_text())
    assert {each["program"]: each["outcome"] for each in document["programs"]} == case.report
    states = Counter(rule["state"] for each in document["programs"] for rule in each["rules"])
    assert states == +Counter(kept=case.kept, broken=case.broken)
    assert f"placement report: written to {file}{case.note}" in output.splitlines()
    assert ("error" in document) == bool(case.note)
    # pytest's own file lacks tests with --dist=each, and has each attempt with reruns.
    if "each" not in name and "rerun" not in name:
        properties = (pytester.path / "junit.xml").read_text().count('<property name="placement"')
        assert properties == case.kept + case.broken


def test_the_documentation_lists_all_cases() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "pytest.md").read_text(encoding="utf-8")
    section = text.partition("### With other plugins and options")[2].partition("\n#")[0]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)

    assert [row.replace("`", "") for row in rows] == ["run", *CASES]
