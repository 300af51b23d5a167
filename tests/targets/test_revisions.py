"""Copies of git revisions, which leave the repository as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.repositories import commit, git, state, write

from placement_checks.core.errors import InputError, PlacementError
from placement_checks.core.target import SourceTree
from placement_checks.targets import revisions
from placement_checks.targets.revisions import checked_out, with_missing_data

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, and changes in the index and the working tree."""
    home = tmp_path / "project"
    commit(home, {"train.py": "one", "package/model.py": "old", ".gitignore": "data\n*.so\n"})
    commit(home, {"train.py": "two", "new.py": "new"})
    git(home, "stash")
    write(home, {"train.py": "staged", "data/rows.txt": "rows", "package/model.py": "stashed"})
    git(home, "stash")
    write(home, {"train.py": "staged"})
    git(home, "add", "train.py")
    write(home, {"train.py": "changed", "untracked.py": ""})
    monkeypatch.chdir(home)
    return home


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }


def test_a_copy_has_the_files_of_the_revision_and_the_repository_is_untouched(
    repository: Path,
) -> None:
    before = state(repository)

    with checked_out("HEAD~1") as tree:
        assert files(tree.root) == {
            "train.py": "one",
            "package/model.py": "old",
            ".gitignore": "data\n*.so\n",
        }
        assert tree.repository == repository
        assert tree.root.name == "project"
        assert tree.commit == git(repository, "rev-parse", "HEAD~1")

    assert state(repository) == before
    assert not tree.root.parent.exists()


def test_programs_may_ask_git_for_their_revision(repository: Path) -> None:
    with checked_out("HEAD~1") as tree:
        assert git(tree.root, "rev-parse", "HEAD") == tree.commit
        assert git(tree.root, "status", "--porcelain") == ""
        write(tree.root, {"train.py": "three"})
        git(tree.root, "commit", "--all", "--quiet", "--message", "of the program")

    assert git(repository, "log", "--oneline", "--all").count("of the program") == 0


def test_a_directory_in_the_repository_has_its_counterpart(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("package")

    with checked_out("main") as tree:
        assert tree.counterpart(Path.cwd()) == tree.root / "package"
        assert tree.counterpart(Path("/elsewhere")) == Path("/elsewhere")


def test_attributes_for_archives_do_not_count(repository: Path) -> None:
    commit(repository, {".gitattributes": "train.py export-ignore\n", "train.py": "three"})

    with checked_out("HEAD") as tree:
        assert (tree.root / "train.py").read_text() == "three"


def test_the_variables_of_a_hook_do_not_lead_astray(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    before = state(repository)

    with checked_out("HEAD~1") as tree:
        assert files(tree.root)["train.py"] == "one"

    assert state(repository) == before


def test_hooks_and_settings_of_the_repository_write_nothing(repository: Path) -> None:
    hook = repository / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repository}/hooked\n")
    hook.chmod(0o755)
    git(repository, "config", "core.splitIndex", "true")
    before = state(repository)

    with checked_out("HEAD~1"):
        pass

    assert state(repository) == before


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        (
            "mian",
            "--since mian is not a revision of this repository; name a branch, tag or commit, "
            "such as HEAD~1 or origin/main",
        ),
        ("HEAD:train.py", "--since HEAD:train.py is not a revision of this repository; "),
        ("--all", "--since --all is not a revision of this repository; "),
    ],
)
def test_an_unknown_revision(repository: Path, revision: str, message: str) -> None:
    with pytest.raises(PlacementError) as raised, checked_out(revision):
        pass

    assert str(raised.value).startswith(message)


def test_a_shallow_clone_without_the_revision(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    monkeypatch.chdir(tmp_path / "shallow")

    with pytest.raises(InputError) as raised, checked_out("HEAD~1"):
        pass

    assert str(raised.value) == (
        "--since HEAD~1 is not in this clone, which is shallow; run git fetch --unshallow, or set "
        "fetch-depth: 0 for actions/checkout"
    )
    with checked_out("HEAD") as tree:
        assert files(tree.root)["train.py"] == "two"


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    with pytest.raises(InputError, match="is not in a git repository"), checked_out("HEAD"):
        pass


def test_no_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))

    with pytest.raises(InputError, match="git is not installed; install git"), checked_out("HEAD"):
        pass


def test_links_to_data(repository: Path) -> None:
    write(repository, {"data/more/a.txt": "a", "package/data.txt": "b"})

    with checked_out("HEAD", ["data", "package"]) as tree:
        found = files(tree.root)
        (tree.root / "data/rows.txt").read_text()

    assert (found["package/data.txt"], found["package/model.py"]) == ("b", "old")
    assert (repository / "data/rows.txt").read_text() == "rows"
    assert (repository / "package/data.txt").read_text() == "b"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("dta", "--link dta: there is no such file or directory; check the path"),
        (
            "train.py",
            "train.py is committed at HEAD, and the committed version is used; omit --link",
        ),
        ("../project", "--link ../project is not in the repository, "),
        ("..", "--link .. is not in the repository, "),
    ],
)
def test_a_wrong_link(repository: Path, path: str, message: str) -> None:
    with pytest.raises(PlacementError) as raised, checked_out("HEAD", [path]):
        pass

    assert str(raised.value).startswith(message)


def test_files_of_lfs_are_pointers_unless_they_are_linked(repository: Path) -> None:
    commit(repository, {"weights.bin": POINTER})
    write(repository, {"weights.bin": "12345"})

    with checked_out("HEAD") as tree:
        assert tree.pointers == ("weights.bin",)
    with checked_out("HEAD", ["weights.bin"]) as tree:
        assert (tree.root / "weights.bin").read_text() == "12345"


@pytest.fixture
def submodule(repository: Path, tmp_path: Path) -> Path:
    """The working tree of a submodule, one commit ahead of the repository and dirty."""
    commit(tmp_path / "library", {"layers.py": "old layers"})
    git(repository, "reset", "--hard", "--quiet")
    git(repository, "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    commit(repository, {})
    commit(repository / "library", {"layers.py": "new layers"})
    write(repository, {"library/layers.py": "dirty layers"})
    return repository / "library"


def test_a_dirty_submodule_is_copied_at_the_commit_of_the_revision(
    repository: Path, submodule: Path
) -> None:
    before = state(repository)

    with checked_out("HEAD") as tree:
        assert files(tree.root)["library/layers.py"] == "old layers"

    assert state(repository) == before


def test_a_submodule_without_the_commit_of_the_revision(repository: Path, submodule: Path) -> None:
    expected = "ab" * 20
    git(repository, "update-index", "--cacheinfo", f"160000,{expected},library")
    git(repository, "commit", "--quiet", "--message", "a commit that was not pushed")

    with pytest.raises(InputError) as raised, checked_out("HEAD"):
        pass

    assert str(raised.value) == (
        "the submodule library lacks commit ababababab, which HEAD needs; run git -C library fetch"
    )


def test_a_submodule_that_is_not_checked_out_is_left_empty(
    repository: Path, submodule: Path
) -> None:
    commit(repository, {})
    git(repository, "submodule", "--quiet", "deinit", "--force", "--all")

    with checked_out("HEAD") as tree:
        assert list((tree.root / "library").iterdir()) == []


@pytest.mark.parametrize(
    ("message", "link"),
    [
        ("[Errno 2] No such file or directory: 'data/rows.txt'", "data"),
        ("data/more/a.txt; No such file or directory", "data"),
        ("package/table.txt not found.", "package/table.txt"),
        ("No module named 'package._ops'", "package/_ops.cpython-311-x86_64-linux-gnu.so"),
        ("weights.bin is damaged", "weights.bin"),
    ],
)
def test_an_error_that_names_missing_data_gets_its_fix(
    repository: Path, message: str, link: str
) -> None:
    commit(repository, {"weights.bin": POINTER})
    write(
        repository,
        {
            "data/more/a.txt": "",
            "package/table.txt": "",
            "package/_ops.cpython-311-x86_64-linux-gnu.so": "",
        },
    )

    with checked_out("HEAD") as tree:
        found = with_missing_data(InputError("train.py", message), tree, repository)

    assert found.fix == f"use it from the working tree: --link {link}"


@pytest.mark.parametrize(
    "message", ["ValueError: bad / value", "train.py is wrong", "/etc/passwd", "nothing.txt", "."]
)
def test_other_errors_stay_as_they_are(repository: Path, message: str) -> None:
    error = InputError("train.py", message, "a fix")

    with checked_out("HEAD") as tree:
        assert with_missing_data(error, tree, repository) is error


def test_paths_in_the_copy_are_recognized(repository: Path) -> None:
    def missing(tree: SourceTree) -> InputError:
        return InputError("train.py", f"no {tree.root}/data/rows.txt")

    write(repository, {"data/rows.txt": "rows"})
    with checked_out("HEAD") as tree:
        found = with_missing_data(missing(tree), tree, repository / "package")

    assert found.fix == "use it from the working tree: --link ../data"


def test_the_worktree_of_a_repository_is_one_too(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "other"), "HEAD~1")
    monkeypatch.chdir(tmp_path / "other")

    with checked_out("main") as tree:
        assert files(tree.root)["new.py"] == "new"
        assert git(tree.root, "status", "--porcelain") == ""
        assert tree.repository == tmp_path / "other"


def test_no_space_is_an_error(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(revisions, "temporary_directory", full)

    with pytest.raises(InputError) as raised, checked_out("HEAD"):
        pass

    assert str(raised.value) == (
        "--since HEAD cannot be checked out: No space left on device; set TMPDIR to a directory "
        "with enough space"
    )
