"""The function that yields batches, from what a call or an option names.

A case that differed, saved to be run again: its batches and initial values.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.program import Batch, BatchFunction
from placement_checks.targets.importing import resolve

SUFFIX = ".npz"
_MAX_FILES = 32  # in the cache folder, the one just saved included
_MAX_BYTES = 1 << 30  # of all of them, but for the one just saved
_MAX_NAME = 150  # letters of a program's name; a file's may have 255
_UNFINISHED = ".part"
_MEMBER = re.compile(r"(start|[0-9]{1,9})/(.+)\.npy")
_KINDS = "biufcSU"  # of dtype: numbers and texts, no objects and no records

Arrays = Mapping[str, npt.NDArray[Any]]


class Case:
    """The batches of a run, in their order, and the initial values of its variables.

    Attributes:
        name: the path of its file; ``""`` for one that is not saved.
        batches: arrays by the names of the inputs; the first axis of an array are its rows.
        start: the initial values by the names of the variables.
    """

    def __init__(self, batches: Sequence[Arrays], start: Arrays, name: str = "") -> None:
        self.name = name
        self.batches = batches
        self.start = start
        self._left = list(batches)

    def __call__(self, _rng: np.random.Generator, rows: int) -> Arrays:
        """The next batch of so many rows; a case is a batch function.

        Raises:
            IndexError: there is none.
        """
        for number, batch in enumerate(self._left):
            if _batch_size(batch) in (0, rows):
                return self._left.pop(number)
        raise IndexError(f"the case has no more batch of {rows} rows")

    def rewound(self) -> Case:
        """The same case, with all of its batches to be given again."""
        return Case(self.batches, self.start, self.name)

    @property
    def rows(self) -> int:
        """How many rows the first batch has; 0 if all its arrays are scalars."""
        return _batch_size(self.batches[0])

    def first(self, variables: Arrays) -> Arrays:
        """The initial values, for ``variables`` of these shapes.

        Raises:
            InputError: the case is of other variables.
        """
        start = dict(self.start)
        for name, value in variables.items():
            saved = start.get(name)
            if saved is not None and not saved.ndim:  # all elements are this one
                start[name] = np.broadcast_to(saved, value.shape)
            elif saved is None or saved.shape != value.shape:
                has = "none" if saved is None else f"one of shape {saved.shape}"
                raise InputError(
                    self.name,
                    f"'{name}' needs an initial value of shape {value.shape}, and the case "
                    f"has {has}",
                    "name a case that this program has saved, or run it without one",
                )
        return start

    def save(self, program: str) -> Path:
        """Write it to a file of the user's cache, in place of the last case of this program.

        Raises:
            OSError: there is no room, or no folder to write to.
            RuntimeError: it is not known where the user's folders are.
        """
        path = _cache_folder() / _file_name(program)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            f"start/{key}": _serializable(_compact(value)) for key, value in self.start.items()
        }
        for number, batch in enumerate(self.batches):
            arrays |= {f"{number}/{key}": _serializable(value) for key, value in batch.items()}
        unfinished = path.with_suffix(f".{os.getpid()}{_UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        _remove_oldest(path)
        return path

    @staticmethod
    def load(path: Path) -> Case:
        """Read what `save` has written.

        Raises:
            InputError: it is not such a file, or is damaged.
        """
        start: dict[str, npt.NDArray[Any]] = {}
        batches: dict[int, dict[str, npt.NDArray[Any]]] = {}
        try:
            for kind, key, array in _read(path):
                into = start if kind == "start" else batches.setdefault(int(kind), {})
                into[key] = array
        except Exception as error:  # zipfile and numpy raise ten kinds for a file that is broken
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(
                str(path), f"is not a saved case: {reason}", "name a file that a run has saved"
            ) from None
        if not batches:
            raise InputError(str(path), "holds no batch", "name a file that a run has saved")
        return Case([batches[number] for number in sorted(batches)], start, str(path))


def _cache_folder() -> Path:
    """Where cases are saved: XDG_CACHE_HOME, or else ~/.cache, and a folder of ours in it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "placement_checks"


def _file_name(program: str) -> str:
    """That of a program, without folder and arguments; and what tells it from its namesakes."""
    own = program.partition(" ")[0].rpartition("/")[2]
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in own)
    place = zlib.crc32(bytes(Path.cwd()) + program.encode(errors="surrogateescape"))
    return f"{name[-_MAX_NAME:]}-{place:08x}{SUFFIX}"


def _remove_oldest(new: Path) -> None:
    """Keep the cache folder within its bounds; other processes may remove files meanwhile."""
    others = {}
    for path in new.parent.iterdir():
        if path != new and path.suffix in (SUFFIX, _UNFINISHED):
            with contextlib.suppress(FileNotFoundError):
                others[path] = path.stat()
    room = _MAX_BYTES
    for number, path in enumerate(sorted(others, key=lambda path: -others[path].st_mtime), 2):
        room -= others[path].st_size
        if number > _MAX_FILES or room < 0:
            path.unlink(missing_ok=True)


def _compact(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One number for values that are one in memory, too, as those of most slots are at first."""
    return values if values.size < 2 or any(values.strides) else values.reshape(-1)[0]


def _read(path: Path) -> Iterator[tuple[str, str, npt.NDArray[Any]]]:
    """The kind, key and values of every array of a file.

    `Case.save` compresses nothing, so no array may be larger than its bytes in the file: what a
    header declares beyond them is never made room for.
    """
    if not path.is_file():  # a pipe or device would not end
        raise ValueError("it is a folder" if path.is_dir() else "there is no such file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("it declares more bytes than it holds")
        for member in members:
            match = _MEMBER.fullmatch(member.filename)
            if match is None:
                raise ValueError(f"'{member.filename}' is not an array of a case")
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"'{member.filename}' is compressed")
            with archive.open(member) as stream:
                yield match[1], match[2], _array(stream, member)


def _array(stream: Any, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    npy = np.lib.format
    first = npy.read_magic(stream) == (1, 0)
    read_header = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.kind not in _KINDS:
        raise ValueError(f"'{member.filename}' is of the dtype {dtype}")
    size, longest = math.prod(shape) * dtype.itemsize, max(shape, default=0)
    if size != member.file_size - stream.tell() or longest > member.file_size:
        raise ValueError(f"'{member.filename}' does not hold the shape {shape}"[:200])
    stream.seek(0)
    array: npt.NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def _batch_size(batch: Arrays) -> int:
    return max((len(array) for array in batch.values() if array.ndim), default=0)


def _serializable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values of a dtype that a file can be read back with: no objects, no bfloat16."""
    if array.dtype.kind == "V":
        return array.astype(np.float32)
    return np.array(array.tolist()) if array.dtype.kind == "O" else array


_BY_POSITION = 2  # rng and n


def load_batch_function(batch: Batch, gpus: int) -> BatchFunction | None:
    """The batch function that a call or an option names; None for None.

    Args:
        batch: a function ``batch(rng, n)`` that returns arrays of ``n`` rows by the names of the
            inputs, a target such as ``train.py:batch``, or the path of a saved case.
        gpus: what ``{gpus}`` stands for in the arguments of a target.

    Raises:
        InputError: it names a file or module that cannot be loaded, or no function in it, or
            arguments that the function does not take.
        UsageError: it is not a function.
    """
    if isinstance(batch, str | Path) and Path(batch).suffix == SUFFIX:
        return Case.load(Path(batch))
    if isinstance(batch, str):
        named = resolve(batch)
        if isinstance(named, Path):
            raise InputError(batch, "is not a function", "name one, such as train.py:batch")
        named.check_given(_BY_POSITION)
        bound = partial(named.build, **named.given.for_gpus(gpus))
        return cast("BatchFunction", update_wrapper(bound, named.build))
    if isinstance(batch, Path):
        raise InputError(
            str(batch), "is not a saved case", f"name a {SUFFIX} file that a run saved"
        )
    if batch is not None and not callable(batch):
        raise UsageError(
            f"batch {batch!r:.60}",
            "is not a function",
            f"give batch(rng, n) itself, 'train.py:batch' or a {SUFFIX} file that a run saved",
        )
    return batch
