"""Records the checkpoints, backups, logs and summaries that a rank writes.

A false record would become a false finding, so only two kinds of writers are recorded:

* calls of `tf.compat.v1.train.Saver.save` before the first training step, also by the hook that
  `MonitoredTrainingSession` adds for its ``checkpoint_dir``;
* callbacks of Keras in a call of ``fit``.

An open summary writer is not recorded, because only some ranks may add summaries to it. Subclasses
of the callbacks, and models with their own ``save``, may write on some ranks only.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import stat
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from placement_checks.core.ranks import (
    BACKUP,
    CSV_LOGGER,
    MODEL_CHECKPOINT,
    SAVER,
    TENSORBOARD,
    FileWrite,
)
from placement_checks.core.user_code import calling_frames
from placement_checks.tf.keras import around_fit
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import afterwards, patched

_PATH_ATTRIBUTES = {
    MODEL_CHECKPOINT: "filepath",
    BACKUP: "backup_dir",
    CSV_LOGGER: "filename",
    TENSORBOARD: "log_dir",
}
_SAVES_MODEL = (MODEL_CHECKPOINT, BACKUP)
_KERAS = ("keras", "tf_keras")
_SAME_IN_RANKS = {"epoch", "batch"}  # in the template of a path; metrics differ
_IN_MEMORY = "ram://"  # TensorFlow's file system in the memory of the process


@contextlib.contextmanager
def record_file_writes(writes: list[FileWrite]) -> Iterator[None]:
    """Append the files that the program in this block writes to ``writes``."""

    def note(writer: str, path: str) -> None:
        if location := _location(path):
            writes.append(FileWrite(writer, path, location, calling_frames()))

    def note_save(_saver: Any, path: Any, _options: Any) -> None:
        if isinstance(path, str):
            note(SAVER, path)

    def wrap_fit(fit: Callable[..., Any]) -> Callable[..., Any]:
        def note_and_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):  # the call of fit raises it again
                given = inspect.signature(fit).bind(self, *args, **kwargs).arguments
                for writer, path in _writers(self, given):
                    note(writer, path)
            return fit(self, *args, **kwargs)

        return note_and_fit

    with patched(Patch.SAVE_CHECKPOINT, afterwards(note_save)), around_fit(wrap_fit):
        yield


def _writers(model: Any, arguments: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the callbacks of a call of ``fit`` that certainly write, each with its path."""
    callbacks = arguments.get("callbacks")
    validates = arguments.get("validation_data") is not None or bool(
        arguments.get("validation_split")
    )
    for callback in tf.nest.flatten(getattr(callbacks, "callbacks", callbacks)):
        writer = type(callback).__name__
        if writer not in _PATH_ATTRIBUTES or not _is_of_keras(type(callback)):
            continue
        if writer in _SAVES_MODEL and not all(map(_is_of_keras, (model.save, model.save_weights))):
            continue
        if writer == MODEL_CHECKPOINT and not _saves_once(callback, validates=validates):
            continue
        path = getattr(callback, _PATH_ATTRIBUTES[writer], None)
        if isinstance(path, str | os.PathLike) and os.fspath(path):
            yield writer, os.fsdecode(path)


def _is_of_keras(member: Any) -> bool:
    """Whether a class or method is Keras's own, not the user's."""
    return str(member.__module__).partition(".")[0] in _KERAS


def _saves_once(checkpoint: Any, *, validates: bool) -> bool:
    """Whether a `ModelCheckpoint` saves at least once, to a path without values of metrics."""
    try:
        parts = string.Formatter().parse(checkpoint.filepath)
        if not {name for _, name, _, _ in parts if name is not None} <= _SAME_IN_RANKS:
            return False
    except ValueError:  # not a template
        return False
    if not checkpoint.save_best_only:
        return True
    has_threshold = checkpoint.best is not None and abs(checkpoint.best) != float("inf")
    return not has_threshold and (validates or not checkpoint.monitor.startswith("val_"))


def _location(path: str) -> str | None:
    """The absolute path without symbolic links; None for devices, and for files in memory."""
    if "://" in path:
        return None if path.startswith(_IN_MEMORY) else path
    location = os.path.realpath(path)
    with contextlib.suppress(OSError):
        mode = os.stat(location).st_mode  # noqa: PTH116  # Path.exists is patched
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # such as /dev/null
            return None
    return location
