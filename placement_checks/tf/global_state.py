"""The state of TensorFlow that is global to a process, and how it is restored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import tensorflow as tf

from placement_checks.tf import process_state
from placement_checks.tf.process_state import Behaviour


@dataclass(frozen=True)
class State:
    """The global state of TensorFlow; the defaults are what it starts with.

    Attributes:
        depth: how many graphs are open, made the default one of this thread.
        behaviour: what is on of TensorFlow 2's behaviour.
        eager: whether this thread runs eagerly.
        empty: whether the global default graph holds no ops.
        seed: the global seed of eager code.
        soft: whether soft placement is on.
    """

    depth: int = 0
    behaviour: Behaviour = field(default_factory=Behaviour)
    eager: bool = True
    empty: bool = True
    seed: int | None = None
    soft: bool = True

    @staticmethod
    def now() -> State:
        """The state of this process and thread."""
        return State(
            process_state.open_graphs(),
            Behaviour.now(),
            tf.executing_eagerly(),
            _is_empty(),
            process_state.global_seed(),
            tf.config.get_soft_device_placement(),
        )

    def restore(self) -> Iterator[str]:
        """Restore the state; yields, in words, each change that would break what runs later.

        Sound code sets a seed and soft placement too, so these are restored without a word, and so
        is a global default graph that was empty before.
        """
        left = process_state.open_graphs() - self.depth
        if left > 0:
            for _ in range(left):
                process_state.close_graph()
            yield "never closed an as_default() or InteractiveSession"
        if call := self.behaviour.changed():
            self.behaviour.restore()
            yield f"called {call}"
        if tf.executing_eagerly() != self.eager:
            process_state.set_eager(self.eager)
            if left <= 0:
                yield f"turned eager execution {'off' if self.eager else 'on'}"
        if self.empty and self.depth == 0 and not _is_empty():
            tf.compat.v1.reset_default_graph()
        if process_state.global_seed() != self.seed:
            process_state.set_global_seed(self.seed)
        if tf.config.get_soft_device_placement() != self.soft:
            tf.config.set_soft_device_placement(self.soft)


def _is_empty() -> bool:
    """Whether the global default graph holds no ops."""
    graph = process_state.global_graph()
    return graph is None or not graph.get_operations()
