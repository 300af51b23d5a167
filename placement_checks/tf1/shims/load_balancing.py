"""Spreads variables over parameter servers by their size: of ``tf.contrib.training``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class GreedyLoadBalancingStrategy:
    """A strategy for `tf.train.replica_device_setter`: the task with the least load is next."""

    def __init__(self, num_tasks: int, load_fn: Callable[[Any], float]) -> None:
        self._loads = [0.0] * num_tasks
        self._load_fn = load_fn

    def __call__(self, op: Any) -> int:
        """The task for an op; of equal ones the first."""
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


def byte_size_load_fn(op: Any) -> float:
    """The size of an op's only output in bytes."""
    (output,) = op.outputs
    if not output.shape.is_fully_defined():
        raise ValueError(f"the shape of {op.name} is not known: {output.shape}")
    return float(output.shape.num_elements() * output.dtype.size)
