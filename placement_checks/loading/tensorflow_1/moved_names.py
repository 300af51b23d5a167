"""Names that modules of TensorFlow's own had in version 1, and that others have now.

One of them, ``DeviceSpec``, still has its name and is another class now.

tf_slim 1.1 asks for most of them, and so do programs that import from ``tensorflow.python``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from placement_checks.loading.tensorflow_1 import keras_2
from placement_checks.loading.tensorflow_1.names import added, attribute_of
from placement_checks.loading.tensorflow_1.on_demand import alias
from placement_checks.loading.tf_internals import tensorflow_1_modules

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
            stack.enter_context(added(tensorflow_1_modules.internal_module(path), values))
        stack.enter_context(
            tensorflow_1_modules.around_normalization_layers(_normalization_layers)
        )
        # TensorFlow chooses between its two versions as it is imported.
        stack.enter_context(tensorflow_1_modules.around_device_specs(lambda _: v1.DeviceSpec))
        yield


def _normalization_layers(_: object) -> Any:
    """Batch normalisation as a layer, which TensorFlow looks for where no tf_keras has it."""
    return alias("normalization", keras_2.layers)
