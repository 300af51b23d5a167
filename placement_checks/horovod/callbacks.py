"""The modules ``horovod.tensorflow.keras.callbacks`` and ``horovod.keras.callbacks``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from placement_checks.horovod import elastic
from placement_checks.horovod.broadcasts import broadcast_keras_variables
from placement_checks.horovod.collectives import process

_Callback: Any = tf.keras.callbacks.Callback
CommitStateCallback = elastic.CommitStateCallback
UpdateBatchStateCallback = elastic.UpdateBatchStateCallback
UpdateEpochStateCallback = elastic.UpdateEpochStateCallback


class BroadcastGlobalVariablesCallback(_Callback):  # type: ignore[misc]
    """Assigns the values on one rank to all variables, after the first batch."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        process().broadcasts_later = True
        if isinstance(local_variables, tf.Variable):
            local_variables = [local_variables]
        self._local: list[Any] = list(local_variables or ())

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable from the broadcast."""
        self._local.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcast after the first batch."""
        if self.broadcast_done:
            return
        self.broadcast_done = True
        with tf.device(self.device or None):
            broadcast_keras_variables(
                self.model, self.model.optimizer, self.root_rank, self._local
            )


class MetricAverageCallback(_Callback):  # type: ignore[misc]
    """In Horovod, averages metrics at the end of an epoch, which a capture does not reach."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device


class LearningRateScheduleCallback(_Callback):  # type: ignore[misc]
    """In Horovod, changes the learning rate from epoch to epoch; a capture has one step."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase, self.steps_per_epoch = staircase, steps_per_epoch
        self.momentum_correction = momentum_correction
        self.multiplier = multiplier


class LearningRateWarmupCallback(_Callback):  # type: ignore[misc]
    """In Horovod, raises the learning rate in the first epochs; a capture has one step."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        self.initial_lr, self.warmup_epochs = initial_lr, warmup_epochs
        self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
        self.verbose = verbose


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """In Horovod, saves the best model of a Spark estimator; here it has no path."""

    def __init__(self, monitor: str = "val_loss", **options: Any) -> None:
        super().__init__(filepath=None, monitor=monitor, save_best_only=True, **options)
