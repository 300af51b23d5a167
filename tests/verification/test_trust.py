"""Configurations of other users are refused, with the option that accepts them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement_checks.core.errors import ConfigError
from placement_checks.verification.configuration import load
from placement_checks.verification.trust import TRUST, trusting

TABLE = '[tool.placement_checks]\nreference = "single.py:build"\n'
ME, OTHER = 4321, 5432  # users without an account

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can enter; the directories of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def work(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which belongs to the current user."""
    path = shared / "work"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def write(path: Path, text: str = TABLE, *, owner: int | None = None, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def refusal(folder: Path | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        load(folder or Path.cwd())
    return str(raised.value)


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o755], ids=["all write", "as /tmp", "private"])
def test_a_file_of_another_user_in_a_parent_is_refused(
    mode: int, shared: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(shared / "pyproject.toml", owner=OTHER)
    shared.chmod(mode)

    assert refusal() == (
        f"{file} belongs to the user {OTHER}; if you trust its content, pass --trust {shared} "
        f"(pytest: --placement-trust={shared}), or set {TRUST}={shared}"
    )
    with trusting([shared]):
        assert load(work).settings.reference == f"{shared}/single.py:build"
    with pytest.raises(ConfigError):
        load(work)
    monkeypatch.setenv(TRUST, f"/nowhere{os.pathsep}{shared}")
    assert load(work).settings.reference


@needs_root
def test_a_file_of_another_user_without_effect_is_ignored(shared: Path, work: Path) -> None:
    write(shared / "pyproject.toml", '[project]\nname = "other"\n', owner=OTHER)

    assert load(work).settings.reference is None


@needs_root
def test_another_user_cannot_stop_the_command_with_invalid_toml(shared: Path, work: Path) -> None:
    write(shared / "pyproject.toml", "]", owner=OTHER)

    assert "belongs to the user" in refusal()


@needs_root
@pytest.mark.parametrize("name", ["single.py", "batch.py", "train.py", "package/train.py"])
def test_code_of_another_user_is_refused(name: str, work: Path) -> None:
    config = {
        "single.py": TABLE,
        "batch.py": '[tool.placement_checks]\nbatch = "batch.py:batch"\n',
        "train.py": '[tool.placement_checks]\nprograms = ["train.py:build"]\n',
        "package/train.py": '[[tool.placement_checks.programs]]\ntarget = "package.train:build"\n',
    }
    write(work / "pyproject.toml", config[name])
    (work / "package").mkdir()
    code = work / ("package/__init__.py" if "/" in name else name)
    write(code, "", owner=OTHER)

    assert f"{code.name} belongs to the user {OTHER}" in refusal()
    os.chown(code, 0, 0)
    load(work)


@needs_root
def test_root_uses_the_checkout_of_another_user(
    shared: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers, whose checkouts often belong to the user of the host."""
    write(work / "pyproject.toml", owner=ME)
    write(work / "single.py", "", owner=ME)
    (work / "tests").mkdir()
    for path in (work, work / "tests"):
        os.chown(path, ME, ME)

    assert load(work).settings.reference
    monkeypatch.chdir(work / "tests")
    assert load(Path.cwd()).settings.reference
    os.chown(work / "pyproject.toml", OTHER, OTHER)
    assert f"belongs to the user {OTHER}" in refusal()


AS_ME = """
import os, sys, tempfile
from pathlib import Path
from placement_checks.core.errors import ConfigError
from placement_checks.verification.configuration import load
with tempfile.TemporaryDirectory() as folder:  # the user may not be able to import modules
    Path(folder, "pyproject.toml").write_text("[tool.placement_checks]\\nreference = 'a.py:f'")
    load(Path(folder))
os.setegid({me})
os.seteuid({me})
os.chdir(sys.argv[1])
try:
    print(load(Path.cwd()).settings.reference)
except ConfigError as error:
    print(error)
"""


def load_as_me(folder: Path) -> str:
    """The reference, or the error, that a user without privileges gets."""
    ran = subprocess.run(
        [sys.executable, "-c", AS_ME.format(me=ME), folder],
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout.strip()


@needs_root
def test_a_user_uses_only_own_files_and_files_of_root(shared: Path, work: Path) -> None:
    file = write(work / "pyproject.toml", owner=OTHER)
    assert load_as_me(work).startswith(f"{file} belongs to the user {OTHER}; ")

    for owner in (ME, 0):
        os.chown(file, owner, owner)
        assert load_as_me(work) == "single.py:build"
    os.chown(work, OTHER, OTHER)  # who can replace the file
    assert load_as_me(work).startswith(f"{file} is in a directory that belongs to the user")


@needs_root
def test_a_parent_that_cannot_be_read_is_passed_by(shared: Path, work: Path) -> None:
    """The program of a user may lie in the directory of another one that may only be entered."""
    write(shared / "pyproject.toml", mode=0o600)
    assert "cannot be read: Permission denied" in load_as_me(work)
    (shared / "pyproject.toml").unlink()
    shared.chmod(0o711)
    assert load_as_me(work) == "None"


def test_a_file_that_all_users_can_write_is_refused_in_a_parent(shared: Path, work: Path) -> None:
    file = write(shared / "pyproject.toml", mode=0o666)

    assert refusal().startswith(f"{file} can be written by every user; ")
    file.chmod(0o664)
    assert load(work).settings.reference


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_directory_that_all_users_can_write_is_refused_as_a_parent(
    mode: int, shared: Path, work: Path
) -> None:
    file = write(shared / "pyproject.toml")
    shared.chmod(mode)

    assert refusal().startswith(f"{file} is in a directory that every user can write; ")
    shared.chmod(0o775)  # a team, or a private group
    assert load(work).settings.reference


def test_modes_count_only_where_they_are_kept(shared: Path, work: Path) -> None:
    """Some CI services and file systems let all users write everywhere."""
    file = write(shared / "pyproject.toml", mode=0o666)
    for path in (shared, work):
        path.chmod(0o777)
    assert load(work).settings.reference

    file.unlink()
    write(work / "pyproject.toml", mode=0o666)
    work.chmod(0o755)
    assert load(work).settings.reference


@needs_root
def test_the_link_of_another_user_is_refused(shared: Path, work: Path) -> None:
    """The target of a link may be a file of root that was meant for another directory."""
    write(work / "real.toml")
    link = shared / "pyproject.toml"
    link.symlink_to(work / "real.toml")
    assert load(work).settings.reference

    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    assert refusal().startswith(f"{link} belongs to the user {OTHER}; ")


def test_a_link_without_a_file_is_an_error(shared: Path, work: Path) -> None:
    """Otherwise, the settings of a parent directory would apply instead."""
    write(shared / "pyproject.toml")
    file = work / "pyproject.toml"
    file.symlink_to(file)
    assert refusal() == f"{file}: its symbolic links form a loop; replace the link"
    file.unlink()
    file.symlink_to("nowhere")
    assert "a symbolic link to 'nowhere', which does not exist" in refusal()
