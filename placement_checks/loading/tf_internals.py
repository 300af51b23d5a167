"""The private names of TensorFlow and Keras that this package reads or patches.

Each has one function, and no other module uses it. They exist in TensorFlow 2.15 (with Keras 2)
to 2.21 (with Keras 3). Where one is gone, what needs it raises an `InputError` that names it:
checks that silently see less would report programs as sound that are not. A name is looked up
when it is needed, so that whatever does without it is not affected.

This module does not import TensorFlow itself, as `Behaviour` is used before it is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from placement_checks.core.errors import InputError
from placement_checks.util.modules import module_or_none

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


def device_scopes(op: Any) -> Sequence[Any]:
    """The device scopes around an op as it was made, the innermost first.

    Each has a ``filename`` and a ``lineno``, where it was opened, and an ``obj``: what it was
    given, as text.
    """
    return cast(Sequence[Any], _attribute(op, "_device_assignments"))


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


# What traced functions and strategies make of a program.


def around_calls(around: Around) -> Patched:
    """Patch what every call of a traced function ends in, whoever makes it.

    Its arguments are the function, the tensors that it is given, and those that it captured.
    """
    return patched(_concrete_function(), "_call_flat", around)


# What a function is called that makes its variables in its first call, unless they are there.
MAKES_VARIABLES = "fn_with_cond"


def traced_functions(graph: Any) -> Mapping[str, Any]:
    """The graphs of the functions that the body of a function calls, by their names."""
    functions = _attribute(graph, "_functions")
    graphs = {
        os.fsdecode(name): getattr(function, "graph", None) for name, function in functions.items()
    }
    return {name: body for name, body in graphs.items() if body is not None}


def around_variables(around: Around) -> Patched:
    """Patch the constructor of resource variables, of every kind."""
    return patched(_resource_variable(), "__init__", around)


def around_variables_of_functions(around: Around) -> Patched:
    """Patch the constructor of the variables that functions make while they are traced."""
    owner = _named(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function",
        "UnliftedInitializerVariable",
    )
    return patched(owner, "__init__", around)


# Its argument is a list to which such a variable adds itself, with the tensor of its first value.
ADDS_FIRST_VALUE_TO = "add_initializers_to"


def handle_of(variable: Any) -> Any:
    """The handle of a resource variable; that of a strategy's variable depends on the replica."""
    return _attribute(variable, "_handle")


def around_handles(around: Around) -> Patched:
    """Patch what makes the handle of a resource variable: shape, dtype and others."""
    owner = _module("tensorflow.python.ops.resource_variable_ops")
    return patched(owner, "_variable_handle_from_shape_and_dtype", around)


@contextlib.contextmanager
def around_distributed_variables(around: Around) -> Iterator[None]:
    """Patch the constructors of variables that a strategy makes of others."""
    mirrored = _named("tensorflow.python.distribute.values", "DistributedVariable")
    with patched(mirrored, "__init__", around), patched(_central_variable(), "__init__", around):
        yield


def parts_of(variable: Any) -> Sequence[Any]:
    """The variables that one of a strategy is made of, in the order of replicas; else itself."""
    if isinstance(variable, _named("tensorflow.python.distribute.values", "DistributedValues")):
        return cast(Sequence[Any], variable.values)
    is_central = isinstance(variable, _central_variable())
    return (_attribute(variable, "_v") if is_central else variable,)


def specs_of_replicas(spec: Any) -> Sequence[Any]:
    """The specs of each replica in that of a value which has one for each; else empty."""
    return getattr(spec, "_value_specs", ())


def strategy_around(variable: Any) -> Any:
    """The strategy in whose scope a variable was made; None outside of one."""
    return getattr(variable, "_distribute_strategy", None)


def variable_of(variable: Any) -> Any:
    """The variable of TensorFlow in one of Keras 3; others as they are."""
    return variable._value if hasattr(variable, "path") else variable


def around_keras_variables(around: Around) -> Patched:
    """Patch what gives a variable of Keras 3 the one of TensorFlow; nothing where it is absent."""
    module = module_or_none("keras.src.backend.tensorflow.core")
    if module is None:
        return contextlib.nullcontext()
    return patched(_attribute(module, "Variable"), "_initialize", around)


@contextlib.contextmanager
def around_gradients_of_ops(around: Around) -> Iterator[None]:
    """Patch what a tape calls for the gradient of one op.

    Its arguments are the op's type, attributes, number of inputs, inputs and outputs, and others.
    """
    register = _named("tensorflow.python.pywrap_tfe", "TFE_Py_RegisterGradientFunction")
    original = _named("tensorflow.python.eager.backprop", "_gradient_function")
    register(around(original))
    try:
        yield
    finally:
        register(original)


@contextlib.contextmanager
def around_reductions(several: Around, one: Around, in_replica: Around) -> Iterator[None]:
    """Patch what adds up the values of replicas.

    That is ``batch_reduce_to`` and ``reduce_to`` for all of them, and ``all_reduce`` in each.
    """
    library = "tensorflow.python.distribute.distribute_lib"
    extended = _named(library, "StrategyExtendedV2")
    with (
        patched(extended, "batch_reduce_to", several),
        patched(extended, "reduce_to", one),
        patched(_named(library, "ReplicaContext"), "all_reduce", in_replica),
    ):
        yield


def around_strategies(around: Around) -> Patched:
    """Patch the constructor of strategies, of every kind."""
    library = "tensorflow.python.distribute.distribute_lib"
    return patched(_named(library, "StrategyBase"), "__init__", around)


def is_default_strategy(strategy: Any) -> bool:
    """Whether it is the one that TensorFlow has where a program makes none."""
    library = _module("tensorflow.python.distribute.distribute_lib")
    kinds = ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1")
    return isinstance(strategy, tuple(_attribute(library, kind) for kind in kinds))


@contextlib.contextmanager
def around_eager_ops(fast: Around, slow: Around) -> Iterator[None]:
    """Patch what runs an eager op.

    The fast way is given a context, the op's type and name, its inputs, and behind them pairs of
    an attribute and its value; the slow one the type as bytes, the number of results, the inputs,
    the pairs as a tuple, and others.
    """
    with (
        patched(_module("tensorflow.python.pywrap_tfe"), "TFE_Py_FastPathExecute", fast),
        patched(_module("tensorflow.python.eager.execute"), "execute", slow),
    ):
        yield


def failed_eager_op() -> tuple[type[Exception], ...]:
    """What is raised where an eager op fails."""
    kind = _named("tensorflow.python.eager.core", "_NotOkStatusException")
    return (kind, _named("tensorflow.python.framework.errors", "OpError"))


# Here TensorFlow makes the variables that order the sums of a strategy on each device.
ORDERS_COLLECTIVES = "distribute/cross_device_utils.py"


def eager_device() -> str:
    """The device scope of eager code; ``""`` outside of one."""
    return _attribute(_context(), "device_name") or ""


def next_of(iterator: Any, dtypes: Sequence[Any], shapes: Sequence[Any]) -> Sequence[Any]:
    """The next element of an iterator, by its resource."""
    take = _named("tensorflow.python.ops.gen_dataset_ops", "iterator_get_next")
    return cast(Sequence[Any], take(iterator=iterator, output_types=dtypes, output_shapes=shapes))


# What sessions run.


def around_sessions(around: Around) -> Patched:
    """Patch the constructor of sessions, of every kind."""
    return patched(_base_session(), "__init__", around)


def around_runs(around: Around) -> Patched:
    """Patch what `run` ends in.

    Its arguments are the session, the handle of a partial run, the ops to run, the tensors to
    fetch, arrays by references of tensors, the options as a buffer, and the metadata.
    """
    return patched(_base_session(), "_do_run", around)


def around_other_runs(methods: Mapping[str, Around]) -> Patched:
    """Patch methods of sessions that may do without `run`."""
    return all_patched(_base_session(), methods)


@contextlib.contextmanager
def options_buffer(options: Any) -> Iterator[Any]:
    """A ``RunOptions`` as what `around_runs` patches takes it."""
    module = _module("tensorflow.python.client.pywrap_tf_session")
    buffer = _attribute(module, "TF_NewBufferFromString")(options.SerializeToString())
    try:
        yield buffer
    finally:
        _attribute(module, "TF_DeleteBuffer")(buffer)


# What stands between `tf.device` in a program and what `around_eager_devices` patches.
SCOPES_THROUGH = frozenset({"tensorflow.python.eager.context", "tensorflow.python.framework.ops"})


# How many GPUs there are.

# What stands between a program and the functions below, where the program asks by `tf.config`,
# `tf.test` or `device_lib`.
ASKED_THROUGH = frozenset(
    f"tensorflow.python.{module}"
    for module in (
        "autograph.impl.api",
        "client.device_lib",
        "framework.config",
        "framework.test_util",
        "util.deprecation",
        "util.module_wrapper",
    )
)
NUMBER_OF_GPUS = ("tensorflow.python.eager.context", "num_gpus")
STRATEGIES = "tensorflow.python.distribute."
# Strategies ask by these how gradients are best added up, whoever named the devices.
CHOOSING_A_REDUCTION = frozenset(
    {"select_cross_device_ops", "_make_collective_ops_with_fallbacks"}
)


def around_context(methods: Mapping[str, Around]) -> Patched:
    """Patch methods of the eager context, which every function of `tf.config` calls."""
    return all_patched(_named("tensorflow.python.eager.context", "Context"), methods)


def around_listed_devices(around: Around) -> Patched:
    """Patch what `device_lib.list_local_devices` calls: serialised configuration, and devices."""
    return patched(_module("tensorflow.python.client._pywrap_device_lib"), "list_devices", around)


def around_session_devices(around: Around) -> Patched:
    """Patch ``list_devices`` of sessions."""
    return patched(_base_session(), "list_devices", around)


# What deletes and overwrites files.


def around_files(functions: Mapping[str, Around]) -> Patched:
    """Patch what `tf.io.gfile`, its forerunners and ``file_io`` reach files by."""
    return all_patched(_module("tensorflow.python.lib.io._pywrap_file_io"), functions)


# Servers of a cluster.


def around_servers(functions: Mapping[str, Around]) -> Patched:
    """Patch the functions of C that `tf.distribute.Server` is made of."""
    return all_patched(_module("tensorflow.python.client.pywrap_tf_session"), functions)


def forget_server(server: Any) -> None:
    """Let a `tf.distribute.Server` end without telling C of it, for one that C did not make."""
    _attribute(server, "_server")
    del server._server


# What programs of TensorFlow 1 ask for.


def internal_module(path: str) -> ModuleType | None:
    """A module below ``tensorflow.python``, such as ``ops.nccl_ops``; None where it is gone."""
    return module_or_none(f"tensorflow.python.{path}")


def legacy_keras(package: str) -> ModuleType:
    """Keras 2 with the names of TensorFlow 1: of the package ``keras``, or of ``tf_keras``."""
    return cast(ModuleType, _module(f"{package}.api._v1.keras"))


def legacy_layers(keras: ModuleType) -> ModuleType:
    """What `tf.layers` is, of a `legacy_keras`."""
    return cast(ModuleType, _attribute(_legacy(keras), "layers"))


def legacy_cells(keras: ModuleType) -> ModuleType:
    """What `tf.nn.rnn_cell` is, of a `legacy_keras`."""
    return cast(ModuleType, _attribute(_legacy(keras), "rnn_cell"))


def around_normalization_layers(around: Around) -> Patched:
    """Patch the module in which ``tensorflow.python.layers`` looks for batch normalisation."""
    return patched(_module("tensorflow.python.layers.normalization"), "normalization", around)


@contextlib.contextmanager
def patched(owner: Any, name: str, around: Around) -> Iterator[None]:
    """Let ``around(original)`` take the place of a function or method of TensorFlow."""
    original = _attribute(owner, name)
    is_inherited = name not in vars(owner)
    setattr(owner, name, around(original))
    try:
        yield
    finally:
        if is_inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextlib.contextmanager
def all_patched(owner: Any, functions: Mapping[str, Around]) -> Iterator[None]:
    """Patch several functions or methods, by their names."""
    with contextlib.ExitStack() as stack:
        for name, around in functions.items():
            stack.enter_context(patched(owner, name, around))
        yield


def _legacy(keras: ModuleType) -> Any:
    return _attribute(_attribute(keras, "__internal__"), "legacy")


def _concrete_function() -> Any:
    owner = "tensorflow.python.eager.polymorphic_function.concrete_function"
    return _named(owner, "ConcreteFunction")


def _resource_variable() -> Any:
    return _named("tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable")


def _central_variable() -> Any:
    return _named("tensorflow.python.distribute.ps_values", "AggregatingVariable")


def _base_session() -> Any:
    return _named("tensorflow.python.client.session", "BaseSession")


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
