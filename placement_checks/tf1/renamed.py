"""Names that modules of TensorFlow's own had in version 1, and that others have now.

One of them, ``DeviceSpec``, still has its name and is another class now.

tf_slim 1.1 asks for most of them, and so do programs that import from ``tensorflow.python``.

Names of numpy, Python and scipy that were dropped since TensorFlow 1.

`tf.layers`, `tf.nn.rnn_cell` and `tf.keras` of TensorFlow 1, which Keras 3 does not have.

TensorFlow 2.15 comes with Keras 2; later ones need ``tf_keras`` beside Keras 3.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import fractions
import importlib.util
import inspect
import math
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from placement_checks.tf import patching, tensorflow_1
from placement_checks.tf.keras import comes_with_keras_2
from placement_checks.tf1.lazy_modules import NotInstalled, added, alias, attribute_of
from placement_checks.tf1.scipy_misc import scipy_misc
from placement_checks.util.imports import module_or_none

_OF_NUMPY: dict[str, Any] = {
    "Inf": np.inf,
    "Infinity": np.inf,
    "NAN": np.nan,
    "NINF": -np.inf,
    "NaN": np.nan,
    "PINF": np.inf,
    "alltrue": np.all,
    "asscalar": lambda array: array.item(),
    "bool": bool,
    "bool8": np.bool_,
    "complex": complex,
    "complex_": np.complex128,
    "cumproduct": np.cumprod,
    "float": float,
    "float_": np.float64,
    "in1d": lambda array, values, **options: np.isin(np.ravel(array), values, **options),
    "infty": np.inf,
    "int": int,
    "int0": np.intp,
    "long": int,
    "mat": np.asmatrix,
    "msort": lambda array: np.sort(array, axis=0),
    "object": object,
    "object0": np.object_,
    "product": np.prod,
    "rank": np.ndim,
    "round_": np.round,
    "row_stack": np.vstack,
    "sometrue": np.any,
    "str": str,
    "string_": np.bytes_,
    "uint0": np.uintp,
    "unicode": str,
    "unicode_": np.str_,
}
_OF_COLLECTIONS: dict[str, Any] = {
    name: getattr(collections.abc, name) for name in collections.abc.__all__
}


class _ArgSpec(NamedTuple):
    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def _getargspec(function: Callable[..., Any]) -> _ArgSpec:
    return _ArgSpec(*inspect.getfullargspec(function)[:4])


@contextlib.contextmanager
def old_names() -> Iterator[None]:
    """Put them back in this block."""
    with (
        added(np, _OF_NUMPY),
        added(collections, _OF_COLLECTIONS),
        added(inspect, {"getargspec": _getargspec, "ArgSpec": _ArgSpec}),
        added(time, {"clock": time.process_time}),
        added(fractions, {"gcd": math.gcd}),
        scipy_misc(),
    ):
        yield


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
    return tensorflow_1.legacy_layers(_keras_for("tf.layers"))


def cells() -> ModuleType:
    """`tf.nn.rnn_cell`."""
    return tensorflow_1.legacy_cells(_keras_for("tf.nn.rnn_cell"))


def _keras_for(name: str) -> ModuleType:
    package = "keras" if comes_with_keras_2() else _PACKAGE
    if module_or_none(package) is None:
        import tensorflow as tf  # loaded by now, and `environment` must do without

        # A tf_keras of another release would bring another TensorFlow along.
        release = ".".join(tf.__version__.split(".")[:2])
        raise NotInstalled(name, package, f"{release}.*")
    return tensorflow_1.legacy_keras(package)


# By module below tensorflow.python: what `tf.compat.v1` has by the same name, or by another one.
MOVED = {
    "framework.graph_util": ("convert_variables_to_constants",),
    "framework.ops": (
        "IndexedSlices",
        "Tensor",
        "convert_to_tensor_or_indexed_slices",
        "register_tensor_conversion_function",
    ),
    "ops.array_ops": ("stack", "unstack"),
    "ops.control_flow_ops": ("Assert", "case", "cond", "while_loop"),
    "ops.functional_ops": ("map_fn",),
    "ops.random_ops": ("random_crop",),
    "ops.variable_scope": (
        "disable_resource_variables",
        "enable_resource_variables",
        "resource_variables_enabled",
        "variable",
    ),
    "ops.variables": ("RefVariable", "VariableV1", "is_variable_initialized"),
    "pywrap_tensorflow": ("NewCheckpointReader",),
    "util.nest": ("is_sequence",),
}
_NOW = {
    "NewCheckpointReader": "train.NewCheckpointReader",
    "RefVariable": "Variable",
    "VariableV1": "Variable",
    "convert_variables_to_constants": "graph_util.convert_variables_to_constants",
    "is_sequence": "nest.is_nested",
    "variable": "Variable",
}


@contextlib.contextmanager
def moved_names(v1: Any) -> Iterator[None]:
    """Put them back in this block.

    Args:
        v1: `tf.compat.v1`.
    """
    with contextlib.ExitStack() as stack:
        for path, names in MOVED.items():
            values = {name: attribute_of(v1, _NOW.get(name, name).split(".")) for name in names}
            stack.enter_context(added(tensorflow_1.internal_module(path), values))
        stack.enter_context(tensorflow_1.around_normalization_layers(_normalization_layers))
        # TensorFlow chooses between its two versions as it is imported.
        stack.enter_context(tensorflow_1.around_device_specs(lambda _: v1.DeviceSpec))
        yield


def _normalization_layers(_: object) -> Any:
    """Batch normalisation as a layer, which TensorFlow looks for where no tf_keras has it."""
    return alias("normalization", layers)
