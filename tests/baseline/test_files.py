"""The files of baselines: their names, and that nothing is lost in writing them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.towers import program

from placement_checks.baseline import files
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.text import parse, render
from placement_checks.core.errors import InputError, UsageError

BASELINE = baseline_from_placement(program())


@pytest.mark.parametrize(
    ("target", "machine", "name"),
    [
        (
            "fixtures/programs/graph/mnist.py:build_towers",
            "gpu*2",
            "mnist.build_towers.gpu-2.toml",
        ),
        ("fixtures.mnist:build_towers", "gpu*2", "mnist.build_towers.gpu-2.toml"),
        ("/a b/c.py:build", "gpu*2", "c.build.gpu-2.toml"),
        ("train.py", "ps*2; worker*8: gpu*4", "train.ps-2-worker-8-gpu-4.toml"),
        ("train.py --gpus {gpus}", "gpu*2", "train.gpus-gpus.gpu-2.toml"),
        ("a b/train.py x.py:y", "gpu*2", "train.x.py-y.gpu-2.toml"),
        ("package.train --gpus 2", "gpu*2", "train.gpus-2.gpu-2.toml"),
        ("whole.py {gpus}", "gpu*2", "whole.gpus.gpu-2.toml"),
        ("build", "gpu*1", "build.gpu-1.toml"),
        ("t.py:build(depth=50, n={gpus})", "gpu*2", "t.build-depth-50-n-gpus.gpu-2.toml"),
        (
            "tests.test_it:test_it.<locals>.build",
            "gpu*2",
            "test_it.test_it.-locals-.build.gpu-2.toml",
        ),
        ("../../etc/passwd", "gpu*2", "etc-passwd.gpu-2.toml"),
        ("\ud800\n", "gpu*2", "program.gpu-2.toml"),
    ],
)
def test_the_file_is_named_by_program_and_machine(target: str, machine: str, name: str) -> None:
    assert files.file_name(target, machine) == name


def test_long_names_are_cut_and_stay_unique() -> None:
    names = {files.file_name("x" * 500 + end, "worker*2: gpu*1; " * 90) for end in "ab"}

    assert len(names) == 2
    assert max(map(len, names)) < 255


def test_a_written_baseline_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "towers.toml"

    assert files.write(file, BASELINE)
    assert files.read(file) == BASELINE
    assert files.read_target(str(file)) == BASELINE
    assert [each.name for each in file.parent.iterdir()] == ["towers.toml"]


def test_a_change_of_versions_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "towers.toml"
    files.write(file, replace(BASELINE, versions={"tensorflow": "2.15.1"}))
    before = file.read_bytes()

    assert not files.write(file, BASELINE)
    assert file.read_bytes() == before
    assert files.write(file, replace(BASELINE, program="other"))
    assert parse(file.read_text(), "towers.toml").versions == BASELINE.versions


def test_merge_conflict_markers_are_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "towers.toml"
    file.write_text(f"<<<<<<< HEAD\n{render(BASELINE)}")

    assert files.write(file, BASELINE)
    assert files.read(file) == BASELINE


def test_unwritten_text_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "towers.toml"
    files.write(file, BASELINE)
    before = file.read_text()

    def refuse(file: Path, text: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "replace_file", refuse)
    with pytest.raises(UsageError) as raised:
        files.write(file, replace(BASELINE, machine="gpu*3"))

    assert str(raised.value) == (
        f"{file} cannot be written: Permission denied; apply the diff above by hand, or "
        "make the directory writable"
    )
    assert '\n-machine = "gpu*2"\n+machine = "gpu*3"\n' in raised.value.details
    assert file.read_text() == before


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "placements").write_text("")

    with pytest.raises(UsageError, match=r"placements/towers\.toml cannot be written"):
        files.write(tmp_path / "placements" / "towers.toml", BASELINE)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("w: (VarHandleOp): /device:CPU:0\n")
    (tmp_path / "b").write_bytes(b"\xff\xfe")

    assert files.read(tmp_path / "none.toml") is None
    for name in ("a.log", "b", "none", "", "-", "\0", "."):
        assert files.read_target(str(tmp_path / name)) is None
    with pytest.raises(InputError, match="is not a text file, so it is not a baseline"):
        files.read(tmp_path / "b")
    with pytest.raises(InputError, match="Is a directory"):
        files.read(tmp_path)


@pytest.mark.parametrize(
    ("value", "is_ci"), [("", False), ("0", False), ("False", False), ("true", True), ("1", True)]
)
def test_ci_is_detected(monkeypatch: pytest.MonkeyPatch, value: str, is_ci: bool) -> None:
    monkeypatch.setenv("CI", value)
    assert files.is_ci() is is_ci
    monkeypatch.delenv("CI")
    assert not files.is_ci()
