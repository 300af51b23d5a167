"""Restore names of other packages temporarily, for programs of TensorFlow 1.

* `dropped_names`: names that numpy, Python and scipy have removed.
* `moved_names`: names that modules below ``tensorflow.python`` no longer have, but that programs
  and tf_slim 1.1 import. ``DeviceSpec`` still exists there, but is a different class.
* `keras_2_modules`: `tf.layers`, `tf.nn.rnn_cell` and `tf.keras` of TensorFlow 1, which Keras 3
  lacks. TensorFlow 2.15 has them in Keras 2; later versions need the package ``tf_keras``.
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

from placement_checks.tf.keras import (
    comes_with_keras_2,
    legacy_keras,
    legacy_module,
)
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import (
    add_names,
    all_patched,
    internal_module,
    module_or_none,
    patched,
)
from placement_checks.tf1.lazy_modules import NotInstalled, attribute_of, lazy_alias
from placement_checks.tf1.scipy_misc import scipy_misc

_NUMPY_NAMES: dict[str, Any] = {
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
_COLLECTIONS_NAMES: dict[str, Any] = {
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
def dropped_names() -> Iterator[None]:
    """Restore names of numpy, Python and scipy in this block."""
    with (
        add_names(np, _NUMPY_NAMES),
        add_names(collections, _COLLECTIONS_NAMES),
        add_names(inspect, {"getargspec": _getargspec, "ArgSpec": _ArgSpec}),
        add_names(time, {"clock": time.process_time}),
        add_names(fractions, {"gcd": math.gcd}),
        scipy_misc(),
    ):
        yield


_PACKAGE = "tf_keras"


def environment() -> dict[str, str]:
    """Environment variables for a child process that runs a program of version 1.

    With these variables, `tf.keras` is the same in a block of `as_tensorflow_1` and outside of it.
    The variables must be set before TensorFlow is loaded. `as_tensorflow_1` does not need them.
    """
    if comes_with_keras_2() or importlib.util.find_spec(_PACKAGE) is None:
        return {}
    return {"TF_USE_LEGACY_KERAS": "1"}


def keras_2_modules() -> contextlib.AbstractContextManager[None]:
    """Restore `tf.keras`, `tf.layers` and `tf.nn.rnn_cell` in this block; they load on access."""
    modules = {Patch.V1_KERAS: keras, Patch.V1_LAYERS: layers, Patch.V1_CELLS: cells}
    aliases = {patch: _aliasing(patch, module) for patch, module in modules.items()}
    return all_patched({} if comes_with_keras_2() else aliases)


def _aliasing(patch: Patch, module: Callable[[], ModuleType]) -> Callable[[object], Any]:
    return lambda _: lazy_alias(patch.attribute, module)


def keras() -> ModuleType:
    """`tf.keras`."""
    return legacy_keras(_package_for("tf.keras"))


def layers() -> ModuleType:
    """`tf.layers`."""
    return legacy_module(_package_for("tf.layers"), "layers")


def cells() -> ModuleType:
    """`tf.nn.rnn_cell`."""
    return legacy_module(_package_for("tf.nn.rnn_cell"), "rnn_cell")


def _package_for(name: str) -> str:
    package = "keras" if comes_with_keras_2() else _PACKAGE
    if module_or_none(package) is None:
        import tensorflow as tf  # not at the top: `environment` runs before TensorFlow is loaded

        # A tf_keras of another release would install another TensorFlow.
        release = ".".join(tf.__version__.split(".")[:2])
        raise NotInstalled(name, package, f"{release}.*")
    return package


# By module below tensorflow.python: names that `tf.compat.v1` has, possibly under another name.
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
_CURRENT_NAMES = {
    "NewCheckpointReader": "train.NewCheckpointReader",
    "RefVariable": "Variable",
    "VariableV1": "Variable",
    "convert_variables_to_constants": "graph_util.convert_variables_to_constants",
    "is_sequence": "nest.is_nested",
    "variable": "Variable",
}


@contextlib.contextmanager
def moved_names(v1: Any) -> Iterator[None]:
    """Restore names of `tf.compat.v1` in modules below ``tensorflow.python`` in this block."""
    with contextlib.ExitStack() as stack:
        for path, names in MOVED.items():
            values = {
                name: attribute_of(v1, _CURRENT_NAMES.get(name, name).split(".")) for name in names
            }
            module = internal_module(path)
            assert module is not None
            stack.enter_context(add_names(module, values))
        normalization = Patch.V1_NORMALIZATION
        stack.enter_context(patched(normalization, _aliasing(normalization, layers)))
        # TensorFlow chooses between its two DeviceSpec classes on import.
        stack.enter_context(patched(Patch.V1_DEVICE_SPEC, lambda _: v1.DeviceSpec))
        yield
