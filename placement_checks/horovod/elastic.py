"""The modules ``elastic`` of Horovod: training that continues when ranks join or leave.

Here ranks never join or leave: a state is synchronized once, and the function runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf

from placement_checks.horovod.broadcasts import broadcast_keras_variables, broadcast_variables
from placement_checks.horovod.collectives import process

_Callback: Any = tf.keras.callbacks.Callback


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that synchronizes the state, its first argument, before ``func`` runs."""

    @wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        process().initialized_rank()
        state.sync()
        return func(state, *args, **kwargs)

    return wrapper


class _State:
    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def register_reset_callbacks(self, callbacks: Any) -> None:
        """Do nothing: there is no reset."""

    def commit(self) -> None:
        """Do nothing: there is no failure."""

    save = restore = check_host_updates = commit

    def sync(self) -> None:
        """Assign the values on the first rank to the variables."""


class TensorFlowKerasState(_State):
    """The state of a Keras model and its optimizer."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any
    ) -> None:
        super().__init__(**values)
        self.model = model
        self.optimizer = optimizer or model.optimizer
        self.backend = backend

    def sync(self) -> None:
        """Broadcast the variables of the model and of the optimizer."""
        broadcast_keras_variables(self.model, self.optimizer, 0)


KerasState = TensorFlowKerasState


class TensorFlowState(_State):
    """The state of a list of variables."""

    def __init__(self, variables: Any = None, session: Any = None, **values: Any) -> None:
        super().__init__(**values)
        self.variables = variables or tf.compat.v1.global_variables()
        self.session = session

    def sync(self) -> None:
        """Broadcast the variables."""
        op = broadcast_variables(self.variables, 0)
        if op is not None:
            session = self.session or tf.compat.v1.get_default_session()
            session.run(op)


class CommitStateCallback(_Callback):  # type: ignore[misc]
    """Saves the state after some batches."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit


class UpdateBatchStateCallback(_Callback):  # type: ignore[misc]
    """Counts batches in the state."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state


class UpdateEpochStateCallback(UpdateBatchStateCallback):
    """Counts epochs in the state."""
