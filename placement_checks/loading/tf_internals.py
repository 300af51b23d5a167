"""The private names of TensorFlow and Keras that this package reads or patches.

Each has one function, and no other module uses it. They exist in TensorFlow 2.15 (with Keras 2)
to 2.21 (with Keras 3). Where one is gone, what needs it raises an `InputError` that names it:
checks that silently see less would report programs as sound that are not. A name is looked up
when it is needed, so that whatever does without it is not affected.

This module does not import TensorFlow itself, as `Behaviour` is used before it is loaded.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import Any, cast

from placement_checks.core.errors import InputError

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
Patched = contextlib.AbstractContextManager[None]


# What shows how a graph was built.


def around_gradients(around: Around) -> Patched:
    """Patch what `tf.gradients` and the optimisers of `tf.compat.v1.train` take gradients with.

    It is called once for each call of theirs, and within itself; its first argument is the
    objectives.
    """
    return patched(_module("tensorflow.python.ops.gradients_util"), "_GradientsHelper", around)


def original_op(op: Any) -> Any:
    """The forward op that a backward op was built for; None for others."""
    return _attribute(op, "_original_op")


def function_body(graph: Any, name: str) -> Any:
    """The `tf.Graph` that a function of a graph was traced into; None where Python has none."""
    return getattr(_attribute(graph, "_get_function")(name), "graph", None)


def names_of_keras() -> MutableMapping[str, int] | None:
    """Keras 3's counter of names, by prefix; None where Keras is not loaded.

    Also None for Keras 2, which keeps one for each graph.
    """
    if getattr(sys.modules.get("keras"), "__version__", "2.").startswith("2."):
        return None
    state = _module("keras.src.backend.common.global_state")
    attribute = _attribute(state, "get_global_attribute")
    names = attribute("object_name_uids", defaultdict(int), set_to_default=True)
    return cast(MutableMapping[str, int], names)


def trained_by(optimizer: Any) -> Sequence[Any]:
    """The variables that an optimiser of Keras 3 was built for, in the order of gradients."""
    return cast(Sequence[Any], _attribute(optimizer, "_trainable_variables"))


# What is registered.


def kernels_of(op_type: str) -> Sequence[Any]:
    """The ``KernelDef`` of every kernel of an op type."""
    registered = _named("tensorflow.python.framework.kernels", "get_registered_kernels_for_op")
    return cast(Sequence[Any], registered(op_type).kernel)


def definition_of(op_type: str) -> Any:
    """The ``OpDef`` of an op type; None if there is no such type."""
    return _named("tensorflow.python.framework.op_def_registry", "get")(op_type)


# Behaviour of TensorFlow 2, which programs may turn off.


def is_v2_behavior() -> bool:
    """Whether `tf.compat.v1.disable_v2_behavior` was not called."""
    return bool(_named("tensorflow.python.tf2", "enabled")())


def is_eager_by_default() -> bool:
    """Whether threads begin with eager execution."""
    context = _module("tensorflow.python.eager.context")
    return bool(_attribute(context, "default_execution_mode") == _attribute(context, "EAGER_MODE"))


def make_eager_by_default() -> None:
    """`tf.compat.v1.enable_eager_execution`, which refuses as soon as there is a graph."""
    context = _module("tensorflow.python.eager.context")
    _attribute(context, "default_execution_mode")
    context.default_execution_mode = _attribute(context, "EAGER_MODE")


def is_tensor_equality() -> bool:
    """Whether ``==`` of tensors compares their elements."""
    return bool(_attribute(_named("tensorflow", "Tensor"), "_USE_EQUALITY"))


def is_control_flow_v2() -> bool:
    """Whether branches and loops are functions.

    `tf.compat.v1.control_flow_v2_enabled` would make a default graph, and answers for that.
    """
    return bool(_named("tensorflow.python.ops.control_flow_util", "ENABLE_CONTROL_FLOW_V2"))


# What is global to a thread or to the process.


def is_eager() -> bool:
    """Whether this thread runs eagerly; settles with what it began, as all eager code does."""
    return bool(_attribute(_attribute(_context(), "_thread_local_data"), "is_eager"))


def set_eager(on: bool) -> None:
    """Turn it on or off."""
    is_eager()
    _attribute(_context(), "_thread_local_data").is_eager = on


def open_graphs() -> int:
    """How many graphs were made the default one of this thread, and are still."""
    return len(_attribute(_graph_stack(), "stack"))


def close_graph() -> None:
    """End the innermost ``as_default`` of this thread."""
    switches = _attribute(_context(), "context_switches")
    _attribute(_graph_stack(), "stack").pop()
    switches.pop()


def global_graph() -> Any:
    """The default graph outside of all `open_graphs`; None where it was not made yet.

    `tf.compat.v1.get_default_graph` would make it.
    """
    return _attribute(_graph_stack(), "_global_default_graph")


def global_seed() -> int | None:
    """The seed of eager code; `tf.compat.v1.get_seed` would draw from it."""
    return cast("int | None", _named("tensorflow.python.eager.context", "global_seed")())


def set_global_seed(seed: int | None) -> None:
    """Set it; `tf.random.set_seed` sets that of the default graph where there is one."""
    _named("tensorflow.python.eager.context", "set_global_seed")(seed)


# What leads TensorFlow 2 to other devices.


def around_eager_devices(around: Around) -> Patched:
    """Patch what a device scope of eager code is opened by."""
    return patched(_named("tensorflow.python.eager.context", "Context"), "device", around)


def around_all_local_devices(around: Around) -> Patched:
    """Patch what `tf.distribute.MirroredStrategy` finds where it is given no devices."""
    owner = _module("tensorflow.python.distribute.mirrored_strategy")
    return patched(owner, "all_local_devices", around)


def around_local_devices(around: Around) -> Patched:
    """Patch what `CentralStorageStrategy` takes for as many GPUs as there are."""
    owner = _module("tensorflow.python.distribute.device_util")
    return patched(owner, "local_devices_from_num_gpus", around)


def around_collective_keys(around: Around) -> Patched:
    """Patch the constructor of what numbers the groups of devices of a strategy."""
    owner = _named("tensorflow.python.distribute.cross_device_utils", "CollectiveKeys")
    return patched(owner, "__init__", around)


@contextlib.contextmanager
def patched(owner: Any, name: str, around: Around) -> Iterator[None]:
    """Let ``around(original)`` take the place of a function or method of TensorFlow."""
    original = _attribute(owner, name)
    setattr(owner, name, around(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _context() -> Any:
    return _named("tensorflow.python.eager.context", "context")()


def _graph_stack() -> Any:
    return _named("tensorflow.python.framework.ops", "_default_graph_stack")


def _named(module: str, name: str) -> Any:
    return _attribute(_module(module), name)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise _gone(name) from None


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        holder = getattr(owner, "__name__", type(owner).__name__)
        raise _gone(f"{holder}.{name}") from None


def _gone(name: str) -> InputError:
    """The error for a version of TensorFlow or Keras that has no such name."""
    import tensorflow as tf

    keras = getattr(sys.modules.get("keras"), "__version__", "")
    return InputError(
        "tensorflow",
        f"version {tf.__version__}{keras and f' with Keras {keras}'} has no {name}, which this "
        "package needs",
        "install one from 2.15 (with Keras 2) to 2.21 (with Keras 3.15)",
    )
