"""What tests share of TensorFlow's global state, and how a test is kept from changing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from placement_checks.loading.behaviour import Behaviour


@dataclass(frozen=True)
class State:
    """Default graph, behaviour, eager mode, seed and soft placement.

    By default, as TensorFlow starts.
    """

    depth: int = 0
    behaviour: Behaviour = field(default_factory=Behaviour)
    eager: bool = True
    empty: bool = True
    seed: Any = None
    soft: bool = True

    @staticmethod
    def now() -> State:
        return State(
            len(ops._default_graph_stack.stack),
            Behaviour.now(),
            tf.executing_eagerly(),
            _is_empty(),
            context.global_seed(),
            tf.config.get_soft_device_placement(),
        )

    def restore(self) -> Iterator[str]:
        """Bring the state back; yields what was left behind that breaks other tests.

        A seed and soft placement are set by sound tests too, and are put back without a word, and
        so is a global default graph that was empty before.
        """
        left = len(ops._default_graph_stack.stack) - self.depth
        if left > 0:
            for _ in range(left):
                ops._default_graph_stack.stack.pop()
                context.context().context_switches.pop()
            yield "never closed an as_default() or InteractiveSession"
        if call := self.behaviour.changed():
            self.behaviour.restore()
            yield f"called {call}"
        if tf.executing_eagerly() != self.eager:
            context.context()._thread_local_data.is_eager = self.eager
            if left <= 0:
                yield f"turned eager execution {'off' if self.eager else 'on'}"
        if self.empty and self.depth == 0 and not _is_empty():
            tf.compat.v1.reset_default_graph()
        if context.global_seed() != self.seed:
            context.context()._set_global_seed(self.seed)
        if tf.config.get_soft_device_placement() != self.soft:
            tf.config.set_soft_device_placement(self.soft)


def _is_empty() -> bool:
    """Whether the global default graph holds no ops; asking TensorFlow for it would make one."""
    graph = ops._default_graph_stack._global_default_graph
    return graph is None or not graph.get_operations()
