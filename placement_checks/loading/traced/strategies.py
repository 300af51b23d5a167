"""What is known of the strategy that a step was traced for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.loading.simulated import as_requested
from placement_checks.loading.tf_internals.distribution import name_of_strategy, strategy_around
from placement_checks.loading.traced.variables import NotedVariable


def strategy_of(made: Sequence[Any], variables: Mapping[str, NotedVariable]) -> Strategy | None:
    """The strategy of a step; None where the program made none.

    Args:
        made: those that the program made.
        variables: those of the step, by name.
    """
    if not made:
        return None
    used = Counter(map(made_by, variables.values()))
    strategy = max(made, key=lambda each: used[id(each)])
    devices = strategy.extended.worker_devices
    replicas = [Device.parse(as_requested(device)) for device in devices]
    outside = [name for name, noted in variables.items() if made_by(noted) is None]
    made_in_step = [name for name, noted in variables.items() if noted.is_made_in_step]
    return Strategy(
        name_of_strategy(strategy),
        replicas,
        dict(_copies(variables, len(replicas))),
        outside,
        strategy.num_replicas_in_sync,  # a worker's has more than those of its own devices
        made_in_step,
    )


def made_by(noted: NotedVariable) -> int | None:
    """The strategy in whose scope a variable was made, by its id."""
    strategy = strategy_around(noted.variable if noted.of is None else noted.of)
    return None if strategy is None else id(strategy)


def _copies(variables: Mapping[str, NotedVariable], replicas: int) -> Iterator[tuple[str, Copy]]:
    """The variables that replicas have for themselves, by name."""
    first = {
        id(noted.of): name
        for name, noted in variables.items()
        if noted.of is not None and not noted.replica
    }
    for name, noted in variables.items():
        if noted.of is None:
            if replicas == 1 and made_by(noted) is not None:
                yield name, Copy(name, 0)
        elif isinstance(noted.of, tf.distribute.DistributedValues):
            in_sync = noted.of.synchronization is not tf.VariableSynchronization.ON_READ
            yield name, Copy(first.get(id(noted.of), name), noted.replica, in_sync)
