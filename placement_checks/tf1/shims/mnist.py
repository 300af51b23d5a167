"""``tensorflow.examples.tutorials.mnist.input_data``: read MNIST from its four files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_CLASSES = 10
_SIDE = 28


class DataSet:
    """Images and their labels, in batches."""

    def __init__(self, images: Array, labels: Array, seed: int | None = None) -> None:
        self.images = images
        self.labels = labels
        self.epochs_completed = 0
        self._position = 0
        self._order = np.arange(len(images))
        self._random = np.random.default_rng(seed)

    @property
    def num_examples(self) -> int:
        """The number of images."""
        return len(self.images)

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[Array, Array]:
        """Return the next images and labels; each pass over the data has a new order."""
        del fake_data  # `read_data_sets` creates fake images
        if shuffle and self._position == self.epochs_completed == 0:
            self._shuffle()
        rows: list[Array] = []
        while self.num_examples and (missing := batch_size - sum(map(len, rows))) > 0:
            rows.append(self._order[self._position : self._position + missing])
            self._position += missing
            if self._position > self.num_examples:
                self.epochs_completed += 1
                self._position = 0
                if shuffle:
                    self._shuffle()
        chosen = np.concatenate([np.empty(0, int), *rows])
        return self.images[chosen], self.labels[chosen]

    def _shuffle(self) -> None:
        self._order = self._random.permutation(self.num_examples)


class Datasets(NamedTuple):
    """MNIST: 60,000 images for training and validation, and 10,000 for testing."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = np.float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = "",
) -> Datasets:
    """Read MNIST from a directory; missing files are not downloaded.

    Args:
        train_dir: the directory.
        fake_data: create white images instead of reading files.
        one_hot: whether labels have shape [n, 10] instead of [n].
        dtype: float32 for values from 0 to 1, or uint8 for the values in the file.
        reshape: whether images have shape [n, 784] instead of [n, 28, 28, 1].
        validation_size: the number of training images for validation.
        seed: the seed for the order of rows.
        source_url: unused.

    Raises:
        FileNotFoundError: a file is missing.
    """
    del source_url
    kind = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))

    def part(name: str) -> tuple[Array, Array]:
        images: Array = np.full((10_000, _SIDE, _SIDE, 1), 255, np.uint8)
        labels: Array = np.zeros(10_000, np.uint8)
        if not fake_data:
            images = _read(Path(train_dir, f"{name}-images-idx3-ubyte.gz"), header=16)
            images = images.reshape(-1, _SIDE, _SIDE, 1)
            labels = _read(Path(train_dir, f"{name}-labels-idx1-ubyte.gz"), header=8)
        images = images.reshape(-1, _SIDE * _SIDE) if reshape else images
        if kind == np.float32:
            images = images.astype(np.float32) / 255
        return images, np.eye(_CLASSES)[labels] if one_hot else labels

    (images, labels), test = part("train"), part("t10k")
    return Datasets(
        DataSet(images[validation_size:], labels[validation_size:], seed),
        DataSet(images[:validation_size], labels[:validation_size], seed),
        DataSet(*test, seed),
    )


def _read(file: Path, header: int) -> Array:
    try:
        content = gzip.decompress(file.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{file} is missing, and --v1 does not download it; "
            "put the four files of MNIST into this directory"
        ) from None
    return np.frombuffer(content, np.uint8, offset=header)
