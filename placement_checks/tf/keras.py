"""Keras's variables, optimisers and names."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any, cast

from placement_checks.core.keras_parts import (
    CLIPPING,
    FIT,
    NORMALIZATION,
    STEPPING,
    TRAIN_ON_BATCH,
)
from placement_checks.tf.patching import (
    Around,
    Patched,
    all_patched,
    existing,
    existing_module,
    patched,
)
from placement_checks.util.imports import module_or_none

# The parts of Keras by the ends of their files, and the function; any where none is named.
_PARTS = (
    (("tensorflow/trainer.py", "engine/training.py"), "fit", FIT),
    (("tensorflow/trainer.py", "engine/training.py"), "train_on_batch", TRAIN_ON_BATCH),
    (("tensorflow/trainer.py", "engine/training.py"), "", STEPPING),
    (("normalization/batch_normalization.py",), "", NORMALIZATION),
    (("optimizers/base_optimizer.py", "optimizers/optimizer.py"), "_clip_gradients", CLIPPING),
)


@cache
def comes_with_keras_2() -> bool:
    """Whether the package ``keras`` that is installed is the one of TensorFlow 2.15 or before."""
    try:
        return metadata.version("keras").startswith("2.")
    except metadata.PackageNotFoundError:
        return False


def is_of_keras(frame: Any) -> bool:
    """Whether a frame of a traceback is in Keras."""
    return "keras/src/" in frame.filename


def parts_of_keras(stack: Iterable[Any]) -> frozenset[str]:
    """The parts of Keras that a traceback leads through: those of `core.op_types`."""
    frames = list(filter(is_of_keras, stack))
    return frozenset(
        part
        for files, function, part in _PARTS
        if any(frame.filename.endswith(files) and function in ("", frame.name) for frame in frames)
    )


def names_of_keras() -> MutableMapping[str, int] | None:
    """Keras 3's counter of names, by prefix; None where Keras is not loaded.

    Also None for Keras 2, which keeps one for each graph.
    """
    if getattr(sys.modules.get("keras"), "__version__", "2.").startswith("2."):
        return None
    state = existing_module("keras.src.backend.common.global_state")
    attribute = existing(state, "get_global_attribute")
    names = attribute("object_name_uids", defaultdict(int), set_to_default=True)
    return cast(MutableMapping[str, int], names)


def trained_by(optimizer: Any) -> Sequence[Any]:
    """The variables that an optimiser of Keras 3 was built for, in the order of gradients."""
    return cast(Sequence[Any], existing(optimizer, "_trainable_variables"))


def variable_of(variable: Any) -> Any:
    """The variable of TensorFlow in one of Keras 3; others as they are."""
    return variable._value if hasattr(variable, "path") else variable


@contextlib.contextmanager
def around_training_in_graphs(around: Around) -> Iterator[None]:
    """Patch what trains a model of Keras 2 in the graph in which it was made, step by step."""
    asked = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    # Loading another for nothing would take its time, and Keras 3 does not load in version 1.
    packages = ["keras"] if comes_with_keras_2() else []
    if asked or "tf_keras" in sys.modules:
        packages.append("tf_keras")
    with contextlib.ExitStack() as stack:
        for package in packages:
            module = module_or_none(f"{package}.src.engine.training_v1")
            if module is not None:
                methods = {"fit": around, "train_on_batch": around}
                stack.enter_context(all_patched(existing(module, "Model"), methods))
        yield


def around_keras_variables(around: Around) -> Patched:
    """Patch what gives a variable of Keras 3 the one of TensorFlow; nothing where it is absent."""
    module = module_or_none("keras.src.backend.tensorflow.core")
    if module is None:
        return contextlib.nullcontext()
    return patched(existing(module, "Variable"), "_initialize", around)
