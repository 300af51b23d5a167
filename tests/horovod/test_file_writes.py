"""The files that a rank writes, until its first step or in the callbacks of `fit`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.core.ranks import FileWrite
from placement_checks.horovod.file_writes import record_file_writes

KERAS: Any = tf.keras.callbacks
_Callback: Any = KERAS.Callback
_Checkpoint: Any = KERAS.ModelCheckpoint
_Sequential: Any = tf.keras.Sequential
PATH = "saved.weights.h5"
ROWS = tf.zeros([4, 2]), tf.zeros([4, 1])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def writes() -> Iterator[list[FileWrite]]:
    found: list[FileWrite] = []
    with record_file_writes(found):
        yield found


class Unfitted(Exception):
    """`fit` has begun."""


class Stop(_Callback):  # type: ignore[misc]  # Keras is not typed
    """Ends `fit` before its first step."""

    def on_train_begin(self, logs: Any = None) -> None:
        raise Unfitted


class Model(_Sequential):  # type: ignore[misc]  # Keras is not typed
    """A model with the methods of Keras."""


class OwnModel(Model):
    """A model that saves itself in its own way."""

    def save_weights(self, *_: Any, **__: Any) -> None:
        """Save nothing."""


class OwnCheckpoint(_Checkpoint):  # type: ignore[misc]  # Keras is not typed
    """A callback that may ask for the rank."""


def fit(*callbacks: Any, kind: type[Any] = Model, **options: Any) -> None:
    model = kind([tf.keras.layers.Dense(1)])
    model.compile(loss="mse")
    with pytest.raises(Unfitted):
        model.fit(*ROWS, verbose=0, callbacks=[Stop(), *callbacks], **options)


def weights(path: str = PATH, monitor: str = "val_loss", **options: Any) -> Any:
    return KERAS.ModelCheckpoint(path, monitor, save_weights_only=True, **options)


def test_paths_of_callbacks(writes: list[FileWrite], folder: Path) -> None:
    fit(weights(), KERAS.BackupAndRestore("backup"), KERAS.CSVLogger("a.csv"))
    fit(KERAS.TensorBoard("logs"))

    root = os.path.realpath(folder)
    assert [(each.writer, each.path, each.location) for each in writes] == [
        ("ModelCheckpoint", PATH, f"{root}/{PATH}"),
        ("BackupAndRestore", "backup", f"{root}/backup"),
        ("CSVLogger", "a.csv", f"{root}/a.csv"),
        ("TensorBoard", "logs", f"{root}/logs"),
    ]
    assert all(each.frames[-1].file.endswith(Path(__file__).name) for each in writes)


@pytest.mark.parametrize(
    "checkpoint",
    [
        weights("{epoch:02d}-{batch}.weights.h5"),
        weights(monitor="loss", save_best_only=True),
        weights(save_freq=7),
    ],
)
def test_checkpoints_that_are_saved(checkpoint: Any, writes: list[FileWrite]) -> None:
    fit(checkpoint)

    assert len(writes) == 1


@pytest.mark.parametrize(
    "checkpoint",
    [
        weights("{epoch}-{loss:.2f}.weights.h5"),
        weights("{.weights.h5"),
        weights(save_best_only=True),
        weights(monitor="loss", save_best_only=True, initial_value_threshold=0.1),
        OwnCheckpoint(PATH, save_weights_only=True),
    ],
)
def test_checkpoints_that_may_not_be_saved_at_one_path(
    checkpoint: Any, writes: list[FileWrite]
) -> None:
    fit(checkpoint)

    assert writes == []


@pytest.mark.parametrize("options", [{"validation_data": ROWS}, {"validation_split": 0.5}])
def test_the_best_validated_weights_are_saved(
    options: dict[str, Any], writes: list[FileWrite]
) -> None:
    fit(weights(save_best_only=True), **options)

    assert len(writes) == 1


def test_a_model_that_saves_itself(writes: list[FileWrite]) -> None:
    fit(weights(), KERAS.CSVLogger("a.csv"), kind=OwnModel)

    assert [each.writer for each in writes] == ["CSVLogger"]


def test_a_list_of_callbacks_with_its_model(writes: list[FileWrite]) -> None:
    model = Model([tf.keras.layers.Dense(1)])
    model.compile(loss="mse")
    callbacks = KERAS.CallbackList([KERAS.CSVLogger("a.csv"), Stop()], model=model)

    with pytest.raises(Unfitted):
        model.fit(*ROWS, None, 1, 0, callbacks)

    assert [each.path for each in writes] == ["a.csv"]


@pytest.mark.parametrize("path", [os.devnull, "ram://a.csv"])
def test_paths_that_ranks_may_share(path: str, writes: list[FileWrite]) -> None:
    fit(KERAS.CSVLogger(path))

    assert writes == []


def test_a_link_leads_to_the_same_file(writes: list[FileWrite], folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "b").symlink_to("a")

    fit(KERAS.CSVLogger("a/log"), KERAS.CSVLogger("b/log"))

    assert [each.path for each in writes] == ["a/log", "b/log"]
    assert len({each.location for each in writes}) == 1


def test_wrong_arguments_of_fit_are_those_of_keras(writes: list[FileWrite]) -> None:
    with pytest.raises(TypeError, match="no_such"):
        Model().fit(*ROWS, no_such=1)

    assert writes == []


def test_checkpoints_of_sessions(writes: list[FileWrite], folder: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", [], initializer=tf.zeros_initializer())
        session.run(variable.initializer)
        tf.compat.v1.train.Saver().save(session, "saved/model", 3)

    assert [each.path for each in writes] == ["saved/model-3"]
    assert (folder / "saved/model-3.index").exists()


def test_the_hook_of_a_monitored_session(writes: list[FileWrite]) -> None:
    with tf.Graph().as_default():
        tf.compat.v1.train.get_or_create_global_step()
        for directory in (None, "saved"):
            with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=directory):
                pass

    assert {each.path for each in writes} == {"saved/model.ckpt-0"}
