"""Keras: versions, frames of its own code, variables, optimizers and names."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, MutableMapping, Sequence
from functools import cache
from importlib import metadata
from types import FrameType, ModuleType
from typing import Any, NamedTuple, cast

from placement_checks.core.keras_parts import (
    CLIPPING,
    FIT,
    NORMALIZATION,
    STEPPING,
    TRAIN_ON_BATCH,
)
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import (
    Around,
    all_patched,
    existing,
    existing_in,
    existing_module,
    module_or_none,
)

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"  # environment variable of TensorFlow
_KERAS_MODULES = ("keras.", "tf_keras.", "tensorflow.python.keras.")
_SESSION_MODULES = ("tensorflow.python.client.", "tensorflow.python.util.")
_TRAINERS = ("tensorflow/trainer.py", "engine/training.py")
# How parts of Keras are recognized in a stack: ends of file names, and a function (``""``: any).
_PARTS = (
    (_TRAINERS, "fit", FIT),
    (_TRAINERS, "train_on_batch", TRAIN_ON_BATCH),
    (_TRAINERS, "", STEPPING),
    (("normalization/batch_normalization.py",), "", NORMALIZATION),
    (("optimizers/base_optimizer.py", "optimizers/optimizer.py"), "_clip_gradients", CLIPPING),
)


@cache
def comes_with_keras_2() -> bool:
    """Whether the installed ``keras`` package is Keras 2, as with TensorFlow 2.15 or older."""
    try:
        return metadata.version("keras").startswith("2.")
    except metadata.PackageNotFoundError:
        return False


def uses_tf_keras() -> bool:
    """Whether the environment selects the package ``tf_keras``, Keras 2, for ``tf.keras``."""
    return os.environ.get(LEGACY_KERAS, "").lower() in ("1", "true")


def is_keras_frame(frame: Any) -> bool:
    """Whether a frame of a traceback is in Keras's own code."""
    return "keras/src/" in frame.filename


def creates_session_of_keras(frame: FrameType | None) -> bool:
    """Whether Keras creates the session that is constructed in a frame."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_SESSION_MODULES):
        frame = frame.f_back
    module = "" if frame is None else str(frame.f_globals.get("__name__"))
    return module.startswith(_KERAS_MODULES)


def parts_of_keras(stack: Iterable[Any]) -> frozenset[str]:
    """The parts of Keras (`core.keras_parts`) that appear in a traceback."""
    frames = list(filter(is_keras_frame, stack))
    return frozenset(
        part
        for files, function, part in _PARTS
        if any(frame.filename.endswith(files) and function in ("", frame.name) for frame in frames)
    )


def keras_name_counter() -> MutableMapping[str, int] | None:
    """Keras 3's counter for unique names, by prefix.

    None if Keras is not loaded, and for Keras 2, which has one counter per graph.
    """
    if not _is_keras_3("keras"):
        return None
    state = existing_module(_GLOBAL_STATE)
    attribute = existing(state, "get_global_attribute")
    names = attribute("object_name_uids", defaultdict(int), set_to_default=True)
    return cast(MutableMapping[str, int], names)


class KerasDtypes(NamedTuple):
    """The dtypes of new layers in one version of Keras."""

    package: str  # `keras` or `tf_keras`
    floatx: str  # the default dtype
    policy: Any  # the global dtype policy; None if it follows from `floatx`


def changed_dtypes() -> tuple[KerasDtypes, ...]:
    """The dtypes that differ from Keras's defaults, for each loaded version of Keras."""
    return tuple(
        dtypes
        for package in _loaded_packages()
        if (dtypes := _dtypes(package)) != KerasDtypes(package, _FLOATX, None)
    )


def restore_dtypes(changed: Iterable[KerasDtypes]) -> None:
    """Give each loaded version of Keras the dtypes that `changed_dtypes` returned."""
    own = {each.package: each for each in changed}
    for package in _loaded_packages():
        wanted = own.get(package, KerasDtypes(package, _FLOATX, None))
        is_changed = _dtypes(package) != wanted
        sys.modules[package].backend.set_floatx(wanted.floatx)
        if _is_keras_3(package):
            # The first layer sets a policy for floatx, which would outlive a change of floatx.
            set_attribute = existing_in(_GLOBAL_STATE, "set_global_attribute")
            set_attribute(_POLICY, wanted.policy)
        elif is_changed:
            existing_in(f"{package}{_POLICY_MODULE}", "set_global_policy")(wanted.policy)


_FLOATX = "float32"
_POLICY = "dtype_policy"  # an attribute of Keras 3's global state
_GLOBAL_STATE = "keras.src.backend.common.global_state"
_POLICY_MODULE = ".src.mixed_precision.policy"  # of Keras 2


def _loaded_packages() -> Sequence[str]:
    return [
        package
        for package in ("keras", "tf_keras")
        if hasattr(sys.modules.get(package), "backend")
        and (_is_keras_3(package) or f"{package}{_POLICY_MODULE}" in sys.modules)
    ]


def _is_keras_3(package: str) -> bool:
    return not getattr(sys.modules.get(package), "__version__", "2.").startswith("2.")


def _dtypes(package: str) -> KerasDtypes:
    """Read the dtypes; Keras's own function would set the policy if it is not set."""
    floatx = sys.modules[package].backend.floatx()
    if _is_keras_3(package):
        policy = existing_in(_GLOBAL_STATE, "get_global_attribute")(_POLICY)
    else:
        policy = existing_in(f"{package}{_POLICY_MODULE}", "_global_policy")
    is_default = getattr(policy, "name", floatx) == floatx
    return KerasDtypes(package, floatx, None if is_default else policy)


def optimizer_variables(optimizer: Any) -> Sequence[Any]:
    """The variables that a Keras 3 optimizer updates, in the order of their gradients."""
    return cast(Sequence[Any], existing(optimizer, "_trainable_variables"))


def tensorflow_variable(variable: Any) -> Any:
    """The TensorFlow variable in a Keras 3 variable; any other object is returned unchanged."""
    return variable._value if hasattr(variable, "path") else variable


def around_keras_graph_training(around: Around) -> contextlib.AbstractContextManager[None]:
    """Patch ``fit`` and ``train_on_batch`` of Keras 2 models that train in a graph (`v1`)."""
    patches: list[Patch] = []
    if comes_with_keras_2():  # Keras 3 cannot be loaded with TensorFlow 2 behavior off
        patches += [Patch.KERAS_2_FIT, Patch.KERAS_2_BATCH]
    # Loading tf_keras takes time, so it is patched only if the program uses it.
    if (uses_tf_keras() or "tf_keras" in sys.modules) and module_or_none("tf_keras"):
        patches += [Patch.TF_KERAS_FIT, Patch.TF_KERAS_BATCH]
    return all_patched(dict.fromkeys(patches, around))


def around_fit(around: Around) -> contextlib.AbstractContextManager[None]:
    """Patch ``fit`` of the models of each loaded version of Keras."""
    if uses_tf_keras():
        module_or_none("tf_keras")
    patches = [
        Patch.MODEL_FIT,
        Patch.TF_KERAS_MODEL_FIT,
        Patch.KERAS_2_FIT,
        Patch.TF_KERAS_FIT,
    ]
    return all_patched({patch: around for patch in patches if patch.is_loaded})


def around_compile(around: Around) -> contextlib.AbstractContextManager[None]:
    """Patch ``compile`` of the models of each loaded version of Keras."""
    if uses_tf_keras():
        module_or_none("tf_keras")
    patches = [Patch.MODEL_COMPILE, Patch.TF_KERAS_MODEL_COMPILE]
    return all_patched({patch: around for patch in patches if patch.is_loaded})


def has_trained_on_batches(model: Any) -> bool:
    """Whether ``fit`` or ``train_on_batch`` of a compiled model was called."""
    return getattr(model, "train_function", None) is not None


def around_keras_variables(around: Around) -> contextlib.AbstractContextManager[None]:
    """Patch the creation of the TensorFlow variable in a Keras 3 variable.

    Does nothing if Keras 3 is not installed.
    """
    has_keras_3 = not comes_with_keras_2() and module_or_none("keras")
    return all_patched({Patch.NEW_KERAS_3: around} if has_keras_3 else {})


def legacy_keras(package: str) -> ModuleType:
    """Keras 2 with the names of TensorFlow 1, from the package ``keras`` or ``tf_keras``."""
    return cast(ModuleType, existing_module(f"{package}.api._v1.keras"))


def legacy_module(package: str, name: str) -> ModuleType:
    """A module of `legacy_keras`: ``layers`` is `tf.layers`, ``rnn_cell`` is `tf.nn.rnn_cell`."""
    internal = existing(legacy_keras(package), "__internal__")
    return cast(ModuleType, existing(existing(internal, "legacy"), name))
