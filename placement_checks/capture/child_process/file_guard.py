"""Protects the user's files while a program runs until its first training step.

Python announces each operation on a file as an audit event. An audit hook sets the file
aside before the operation happens. TensorFlow's own file functions, in C++, announce nothing:
patches announce their operations as the same events.

Files that the program has created itself, such as temporary files, are not set aside. Neither
audit events nor patches exist for other programs that the program starts, and for C libraries.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import inspect
import numbers
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from placement_checks.capture.child_process import file_journal
from placement_checks.capture.child_process.file_journal import Journal
from placement_checks.core.errors import InputError
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import Around, all_patched, around_builtin
from placement_checks.util import temporary

SYSTEM_DIRECTORIES = ("/dev/", "/proc/", "/sys/")  # they contain no ordinary files
COMPILED = f"{os.sep}__pycache__{os.sep}"
_MEMORY_SCHEME = "ram"  # TensorFlow's file system in memory
_ACCESS = os.O_WRONLY | os.O_RDWR
_WRITING = _ACCESS | os.O_CREAT | os.O_TRUNC
_CREATING = os.O_WRONLY | os.O_CREAT
_HERE = -1  # in place of the descriptor of a directory, in audit events


@contextlib.contextmanager
def guard_files(journal: Journal, *hidden: Path) -> Iterator[None]:
    """Set the user's files aside in this block. `tf.compat.v1.train.Saver` saves no checkpoints.

    Files are protected in forks of the process, too. `file_journal.put_back` restores them.

    Args:
        journal: where changes of files are recorded.
        hidden: directories that the program may not change.
    """
    global _current
    _add_hook()
    before, _current = _current, _FileGuard(journal, hidden)
    try:
        with all_patched({**_ANNOUNCEMENTS, Patch.SAVE_CHECKPOINT: lambda _: _checkpoint_path}):
            yield
    finally:
        _current = before


@cache
def _add_hook() -> None:
    sys.addaudithook(_audit)  # it cannot be removed


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _EVENTS or _current is None:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
        return
    if not is_own_event(inspect.currentframe()):
        _EVENTS[event](_current, *arguments)


def is_own_event(hook: FrameType | None) -> bool:
    """Whether a journal or a lock of this package caused an event, and not the program.

    ``hook`` is the frame of the audit hook.
    """
    caller = hook.f_back if hook else None
    return caller is not None and any(
        caller.f_globals is vars(module) for module in (file_journal, temporary)
    )


class _FileGuard:
    """Sets the files aside that operations change, before they happen.

    Each method gets the arguments of an audit event. It raises an `InputError` if a file cannot be
    set aside, and a `PermissionError` if the program may not change it.
    """

    def __init__(self, journal: Journal, hidden: Sequence[Path]) -> None:
        self._journal = journal
        self._hidden = tuple(f"{os.path.realpath(each)}{os.sep}" for each in hidden)

    def _before_open(self, file: Any, mode: Any, flags: int) -> None:
        if isinstance(file, int):
            return
        path = os.fsdecode(file)
        # The event of os.open does not show the directory that contains a relative path.
        others = [] if mode is not None or os.path.isabs(path) else _open_directories()
        for directory in ("", *others):
            place = os.path.realpath(os.path.join(directory, path))
            with self._of_user(place) as journal:
                if journal is None:
                    continue
                if not os.path.lexists(place):
                    if flags & os.O_CREAT:
                        journal.note_created(place)
                elif (
                    flags & (_ACCESS | os.O_TRUNC)
                    and not flags & os.O_EXCL
                    and stat.S_ISREG(os.stat(place).st_mode)
                    and os.access(place, os.W_OK)
                ):
                    truncates = bool(flags & os.O_TRUNC) and not others
                    journal.set_aside_for_writing(place, truncates=truncates)

    def _before_truncate(self, path: Any, _length: int) -> None:
        if not isinstance(path, int):  # a file that is open for writing is set aside already
            self._before_open(path, "r+", os.O_RDWR)

    def _before_database(self, path: Any) -> None:
        if not os.fsdecode(path).startswith(("file:", ":memory:")):
            self._before_open(path, "r+", os.O_RDWR | os.O_CREAT)

    def _before_remove(self, path: Any, directory: int | None = _HERE) -> None:
        place = resolve_parent(path, directory)
        with self._of_user(place) as journal:
            is_deletable = os.path.lexists(place) and os.access(os.path.dirname(place), os.W_OK)
            if journal and is_deletable and not _is_directory(place):
                journal.set_aside(place)

    def _before_rmdir(self, path: Any, directory: int | None = _HERE) -> None:
        place = resolve_parent(path, directory)
        with self._of_user(place) as journal:
            if journal and _is_directory(place) and not os.listdir(place):
                journal.note_status(place)

    def _before_rmtree(self, path: Any, directory: int | None = _HERE) -> None:
        place = resolve_parent(path, directory)
        if self._is_hidden(place):
            return  # shutil.rmtree ignores errors only of the operations that follow
        with self._of_user(place) as journal:
            # A relative path would no longer lead from a moved working directory to its parents.
            if journal and _is_directory(place) and not _is_below(place, os.getcwd()):
                journal.set_aside_tree(place)

    def _before_rename(self, source: Any, target: Any, *directories: int) -> None:
        before, after = (
            resolve_parent(path, directory)
            for path, directory in zip((source, target), directories, strict=True)
        )
        if not _may_rename(before, after):
            return
        if _is_directory(after):
            self._before_rmdir(after)
        else:
            self._before_remove(after)
        with self._of_user(before) as journal:
            if journal:
                journal.note_move(before, after)
                return
        with self._of_user(after) as journal:
            if journal:  # from now on, the program's own file is there
                journal.note_created(after)

    def _before_link(self, source: Any, target: Any, directory: int, other: int) -> None:
        place, link = resolve_parent(source, directory), resolve_parent(target, other)
        if os.path.lexists(link):
            return
        for each in (place, os.path.realpath(place)):
            with self._of_user(each) as journal:
                if journal:
                    journal.note_link(each, link)

    def _before_symlink(self, _source: Any, target: Any, directory: int = _HERE) -> None:
        self._before_creation(resolve_parent(target, directory))

    def _before_mkdir(self, path: Any, _mode: int = 0, directory: int = _HERE) -> None:
        self._before_creation(resolve_parent(path, directory))

    def _before_creation(self, path: str) -> None:
        with self._of_user(path) as journal:
            if journal and not os.path.lexists(path):
                journal.note_created(path)

    def _before_change(self, path: Any, *arguments: Any) -> None:
        """Note mode, owner and times. The event does not show whether a link is followed."""
        if isinstance(path, int):
            place = os.readlink(f"/proc/self/fd/{path}")
        else:
            directory = arguments[-1] if isinstance(arguments[-1], int) else _HERE
            place = resolve_parent(path, directory)
        for each in dict.fromkeys((place, os.path.realpath(place))):
            with self._of_user(each) as journal:
                if journal and os.path.lexists(each):
                    journal.note_status(each)

    def _before_attribute(self, path: Any, *_: Any) -> None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        self._before_open(path, "r+", os.O_RDWR)

    @contextlib.contextmanager
    def _of_user(self, path: str) -> Iterator[Journal | None]:
        """Yield the journal if a path is not the program's own; otherwise None."""
        whole = f"{path}{os.sep}"
        if whole.startswith(SYSTEM_DIRECTORIES) or COMPILED in whole:
            yield None
            return
        with self._journal.locked():
            if self._is_hidden(path):
                raise PermissionError(errno.EPERM, "belongs to placement_checks", path)
            yield self._journal if self._journal.is_users(path) else None

    def _is_hidden(self, path: str) -> bool:
        return f"{path}{os.sep}".startswith(self._hidden) or self._journal.is_hidden(path)


_current: _FileGuard | None = None
_EVENTS: Mapping[str, Callable[..., None]] = {
    "open": _FileGuard._before_open,
    "os.truncate": _FileGuard._before_truncate,
    "os.remove": _FileGuard._before_remove,
    "os.rmdir": _FileGuard._before_rmdir,
    "os.rename": _FileGuard._before_rename,
    "os.link": _FileGuard._before_link,
    "os.symlink": _FileGuard._before_symlink,
    "os.mkdir": _FileGuard._before_mkdir,
    "shutil.rmtree": _FileGuard._before_rmtree,
    "sqlite3.connect": _FileGuard._before_database,
    **dict.fromkeys(("os.chmod", "os.chown", "os.utime"), _FileGuard._before_change),
    **dict.fromkeys(("os.setxattr", "os.removexattr"), _FileGuard._before_attribute),
}


def _delete(original: Any, path: Any, *args: Any) -> None:
    if local := _local_path(path):
        sys.audit("os.remove", local, _HERE)
    original(path, *args)


def _delete_tree(original: Any, path: Any, *args: Any) -> None:
    if local := _local_path(path):
        if not _is_directory(local):
            sys.audit("os.remove", local, _HERE)
        place = os.path.realpath(local)  # it follows links
        sys.audit("os.rmdir", place, _HERE)
        sys.audit("shutil.rmtree", place, _HERE)
    original(path, *args)


def _rename(original: Any, source: Any, target: Any, overwrite: bool, *args: Any) -> None:
    sources, targets = _local_path(source), _local_path(target)
    if sources and targets and (overwrite or not os.path.lexists(targets)):
        sys.audit("os.rename", sources, targets, _HERE, _HERE)
    original(source, target, overwrite, *args)


def _copy(original: Any, source: Any, target: Any, overwrite: bool, *args: Any) -> None:
    _announce_writing(target, os.O_TRUNC if overwrite else os.O_EXCL)
    original(source, target, overwrite, *args)


def _open_writable(original: Any, path: Any, mode: Any, *args: Any) -> Any:
    _announce_writing(path, os.O_TRUNC if "w" in os.fsdecode(mode) else os.O_APPEND)
    return original(path, mode, *args)


def _create(original: Any, path: Any, *args: Any) -> None:
    if local := _local_path(path):
        missing = [each for each in (Path(local), *Path(local).parents) if not each.exists()]
        for each in missing[-1:]:
            sys.audit("os.mkdir", str(each), 0o777, _HERE)
    original(path, *args)


def _open_events(original: Any, path: Any, *args: Any) -> Any:
    _announce_writing(path, os.O_APPEND)
    return original(path, *args)


def _write_file(original: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
    _announce_writing(_value(filename), os.O_TRUNC)
    return original(filename, *args, **kwargs)


def _write_to(flags: int) -> Around:
    """Return a patch of a method that may get the path of a file as its first argument."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            for path in (*args[:1], *kwargs.values()):
                _announce_writing(path, flags)
            return original(owner, *args, **kwargs)

        return call

    return around


def _write_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def save(saver: Any, file_prefix: Any, *args: Any, **kwargs: Any) -> Any:
        prefix = _value(file_prefix)
        if isinstance(prefix, str | bytes) and (local := _local_path(prefix)):
            for path in (f"{local}.index", *glob.glob(f"{glob.escape(local)}.data-*")):
                _announce_writing(path, 0)
        return original(saver, file_prefix, *args, **kwargs)

    return save


def _value(path: Any) -> Any:
    """The value of an eager tensor. In a graph, nothing is written yet."""
    return path.numpy() if hasattr(path, "numpy") else path


def _announce_writing(path: Any, flags: int) -> None:
    is_path = isinstance(path, str | bytes | os.PathLike)
    if is_path and (local := _local_path(path)):
        sys.audit("open", local, "w", _CREATING | flags)


_ANNOUNCEMENTS: Mapping[Patch, Around] = {
    Patch.C_DELETE: around_builtin(_delete),
    Patch.C_DELETE_TREE: around_builtin(_delete_tree),
    Patch.C_RENAME: around_builtin(_rename),
    Patch.C_COPY: around_builtin(_copy),
    Patch.C_WRITE: around_builtin(_open_writable),
    Patch.C_CREATE: around_builtin(_create),
    Patch.C_CREATE_TREE: around_builtin(_create),
    Patch.NEW_EVENT_FILE: around_builtin(_open_events),
    Patch.NEW_RECORD_FILE: _write_to(os.O_TRUNC),
    Patch.CACHE_FILE: _write_to(os.O_APPEND),
    Patch.WRITE_FILE: around_builtin(_write_file),
    Patch.WRITE_CHECKPOINT: _write_checkpoint,
}


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


def _local_path(path: Any) -> str:
    """Convert a path of `tf.io.gfile` to a local path; ``""`` for a file in memory.

    Raises:
        InputError: the file is on another machine.
    """
    scheme, separator, rest = os.fsdecode(path).partition("://")
    if not separator or scheme == "file":
        return rest if separator else scheme
    if scheme != _MEMORY_SCHEME:
        raise InputError(
            os.fsdecode(path),
            "the program writes, moves or deletes it before its first training step, but only "
            "files on this machine can be restored",
            "give the program a directory on this machine",
        )
    return ""


def resolve_parent(path: Any, directory: int | None = _HERE) -> str:
    """Resolve the links in the directory of a path, but not the path itself.

    ``directory`` is a descriptor of the directory that contains a relative path.
    """
    whole = os.fsdecode(path)
    if directory not in (None, _HERE):
        whole = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), whole)
    parent, name = os.path.split(whole.rstrip(os.sep) or os.sep)
    if name in ("", ".", ".."):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(parent), name)


def _open_directories() -> Sequence[str]:
    """The directories that are open in this process, except for system directories."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if os.path.isdir(path) and not f"{path}{os.sep}".startswith(SYSTEM_DIRECTORIES):
                found.append(path)
    return found


def _may_rename(source: str, target: str) -> bool:
    """Whether a rename may change something. If it fails, what the target holds is the user's."""
    if not os.path.lexists(source) or _is_same(source, target):
        return False
    if not all(os.access(os.path.dirname(each), os.W_OK) for each in (source, target)):
        return False
    if _is_directory(target):
        return _is_directory(source) and not os.listdir(target)
    return not (os.path.lexists(target) and _is_directory(source))


def _is_same(path: str, other: str) -> bool:
    return os.path.lexists(other) and os.path.samestat(os.lstat(path), os.lstat(other))


def _is_below(directory: str, path: str) -> bool:
    return f"{path}{os.sep}".startswith(f"{directory}{os.sep}")


def _is_directory(path: str) -> bool:
    """Whether a path is a directory, and not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)
