"""Keeps what a program deletes, overwrites or moves while it is watched until its first step.

What was there before the program began is set aside instead, and put back at the end. What the
program has made itself, such as its temporary files, it deletes as ever. Python's functions are
patched, those that `tf.io.gfile` and its forerunners call, and the command ``rm``; what other
commands of the shell and libraries of C delete is not seen.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import numbers
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from placement_checks.capture.child_process import file_journal
from placement_checks.capture.child_process.file_journal import (
    Journal,
    is_folder,
    place_of,
    put_back,
)
from placement_checks.capture.in_process.fake_gpus import shadow_command
from placement_checks.core.errors import InputError
from placement_checks.tf.patching import patched
from placement_checks.tf.sessions import around_files

_OF_THE_SYSTEM = frozenset({"proc", "sys", "dev"})  # folders that hold no files
_IN_MEMORY = "ram"  # a scheme of TensorFlow's


@contextlib.contextmanager
def files_kept(journal: Path) -> Iterator[list[Path]]:
    """Keep the user's files in this block, and write no checkpoints of `tf.compat.v1.train.Saver`.

    A process that is killed in the block leaves the journal; `set_aside.put_back` then does what
    else happens at the end of the block. In a process that the program forks files are kept, too,
    and are put back by the one that forked it.

    Args:
        journal: the path of a file to be made, not in a folder that the program deletes.

    Yields:
        A list, in which there is at the end what was put back.
    """
    back: list[Path] = []
    owner = os.getpid()
    keeper = _Keeper(Journal.begun(journal))
    try:
        with contextlib.ExitStack() as stack:
            for module, name, instead in keeper.of_python():
                stack.enter_context(patched(module, name, _around(instead)))
            stack.enter_context(
                around_files({name: _around(of) for name, of in keeper.of_tensorflow().items()})
            )
            if script := file_journal.script(journal):
                stack.enter_context(shadow_command("rm", lambda _: script))
            stack.enter_context(patched(tf.compat.v1.train.Saver, "save", lambda _: _unsaved))
            yield back
    finally:
        if os.getpid() == owner:
            keeper.is_open = False  # the program may hold functions of this block
            back += put_back(journal)


def _around(instead: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """What puts ``instead(original, …)`` in the place of a function.

    Not by a function, which would become a method in a class that has a builtin as attribute.
    """
    return lambda original: functools.update_wrapper(
        functools.partial(instead, original), original
    )


class _Keeper:
    """What stands in the place of functions that delete, overwrite and move."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.is_open = True

    def of_python(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """The functions of Python, by module and name, and what takes their place."""
        for name, instead in (
            ("remove", self._remove),
            ("unlink", self._remove),
            ("rmdir", self._remove_folder),
            ("rename", self._move),
            ("replace", self._move),
        ):
            yield os, name, instead
        yield shutil, "rmtree", self._remove_tree
        yield builtins, "open", self._open
        yield io, "open", self._open

    def of_tensorflow(self) -> dict[str, Callable[..., Any]]:
        """The functions of TensorFlow, by name, and what takes their place."""
        return {
            "DeleteFile": self._delete_file,
            "DeleteRecursively": self._delete,
            "RenameFile": self._rename_file,
            "CopyFile": self._copy_file,
            "WritableFile": self._writable_file,
        }

    def _remove(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        place = place_of(path, dir_fd)
        if is_folder(place) or not self._is_users(place):
            original(path, dir_fd=dir_fd)
        else:
            self._journal.set_aside(place)

    def _remove_folder(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        place = place_of(path, dir_fd)
        if self._is_empty(place) and self._is_users(place):
            self._journal.set_aside(place)
        else:
            original(path, dir_fd=dir_fd)

    def _remove_tree(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        place = place_of(path, kwargs.get("dir_fd"))
        if is_folder(place) and self._is_users(place):
            self._journal.set_aside(place)
        else:
            original(path, *args, **kwargs)

    def _move(
        self,
        original: Any,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        move = functools.partial(original, src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._moved(place_of(src, src_dir_fd), place_of(dst, dst_dir_fd), move)

    def _open(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | bytes | os.PathLike):
            self._before_writing(os.fsdecode(file), mode)
        return original(file, mode, *args, **kwargs)

    def _delete_file(self, original: Any, path: Any, *args: Any) -> None:
        local = _local(path)
        if local and is_folder(place_of(local)):
            original(path, *args)  # refuses
        else:
            self._delete(original, path, *args)

    def _delete(self, original: Any, path: Any, *args: Any) -> None:
        local = self._local(path)
        place = place_of(local) if local else None
        if place and self._is_users(place):
            self._journal.set_aside(place)
        else:
            original(path, *args)

    def _rename_file(
        self, original: Any, src: Any, target: Any, overwrite: bool, *args: Any
    ) -> None:
        sources, targets = self._local(src), self._local(target)
        move = functools.partial(original, src, target, overwrite, *args)
        if not sources or not targets or (os.path.lexists(targets) and not overwrite):
            move()
        else:
            self._moved(place_of(sources), place_of(targets), move)

    def _copy_file(
        self, original: Any, src: Any, target: Any, overwrite: bool, *args: Any
    ) -> None:
        self._before_gfile(target, "w" if overwrite else "x")
        original(src, target, overwrite, *args)

    def _writable_file(self, original: Any, path: Any, mode: Any, *args: Any) -> Any:
        self._before_gfile(path, os.fsdecode(mode))
        return original(path, mode, *args)

    def _before_gfile(self, path: Any, mode: str) -> None:
        local = self._local(path)
        if local:
            self._before_writing(local, mode)

    def _local(self, path: Any) -> str:
        """A path of gfile's as one of this machine's files; ``""`` if it is none."""
        local = _local(path)
        if local is None and self.is_open:
            raise _elsewhere(path)
        return local or ""

    def _before_writing(self, path: str, mode: str) -> None:
        """Set the file aside that will be overwritten; for a part of it, write to a copy."""
        if "w" not in mode and not ("r" in mode and "+" in mode):
            return
        place = Path(os.path.realpath(path))
        if not place.is_file() or not os.access(place, os.W_OK):
            return
        if self._is_users(place):
            aside = self._journal.set_aside(place)
            if "w" not in mode:
                shutil.copy2(aside, place)

    def _moved(self, source: Path, target: Path, move: Callable[[], Any]) -> None:
        """Make a move, what it would overwrite set aside."""
        if not self.is_open or not os.path.lexists(source) or _is_same(source, target):
            move()
            return
        aside = None
        if self._is_replaced(source, target) and self._is_users(target):
            aside = self._journal.set_aside(target)
        if self._is_users(source):
            self._journal.note(source, target)
        try:
            move()
        except BaseException:
            if aside is not None:
                self._journal.bring_back(aside, target)
            raise

    def _is_replaced(self, source: Path, target: Path) -> bool:
        """Whether a move would succeed although something is there."""
        if not os.path.lexists(target) or is_folder(source) != is_folder(target):
            return False
        return not is_folder(target) or self._journal.is_empty(target)

    def _is_empty(self, place: Path) -> bool:
        return is_folder(place) and self._journal.is_empty(place)

    def _is_users(self, place: Path) -> bool:
        """Whether something is there that was not made by the program."""
        if not self.is_open or not _OF_THE_SYSTEM.isdisjoint(place.parts[1:2]):
            return False
        return os.path.lexists(place) and not self._journal.is_programs_own(place)


def _unsaved(
    _: Any, sess: Any, save_path: Any, global_step: Any = None, *__: Any, **___: Any
) -> str:
    """The path of the checkpoint that `tf.compat.v1.train.Saver.save` would write."""
    path = os.fsdecode(save_path)
    if global_step is None:
        return path
    if not isinstance(global_step, numbers.Integral):
        global_step = tf.compat.v1.train.global_step(sess, global_step)
    return f"{path}-{int(global_step)}"


def _local(path: Any) -> str | None:
    """A path of gfile's as one of this machine's; ``""`` in memory, None elsewhere."""
    scheme, separator, rest = os.fsdecode(path).partition("://")
    if not separator or scheme == "file":
        return rest if separator else scheme
    return "" if scheme == _IN_MEMORY else None


def _is_same(one: Path, other: Path) -> bool:
    return os.path.lexists(other) and os.path.samestat(one.lstat(), other.lstat())


def _elsewhere(path: Any) -> InputError:
    return InputError(
        os.fsdecode(path),
        "the program writes, moves or deletes it before its first training step, and what is not "
        "on this machine cannot be kept",
        "give the program a folder on this machine",
    )
