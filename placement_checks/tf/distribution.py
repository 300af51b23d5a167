"""Strategies, their variables and their sums."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from placement_checks.tf.patching import (
    Around,
    Patched,
    existing,
    existing_in,
    existing_module,
    patched,
)

# Here TensorFlow makes the variables that order the sums of a strategy on each device.
ORDERS_COLLECTIVES = "distribute/cross_device_utils.py"
# Here it joins gradients to one vector, and cuts their sum up again where they were joined.
PACKS_GRADIENTS = ("distribute/cross_device_ops.py", ORDERS_COLLECTIVES)
_CALLED = {"CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy"}


def around_collective_keys(around: Around) -> Patched:
    """Patch the constructor of what numbers the groups of devices of a strategy."""
    owner = existing_in("tensorflow.python.distribute.cross_device_utils", "CollectiveKeys")
    return patched(owner, "__init__", around)


@contextlib.contextmanager
def around_distributed_variables(around: Around) -> Iterator[None]:
    """Patch the constructors of variables that a strategy makes of others."""
    mirrored = existing_in("tensorflow.python.distribute.values", "DistributedVariable")
    with patched(mirrored, "__init__", around), patched(_central_variable(), "__init__", around):
        yield


def replica_values(variable: Any) -> Sequence[Any]:
    """The variables that one of a strategy is made of; else itself.

    They are in the order of replicas, or of the rows where it is cut for parameter servers.
    """
    if isinstance(variable, _cut_variable()):
        return cast(Sequence[Any], variable.variables)
    if isinstance(
        variable, existing_in("tensorflow.python.distribute.values", "DistributedValues")
    ):
        return cast(Sequence[Any], variable.values)
    is_central = isinstance(variable, _central_variable())
    return (existing(variable, "_v") if is_central else variable,)


def specs_of_replicas(spec: Any) -> Sequence[Any]:
    """The specs of each replica in that of a value which has one for each; else empty."""
    return getattr(spec, "_value_specs", ())


def strategy_around(variable: Any) -> Any:
    """The strategy in whose scope a variable was made; None outside of one."""
    return getattr(variable, "_distribute_strategy", None)


@contextlib.contextmanager
def around_reductions(several: Around, one: Around, in_replica: Around) -> Iterator[None]:
    """Patch what adds up the values of replicas.

    That is ``batch_reduce_to`` and ``reduce_to`` for all of them, and ``all_reduce`` in each.
    """
    library = "tensorflow.python.distribute.distribute_lib"
    extended = existing_in(library, "StrategyExtendedV2")
    with (
        patched(extended, "batch_reduce_to", several),
        patched(extended, "reduce_to", one),
        patched(existing_in(library, "ReplicaContext"), "all_reduce", in_replica),
    ):
        yield


def replicas_told_by_users_lines() -> Patched:
    """Let ops of replicas be told by the user's lines, as those of their function are.

    Each replica runs in a thread of its own, which does not know what AutoGraph made of the
    function around it.
    """
    tf_stack = existing_module("tensorflow.python.util.tf_stack")
    stacks = existing(tf_stack, "_source_mapper_stacks")
    mapper = existing(tf_stack, "StackTraceMapper")

    class Inherited(mapper):  # type: ignore[misc,valid-type]  # a class that is looked up
        def __init__(self, lines: Mapping[Any, Any]) -> None:
            super().__init__()
            self._lines = lines

        def get_effective_source_map(self) -> Mapping[Any, Any]:
            return self._lines

    def around(init: Callable[..., None]) -> Callable[..., None]:
        def inheriting(thread: Any, *args: Any, **kwargs: Any) -> None:
            init(thread, *args, **kwargs)
            function = existing(thread, "main_fn")
            lines = stacks[threading.get_ident()][-1].get_effective_source_map()

            def told(*args: Any, **kwargs: Any) -> Any:
                with Inherited(lines):
                    return function(*args, **kwargs)

            thread.main_fn = told

        return inheriting

    replica = existing_in("tensorflow.python.distribute.mirrored_run", "_MirroredReplicaThread")
    return patched(replica, "__init__", around)


def around_strategies(around: Around) -> Patched:
    """Patch the constructor of strategies, of every kind."""
    library = "tensorflow.python.distribute.distribute_lib"
    return patched(existing_in(library, "StrategyBase"), "__init__", around)


def name_of_strategy(strategy: Any) -> str:
    """What programs call its class, and TensorFlow another name."""
    name = type(strategy).__name__.removesuffix("V1").removesuffix("V2")
    return _CALLED.get(name, name)


def is_default_strategy(strategy: Any) -> bool:
    """Whether it is the one that TensorFlow has where a program makes none."""
    library = existing_module("tensorflow.python.distribute.distribute_lib")
    kinds = ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1")
    return isinstance(strategy, tuple(existing(library, kind) for kind in kinds))


def _cut_variable() -> Any:
    return existing_in("tensorflow.python.distribute.sharded_variable", "ShardedVariable")


def _central_variable() -> Any:
    return existing_in("tensorflow.python.distribute.ps_values", "AggregatingVariable")
