"""MNIST is read as in ``tensorflow.examples.tutorials.mnist.input_data``."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.tf1.shims.mnist import DataSet, read_data_sets

ROWS = {"train": 20, "t10k": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All pixels of an image have its number; its label is the last digit of that number."""
    for name, rows in ROWS.items():
        pictures = np.repeat(np.arange(rows, dtype=np.uint8), 784)
        labels = np.arange(rows, dtype=np.uint8) % 10
        for kind, header, content in (("images-idx3", 16, pictures), ("labels-idx1", 8, labels)):
            file = tmp_path / f"{name}-{kind}-ubyte.gz"
            file.write_bytes(gzip.compress(bytes(header) + content.tobytes()))
    return tmp_path


def test_images_are_read_and_split(folder: Path) -> None:
    digits = read_data_sets(str(folder), validation_size=4)

    assert [part.num_examples for part in digits] == [16, 4, 5]
    assert digits.train.images.shape == (16, 784)
    assert digits.train.images.dtype == np.float32
    assert digits.train.images[0, 0] == np.float32(4 / 255)
    assert [*digits.validation.labels] == [0, 1, 2, 3]
    assert [*digits.test.labels] == [0, 1, 2, 3, 4]


def test_other_forms(folder: Path) -> None:
    digits = read_data_sets(
        str(folder), one_hot=True, reshape=False, dtype=tf.uint8, validation_size=0
    )

    assert digits.train.images.shape == (20, 28, 28, 1)
    assert digits.train.images.dtype == np.uint8
    assert digits.train.labels[13].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert digits.validation.next_batch(3)[0].shape == (0, 28, 28, 1)


def test_batches_go_through_all_rows(folder: Path) -> None:
    part = read_data_sets(str(folder), validation_size=0, seed=1).train

    seen = [part.next_batch(8) for _ in range(5)]

    pictures = np.concatenate([images[:, 0] for images, _ in seen]) * 255
    assert sorted(pictures[:20].round()) == sorted(pictures[20:].round()) == [*range(20)]
    assert [*pictures[:20]] != [*pictures[20:]]
    assert part.epochs_completed == 1
    for images, labels in seen:
        assert [*(images[:, 0] * 255).round() % 10] == [*labels]


def test_batches_in_order() -> None:
    part = DataSet(np.arange(3)[:, None], np.arange(3))

    assert [part.next_batch(2, shuffle=False)[1].tolist() for _ in range(3)] == [
        [0, 1],
        [2, 0],
        [1, 2],
    ]


def test_fake_images() -> None:
    digits = read_data_sets("/no/such/folder", fake_data=True, one_hot=True)

    images, labels = digits.train.next_batch(100, fake_data=True)
    assert (images.shape, labels.shape) == ((100, 784), (100, 10))
    assert images.max() == 1


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        read_data_sets(str(tmp_path))

    assert str(error.value) == (
        f"{tmp_path}/train-images-idx3-ubyte.gz is missing, and --v1 does not download it; "
        "put the four files of MNIST into this directory"
    )
