"""Each test belongs to one tier, and light tests need neither TensorFlow nor another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest
from support import tiers
from support.tiers import TIERS

ROOT = Path(__file__).parents[1]
MODULES = {
    "test_light.py": "def test_light(): pass",
    "test_program.py": """
        import pytest
        PROGRAM = "import tensorflow as tf"
        def test_slow(): pass
        @pytest.mark.smoke
        def test_smoke(): pass
        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.nightly)])
        def test_both(n): pass
        """,
    "test_random.py": """
        import pytest
        pytestmark = pytest.mark.nightly
        def test_nightly(): pass
        """,
    "tf/test_versions.py": """
        import pytest
        def test_of_versions(): pass
        @pytest.mark.smoke
        def test_smoke_of_versions(): pass
        @pytest.mark.nightly
        def test_nightly_of_versions(): pass
        """,
    "test_helped.py": "from support.starts import run\ndef test_helped(): pass",
    "support/starts.py": "import subprocess\ndef run(): pass",
    "below/conftest.py": "from placement_checks import cli",
    "below/test_below.py": "def test_below(): pass",
    "below/further/test_further.py": "def test_further(): pass",
}
IN_TIERS = {
    "light": {"test_light", "test_of_versions"},
    "smoke": {"test_smoke", "test_smoke_of_versions"},
    "slow": {"test_slow", "test_both[1]", "test_helped", "test_below", "test_further"},
    "nightly": {"test_both[2]", "test_nightly", "test_nightly_of_versions"},
    "versions": {"test_of_versions", "test_smoke_of_versions"},
}


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of `MODULES`."""
    folder = pytester.path / "suite"
    monkeypatch.setattr(tiers, "TESTS", folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    pytester.makeini("[pytest]\ntestpaths = suite\nmarkers =\n    nightly\n    smoke\n")
    for name, text in MODULES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return pytester


def passed(suite: pytest.Pytester, *arguments: str) -> list[str]:
    """The names of the tests that a run runs, sorted."""
    reports, skipped, failed = suite.inline_run("-p", "support.tiers", *arguments).listoutcomes()
    assert not skipped
    assert not failed
    return sorted(report.nodeid.rpartition("::")[2] for report in reports)


@pytest.mark.parametrize("tier", IN_TIERS)
def test_the_tests_of_a_tier(suite: pytest.Pytester, tier: str) -> None:
    assert passed(suite, "--tiers", tier) == sorted(IN_TIERS[tier])


def test_several_tiers(suite: pytest.Pytester) -> None:
    names = passed(suite, "--tiers", "light,nightly")

    assert names == sorted(IN_TIERS["light"] | IN_TIERS["nightly"])


def test_nightly_tests_run_if_their_path_is_named(suite: pytest.Pytester) -> None:
    assert not IN_TIERS["nightly"] & set(passed(suite))
    assert IN_TIERS["nightly"] <= set(passed(suite, "suite"))


def test_snapshots_of_tests_in_other_tiers_are_not_unused(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # there, syrupy leaves it to the host
    suite.makeconftest("pytest_plugins = ['support.tiers']")
    module = suite.path / "suite" / "test_snapshots.py"
    text = (
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.smoke)])\n"
        "def test_snapshot(n, snapshot): assert n == snapshot\n"
    )
    module.write_text(text)
    suite.runpytest("--snapshot-update").assert_outcomes(passed=11, deselected=2)

    assert suite.runpytest("--tiers", "smoke").ret == 0

    module.write_text(text.replace("[1, ", "["))
    assert suite.runpytest().ret == 1


def test_an_unknown_tier_is_an_error(suite: pytest.Pytester) -> None:
    ran = suite.runpytest("-p", "support.tiers", "--tiers", "light,quick")

    assert ran.ret == pytest.ExitCode.USAGE_ERROR


def test_modules_of_other_tiers_are_not_imported(suite: pytest.Pytester) -> None:
    for name in ("test_program.py", "below/conftest.py"):
        with open(suite.path / "suite" / name, "a") as file:
            file.write("\nraise AssertionError")

    assert passed(suite, "--tiers", "light") == sorted(IN_TIERS["light"])


def test_a_mark_that_the_source_does_not_show_is_an_error(suite: pytest.Pytester) -> None:
    (suite.path / "suite" / "test_hidden.py").write_text(
        "import pytest\nMARK = getattr(pytest.mark, 'smoke')\n@MARK\ndef test_hidden(): pass\n"
    )

    ran = suite.runpytest("-p", "support.tiers")

    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*test_hidden: its module does not name the mark smoke"])


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("import_module('tensor' + 'flow')", "imports TensorFlow"),
        ("import_module('sub' + 'process').run(['true'])", "starts a process"),
    ],
)
@pytest.mark.parametrize("where", ["test", "module"])
def test_a_test_that_is_not_light_is_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, where: str, code: str, needs: str
) -> None:
    pytester.makepyfile(
        tensorflow="",
        test_light="def test_light(): pass",
        test_wrong=f"from importlib import import_module\ndef test_wrong(): {code}"
        + (f"\n{code}" if where == "module" else ""),
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))

    ran = pytester.runpytest_subprocess(
        "-p", "support.tiers", "--tiers", "light", "-p", "no:placement", "-p", "no:syrupy"
    )

    ran.stdout.fnmatch_lines([f"*test_wrong* {needs}, so SIGNS in *"])
    if where == "test":
        ran.assert_outcomes(passed=2, errors=1)


@pytest.mark.nightly
def test_the_tiers_are_a_partition_of_this_suite() -> None:
    *parts, whole = (collected_here(tier) for tier in (*TIERS, ",".join(TIERS)))

    assert all(parts)
    assert set(whole) == {test for part in parts for test in part}
    assert len(whole) == sum(map(len, parts))


def collected_here(tier: str) -> Sequence[str]:
    options = ["--collect-only", "-q", "-p", "no:syrupy"]  # unused snapshots are errors
    command = [sys.executable, "-m", "pytest", *options, "--tiers", tier, "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if "::" in line]
