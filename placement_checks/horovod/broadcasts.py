"""Broadcasts of variables: the value on one rank becomes the value on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from placement_checks.horovod.collectives import check_root, note_broadcast
from placement_checks.horovod.mpi_ops import broadcast, check_supported
from placement_checks.horovod.ranks import global_process_set

_tf1 = tf.compat.v1
_Hook: Any = tf.compat.v1.train.SessionRunHook


# The parameters below have Horovod's names, because programs may pass them by name.


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: Any = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign the values on the rank ``root_rank`` to variables.

    Returns:
        In a graph of TensorFlow 1, the op that assigns the values.
    """
    del inplace  # no difference for the values
    check_supported(process_set)
    variables = list(variables)
    graph = _tf1.get_default_graph()
    if not tf.executing_eagerly() and not hasattr(graph, "outer_graph"):
        return tf.group(*[each.assign(broadcast(each, root_rank)) for each in variables])
    # In a traced function, a broadcast is not part of the step: programs broadcast once.
    check_root(root_rank)
    note_broadcast(variables)
    return None


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """Assign the values on the rank ``root_rank`` to variables, in place."""
    del name
    return broadcast_variables(variables, root_rank, process_set, inplace=True)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the op that assigns the values on the rank ``root_rank`` to all global variables.

    Raises:
        RuntimeError: the program executes eagerly.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution; use "
            "hvd.broadcast_variables(<model/optimizer variables>) instead."
        )
    return broadcast_variables(_tf1.global_variables(), root_rank)


def broadcast_keras_variables(
    model: Any, optimizer: Any, root_rank: int, local: Iterable[Any] = ()
) -> None:
    """Assign the values on the rank ``root_rank`` to the variables of a model and its optimizer.

    Variables of the model in ``local`` are not changed.
    """
    if tf.executing_eagerly():
        excluded = set(map(id, local))
        own = [each for each in model.variables if id(each) not in excluded]
        broadcast_variables(own, root_rank)
        slots = optimizer.variables
        broadcast_variables(slots() if callable(slots) else slots, root_rank)
    else:
        session = _tf1.keras.backend.get_session()
        session.run(broadcast_global_variables(root_rank))


class BroadcastGlobalVariablesHook(_Hook):  # type: ignore[misc]
    """A hook that assigns the values on one rank to all global variables of a new session."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph is not _tf1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        session.run(self.bcast_op)
