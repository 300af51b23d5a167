"""`tf.layers`, `tf.nn.rnn_cell` and `tf.keras` of TensorFlow 1, which Keras 3 does not have.

TensorFlow 2.15 comes with Keras 2; later ones need ``tf_keras`` beside Keras 3.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from placement_checks.loading.tensorflow_1.on_demand import alias
from placement_checks.loading.tensorflow_1.used import NotInstalled
from placement_checks.loading.tf_internals import patching, tensorflow_1_modules
from placement_checks.loading.tf_internals.keras_objects import comes_with_keras_2
from placement_checks.util.modules import module_or_none

_PACKAGE = "tf_keras"


def environment() -> dict[str, str]:
    """The variables with which a process of its own is to be started, for a program of version 1.

    With it `tf.keras` is the same one in a block of `as_tensorflow_1` and outside of it; the block
    itself does without. It must be set before TensorFlow is loaded.
    """
    if comes_with_keras_2() or importlib.util.find_spec(_PACKAGE) is None:
        return {}
    return {"TF_USE_LEGACY_KERAS": "1"}


@contextlib.contextmanager
def of_keras_2(v1: Any) -> Iterator[None]:
    """Let `tf.compat.v1` have all three in this block; they are loaded when one is needed.

    Args:
        v1: `tf.compat.v1`.
    """
    with contextlib.ExitStack() as stack:
        if not comes_with_keras_2():
            for owner, name, module in (
                (v1, "keras", keras),
                (v1, "layers", layers),
                (v1.nn, "rnn_cell", cells),
            ):
                stack.enter_context(patching.patched(owner, name, _instead(name, module)))
        yield


def _instead(name: str, module: Callable[[], ModuleType]) -> Callable[[object], Any]:
    return lambda _: alias(name, module)


def keras() -> ModuleType:
    """`tf.keras`."""
    return _keras_for("tf.keras")


def layers() -> ModuleType:
    """`tf.layers`."""
    return tensorflow_1_modules.legacy_layers(_keras_for("tf.layers"))


def cells() -> ModuleType:
    """`tf.nn.rnn_cell`."""
    return tensorflow_1_modules.legacy_cells(_keras_for("tf.nn.rnn_cell"))


def _keras_for(name: str) -> ModuleType:
    package = "keras" if comes_with_keras_2() else _PACKAGE
    if module_or_none(package) is None:
        import tensorflow as tf  # loaded by now, and `environment` must do without

        # A tf_keras of another release would bring another TensorFlow along.
        release = ".".join(tf.__version__.split(".")[:2])
        raise NotInstalled(name, package, f"{release}.*")
    return tensorflow_1_modules.legacy_keras(package)
