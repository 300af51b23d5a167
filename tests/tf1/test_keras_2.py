"""The sources of `tf.layers`, `tf.nn.rnn_cell` and `tf.keras` of version 1."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.tf.keras import comes_with_keras_2
from placement_checks.tf1 import renamed
from placement_checks.tf1.renamed import environment

Run = Callable[[str], dict[str, Any]]
KERAS_2 = tf.__version__.startswith("2.15.")  # whatever TF_USE_LEGACY_KERAS says
with_keras_3 = pytest.mark.skipif(KERAS_2, reason="TensorFlow has all in its own Keras")


def test_the_installed_keras() -> None:
    assert comes_with_keras_2() is KERAS_2


def test_keras_2_has_layers_and_cells() -> None:
    keras = renamed.keras()

    assert keras.__name__ == ("keras.api._v1.keras" if KERAS_2 else "tf_keras.api._v1.keras")
    assert callable(renamed.layers().conv2d)
    assert callable(renamed.cells().BasicLSTMCell)


def test_the_environment_of_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment() == ({} if KERAS_2 else {"TF_USE_LEGACY_KERAS": "1"})

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert environment() == {}


@with_keras_3
@pytest.mark.parametrize(
    ("program", "needed"),
    [
        ("import tensorflow as tf\ntf.layers.conv2d", "tf.layers"),
        ("from tensorflow.layers import dense", "tf.layers"),
        ("import tensorflow as tf\ntf.contrib.rnn.LSTMCell", "tf.nn.rnn_cell"),
        ("import tensorflow.keras.layers", "tf.keras"),
        ("from tensorflow.python.layers.normalization import BatchNormalization", "tf.layers"),
    ],
)
def test_without_tf_keras(
    run: Run, monkeypatch: pytest.MonkeyPatch, program: str, needed: str
) -> None:
    monkeypatch.setitem(sys.modules, "tf_keras", None)

    with pytest.raises(ImportError) as error:
        run(program)

    release = re.fullmatch(r"(\d+\.\d+)\..*", tf.__version__)
    assert release
    assert str(error.value) == (
        f"{needed} needs tf_keras, which is not installed; pip install 'tf_keras=={release[1]}.*'"
    )


def test_another_version_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    package = "keras" if KERAS_2 else "tf_keras"
    monkeypatch.setitem(sys.modules, f"{package}.api._v1.keras", None)

    with pytest.raises(InputError, match=rf"has no {package}\.api\._v1\.keras, which"):
        renamed.layers()
