"""What a strategy (`tf.distribute`) has made of a program: replicas, and copies of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from placement_checks.core.devices import Device


class Copy(NamedTuple):
    """A variable that a strategy keeps for one replica.

    Attributes:
        of: the variable that stands for all copies: that of the first replica.
        replica: the replica's number.
        in_sync: whether all copies are meant to be equal; else they are combined when read.
    """

    of: str
    replica: int
    in_sync: bool = True


@dataclass(frozen=True)
class Strategy:
    """The strategy of a program.

    Attributes:
        name: its class, such as ``MirroredStrategy``.
        replicas: the device of each replica.
        copies: the variables that each replica has for itself, the first one's too, by name.
        outside: variables that were made outside of its scope, by name.
        in_sync: how many replicas there are in all processes; 0 for as many as ``replicas``.
        made_in_step: variables that the first call of the step makes, by name, of values that
            TensorFlow cannot compute before it.
    """

    name: str
    replicas: Sequence[Device]
    copies: Mapping[str, Copy] = field(default_factory=dict, repr=False)
    outside: Sequence[str] = field(default=(), repr=False)
    in_sync: int = 0
    made_in_step: Sequence[str] = field(default=(), repr=False)

    def device_of(self, variable: str) -> Device | None:
        """Where the copy of a replica belongs; None for what replicas share."""
        copy = self.copies.get(variable)
        return None if copy is None else self.replicas[copy.replica]

    def is_later_copy(self, variable: str) -> bool:
        """Whether it is meant to be equal to the copy of the first replica, and is not that."""
        copy = self.copies.get(variable)
        return copy is not None and copy.in_sync and copy.of != variable

    @property
    def is_whole(self) -> bool:
        """Whether all of its replicas are known, and not those of one process alone."""
        return self.in_sync <= len(self.replicas)

    @property
    def is_of_workers(self) -> bool:
        """Whether its replicas are in several processes."""
        return len({device.task_device for device in self.replicas}) > 1

    @property
    def gpus(self) -> int:
        """How many GPUs it has replicas on."""
        return len({device for device in self.replicas if device.is_gpu})
