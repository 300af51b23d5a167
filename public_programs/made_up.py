"""Generated data for public programs: as little as they need until their first training step.

Each function receives the start directory of a program. Files that a program reads only during
training, through queues and iterators, may be empty, because a captured step does not run.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def nothing(folder: Path) -> None:
    """Nothing, for programs that need no data."""


def _empty(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def _old_checkpoint(folder: Path) -> None:
    """Checkpoints of an earlier training, which a program deletes when it starts."""
    _empty(folder / "train" / "model.ckpt-700000.index")


def cifar10_binary(folder: Path) -> None:
    """CIFAR-10 in its binary form, small, and a checkpoint."""
    _empty(folder / "data" / "cifar-10-binary.tar.gz")
    batches = folder / "data/cifar-10-batches-bin"
    batches.mkdir(exist_ok=True)
    records = np.random.default_rng(0).integers(256, size=(1000, 1 + 3 * 32 * 32), dtype=np.uint8)
    records[:, 0] %= 10
    for i in range(1, 6):
        (batches / f"data_batch_{i}.bin").write_bytes(records.tobytes())
    _old_checkpoint(folder)


def cifar10_pickled(folder: Path) -> None:
    """CIFAR-10 as pickles of 10,000 identical pictures."""
    batches = folder / "tensorpack_data/cifar10_data/cifar-10-batches-py"
    batches.mkdir(parents=True, exist_ok=True)
    pictures = [np.zeros(3 * 32 * 32, np.uint8)] * 10_000
    batch = pickle.dumps({b"data": pictures, b"labels": [0] * 10_000})
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(batch)
    names = [f"class {i}" for i in range(10)]
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))


def cifar10_arrays(folder: Path) -> None:
    """CIFAR-10 as pickles of arrays of black pictures, with keys that are not bytes."""
    batches = folder / "data/cifar-10-python/cifar-10-batches-py"
    batches.mkdir(parents=True, exist_ok=True)
    pictures = np.zeros((10_000, 3 * 32 * 32), np.uint8)
    batch = pickle.dumps({"data": pictures, "labels": [0] * 10_000})
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(batch)


def mnist_in_tmp(folder: Path) -> None:
    """MNIST in the fixed directory of the program."""
    _mnist(Path("/tmp/data"))


def mnist(folder: Path) -> None:
    """MNIST in a folder next to the program."""
    _mnist(folder / "MNIST_data")


def mnist_in_data(folder: Path) -> None:
    """MNIST in the folder of the data sets."""
    _mnist(folder / "data/mnist")


def digits_of_keras(folder: Path) -> None:
    """MNIST in the cache of Keras, under the names that Horovod's examples give each rank."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        f"{kind}_{part}": rng.integers(highest, size=(rows, *shape), dtype=np.uint8)
        for part, rows in (("train", 6000), ("test", 1000))
        for kind, highest, shape in (("x", 256, (28, 28)), ("y", 10, ()))
    }
    cache = _cache_of_keras(folder)
    for name in ("mnist.npz", *(f"mnist-{rank}.npz" for rank in (0, 1))):
        np.savez(cache / name, **arrays)
    for rank in (0, 1):
        (cache / f"MNIST-data-{rank}").write_bytes((cache / "mnist.npz").read_bytes())


def cifar10_of_keras(folder: Path) -> None:
    """CIFAR-10 in the cache of Keras: random pictures of one class."""
    cache = _cache_of_keras(folder)
    _empty(cache / "cifar-10-batches-py.tar.gz")
    batches = cache / "cifar-10-batches-py"
    batches.mkdir()
    pictures = np.random.default_rng(0).integers(256, size=(10_000, 3 * 32 * 32), dtype=np.uint8)
    batch = pickle.dumps({b"data": pictures, b"labels": [0] * 10_000})
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(batch)


def _cache_of_keras(folder: Path) -> Path:
    """Create the cache of Keras in the home directory ``made_up`` of a program.

    Keras refuses files with other hashes than those of the real data. A module that Python imports
    at its start, from the same directory, replaces this check.
    """
    home = folder / "made_up"
    home.mkdir()
    (home / "sitecustomize.py").write_text(_NO_HASHES)
    cache = home / ".keras/datasets"
    cache.mkdir(parents=True)
    return cache


_NO_HASHES = """
import importlib.machinery
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if not name.endswith(("keras.src.utils.data_utils", "keras.src.utils.file_utils")):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.validate_file = lambda *args, **options: True

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
"""


def small_cosmology(folder: Path) -> None:
    """The configuration for generated data with smaller cubes, and a stand-in for a logger."""
    configuration = (folder / "configs/cosmo_dummy.yaml").read_text()
    small = configuration.replace("[128, 128, 128, 4]", "[32, 32, 32, 4]")
    (folder / "configs/small.yaml").write_text(small)
    (folder / "wandb.py").write_text("")


def small_language_model(folder: Path) -> None:
    """A checkpoint of zeros for a model with two layers, its empty vocabulary, and token ids."""
    import tensorflow as tf

    width, layers, words, length = 64, 2, 300, 1024
    sizes = {"n_vocab": words, "n_ctx": length, "n_embd": width, "n_head": 4, "n_layer": layers}
    model = folder / "models/117M"
    model.mkdir(parents=True)
    (model / "hparams.json").write_text(json.dumps(sizes))
    (model / "encoder.json").write_text("{}")
    (model / "vocab.bpe").write_text("#version: 0.2\n")
    shapes = {"wpe": [length, width], "wte": [words, width]}
    norms = ["ln_f", *(f"h{i}/ln_{j}" for i in range(layers) for j in (1, 2))]
    shapes |= {f"{norm}/{name}": [width] for norm in norms for name in "gb"}
    for scope, inputs, outputs in (
        *(("attn/c_attn", 1, 3), ("attn/c_proj", 1, 1)),
        *(("mlp/c_fc", 1, 4), ("mlp/c_proj", 4, 1)),
    ):
        for i in range(layers):
            shapes[f"h{i}/{scope}/w"] = [1, inputs * width, outputs * width]
            shapes[f"h{i}/{scope}/b"] = [outputs * width]
    tf.raw_ops.SaveV2(
        prefix=str(model / "model.ckpt"),
        tensor_names=[f"model/{name}" for name in shapes],
        shape_and_slices=[""] * len(shapes),
        tensors=[tf.zeros(shape) for shape in shapes.values()],
    )
    (model / "checkpoint").write_text('model_checkpoint_path: "model.ckpt"\n')
    np.savez(folder / "tokens.npz", np.random.default_rng(0).integers(words, size=100_000))


def _mnist(data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, rows in (("train", 10_000), ("t10k", 1_000)):
        for kind, head, highest in (
            ("images-idx3", (2051, rows, 28, 28), 255),
            ("labels-idx1", (2049, rows), 9),
        ):
            size = int(np.prod(head[1:]))
            values = rng.integers(highest, size=size, dtype=np.uint8, endpoint=True)
            file = gzip.compress(np.array(head, ">u4").tobytes() + values.tobytes(), 1)
            (data / f"{part}-{kind}-ubyte.gz").write_bytes(file)


def wikitext(folder: Path) -> None:
    """The description of the records of a corpus of 1,000 words, and an empty record file."""
    records = folder / "data"
    _empty(records / "train.tfrecords")
    info = {"filenames": ["train.tfrecords"], "bin_sizes": [], "num_batch": 1000}
    (records / "record_info-train.bsz-60.tlen-150.json").write_text(json.dumps(info))
    corpus = {"vocab_size": 1000, "cutoffs": [0, 200, 400, 1000], "dataset": "wt103"}
    (records / "corpus-info.json").write_text(json.dumps(corpus))


def pretraining_records(folder: Path) -> None:
    """The description of records with permuted sentences, and an empty record file."""
    _empty(folder / "data/train.tfrecords")
    name = "record_info-train-0-0.bsz-16.seqlen-512.reuse-256.uni.alpha-6.beta-1.fnp-85.json"
    info = {"num_batch": 1000, "filenames": ["train.tfrecords"]}
    (folder / "data" / name).write_text(json.dumps(info))


def pascal_voc(folder: Path) -> None:
    """Pascal VOC, which a queue reads."""
    _empty(folder / "tfrecords/voc_2012_train_000.tfrecord")


def flowers(folder: Path) -> None:
    """The flowers of slim, which a queue reads."""
    _empty(folder / "data/flowers_train_00000-of-00005.tfrecord")


def inception_flowers(folder: Path) -> None:
    """The flowers of Inception, which a queue reads, and a checkpoint."""
    _empty(folder / "data/train-00000-of-00002")
    _old_checkpoint(folder)


def penn_treebank(folder: Path) -> None:
    """Lines with 10,000 different words, the vocabulary of the model, for training, validation and
    test.
    """
    (folder / "data").mkdir(exist_ok=True)
    text = "".join(f" word{i % 9999} \n" for i in range(20_000))
    for part in ("train", "valid", "test"):
        (folder / f"data/ptb.{part}.txt").write_text(text)


def sentences(folder: Path) -> None:
    """10,000 words, which is more than a step samples, and two files of sentences."""
    words = [f"word{i}" for i in range(10_000)]
    (folder / "vocabulary.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *words]))
    (folder / "sentences").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for file in ("1", "2"):
        lines = (" ".join(rng.choice(words, 30)) for _ in range(2000))
        (folder / "sentences" / file).write_text("\n".join(lines) + "\n")
    (folder / "save").mkdir(exist_ok=True)


def stories(folder: Path) -> None:
    """Short stories, weights of zero, and a stand-in for the package that tokenizes."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    line = "id,we went out,it rained,we got wet,we went in,we were dry,we swam,1\n"
    for split in ("cloze_test_val__spring2016", "cloze_test_test__spring2016"):
        name = f"{split} - {'cloze_test_ALL_val' if 'val__' in split else 'cloze_test_ALL_test'}"
        (data / f"{name}.csv").write_text("a header\n" + 500 * line)
    shapes = json.loads((folder / "model/params_shapes.json").read_text())
    sizes = [int(np.prod(shape)) for shape in shapes]
    part, rest = divmod(sum(sizes), 10)
    for i in range(10):
        file = folder / f"model/params_{i}.npy"
        length = part + (rest if i == 9 else 0)
        np.lib.format.open_memmap(file, "w+", np.float32, (length,)).flush()
    (folder / "spacy.py").write_text(
        "from types import SimpleNamespace\n\n"
        "def load(*args, **kwargs):\n"
        "    return lambda text: [SimpleNamespace(text=word) for word in text.split()]\n"
    )


def texts_in_pictures(folder: Path) -> None:
    """Gray pictures, each with the corners of a text, and a checkpoint."""
    (folder / "data").mkdir(exist_ok=True)
    for i in range(64):
        _grey_picture(folder / f"data/img_{i}.jpg", 512)
        (folder / f"data/img_{i}.txt").write_text("100,100,220,100,220,140,100,140,word\n")
    _old_checkpoint(folder)


def faces(folder: Path) -> None:
    """Records of pictures of 4 to 16 pixels."""
    _pictures_of_all_sizes(folder / "datasets/ffhq")


def celebrities(folder: Path) -> None:
    """Records of pictures of 4 to 16 pixels."""
    _pictures_of_all_sizes(folder / "datasets/celebahq")


def _pictures_of_all_sizes(records: Path) -> None:
    records.mkdir(parents=True, exist_ok=True)
    for level in range(2, 5):
        shape = (3, 2**level, 2**level)
        features = {"shape": list(shape), "data": bytes(int(np.prod(shape)))}
        _write_records(records / f"{records.name}-r{level:02}.tfrecords", [features] * 16)


def omniglot(folder: Path) -> None:
    """Random drawings of 1,622 characters, 20 of each."""
    rng = np.random.default_rng(0)
    drawings = rng.random((1622, 20, 28, 28, 1), dtype=np.float32)
    np.save(folder / "datasets/omniglot_data.npy", drawings)


def stereo_pairs(folder: Path) -> None:
    """A list of identical pairs of gray pictures."""
    (folder / "data").mkdir(exist_ok=True)
    _grey_picture(folder / "data/grey.jpg", 64)
    (folder / "data/filenames.txt").write_text("grey.jpg grey.jpg\n" * 1000)


def imagenet_in_folders(folder: Path) -> None:
    """A list of 4,000 identical pictures, and a checkpoint."""
    (folder / "pictures").mkdir(exist_ok=True)
    _grey_picture(folder / "pictures/grey.jpg", 64)
    lines = (f"grey.jpg {i % 10}\n" for i in range(4000))
    (folder / "train.txt").write_text("".join(lines))
    _empty(folder / "log/snapshot-1.index")


def optical_flow(folder: Path) -> None:
    """A list of pairs of pictures, and a configuration for training on two GPUs."""
    _empty(folder / "images/1.png", folder / "images/2.png")
    (folder / "images/test_sample_list.txt").write_text("1.png 2.png 000000\n" * 2)
    configuration = folder / "config/config.ini"
    text = configuration.read_text()
    for default, value in (("mode = test", "mode = train"), ("num_gpus = 1", "num_gpus = 2")):
        text = text.replace(f"\n{default}\n", f"\n{value}\n")
    configuration.write_text(text)


def records_of_imagenet(folder: Path) -> None:
    """ImageNet, which a queue reads."""
    _empty(folder / "data/imagenet/train-00000-of-01024")


def _grey_picture(file: Path, size: int) -> None:
    import tensorflow as tf

    file.write_bytes(tf.io.encode_jpeg(np.full((size, size, 3), 127, np.uint8)).numpy())


def point_clouds(folder: Path) -> None:
    """Point clouds in HDF5 files, and the lists of these files."""
    h5py = import_module("h5py")
    name = "data/modelnet40_ply_hdf5_2048"
    (folder / name).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        with h5py.File(folder / name / f"{part}0.h5", "w") as file:
            file["data"] = rng.normal(size=(64, 2048, 3)).astype(np.float32)
            file["label"] = rng.integers(40, size=(64, 1), dtype=np.uint8)
        (folder / name / f"{part}_files.txt").write_text(f"{name}/{part}0.h5\n")


def point_rooms(folder: Path) -> None:
    """Parts of rooms with 256 points, in two areas."""
    h5py = import_module("h5py")
    data = folder / "indoor3d_sem_seg_hdf5_data"
    data.mkdir()
    with h5py.File(data / "parts.h5", "w") as file:
        file["data"] = np.zeros((16, 256, 9), np.float32)
        file["label"] = np.zeros((16, 256), np.uint8)
    (data / "all_files.txt").write_text(f"{data.name}/parts.h5\n")
    (data / "room_filelist.txt").write_text("Area_1_office\nArea_5_office\n" * 8)


def _write_records(file: Path, examples: Iterable[dict[str, Any]]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(file)) as writer:
        for example in examples:
            features = {name: _feature(value) for name, value in example.items()}
            record = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(record.SerializeToString())


def _feature(value: bytes | list[int]) -> Any:
    import tensorflow as tf

    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
