"""The sources of public programs are found in any form, and copied as committed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from public_programs.programs import Program
from public_programs.sources import extract, repository


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a program, a large file, and a later commit that damages the program."""
    folder = tmp_path_factory.mktemp("clone")
    _git(folder, "init", "--quiet")
    (folder / "large.npy").touch()
    (folder / "src").mkdir()
    for text in ("as it was", "as it became"):
        (folder / "src" / "train.py").write_text(text)
        _git(folder, "add", ".")
        _git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", text)
    return folder


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def program(clone: Path) -> Program:
    return Program(
        name="one",
        repository="somebody/something",
        commit=_git(clone, "rev-parse", "HEAD~1"),
        typed="train.py",
        folder="src",
        paths=(".", ":(exclude)*.npy"),
        data=lambda folder: (folder / "data").mkdir(),
    )


@pytest.mark.parametrize(
    "place",
    ["somebody/something", "somebody+something", "something", "somebody+something/repo"],
)
def test_a_clone_is_found(clone: Path, program: Program, tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).symlink_to(clone)

    assert repository(program, tmp_path) == tmp_path / place / ".git"


@pytest.mark.parametrize("place", ["somebody/something.git", "something.git", "something/repo"])
def test_a_mirror_is_found(clone: Path, program: Program, tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).symlink_to(clone / ".git")

    assert repository(program, tmp_path) == tmp_path / place


def test_a_clone_without_the_commit_is_refused(
    clone: Path, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "something").symlink_to(clone)

    assert repository(program._replace(commit="1" * 40), tmp_path) is None


def test_a_program_is_copied_as_it_was_committed(
    clone: Path, program: Program, tmp_path: Path
) -> None:
    folder = extract(program, clone / ".git", tmp_path)

    assert (folder / "train.py").read_text() == "as it was"
    assert (folder / "data").is_dir()
    assert not (folder.parent / "large.npy").exists()
