"""Files that a program deletes, overwrites or moves are restored at the end."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from placement_checks.capture.child_process import file_guard, file_journal
from placement_checks.capture.child_process.file_guard import guard_files
from placement_checks.capture.child_process.file_journal import Journal, put_back
from placement_checks.core.errors import InputError
from placement_checks.tf.patches import Patch

tf1 = tf.compat.v1


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory. The program runs in it."""
    home = tmp_path / "home"
    (home / "logs" / "old").mkdir(parents=True)
    (home / "logs" / "model.ckpt").write_text("a week of training")
    (home / "logs" / "old" / "events").write_text("events")
    (home / "notes.txt").write_text("notes")
    (home / "empty").mkdir()
    (home / "link").symlink_to("logs")
    monkeypatch.chdir(home)
    return home


def tree(folder: Path) -> dict[str, str]:
    """The content of a directory: texts of files, targets of links, subdirectories."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = "folder" if path.is_dir() else path.read_text()
    return found


def gfile_written(path: str) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        file.write("new")


def written(path: str, mode: str = "w") -> None:
    with open(path, mode) as file:
        file.write("new")


def written_as_bytes() -> None:
    with io.open("notes.txt", "wb") as file:  # noqa: UP020
        file.write(b"new")


def truncated_in_part() -> None:
    with open("notes.txt", "r+") as file:
        assert file.read(1) == "n"
        file.write("X")


def emptied() -> None:
    for folder, folders, files in os.walk("logs", topdown=False):
        for name in files:
            os.remove(os.path.join(folder, name))  # noqa: PTH107, PTH118
        for name in folders:
            os.rmdir(os.path.join(folder, name))  # noqa: PTH106, PTH118
    os.rmdir("logs")  # noqa: PTH106


def deleted_twice() -> None:
    for _ in range(2):
        shutil.rmtree("logs")
        Path("logs").mkdir()
        Path("logs/model.ckpt").write_text("new")


def parent_after_child() -> None:
    os.remove("logs/old/events")  # noqa: PTH107
    shutil.rmtree("logs/old")
    shutil.rmtree("logs")


def moved_into_what_is_deleted() -> None:
    Path("backup").mkdir()
    shutil.move("logs", "backup")
    shutil.rmtree("backup")


def moved_through_a_folder_that_is_gone() -> None:
    Path("new").mkdir()
    os.rename("notes.txt", "new/notes.txt")  # noqa: PTH104
    os.rename("new/notes.txt", "other.txt")  # noqa: PTH104
    Path("new").rmdir()
    Path("new").write_text("a file")


def from_another_folder() -> None:
    os.chdir("logs")
    os.remove("model.ckpt")  # noqa: PTH107
    os.chdir("old")
    shutil.rmtree("../../logs/old")


def by_descriptor() -> None:
    folder = os.open("logs", os.O_RDONLY)
    os.unlink("model.ckpt", dir_fd=folder)
    os.rename("old", "young", src_dir_fd=folder, dst_dir_fd=folder)
    os.close(folder)


def written_atomically() -> None:
    Path("notes.tmp").write_text("new")
    os.replace("notes.tmp", "notes.txt")  # noqa: PTH105


def through_a_link() -> None:
    with open("link/model.ckpt", "w") as file:
        file.write("new")
    os.remove("link")  # noqa: PTH107
    Path("link").mkdir()


PROGRAMS: dict[str, Callable[[], object]] = {
    "rmtree": lambda: shutil.rmtree("logs"),
    "rmtree ignoring errors": lambda: shutil.rmtree(Path("logs"), ignore_errors=True),
    "remove": lambda: os.remove("notes.txt"),  # noqa: PTH107
    "unlink of bytes": lambda: os.unlink(b"notes.txt"),  # noqa: PTH108
    "path unlink": lambda: Path("notes.txt").unlink(),
    "a link": lambda: os.remove("link"),  # noqa: PTH107
    "an empty folder": lambda: os.rmdir("empty"),  # noqa: PTH106
    "a folder file by file": emptied,
    "twice": deleted_twice,
    "a parent after its child": parent_after_child,
    "moved into what is deleted": moved_into_what_is_deleted,
    "moved through a folder that is gone": moved_through_a_folder_that_is_gone,
    "from another folder": from_another_folder,
    "by descriptor": by_descriptor,
    "moved": lambda: shutil.move("logs", "empty"),
    "moved over": lambda: os.replace("notes.txt", "logs/model.ckpt"),  # noqa: PTH105
    "a folder over an empty one": lambda: os.rename("logs", "empty"),  # noqa: PTH104
    "written": lambda: written("notes.txt"),
    "written as bytes": written_as_bytes,
    "path written": lambda: Path("notes.txt").write_text("new"),
    "written in part": truncated_in_part,
    "written atomically": written_atomically,
    "through a link": through_a_link,
    "copied over": lambda: shutil.copy("notes.txt", "logs/model.ckpt"),
    "rm": lambda: os.system("rm -rf lo* no_such_file"),
    "rm of a file": lambda: subprocess.run(["rm", "-v", "--", "notes.txt"], check=True),
    "gfile rmtree": lambda: tf.io.gfile.rmtree("logs"),
    "gfile DeleteRecursively": lambda: tf1.gfile.DeleteRecursively("logs"),
    "gfile rmtree of a link": lambda: tf.io.gfile.rmtree("link"),
    "gfile remove": lambda: tf1.gfile.Remove("notes.txt"),
    "gfile with a scheme": lambda: tf.io.gfile.rmtree(f"file://{os.getcwd()}/logs"),  # noqa: PTH109
    "gfile rename": lambda: tf.io.gfile.rename("notes.txt", "logs/model.ckpt", overwrite=True),
    "gfile copy": lambda: tf.io.gfile.copy("notes.txt", "logs/model.ckpt", overwrite=True),
    "gfile written": lambda: gfile_written("notes.txt"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_existing_files_are_restored(name: str, home: Path) -> None:
    before = tree(home)
    with guard_files(home.parent / "journal") as back:
        PROGRAMS[name]()
        during = tree(home)

    visible = {path: what for path, what in during.items() if ".kept-" not in path}
    assert visible != before, "the program did not finish"
    after = tree(home)
    assert {path: after.get(path) for path in before} == before
    assert set(after) - set(before) <= {"backup", "new"}
    assert back
    assert not (home.parent / "journal").exists()


def test_the_longest_possible_name(home: Path) -> None:
    long = home / ("x" * 255)
    long.write_text("old")
    with guard_files(home.parent / "journal"):
        long.unlink()
        assert not long.exists()

    assert long.read_text() == "old"


def test_a_temporary_directory_stays_deleted(home: Path) -> None:
    before = tree(home)
    with guard_files(home.parent / "journal"):
        moved_through_a_folder_that_is_gone()

    assert tree(home) == before


def test_backups_of_a_forked_process_are_not_overwritten(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("first")
    second.write_text("second")
    journal = Journal.create(tmp_path / "journal")
    child = os.fork()
    if not child:
        journal.set_aside(first)
        os._exit(0)
    os.waitpid(child, 0)
    second.rename(first)
    journal.set_aside(first)
    put_back(tmp_path / "journal")

    assert first.read_text() == "first"


@pytest.mark.parametrize("path", ["logs/old/..", "link/old/..", "logs/."])
def test_a_path_ending_in_dots_is_a_directory(path: str, home: Path) -> None:
    assert file_journal.resolve_parent(path) == home / "logs"


def test_without_creation_times_an_existing_file_belongs_to_the_program(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(home)
    monkeypatch.setattr(file_journal, "birth_time", lambda _: None)
    with guard_files(home.parent / "journal"):
        written("notes.txt")
        deleted_twice()

    assert tree(home) == before


def test_a_link_that_replaced_a_directory_is_removed(home: Path) -> None:
    before = tree(home)
    with guard_files(home.parent / "journal"):
        shutil.rmtree("logs")
        Path("logs").symlink_to("empty")

    assert tree(home) == before


def test_a_user_directory_inside_a_program_directory_is_restored(home: Path) -> None:
    with guard_files(home.parent / "journal"):
        Path("new").mkdir()
        os.rename("empty", "new/empty")  # noqa: PTH104
        shutil.rmtree("new")

    assert Path("empty").is_dir()


def test_a_directory_relative_to_another(home: Path) -> None:
    Path("old").mkdir()
    before = tree(home)
    folder = os.open("logs", os.O_RDONLY)
    with guard_files(home.parent / "journal"):
        shutil.rmtree("old", dir_fd=folder)
        assert not Path("logs/old").exists()
        assert Path("old").exists()
    os.close(folder)

    assert tree(home) == before


def test_a_name_in_bytes(home: Path) -> None:
    with guard_files(home.parent / "journal"):
        written(b"notes.txt")  # type: ignore[arg-type]

    assert Path("notes.txt").read_text() == "notes"


@pytest.mark.parametrize("put", [tf.io.gfile.rename, tf.io.gfile.copy])
def test_gfile_overwrites_only_on_request(put: Callable[..., None], home: Path) -> None:
    Path("other.txt").write_text("other")
    with guard_files(home.parent / "journal") as back:
        with pytest.raises(tf.errors.AlreadyExistsError):
            put("other.txt", "notes.txt")
        assert Path("notes.txt").read_text() == "notes"

    assert back == []


@pytest.mark.parametrize(
    ("source", "target"), [("notes.txt", "empty"), ("empty", "notes.txt"), ("empty", "logs")]
)
def test_a_move_that_would_fail_fails(source: str, target: str, home: Path) -> None:
    before = tree(home)
    with guard_files(home.parent / "journal") as back:
        with pytest.raises(OSError, match=r"directory|empty"):
            os.rename(source, target)  # noqa: PTH104
        assert tree(home) == before

    assert back == []


def test_files_of_the_system_are_written(home: Path) -> None:
    name = Path("/proc/self/comm")
    with guard_files(home.parent / "journal") as back:
        name.write_text(name.read_text())

    assert back == []


def test_restored_files_are_reported(home: Path) -> None:
    with guard_files(home.parent / "journal") as back:
        shutil.rmtree("logs")
        os.remove("notes.txt")  # noqa: PTH107

    assert back == [home / "logs", home / "notes.txt"]


def test_the_program_sees_existing_files(home: Path) -> None:
    with guard_files(home.parent / "journal"):
        shutil.rmtree("logs")
        assert not Path("logs").exists()
        with pytest.raises(FileNotFoundError):
            shutil.rmtree("logs")
        shutil.rmtree("logs", ignore_errors=True)
        with pytest.raises(FileNotFoundError):
            os.remove("logs")  # noqa: PTH107
        with pytest.raises(tf.errors.NotFoundError):
            tf.io.gfile.rmtree("logs")
        os.makedirs("logs")  # noqa: PTH103
        assert os.listdir("logs") == []
        with pytest.raises(IsADirectoryError):
            os.remove("empty")  # noqa: PTH107
        with pytest.raises(NotADirectoryError):
            os.rmdir("notes.txt")  # noqa: PTH106
        with pytest.raises(tf.errors.OpError):
            tf.io.gfile.remove("empty")
        with pytest.raises(OSError, match="symbolic link"):
            shutil.rmtree("link")
        Path("logs/x").mkdir()
        with pytest.raises(OSError, match="not empty"):
            os.rmdir("logs")  # noqa: PTH106
        with pytest.raises(tf.errors.AlreadyExistsError):
            tf.io.gfile.rename("notes.txt", "logs", overwrite=False)
        with pytest.raises(OSError, match="empty"):
            os.rename("empty", "logs")  # noqa: PTH104
        assert Path("empty").is_dir()


def test_the_program_owns_its_new_files(home: Path) -> None:
    with guard_files(home.parent / "journal") as back:
        wait_for_the_clock()
        Path("new").mkdir()
        for _ in range(2):
            Path("new/file").write_text("new")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "file").write_text("x")
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        os.rename("new/file", "new/other")  # noqa: PTH104
        gfile_written("new/other")
        tf.io.gfile.copy("new/other", "new/third")
        os.remove("new/other")  # noqa: PTH107
        tf.io.gfile.remove("new/third")
        shutil.rmtree("new")
        assert not [name for name in os.listdir() if ".kept-" in name]

    assert back == []


def wait_for_the_clock() -> None:
    """Wait for the clock of the file system, which ticks every 10 ms or faster."""
    time.sleep(0.011)


def test_files_read_or_appended_to_stay(home: Path) -> None:
    with guard_files(home.parent / "journal") as back:
        with open("notes.txt") as file:
            assert file.read() == "notes"
        with open("notes.txt", "a") as file:
            file.write(", more")

    assert back == []
    assert (home / "notes.txt").read_text() == "notes, more"


def test_functions_that_the_program_stored_are_restored(home: Path) -> None:
    originals = [os.remove, os.unlink, os.rename, os.replace, os.rmdir, shutil.rmtree]
    with guard_files(home.parent / "journal"):
        kept = [shutil.rmtree, open, os.remove, tf.io.gfile.rmtree]

        class Reader:
            opener: Any = open

        assert Reader().opener("notes.txt").read() == "notes"

    assert originals == [os.remove, os.unlink, os.rename, os.replace, os.rmdir, shutil.rmtree]
    assert open is io.open
    kept[0]("logs")
    kept[2]("notes.txt")
    assert set(tree(home)) == {"empty", "link"}


def test_a_killed_process_leaves_the_journal(home: Path) -> None:
    journal = home.parent / "journal"
    before = tree(home)
    child = os.fork()
    if child == 0:
        with guard_files(journal):
            deleted_twice()
            PROGRAMS["moved"]()
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert tree(home) != before

    back = put_back(journal)

    assert back == [home / "logs"]
    after = tree(home)
    assert {path: after.get(path) for path in before} == before
    assert put_back(journal) == []
    assert tree(home) == after


def test_a_forked_process_restores_nothing(home: Path) -> None:
    before = tree(home)
    owner = os.getpid()
    try:
        with guard_files(home.parent / "journal") as back:
            child = os.fork()
            if child == 0:
                shutil.rmtree("logs")
            else:
                os.waitpid(child, 0)
                assert not Path("logs").exists()
    finally:
        if os.getpid() != owner:
            os._exit(0)

    assert back == [home / "logs"]
    assert tree(home) == before


def test_workers_of_multiprocessing_still_work(home: Path) -> None:
    with guard_files(home.parent / "journal") as back:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]

    assert back == []


def test_files_that_cannot_be_renamed_are_not_deleted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    with guard_files(home.parent / "journal"):
        monkeypatch.setattr(file_journal, "original_rename", refusing)
        with pytest.raises(InputError) as error:
            shutil.rmtree("logs")

    assert (home / "logs" / "model.ckpt").exists()
    assert str(error.value) == (
        f"{home}/logs: the program deletes or replaces it, but it cannot be moved to a "
        "backup: Device or resource busy; let the program use another directory, or move this "
        "file away"
    )


def test_a_failing_move_leaves_its_destination(home: Path) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    guard = file_guard._FileGuard(Journal.create(home.parent / "journal"))
    replace = guard.functions()[Patch.REPLACE]
    with pytest.raises(OSError, match="cross-device"):
        replace(refusing, "notes.txt", "logs/model.ckpt")

    assert (home / "logs" / "model.ckpt").read_text() == "a week of training"
    before = tree(home)
    assert put_back(home.parent / "journal") == []
    assert tree(home) == before


@pytest.mark.parametrize(
    "delete",
    [
        lambda: tf.io.gfile.rmtree("gs://bucket/logs"),
        lambda: tf.io.gfile.remove("gs://bucket/logs"),
        lambda: tf.io.gfile.rename("notes.txt", "gs://bucket/logs"),
        lambda: gfile_written("gs://bucket/logs"),
    ],
)
@pytest.mark.usefixtures("home")
def test_files_on_another_file_system_are_refused(
    tmp_path: Path, delete: Callable[[], None]
) -> None:
    with guard_files(tmp_path / "journal"), pytest.raises(InputError) as error:
        delete()

    assert error.value.object == "gs://bucket/logs"
    assert error.value.fix == "give the program a directory on this machine"


def test_files_in_memory_are_written(tmp_path: Path) -> None:
    with guard_files(tmp_path / "journal"):
        gfile_written("ram://file")
        tf.io.gfile.remove("ram://file")
        assert not tf.io.gfile.exists("ram://file")


def test_no_checkpoint_is_saved(home: Path) -> None:
    before = tree(home)
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.create_global_step()
        session.run(step.initializer)
        saver = tf1.train.Saver()
        with guard_files(home.parent / "journal") as back:
            paths = [
                saver.save(session, "logs/model.ckpt"),
                saver.save(session, "logs/model.ckpt", 7, write_meta_graph=False),
                saver.save(session, save_path="logs/model.ckpt", global_step=step),
            ]
        assert tree(home) == before
        assert saver.save(session, str(home.parent / "new"))

    assert paths == ["logs/model.ckpt", "logs/model.ckpt-7", "logs/model.ckpt-0"]
    assert back == []
    assert (home.parent / "checkpoint").exists()


def test_files_that_cannot_be_restored_are_reported(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = home.parent / "journal"
    monkeypatch.setattr(file_guard, "put_back", lambda _: [])
    with guard_files(journal):
        os.remove("notes.txt")  # noqa: PTH107
        shutil.rmtree("logs")
    rename = Path.rename

    def refusing(self: Path, target: Path) -> Path:
        if self.name.startswith(".notes"):
            raise OSError(errno.EACCES, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refusing)
    with pytest.raises(InputError) as error:
        put_back(journal)

    assert (home / "logs" / "model.ckpt").exists()
    assert error.value.object == str(home / "notes.txt")
    assert error.value.message == "could not be restored: Permission denied"
    aside = error.value.fix.removeprefix("it is preserved as ").removesuffix(
        ": rename it yourself"
    )
    assert Path(aside).read_text() == "notes"


def test_restoring_twice_keeps_restored_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restoring process was killed before it deleted the journal."""
    journal, before = home.parent / "journal", tree(home)
    monkeypatch.setattr(file_guard, "put_back", lambda _: [])
    with guard_files(journal):
        os.replace("notes.txt", "logs/model.ckpt")  # noqa: PTH105
        os.replace("logs/model.ckpt", "notes.txt")  # noqa: PTH105
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda _: None)
        put_back(journal)
    assert journal.exists()

    put_back(journal)

    assert tree(home) == before


def test_a_rename_between_two_links_of_a_file(home: Path) -> None:
    os.link("notes.txt", "same.txt")
    with guard_files(home.parent / "journal") as back:
        os.rename("notes.txt", "same.txt")  # noqa: PTH104
        assert Path("notes.txt").read_text() == Path("same.txt").read_text() == "notes"

    assert back == []


def test_older_files_are_not_deleted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of the program has moved the file there, which the guard does not see."""
    shell = os.posix_spawnp
    with guard_files(home.parent / "journal"):
        os.remove("notes.txt")  # noqa: PTH107
        moving = shell("mv", ["mv", "logs/model.ckpt", "notes.txt"], os.environ)
        os.waitpid(moving, 0)

    assert (home / "notes.txt").read_text() == "notes"
    (moved,) = home.glob("notes.txt.while-watched-*")
    assert moved.read_text() == "a week of training"


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
OPERATIONS: dict[str, Callable[[str, str], object]] = {
    "mkdir": lambda path, _: os.makedirs(path),  # noqa: PTH103
    "write": lambda path, _: written(path),
    "write in part": lambda path, _: written(path, mode="r+"),
    "gfile write": lambda path, _: gfile_written(path),
    "remove": lambda path, _: os.remove(path),  # noqa: PTH107
    "rmdir": lambda path, _: os.rmdir(path),  # noqa: PTH106
    "rmtree": lambda path, _: shutil.rmtree(path),
    "gfile rmtree": lambda path, _: tf.io.gfile.rmtree(path),
    "rename": lambda path, other: os.rename(path, other),  # noqa: PTH104
    "move": shutil.move,
    "gfile rename": lambda path, other: tf.io.gfile.rename(path, other, overwrite=True),
    "gfile copy": lambda path, other: tf.io.gfile.copy(path, other, overwrite=True),
    "symlink": os.symlink,
    "chdir": lambda path, _: os.chdir(path),
}
STEPS = st.tuples(st.sampled_from(sorted(OPERATIONS)), NAMES, NAMES)


class Interrupted(BaseException):
    pass


@pytest.fixture
def unfinished(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the block like a killed process."""
    monkeypatch.setattr(file_guard, "put_back", lambda _: [])
    here = os.getcwd()  # noqa: PTH109
    yield
    os.chdir(here)


@settings(max_examples=150)
@given(
    made=st.lists(STEPS, max_size=8),
    program=st.lists(STEPS, max_size=12),
    interrupted_at=st.integers(0, 8),
    later=st.booleans(),
)
@pytest.mark.usefixtures("unfinished")
def test_any_sequence_of_file_operations(
    made: list[tuple[str, str, str]],
    program: list[tuple[str, str, str]],
    interrupted_at: int,
    later: bool,
) -> None:
    """A file counts as the program's own from the next tick of the clock."""
    with tempfile.TemporaryDirectory() as folder:
        home, journal = Path(folder, "home"), Path(folder, "journal")
        home.mkdir()
        run(made, home)
        before = tree(home)
        with guard_files(journal):
            if later:
                wait_for_the_clock()
            run(program, home)
        os.chdir(home)
        put_back_in_two(journal, interrupted_at)

        after = tree(home)
        assert {path: after.get(path) for path in before} == before
        assert not [path for path in after if ".kept-" in path or ".while-watched-" in path]


def run(steps: list[tuple[str, str, str]], home: Path) -> None:
    os.chdir(home)
    for operation, path, other in steps:
        if not Path.cwd().is_relative_to(home):
            os.chdir(home)
        with contextlib.suppress(OSError, shutil.Error, tf.errors.OpError):
            OPERATIONS[operation](path, other)


def put_back_in_two(journal: Path, interrupted_at: int) -> None:
    left = iter(range(interrupted_at))

    def interrupted(original: Callable[..., Any], *args: Any) -> Any:
        if next(left, None) is None:
            raise Interrupted
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "truncate", functools.partial(interrupted, os.truncate))
        with contextlib.suppress(Interrupted):
            put_back(journal)
    put_back(journal)
    assert put_back(journal) == []
