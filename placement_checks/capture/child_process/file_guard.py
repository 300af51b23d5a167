"""Protects the user's files while a program runs until its first training step.

A file that the program deletes, overwrites or moves is renamed first, and renamed back at the end.
Files that the program has created itself, such as temporary files, are deleted normally. The guard
patches functions of Python, the functions behind `tf.io.gfile` and `tf.compat.v1.gfile`, and the
command ``rm``. It does not see deletions by other shell commands and by C libraries.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from placement_checks.capture.child_process import file_journal
from placement_checks.capture.child_process.file_journal import (
    Journal,
    is_directory,
    put_back,
    resolve_parent,
)
from placement_checks.capture.in_process.fake_gpus import shadow_command
from placement_checks.core.errors import InputError
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import around_builtin, patched

_SYSTEM_DIRECTORIES = frozenset({"proc", "sys", "dev"})  # they contain no ordinary files
_MEMORY_SCHEME = "ram"  # TensorFlow's file system in memory


@contextlib.contextmanager
def guard_files(journal: Path) -> Iterator[list[Path]]:
    """Protect the user's files in this block. `tf.compat.v1.train.Saver` saves no checkpoints.

    The journal is a new file, outside of directories that the program may delete. If the process
    is killed in the block, the journal remains, and `put_back` can restore the files. Files are
    protected in forks of the process too, but only the process itself restores them.

    Yields:
        A list that receives the restored files at the end of the block.
    """
    restored: list[Path] = []
    owner = os.getpid()
    guard = _FileGuard(Journal.create(journal))
    try:
        with contextlib.ExitStack() as stack:
            for patch, replacement in guard.functions().items():
                stack.enter_context(patched(patch, around_builtin(replacement)))
            if script := file_journal.rm_script(journal):
                stack.enter_context(shadow_command("rm", lambda _: script))
            stack.enter_context(patched(Patch.SAVE_CHECKPOINT, lambda _: _checkpoint_path))
            yield restored
    finally:
        if os.getpid() == owner:
            guard.is_active = False  # the program may still call the replacements
            restored += put_back(journal)


class _FileGuard:
    """Replacements for the functions that delete, overwrite and move files."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.is_active = True

    def functions(self) -> Mapping[Patch, Callable[..., Any]]:
        return {
            Patch.REMOVE: self._remove,
            Patch.UNLINK: self._remove,
            Patch.RMDIR: self._remove_folder,
            Patch.RENAME: self._move,
            Patch.REPLACE: self._move,
            Patch.RMTREE: self._remove_tree,
            Patch.OPEN: self._open,
            Patch.IO_OPEN: self._open,
            Patch.C_DELETE: self._delete_file,
            Patch.C_DELETE_TREE: self._delete,
            Patch.C_RENAME: self._rename_file,
            Patch.C_COPY: self._copy_file,
            Patch.C_WRITE: self._writable_file,
        }

    def _remove(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        place = resolve_parent(path, dir_fd)
        if is_directory(place) or not self._is_users(place):
            original(path, dir_fd=dir_fd)
        else:
            self._journal.set_aside(place)

    def _remove_folder(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        place = resolve_parent(path, dir_fd)
        is_empty = is_directory(place) and self._journal.is_empty(place)
        if is_empty and self._is_users(place):
            self._journal.set_aside(place)
        else:
            original(path, dir_fd=dir_fd)

    def _remove_tree(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        place = resolve_parent(path, kwargs.get("dir_fd"))
        if is_directory(place) and self._is_users(place):
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
        self._set_aside_and_move(
            resolve_parent(src, src_dir_fd), resolve_parent(dst, dst_dir_fd), move
        )

    def _open(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | bytes | os.PathLike):
            self._before_writing(os.fsdecode(file), mode)
        return original(file, mode, *args, **kwargs)

    def _delete_file(self, original: Any, path: Any, *args: Any) -> None:
        local = _local_path(path)
        if local and is_directory(resolve_parent(local)):
            original(path, *args)  # raises
        else:
            self._delete(original, path, *args)

    def _delete(self, original: Any, path: Any, *args: Any) -> None:
        local = self._local(path)
        place = resolve_parent(local) if local else None
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
            self._set_aside_and_move(resolve_parent(sources), resolve_parent(targets), move)

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
        """Convert a path of `tf.io.gfile` to a local path; ``""`` if it is not a local file.

        Raises:
            InputError: the file is on another machine.
        """
        local = _local_path(path)
        if local is None and self.is_active:
            raise InputError(
                os.fsdecode(path),
                "the program writes, moves or deletes it before its first training step, but only "
                "files on this machine can be restored",
                "give the program a directory on this machine",
            )
        return local or ""

    def _before_writing(self, path: str, mode: str) -> None:
        """Set aside a file that will be overwritten. In mode ``r+``, leave a copy at its path."""
        if "w" not in mode and not ("r" in mode and "+" in mode):
            return
        place = Path(os.path.realpath(path))
        if not place.is_file() or not os.access(place, os.W_OK):
            return
        if self._is_users(place):
            aside = self._journal.set_aside(place)
            if "w" not in mode:
                shutil.copy2(aside, place)

    def _set_aside_and_move(self, source: Path, target: Path, move: Callable[[], Any]) -> None:
        """Set aside the file that a move overwrites, and execute the move."""
        exists = os.path.lexists(source)
        is_same = (
            exists and os.path.lexists(target) and os.path.samestat(source.lstat(), target.lstat())
        )
        if not self.is_active or not exists or is_same:
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
                file_journal.original_rename(aside, target)
            raise

    def _is_replaced(self, source: Path, target: Path) -> bool:
        """Whether a move would overwrite its target instead of failing."""
        if not os.path.lexists(target) or is_directory(source) != is_directory(target):
            return False
        return not is_directory(target) or self._journal.is_empty(target)

    def _is_users(self, place: Path) -> bool:
        """Whether a path exists and was not created by the program."""
        if not self.is_active or not _SYSTEM_DIRECTORIES.isdisjoint(place.parts[1:2]):
            return False
        return os.path.lexists(place) and not self._journal.is_programs_own(place)


def _checkpoint_path(
    _: Any, sess: Any, save_path: Any, global_step: Any = None, *__: Any, **___: Any
) -> str:
    """Replace `tf.compat.v1.train.Saver.save`: return the path of the checkpoint, unwritten."""
    path = os.fsdecode(save_path)
    if global_step is None:
        return path
    if not isinstance(global_step, numbers.Integral):
        global_step = tf.compat.v1.train.global_step(sess, global_step)
    return f"{path}-{int(global_step)}"


def _local_path(path: Any) -> str | None:
    """Convert a path of `tf.io.gfile` to a local path.

    Returns ``""`` for a file in memory, and None for a file on another machine.
    """
    scheme, separator, rest = os.fsdecode(path).partition("://")
    if not separator or scheme == "file":
        return rest if separator else scheme
    return "" if scheme == _MEMORY_SCHEME else None
