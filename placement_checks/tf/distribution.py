"""Strategies (`tf.distribute`), their variables and their collectives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import (
    existing,
    existing_in,
    existing_module,
    patched,
)

# This file creates the variables that order a strategy's collectives on each device.
COLLECTIVE_ORDER_FILE = "distribute/cross_device_utils.py"
# These files pack gradients into one vector, and split their sum again.
GRADIENT_PACKING_FILES = ("distribute/cross_device_ops.py", COLLECTIVE_ORDER_FILE)
_LIBRARY = "tensorflow.python.distribute.distribute_lib"
_VALUES = "tensorflow.python.distribute.values"
_PUBLIC_NAMES = {"CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy"}


def strategy_name(strategy: Any) -> str:
    """The public name of a strategy's class, which may differ from TensorFlow's internal name."""
    name = type(strategy).__name__.removesuffix("V1").removesuffix("V2")
    return _PUBLIC_NAMES.get(name, name)


def is_default_strategy(strategy: Any) -> bool:
    """Whether this is TensorFlow's strategy for programs that create none."""
    kinds = ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1")
    return isinstance(strategy, tuple(existing_in(_LIBRARY, kind) for kind in kinds))


def replica_values(variable: Any) -> Sequence[Any]:
    """The components of a strategy's variable; the variable itself if it has none.

    Mirrored components are in the order of replicas, the shards of a variable on parameter
    servers in the order of rows.
    """
    sharded = existing_in("tensorflow.python.distribute.sharded_variable", "ShardedVariable")
    if isinstance(variable, sharded):
        return cast(Sequence[Any], variable.variables)
    if isinstance(variable, existing_in(_VALUES, "DistributedValues")):
        return cast(Sequence[Any], variable.values)
    is_aggregating = isinstance(variable, _aggregating_variable())
    return (existing(variable, "_v") if is_aggregating else variable,)


def _aggregating_variable() -> Any:
    return existing_in("tensorflow.python.distribute.ps_values", "AggregatingVariable")


def replica_specs(spec: Any) -> Sequence[Any]:
    """The specs of each replica's value, from the spec of a per-replica value; else empty."""
    return getattr(spec, "_value_specs", ())


def variable_strategy(variable: Any) -> Any:
    """The strategy of the scope around the creation of a variable; None without a scope."""
    return getattr(variable, "_distribute_strategy", None)


def user_lines_in_replica_threads() -> contextlib.AbstractContextManager[None]:
    """Report the user's source lines for ops of replicas, as for ops of the surrounding function.

    Each replica runs in a thread of its own. That thread lacks AutoGraph's map from the rewritten
    function to the user's lines, so it inherits the map of the thread that starts it.
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

    return patched(Patch.THREAD, around)
