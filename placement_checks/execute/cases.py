"""A case that differed, saved so that it can be run again: the batches and first values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.errors import InputError

FOLDER = Path(".placement_checks")
SUFFIX = ".npz"

Arrays = Mapping[str, npt.NDArray[Any]]


class Case:
    """The batches of a run, in the order in which they were asked for, and its first values."""

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

    @property
    def rows(self) -> int:
        """Of the first batch; 0 if it has none."""
        return _rows(self.batches[0])

    def save(self, program: str) -> str:
        """Write it to a file named after the program; the path, relative to the current folder."""
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
        name = "".join(
            letter if letter.isalnum() or letter in "._-" else "_" for letter in program
        )
        path = FOLDER / f"{name}{SUFFIX}"
        arrays = {f"start/{key}": value for key, value in self.start.items()}
        for number, batch in enumerate(self.batches):
            arrays |= {f"{number}/{key}": _plain(value) for key, value in batch.items()}
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return str(path)

    @staticmethod
    def load(path: Path) -> Case:
        """Read what `save` has written.

        Raises:
            InputError: it is no such file.
        """
        start: dict[str, npt.NDArray[Any]] = {}
        batches: dict[int, dict[str, npt.NDArray[Any]]] = {}
        try:
            with np.load(path) as file:
                for name in file.files:
                    kind, _, key = name.partition("/")
                    into = start if kind == "start" else batches.setdefault(int(kind), {})
                    into[key] = file[name]
        except (OSError, ValueError, EOFError) as error:
            reason = str(error) or type(error).__name__
            raise InputError(
                str(path), f"is no saved case: {reason}", "name a file that a run has saved"
            ) from None
        if not batches:
            raise InputError(str(path), "holds no batch", "name a file that a run has saved")
        return Case([batches[number] for number in sorted(batches)], start, str(path))


def _rows(batch: Arrays) -> int:
    return max((len(array) for array in batch.values() if array.ndim), default=0)


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Texts without their objects, which a file could not be read back with."""
    return np.array(array.tolist()) if array.dtype.kind == "O" else array
