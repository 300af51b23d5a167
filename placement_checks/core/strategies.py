"""The `tf.distribute` strategy of a program: its replicas and copies of variables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.ranks import RankRecord

ONE_DEVICE = "OneDeviceStrategy"


class Copy(NamedTuple):
    """A copy of a variable for one replica.

    Attributes:
        first: the name of the first replica's copy, which identifies all copies.
        replica: the replica's number.
        in_sync: whether all copies are meant to be equal. Otherwise they are combined when read.
    """

    first: str
    replica: int
    in_sync: bool = True


@dataclass(frozen=True)
class Strategy:
    """The strategy of a program.

    Attributes:
        name: the class, such as ``MirroredStrategy``.
        replicas: the device of each replica.
        copies: the copies of variables by name, including the first replica's.
        outside: the names of variables that were created outside of the strategy's scope.
        in_sync: the number of replicas in all processes; 0 for ``len(replicas)``.
        ranks: the records of the ranks of a Horovod program, which have one replica each.
        fed_scalars: the placeholders that the ranks of a Horovod program fed with scalars, such as
            a learning rate, each with its name in the rank and the value.
        made_in_step: the names of variables that the first call of the step creates, with initial
            values that TensorFlow cannot compute before the step.
        replica_of: the replica that builds each op, by the op's name. Ops that are built outside
            of replicas, such as the sums of a ``merge_call``, are left out. Ops in function
            bodies are left out, too: they belong to the replica of their caller.
    """

    name: str
    replicas: Sequence[Device]
    copies: Mapping[str, Copy] = field(default_factory=dict, repr=False)
    outside: Sequence[str] = field(default=(), repr=False)
    in_sync: int = 0
    made_in_step: Sequence[str] = field(default=(), repr=False)
    ranks: Sequence[RankRecord] = field(default=(), repr=False)
    fed_scalars: Mapping[str, Hashable] = field(default_factory=dict, repr=False)
    replica_of: Mapping[str, int] = field(default_factory=dict, repr=False)

    def device_of(self, variable: str) -> Device | None:
        """The device for a replica's copy of a variable; None for a shared variable."""
        copy = self.copies.get(variable)
        return None if copy is None else self.replicas[copy.replica]

    def is_later_copy(self, variable: str) -> bool:
        """Whether a variable is a later replica's copy, meant to equal the first replica's."""
        copy = self.copies.get(variable)
        return copy is not None and copy.in_sync and copy.first != variable

    @property
    def first_copies(self) -> Mapping[str, str]:
        """The copies that are kept equal, each with the first copy of its variable."""
        return {name: copy.first for name, copy in self.copies.items() if copy.in_sync}

    @property
    def is_whole(self) -> bool:
        """Whether the replicas of all processes are known, not only of one process."""
        return self.in_sync <= len(self.replicas)

    @property
    def is_of_workers(self) -> bool:
        """Whether the replicas are in several processes."""
        return len({device.task_device for device in self.replicas}) > 1

    def default_gpu(self, requested: Device) -> Device | None:
        """The GPU of an op that requests no device in its process; None if it is unknown.

        A rank of a Horovod program has one GPU, so its ops need not request it.
        """
        if not self.ranks or requested.type is not None or requested.task is None:
            return None
        return next((each for each in self.replicas if each.matches(requested)), None)

    @property
    def gpus(self) -> int:
        """The number of GPUs with a replica."""
        return len({device for device in self.replicas if device.is_gpu})
