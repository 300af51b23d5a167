"""Notes what strategies add up over their replicas, and what comes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.loading.tf_internals.distribution import around_reductions


class Reductions:
    """The sums and means over replicas that functions were traced with."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, str], Any] = {}
        self._graphs: list[Any] = []  # kept, so that their ids stay theirs

    def result(self, tensor: Any) -> Any:
        """What was made of a tensor; the tensor itself where it was not added up."""
        seen = set()
        while (key := _key(tensor)) in self._results and key not in seen:
            seen.add(key)
            tensor = self._results[key]
        return tensor

    def note(self, given: Any, made: Any) -> None:
        """Note some values of one replica, or of all, and what was made of each."""
        for value, result in zip(given, made, strict=False):
            results = _of_replicas(result)
            for replica, part in enumerate(_of_replicas(value)):
                # One for all replicas, where variables are in one place.
                after = results[replica if len(results) > 1 else 0]
                self._note_part(part, after)

    def _note_part(self, given: Any, made: Any) -> None:
        for before, after in zip(tensors_of(given), tensors_of(made), strict=False):
            if before is not after:
                self._graphs.append(before.graph)
                self._results.setdefault(_key(before), after)


@contextlib.contextmanager
def noting_reductions() -> Iterator[Reductions]:
    """Note what strategies add up in this block, in functions that are traced."""
    notes = Reductions()

    def several(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def batch_reduce_to(self: Any, how: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(pairs)
            made = reduce(self, how, pairs, *args, **kwargs)
            notes.note([value for value, _ in pairs], made)
            return made

        return batch_reduce_to

    def one(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_to(self: Any, how: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            made = reduce(self, how, value, *args, **kwargs)
            notes.note([value], [made])
            return made

        return reduce_to

    def in_replica(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def all_reduce(self: Any, how: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            made = reduce(self, how, value, *args, **kwargs)
            notes.note(tf.nest.flatten(value), tf.nest.flatten(made))
            return made

        return all_reduce

    with around_reductions(several, one, in_replica):
        yield notes


def tensors_of(value: Any) -> Sequence[Any]:
    """The tensor of a value in a function, of slices that of their rows and of their indices."""
    parts = (value.values, value.indices) if isinstance(value, tf.IndexedSlices) else (value,)
    return [part for part in parts if isinstance(getattr(part, "graph", None), tf.Graph)]


def of_first_replica(value: Any) -> Any:
    """What a value is in the first replica."""
    return _of_replicas(value)[0]


def _of_replicas(value: Any) -> Sequence[Any]:
    """What a value is in each replica; one for all where it is the same for them."""
    is_distributed = isinstance(value, tf.distribute.DistributedValues)
    return value.values if is_distributed else (value,)


def _key(tensor: Any) -> tuple[int, str]:
    return id(tensor.graph), tensor.name
