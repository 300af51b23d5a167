"""Attributes of the stand-in for ``tf``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.tf1.lazy_modules import UsedNames

Run = Callable[[str], dict[str, Any]]


def test_the_stand_in_is_version_1(run: Run) -> None:
    made = run(
        """
        import tensorflow as tf
        versions = [tf.__version__, tf.VERSION, tf.version.VERSION]
        """
    )

    assert made["versions"] == ["1.15.5"] * 3
    assert made["tf"].__name__ == "tensorflow"
    assert made["tf"].__file__ == tf.__file__
    assert repr(made["tf"]).startswith("<module 'tensorflow' from")


def test_the_stand_in_has_compat_of_tensorflow_2(run: Run) -> None:
    """`tf.compat.v1.compat.v1` is another module, without the patches."""
    made = run("import tensorflow as tf")

    assert made["tf"].compat is tf.compat
    assert made["tf"].config is tf.compat.v1.config


def test_tf_compat_v1_has_layers_and_cells_too(run: Run) -> None:
    """In many programs only ``import tensorflow.compat.v1 as tf`` was changed."""
    made = run(
        """
        import tensorflow as tf
        import tensorflow.compat.v1 as v1
        same = [tf.layers.conv2d is v1.layers.conv2d, tf.keras.layers is v1.keras.layers,
                tf.nn.rnn_cell.GRUCell is v1.nn.rnn_cell.GRUCell]
        """
    )

    assert made["same"] == [True] * 3


def test_flags_app_and_internals(run: Run) -> None:
    made = run(
        """
        import tensorflow as tf
        found = [tf.app.flags.DEFINE_string, tf.python.framework.ops.Graph]
        tf.flags.FLAGS, tf.app.run, tf.gfile.Exists, tf.logging.info
        tf.core.framework.graph_pb2.GraphDef, tf.nn.relu, tf.nn.rnn_cell.LSTMCell
        """
    )

    assert made["found"][0] is tf.compat.v1.app.flags.DEFINE_string
    assert made["found"][1] is tf.Graph


def test_one_object_for_one_name(run: Run) -> None:
    made = run("import tensorflow as tf\nsame = tf.nn is tf.nn and tf.version is tf.version")

    assert made["same"]


def test_a_missing_name_is_reported_and_recorded(run: Run, used: UsedNames) -> None:
    with pytest.raises(AttributeError) as error:
        run("import tensorflow as tf\ntf.no_such")

    message = "tf.no_such is not in this TensorFlow, and --v1 has no replacement"
    assert str(error.value) == message
    run("import tensorflow as tf\nassert not hasattr(tf, 'no_such')")
    assert used.missing == ["tf.no_such"]


def test_special_names_of_python_are_not_recorded(run: Run, used: UsedNames) -> None:
    made = run("import tensorflow as tf\nassert not hasattr(tf, '__wrapped__')")

    assert not used.missing
    assert "get_variable" in dir(made["tf"])
    assert made["tf"].__git_version__ == tf.__git_version__
