"""A case that differed, saved to be run again: its batches and initial values."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import InputError

FOLDER = Path(".placement_checks")
SUFFIX = ".npz"
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
            if _rows(batch) in (0, rows):
                return self._left.pop(number)
        raise IndexError(f"the case has no more batch of {rows} rows")

    def rewound(self) -> Case:
        """The same case, with all of its batches to be given again."""
        return Case(self.batches, self.start, self.name)

    @property
    def rows(self) -> int:
        """How many rows the first batch has; 0 if all its arrays are scalars."""
        return _rows(self.batches[0])

    def first(self, variables: Arrays) -> Arrays:
        """The initial values, for ``variables`` of these shapes.

        Raises:
            InputError: the case is of other variables.
        """
        for name, value in variables.items():
            saved = self.start.get(name)
            if saved is None or saved.shape != value.shape:
                has = "none" if saved is None else f"one of shape {saved.shape}"
                raise InputError(
                    self.name,
                    f"'{name}' needs an initial value of shape {value.shape}, and the case "
                    f"has {has}",
                    "name a case that this program has saved, or run it without one",
                )
        return self.start

    def save(self, program: str) -> str:
        """Write it to a file named after the program; the path, relative to the current folder."""
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
        name = "".join(
            letter if letter.isalnum() or letter in "._-" else "_" for letter in program
        )
        path = FOLDER / f"{name}{SUFFIX}"
        arrays = {f"start/{key}": _plain(value) for key, value in self.start.items()}
        for number, batch in enumerate(self.batches):
            arrays |= {f"{number}/{key}": _plain(value) for key, value in batch.items()}
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return str(path)

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


def _rows(batch: Arrays) -> int:
    return max((len(array) for array in batch.values() if array.ndim), default=0)


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values of a dtype that a file can be read back with: no objects, no bfloat16."""
    if array.dtype.kind == "V":
        return array.astype(np.float32)
    return np.array(array.tolist()) if array.dtype.kind == "O" else array
