"""The strategy whose variables a graph of TensorFlow 1 has collected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.loading.simulated import as_requested
from placement_checks.loading.tf_internals.distribution import name_of_strategy

tf1 = tf.compat.v1


def strategy_of_graph(graph: tf.Graph) -> Strategy | None:
    """The strategy that keeps variables for each replica; None where none does."""
    mirrored = [
        entry
        for entry in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        if len(copies(entry)) > 1
    ]
    if not mirrored:
        return None
    strategy = mirrored[0].distribute_strategy
    return Strategy(
        name_of_strategy(strategy),
        [Device.parse(as_requested(name)) for name in strategy.extended.worker_devices],
        {name: copy for entry in mirrored for name, copy in _copies(entry)},
    )


def _copies(variable: Any) -> Sequence[tuple[str, Copy]]:
    """The copies of a variable, by name."""
    in_sync = variable.synchronization is not tf.VariableSynchronization.ON_READ
    names = [part.op.name for part in variable.values]
    return [(name, Copy(names[0], replica, in_sync)) for replica, name in enumerate(names)]


def copies(variable: Any) -> Sequence[Any]:
    """The variables that one is made of: under ``MirroredStrategy`` one for each replica."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return tuple(variable.values) if is_distributed else (variable,)
