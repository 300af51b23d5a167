"""``placement_baseline`` and its options, without xdist and with it, on placements by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1]
PROGRAM = """
import sys

sys.path[:0] = [{support!r}]
from support.baselines import moved
from support.towers import program

def placed(name="towers.py:build", **places):
    return moved(program(variables=["w", "v"], program=name), **places)
"""
TESTS = """
from by_hand import placed

def test_towers(placement_baseline):
    assert placed() == placement_baseline

def test_other(placement_baseline):
    assert placed("other.py:build") == placement_baseline
"""
MOVED = """
from by_hand import placed

def test_towers(placement_baseline):
    assert placed(**{"tower_1/v/MatMul": "/gpu:0"}) == placement_baseline

def test_other(placement_baseline):
    assert placed("other.py:build") == placement_baseline
"""
FILES = ["other.build.gpu-2.toml", "towers.build.gpu-2.toml"]


IN_THIS_PROCESS = [("-p", "no:xdist"), ("-n", "0")]


@pytest.fixture(params=[*IN_THIS_PROCESS, ("-n", "2")], ids=" ".join)
def xdist(request: pytest.FixtureRequest) -> tuple[str, ...]:
    options: tuple[str, ...] = request.param
    return options


class Project:
    """A project with baselines, and the output of pytest."""

    def __init__(self, pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
        self._pytester = pytester
        self._options = options
        self.folder = pytester.path / "placements"
        pytester.makepyfile(by_hand=PROGRAM.format(support=str(SUPPORT)))

    def run(self, *options: str, **files: str) -> pytest.RunResult:
        for name, text in files.items():
            (self._pytester.path / f"{name}.py").write_text(text)
        always = (*self._options, "-p", "no:cacheprovider", "-p", "no:randomly")
        if "2" in self._options:
            return self._pytester.runpytest_subprocess(*always, *options)
        return self._pytester.runpytest_inprocess(*always, *options)

    def files(self) -> list[str]:
        return sorted(each.name for each in self.folder.glob("*"))


@pytest.fixture
def project(
    pytester: pytest.Pytester, xdist: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> Project:
    monkeypatch.delenv("CI", raising=False)
    return Project(pytester, xdist)


@pytest.fixture
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project for tests that need only one way of running pytest."""
    monkeypatch.delenv("CI", raising=False)
    return Project(pytester, ("-p", "no:xdist"))


@pytest.mark.parametrize("xdist", IN_THIS_PROCESS, ids=" ".join, indirect=True)
def test_a_baseline_is_missing_then_written_then_differs(project: Project) -> None:
    missing = project.run(test_it=TESTS)
    missing.assert_outcomes(failed=2)
    missing.stdout.fnmatch_lines(
        [
            "E*assert placements/towers.build.gpu-2.toml does not exist: towers.py:build has no "
            "baseline; --placement-update writes it",
            "E*write it: pytest --placement-update test_it.py::test_towers",
        ]
    )
    assert project.files() == []

    wrote = project.run("--placement-update")
    wrote.assert_outcomes(passed=2)
    wrote.stdout.fnmatch_lines(
        [
            "*placement baselines*",
            "wrote placements/other.build.gpu-2.toml",
            "wrote placements/towers.build.gpu-2.toml",
        ]
    )
    assert project.files() == FILES

    kept = project.run()
    kept.assert_outcomes(passed=2)
    assert "placement baselines" not in kept.stdout.str()

    differs = project.run(test_it=MOVED)
    differs.assert_outcomes(passed=1, failed=1)
    differs.stdout.fnmatch_lines(
        [
            "E*assert 1 moved, 0 new, 0 gone; 27 ops placed as in "
            "placements/towers.build.gpu-2.toml; --placement-update accepts it",
            "E*if this is intended: pytest --placement-update test_it.py::test_towers",
            "E*moved:",
            "E*  forward of tower 1, layer v: /gpu:1 -> /gpu:0  (1 op: MatMul tower_1/v/MatMul)",
        ]
    )

    again = project.run("--placement-update", test_it=TESTS)
    again.stdout.fnmatch_lines(["2 baselines up to date"])


MANY_MOVED = """
from by_hand import placed

def test_towers(placement_baseline):
    places = {f"tower_{i}/{name}/MatMul": "/cpu:0" for i in (0, 1) for name in "wv"}
    places |= {name: "/gpu:1" for name in ("w", "v")}
    assert placed(**places) == placement_baseline
"""


@pytest.mark.parametrize("options", ["", "-q", "-v", "-vv", "--tb=short", "--tb=line", "-q -q"])
def test_a_difference_names_the_remedy_however_much_pytest_shows(
    alone: Project, options: str
) -> None:
    alone.run("--placement-update", test_it=TESTS)

    differs = alone.run(*options.split(), "-k", "test_towers", test_it=MANY_MOVED)

    text = differs.stdout.str()
    assert "placements/towers.build.gpu-2.toml; --placement-update accepts it" in text
    if options != "--tb=line":
        assert "pytest --placement-update test_it.py::test_towers" in text


NAMED = """
from by_hand import placed

def test_towers(placement_baseline):
    assert placed({name!r}, **{moved}) == placement_baseline("shared")
"""
ANOTHER = (
    "the baseline is of another program, towers.py:build; placement_baseline('name') names one"
)


@pytest.mark.parametrize(
    ("name", "moved", "is_named"),
    [
        ("other.py:build", {"w": "/gpu:1"}, True),
        ("towers.py:build_more", {"w": "/gpu:1"}, True),
        ("build_more", {"w": "/gpu:1"}, True),
        ("build", {"w": "/gpu:1"}, False),
        ("sub/towers.py:build", {"w": "/gpu:1"}, False),
        ("other.py:build", {}, False),
    ],
)
def test_a_difference_from_the_baseline_of_another_program_is_called_so(
    alone: Project, name: str, moved: dict[str, str], is_named: bool
) -> None:
    alone.run("--placement-update", test_it=NAMED.format(name="towers.py:build", moved={}))

    result = alone.run(test_it=NAMED.format(name=name, moved=moved))

    result.assert_outcomes(failed=len(moved), passed=not moved)
    assert (ANOTHER in result.stdout.str()) is is_named


def test_unused_baselines_are_listed_and_removed_after_a_run_of_all_tests(
    project: Project,
) -> None:
    wrote = project.run("--placement-update", test_it=TESTS)
    wrote.assert_outcomes(passed=2)
    wrote.stdout.fnmatch_lines([f"wrote placements/{name}" for name in FILES])
    stale = project.folder / "stale.gpu-2.toml"
    stale.write_text((project.folder / FILES[0]).read_text())
    (project.folder / "old.txt").write_text("# placement baseline, form 2: the devices\n")
    (project.folder / "notes.txt").write_text("not a baseline\n")

    part = project.run("--placement-prune", "-k", "towers")
    part.stdout.fnmatch_lines(["no baselines removed: not all tests with baselines ran"])
    named = project.run("--placement-prune", "test_it.py")
    named.stdout.fnmatch_lines(["no baselines removed: not all tests with baselines ran"])
    output = project.run()
    output.stdout.fnmatch_lines(
        [
            "unused: placements/old.txt",
            "unused: placements/stale.gpu-2.toml",
            "pytest --placement-prune removes unused baselines",
        ]
    )
    assert stale.exists()

    removed = project.run("--placement-prune")
    removed.stdout.fnmatch_lines(["removed, unused: placements/stale.gpu-2.toml"])
    assert project.files() == ["notes.txt", *FILES]


IMPORT, ONE, OTHER = (f"{part}\n" for part in TESTS.split("\n\n"))


@pytest.mark.parametrize(
    "options",
    [
        ("-p", "cacheprovider", "--last-failed"),
        ("--ignore=test_other.py",),
        ("--continue-on-collection-errors",),
    ],
    ids=" ".join,
)
def test_baselines_of_a_file_that_is_not_collected_are_not_removed(
    alone: Project, options: tuple[str, ...]
) -> None:
    alone.run("--placement-update", test_it=IMPORT + ONE, test_other=IMPORT + OTHER)
    assert alone.files() == FILES
    fails = alone.run("-p", "cacheprovider", test_it=MOVED.replace("def test_other", "def other"))
    fails.assert_outcomes(passed=1, failed=1)
    other = "import missing" if "--continue-on-collection-errors" in options else IMPORT + OTHER

    part = alone.run("--placement-prune", *options, test_it=IMPORT + ONE, test_other=other)

    part.stdout.fnmatch_lines(["no baselines removed: not all tests with baselines ran"])
    assert alone.files() == FILES


@pytest.mark.parametrize("xdist", IN_THIS_PROCESS, ids=" ".join, indirect=True)
def test_nothing_is_written_in_ci_unless_forced(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")

    refused = project.run("--placement-update", test_it=TESTS)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(
        ["ERROR: --placement-update writes no baselines if CI is set, because nobody *"]
    )
    assert project.files() == []

    forced = project.run("--placement-update=force")
    forced.assert_outcomes(passed=2)
    assert project.files() == FILES


def test_two_tests_of_one_file_that_differ_are_both_named(project: Project) -> None:
    two = TESTS.replace('placed("other.py:build")', 'placed(**{"tower_0/x": "/cpu:0"})')

    ran = project.run("--placement-update", test_it=two)

    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    ran.stdout.re_match_lines(
        [
            r"placements/towers\.build\.gpu-2\.toml is not written, because "
            r"test_it\.py::test_\w+ and test_it\.py::test_\w+ have different placements; "
            r'name one of the baselines: placement_baseline\("name"\)'
        ]
    )
    assert project.files() == []


def test_a_name_and_an_exact_comparison(alone: Project) -> None:
    named = TESTS.replace("== placement_baseline", '== placement_baseline("mine", exact=True)', 1)
    alone.run("--placement-update", test_it=named)
    assert alone.files() == ["mine.gpu-2.toml", FILES[0]]
    page = alone.folder / "mine.gpu-2.toml"
    page.write_text(page.read_text().replace("MatMul = 2, Mean = 1", "MatMul = 3, Mean = 1"))

    ran = alone.run()

    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(["E*  ops of forward  (MatMul 3 -> 2)"])


def test_an_unwritable_directory(alone: Project) -> None:
    """What should have been written is printed, so that nothing is lost."""
    alone.folder.write_text("a file, where the folder should be\n")

    ran = alone.run("--placement-update", test_it=TESTS)

    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    ran.stdout.fnmatch_lines(
        ['+program = "towers.py:build"', "*towers.build.gpu-2.toml cannot be written: *"]
    )


def test_merge_conflict_markers_name_the_line(alone: Project) -> None:
    alone.run("--placement-update", test_it=TESTS)
    page = alone.folder / FILES[1]
    page.write_text(page.read_text().replace("\nvariables", "\n<<<<<<< HEAD\nvariables"))

    ran = alone.run()

    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(["E*towers.build.gpu-2.toml:11: contains merge conflict markers; *"])
    alone.run("--placement-update").assert_outcomes(passed=2)
    alone.run().assert_outcomes(passed=2)


def test_an_unplaced_program_fails_and_is_skipped_without_a_placer(alone: Project) -> None:
    tests = """
        from dataclasses import replace

        from by_hand import placed
        from placement_checks import Missing

        def test_asked(placement_baseline):
            assert replace(placed(), assigned=Missing("no CUDA build here")) == placement_baseline

        def test_not_a_placement(placement_baseline):
            assert "towers" == placement_baseline
        """

    ran = alone.run("-rs", test_it="\n".join(line[8:] for line in tests.split("\n")))

    ran.assert_outcomes(skipped=1, failed=1)
    ran.stdout.fnmatch_lines(
        [
            "*'towers' is not a placement; pass the result of place(build_towers)*",
            "SKIPPED*towers.py:build has no assigned devices: no CUDA build here",
        ]
    )
