"""Strategies (`tf.distribute`): their variables and threads, and their clusters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, cast

from placement_checks.core.user_code import is_autograph_copy, is_user_file
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import (
    eager_context,
    existing,
    existing_in,
    existing_module,
    patched,
)

# This file creates the variables that order a strategy's collectives on each device.
COLLECTIVE_ORDER_FILE = "distribute/cross_device_utils.py"
# These files pack gradients into one vector, and split their sum again.
GRADIENT_PACKING_FILES = ("distribute/cross_device_ops.py", COLLECTIVE_ORDER_FILE)
_DISTRIBUTE = "tensorflow.python.distribute"
_COORDINATOR = f"{_DISTRIBUTE}.coordinator.cluster_coordinator"
_PUBLIC_NAMES = {"CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy"}


def strategy_name(strategy: Any) -> str:
    """The public name of a strategy's class, which may differ from TensorFlow's internal name."""
    name = type(strategy).__name__.removesuffix("V1").removesuffix("V2")
    return _PUBLIC_NAMES.get(name, name)


def is_default_strategy(strategy: Any) -> bool:
    """Whether this is TensorFlow's strategy for programs that create none."""
    kinds = ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1")
    return isinstance(
        strategy, tuple(existing_in(f"{_DISTRIBUTE}.distribute_lib", kind) for kind in kinds)
    )


def replica_values(value: Any) -> Sequence[Any]:
    """The components of a strategy's value or variable; any other value is its own component.

    Components are in the order of replicas. The shards of a variable on parameter servers are in
    the order of rows.
    """
    if isinstance(value, existing_in(f"{_DISTRIBUTE}.sharded_variable", "ShardedVariable")):
        return cast(Sequence[Any], value.variables)
    if isinstance(value, existing_in(f"{_DISTRIBUTE}.values", "DistributedValues")):
        return cast(Sequence[Any], value.values)
    if isinstance(value, existing_in(f"{_DISTRIBUTE}.ps_values", "AggregatingVariable")):
        return (existing(value, "_v"),)
    return (value,)


def replica_specs(spec: Any) -> Sequence[Any]:
    """The spec of each replica's value; empty if ``spec`` is not of a per-replica value."""
    return getattr(spec, "_value_specs", ())


def variable_strategy(variable: Any) -> Any:
    """The strategy in whose scope a variable was created; None without a scope."""
    return getattr(variable, "_distribute_strategy", None)


@contextlib.contextmanager
def user_lines_in_replica_threads() -> Iterator[None]:
    """Report the user's source lines for ops of replicas, as for ops of the surrounding function.

    Each replica runs in a separate thread. This thread lacks AutoGraph's map from the rewritten
    function to the user's lines, so it inherits the map of the thread that starts it.

    A ``merge_call``, such as the update of variables by an optimizer, runs in the thread that
    starts the replicas. There, the user's frames of the first replica are around the call.
    """
    tf_stack = existing_module("tensorflow.python.util.tf_stack")
    stacks = existing(tf_stack, "_source_mapper_stacks")
    mapper = existing(tf_stack, "StackTraceMapper")

    class InheritedMapper(mapper):  # type: ignore[misc,valid-type]  # a class that is looked up
        def __init__(self, lines: Mapping[Any, Any]) -> None:
            super().__init__()
            self._lines = lines

        def get_effective_source_map(self) -> Mapping[Any, Any]:
            return self._lines

    def around(init: Callable[..., None]) -> Callable[..., None]:
        def inheriting_init(thread: Any, *args: Any, **kwargs: Any) -> None:
            init(thread, *args, **kwargs)
            function = existing(thread, "main_fn")
            lines = stacks[threading.get_ident()][-1].get_effective_source_map()

            def mapped_function(*args: Any, **kwargs: Any) -> Any:
                with InheritedMapper(lines):
                    return function(*args, **kwargs)

            thread.main_fn = mapped_function

        return inheriting_init

    def around_merge(merge: Callable[..., Any]) -> Callable[..., Any]:
        def merge_call(self: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            frames = [
                frame
                for frame in existing(tf_stack, "extract_stack")()
                if is_user_file(frame.filename, None) and not is_autograph_copy(frame.filename)
            ]
            return merge(self, _with_frames(function, frames), args, kwargs)

        return merge_call

    with patched(Patch.NEW_THREAD, around), patched(Patch.MERGE, around_merge):
        yield


def _with_frames(function: Callable[..., Any], frames: Sequence[Any]) -> Callable[..., Any]:
    """A function that calls another function with frames around it, the outermost first."""
    for frame in reversed(frames):
        function = partial(_frame_like(frame), function)
    return function


def _frame_like(frame: Any) -> Callable[..., Any]:
    """A function that calls its argument in a frame with the file, line and name of a frame."""
    caller = lambda function, *args, **kwargs: function(*args, **kwargs)  # noqa: E731  # one line
    code = caller.__code__.replace(
        co_filename=frame.filename, co_firstlineno=frame.lineno, co_name=frame.name
    )
    return FunctionType(code, {}, frame.name)


def build_of_replica(
    thread: Any, around: Callable[[Any, int], contextlib.AbstractContextManager[None]]
) -> None:
    """Let the thread of a replica run in ``around(graph, replica)``.

    The arguments are the graph that the thread builds, and the number of the replica in this
    process.
    """
    function = existing(thread, "main_fn")
    graph, replica = existing(thread, "graph"), existing(thread, "replica_id")

    def run(*args: Any, **kwargs: Any) -> Any:
        with around(graph, replica):
            return function(*args, **kwargs)

    thread.main_fn = run


def has_eager_runtime_started() -> bool:
    """Whether the eager runtime of this process has started."""
    return existing(eager_context(), "_context_handle") is not None


def use_host_as_worker(extended: Any, host: str) -> None:
    """Let a worker's strategy use the devices of a host without a cluster."""
    existing(extended, "_worker_device")
    extended._worker_device = host


@contextlib.contextmanager
def as_chief(extended: Any) -> Iterator[None]:
    """Let a worker's strategy act as the chief, which sends initial values, in this block."""
    is_chief = existing(extended, "_is_chief")
    extended._is_chief = True
    try:
        yield
    finally:
        extended._is_chief = is_chief


def forget_default_device(extended: Any) -> None:
    """Let a strategy's scope request no device."""
    existing(extended, "_default_device")
    extended._default_device = None


def cluster_resolver(strategy: Any) -> Any:
    """The cluster resolver of a `ParameterServerStrategy`."""
    return existing(strategy, "_cluster_resolver")


def set_cluster_size(strategy: Any, workers: int, servers: int) -> None:
    """Set the numbers of workers and parameter servers of a `ParameterServerStrategy`."""
    strategy._num_workers, strategy._num_ps = workers, servers


def set_worker_gpus(extended: Any, gpus: int) -> None:
    """Set the number of GPUs of each worker of a `ParameterServerStrategy`."""
    extended._num_gpus_per_worker = gpus


def make_closure(cluster: Any, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Create the closure of a scheduled function, and the remote value of its result."""
    cancel = existing(existing(cluster, "closure_queue"), "_cancellation_mgr")
    closure = existing_in(_COORDINATOR, "Closure")(function, cancel, args=args, kwargs=kwargs)
    return closure, closure.build_output_remote_value()


def forget_server(server: Any) -> None:
    """Drop the C object of a `tf.distribute.Server` before its destructor frees it.

    For servers whose C object was replaced by another object through a patch.
    """
    existing(server, "_server")
    del server._server
