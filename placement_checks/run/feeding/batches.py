"""Load a batch that the user names: a batch function, or a saved case.

A case is the input of a run with differences between the programs: its batches and the initial
values of the variables. It is saved in the user's cache directory, so that the run can be
repeated.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from placement_checks.core import limits
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.input_files import link_fault
from placement_checks.core.measurement import Arrays
from placement_checks.core.program import Batch, BatchFunction
from placement_checks.core.target import Target
from placement_checks.targets.forms import parse_target
from placement_checks.targets.importing import import_program

SUFFIX = ".npz"
_NAME_CASE = f"name the {SUFFIX} file that a failed comparison saved"
_MAX_FILES = 32  # in the cache directory, including the newest
_MAX_BYTES = 1 << 30  # in the cache directory, except for the newest file
_MAX_NAME = 150  # characters of a program's name; a file name may have 255
_UNFINISHED = ".part"
_MEMBER = re.compile(r"(start|[0-9]{1,9})/(.+)\.npy")
_KINDS = "biufcSU"  # kinds of dtypes: numbers and strings, but neither objects nor records


def load_batch_function(batch: Batch, gpus: int, *, v1: bool = False) -> BatchFunction | None:
    """Return the batch function that an argument or option names; None if ``batch`` is None.

    Args:
        batch: a function ``batch(rng, n)`` that returns arrays of ``n`` rows by input name, a
            target such as ``train.py:batch``, or the path of a saved case.
        gpus: the value of ``{gpus}`` in the arguments of a target.
        v1: whether ``import tensorflow`` gives the module and the function of a target
            TensorFlow 1.

    Raises:
        InputError: the file, module or function cannot be loaded, or the function does not take
            the arguments of the target.
        UsageError: ``batch`` is not callable.
    """
    parsed = parse_batch(batch)
    if not isinstance(parsed, Target):
        return parsed
    version: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    if v1:
        from placement_checks.tf1.activate import as_tensorflow_1 as version
    with version():
        program = import_program(parsed)
    program.check_given(by_position=2)  # rng and n

    def call(rng: np.random.Generator, n: int) -> Mapping[str, Any]:
        with version():
            return cast("Mapping[str, Any]", program.build(rng, n, **program.given.for_gpus(gpus)))

    return update_wrapper(call, program.build)


def parse_batch(batch: Batch) -> Target | BatchFunction | None:
    """Parse the name of a batch function, or read a saved case; the function is not loaded.

    Raises:
        InputError: the target does not exist or names no function, or the case cannot be read.
        UsageError: ``batch`` is not callable.
    """
    if isinstance(batch, str | Path):
        if Path(batch).suffix == SUFFIX:
            return Case.load(Path(batch))
        if isinstance(batch, Path):
            raise InputError(
                str(batch),
                "is not a saved case",
                _NAME_CASE,
                is_predicate=True,
            )
        target = parse_target(batch)
        if target.kind != "function":
            raise InputError(
                batch, "is not a function", "name one, such as train.py:batch", is_predicate=True
            )
        return target
    if batch is not None and not callable(batch):
        raise UsageError(
            f"batch {batch!r:.60}",
            "is not a function",
            "give batch(rng, n) itself, 'train.py:batch' or the file of a failed comparison",
            is_predicate=True,
        )
    return batch


def case_directory() -> Path:
    """The directory of saved cases in the user's cache directory.

    Raises:
        RuntimeError: the user has no home directory.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "placement_checks"


class Case:
    """The batches of a run, in order, and the initial values of its variables.

    Attributes:
        name: the path of its file; ``""`` if it is not saved.
        batches: arrays by input name; the first axis of an array holds the rows.
        start: the initial values by variable name.
    """

    def __init__(self, batches: Sequence[Arrays], start: Arrays, name: str = "") -> None:
        self.name = name
        self.batches = batches
        self.start = start
        self._left = list(batches)

    def __call__(self, _rng: np.random.Generator, rows: int) -> Arrays:
        """Return the next batch with this number of rows; a case is a batch function.

        Raises:
            IndexError: no batch with this number of rows is left.
        """
        for number, batch in enumerate(self._left):
            if batch_size(batch) in (0, rows):
                return self._left.pop(number)
        raise IndexError(f"the saved case has no other batch of {rows} rows")

    def rewound(self) -> Case:
        """Return a copy of the case that starts again with its first batch."""
        return Case(self.batches, self.start, self.name)

    @property
    def rows(self) -> int:
        """The number of rows in the first batch; 0 if it has none."""
        return batch_size(self.batches[0])

    def initial_values(self, variables: Arrays) -> Arrays:
        """Return the initial values, broadcast to the shapes of ``variables``.

        Raises:
            InputError: the variables of the case have other names or shapes.
        """
        start = dict(self.start)
        for name, value in variables.items():
            saved = start.get(name)
            if saved is not None and not saved.ndim:  # all elements are equal
                start[name] = np.broadcast_to(saved, value.shape)
            elif saved is None or saved.shape != value.shape:
                has = "none" if saved is None else f"one of shape {saved.shape}"
                raise InputError(
                    self.name,
                    f"'{name}' needs an initial value of shape {value.shape}, but the case "
                    f"has {has}",
                    "name a case that this program has saved, or run it without a case",
                )
        return start

    def save(self, program: str) -> Path:
        """Write the case to the user's cache directory, and replace the program's earlier case.

        Returns:
            The path of the file.

        Raises:
            OSError: the disk is full, or the directory is not writable.
            RuntimeError: the user has no home directory.
        """
        path = case_directory() / _file_name(program)
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
        """Read a file that `save` has written.

        Raises:
            InputError: the file is missing, damaged, or not a saved case.
        """
        start: dict[str, npt.NDArray[Any]] = {}
        batches: dict[int, dict[str, npt.NDArray[Any]]] = {}
        try:
            for kind, key, array in _read(path):
                into = start if kind == "start" else batches.setdefault(int(kind), {})
                into[key] = array
        except Exception as error:  # zipfile and numpy raise ten types of errors
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(
                str(path),
                f"is not a saved case: {reason}",
                _NAME_CASE,
                is_predicate=True,
            ) from None
        if not batches:
            raise InputError(str(path), "holds no batch", _NAME_CASE, is_predicate=True)
        return Case([batches[number] for number in sorted(batches)], start, str(path))


def _file_name(program: str) -> str:
    """Return the script's name with a hash of the working directory, program and arguments."""
    script = program.partition(" ")[0].rpartition("/")[2]
    name = re.sub(r"[^\w.-]", "_", script)
    digest = zlib.crc32(bytes(Path.cwd()) + program.encode(errors="surrogateescape"))
    return f"{name[-_MAX_NAME:]}-{digest:08x}{SUFFIX}"


def _remove_oldest(new: Path) -> None:
    """Remove the oldest files above the limits; other processes may remove files meanwhile."""
    others = {}
    for path in new.parent.iterdir():
        if path != new and path.suffix in (SUFFIX, _UNFINISHED):
            with contextlib.suppress(FileNotFoundError):
                others[path] = path.stat()
    remaining = _MAX_BYTES
    for number, path in enumerate(sorted(others, key=lambda path: -others[path].st_mtime), 2):
        remaining -= others[path].st_size
        if number > _MAX_FILES or remaining < 0:
            path.unlink(missing_ok=True)


def _compact(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the scalar that an array was broadcast from, as `Arrays` of slots often are."""
    return values if values.size < 2 or any(values.strides) else values.reshape(-1)[0]


def _read(path: Path) -> Iterator[tuple[str, str, npt.NDArray[Any]]]:
    """Yield the kind, key and values of every array in a file.

    `Case.save` compresses nothing, so no array can be larger than its bytes in the file. If a
    header declares a larger array, no memory is allocated for it.
    """
    if fault := link_fault(path):
        raise ValueError(fault)
    if not path.is_file():  # a pipe or device may never end
        raise ValueError("it is a directory" if path.is_dir() else "there is no such file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        limits.CASE_ARRAYS.check(len(members), "it")
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
        raise ValueError(f"'{member.filename}' has the dtype {dtype}")
    size, longest = math.prod(shape) * dtype.itemsize, max(shape, default=0)
    if size != member.file_size - stream.tell() or longest > member.file_size:
        raise ValueError(f"'{member.filename}' does not hold the shape {shape}"[:200])
    stream.seek(0)
    array: npt.NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def batch_size(batch: Arrays) -> int:
    """Return the number of rows in a batch; 0 if all its arrays are scalars."""
    return max((len(array) for array in batch.values() if array.ndim), default=0)


def _serializable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values in a dtype that numpy can read back: no objects, no bfloat16."""
    if array.dtype.kind == "V":
        return array.astype(np.float32)
    return np.array(array.tolist()) if array.dtype.kind == "O" else array
