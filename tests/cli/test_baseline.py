"""``verify --baseline``, and ``diff`` of baselines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Ran, Run
from support.pictures import embedded
from support.tower_programs import towers, whole

OLD = towers()
RENAMED = towers(scope="net/dense", tower="replica")
MOVED = towers(scope="net/dense", tower="replica", product_on="0")
FILE = Path("placements/train.build.gpu-2.toml")
OPTIONS = ("--baseline", "placements", "--rule", "placeable")
VERIFY = ("verify", "old/train.py:build", *OPTIONS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    for name, text in (("old", OLD), ("renamed", RENAMED), ("moved", MOVED)):
        Path(name).mkdir()
        Path(name, "train.py").write_text(text)


def last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]


@pytest.mark.smoke
def test_a_baseline_survives_a_refactor_and_names_moved_ops(run: Run) -> None:
    missing = run(*VERIFY)
    assert missing.status == 2
    assert last_line(missing.err) == (
        f"placement-checks: {FILE} does not exist: this program has no baseline; write it: the "
        "same command with --update"
    )

    wrote = run(*VERIFY, "--update")
    assert (wrote.status, last_line(wrote.err)) == (0, f"placement-checks: wrote {FILE}")
    page = FILE.read_text()

    again = run(*VERIFY, "--update")
    assert (again.status, last_line(again.err)) == (0, f"placement-checks: up to date: {FILE}")
    assert FILE.read_text() == page

    kept = run("verify", "renamed/train.py:build", *OPTIONS)
    assert kept.status == 0
    assert f"renamed/train.py:build: nothing has moved: 88 ops placed as in {FILE}\n" in kept.out
    assert "  1 variable renamed: fc/weights -> net/dense/weights\n" in kept.out

    moved = ("verify", "moved/train.py:build", *OPTIONS)
    broken = run(*moved)
    assert broken.status == 1
    assert "moved/train.py:build: 1 moved, 0 new, 0 gone; 83 ops placed as in" in broken.out
    assert (
        "  forward and backward of tower 1, layer net/dense: /gpu:1 -> /gpu:0  (5 " in broken.out
    )

    document = json.loads(run(*moved, "--format", "json").out)
    (change,) = document["programs"][0]["baseline"]["moved"]
    assert (change["old"], change["new"]) == ("/gpu:1", "/gpu:0")
    assert "replica_1/MatMul" in change["names"]

    diff = run("diff", FILE, "moved/train.py:build")
    assert diff.status == 1
    assert diff.out.startswith("1 moved, 0 new, 0 gone; 83 ops placed as in placements/train")

    as_json = json.loads(run("diff", FILE, "moved/train.py:build", "--format", "json").out)
    assert (as_json["baseline"], as_json["program"]) == (str(FILE), "moved/train.py:build")
    assert as_json["same"] == 83

    other = run(*VERIFY, "--gpus", "4")
    assert (other.status, FILE.read_text()) == (2, page)
    assert "placements/train.build.gpu-4.toml does not exist" in other.err

    FILE.rename("placements/train.build.gpu-4.toml")
    refused = run(*VERIFY, "--gpus", "4")
    assert refused.status == 2
    assert "is the baseline for another machine, gpu*2; this placement is for gpu*4" in refused.err


def test_a_change_names_the_rules_that_it_breaks_unless_they_are_left_out(run: Run) -> None:
    run(*VERIFY, "--update")
    on_gpu = OLD.replace('with tf.device("/cpu:0"):', 'with tf.device("/gpu:0"):', 1)
    Path("moved/train.py").write_text(on_gpu)
    verify = ("verify", "moved/train.py:build", "--baseline", "placements")
    diff = ("diff", FILE, "moved/train.py:build")

    for command in (verify, diff):
        assert "[breaks variables-on-host" in run(*command).out
    Path("pyproject.toml").write_text('[tool.placement_checks]\nwithout = ["variables-on-host"]\n')
    for command in (verify, diff):
        left_out = run(*command).out
        assert "[breaks averaging-on-host" in left_out
        assert "variables-on-host" not in left_out


def test_a_whole_program_has_a_baseline_too(run: Run) -> None:
    def verify(scope: str, on: str, *options: str) -> Ran:
        Path("whole.py").write_text(whole(towers(scope=scope, product_on=on)))
        return run("verify", "whole.py", *OPTIONS, *options, "--", "{gpus}")

    wrote = verify("fc", "{i}", "--update")
    assert last_line(wrote.err).endswith("wrote placements/whole.gpus.gpu-2.toml")

    kept = verify("net/dense", "{i}")
    assert kept.status == 0
    assert "whole.py {gpus}: nothing has moved: " in kept.out
    assert "  1 variable renamed: fc/weights -> net/dense/weights\n" in kept.out

    broken = verify("fc", "0")
    assert broken.status == 1
    assert "  forward and backward of tower 1, layer fc: /gpu:1 -> /gpu:0  (5 ops: " in broken.out
    assert "; whole.py:" in broken.out


PAGE = """\
placement_baseline = 4
program = "train.py:build"
machine = "gpu*2"
placer = "phantom"
soft = false
versions = {{ tensorflow = "{tensorflow}" }}
variables = []
towers = []
parts = [
  {{ part = "other", device = "{place}" }},
]
exceptions = []
ops = []
copies = []
lines = {{ variables = 0, towers = 0, parts = 1, exceptions = 0, ops = 0, copies = 0 }}
"""


def test_two_baselines_are_compared(run: Run) -> None:
    Path("old.toml").write_text(PAGE.format(tensorflow="2.15.1", place="/cpu:0"))
    Path("new.toml").write_text(PAGE.format(tensorflow="2.21.0", place="/gpu:0"))

    ran = run("diff", "old.toml", "new.toml")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: old.toml and new.toml are both baselines, and diff compares a baseline "
        "only with a program; compare the two files: git diff --no-index old.toml new.toml\n"
    )


def test_a_baseline_as_the_new_target_is_refused(run: Run) -> None:
    Path("old.toml").write_text(PAGE.format(tensorflow="2.15.1", place="/cpu:0"))

    ran = run("diff", "train.py:build", "old.toml")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: old.toml is a baseline, which must be the first of the two targets; "
        "run placement-checks diff old.toml train.py:build\n"
    )


def test_the_picture_of_a_program_highlights_the_changes_from_its_baseline(run: Run) -> None:
    run(*VERIFY, "--update")

    ran = run("diff", FILE, "moved/train.py:build", "--format", "html")

    assert ran.status == 1
    (data,) = embedded(ran.out)
    assert data["headline"].startswith("1 moved, 0 new, 0 gone; 83 ops placed as in")


def test_merge_conflict_markers_are_an_error(run: Run) -> None:
    page = PAGE.format(tensorflow="2.15.1", place="/cpu:0")
    Path("old.toml").write_text(f"<<<<<<< HEAD\n{page}=======\n{page}>>>>>>> refactor\n")

    ran = run("diff", "old.toml", "old/train.py:build")

    assert ran.status == 2
    assert last_line(ran.err).startswith(
        "placement-checks: old.toml:1: contains merge conflict markers"
    )


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (
            ("--update",),
            "",
            "--update writes baselines, but no directory is named; add --baseline FOLDER",
        ),
        (
            ("--update", "--baseline", "placements"),
            "true",
            "--update writes no baselines if CI is set, because nobody would review them; "
            "run it where you commit from, or set CI= before the command",
        ),
    ],
)
def test_invalid_options(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    environment: str,
    message: str,
) -> None:
    monkeypatch.setenv("CI", environment)

    ran = run("verify", "old/train.py:build", *options)

    assert (ran.status, ran.out, ran.err) == (2, "", f"placement-checks: {message}\n")
    assert not Path("placements").exists()
