"""The ranks of a Horovod program: processes that run the same program, each with one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placement_checks.core.frames import Frame

JOB = "rank"  # in the names of devices: /job:rank/task:1/device:GPU:0
HOROVOD = "Horovod"  # used as the name of the strategy
MAX_RANKS = 256
# The attribute of an op that a collective of Horovod is built as. Its value is the operation, such
# as ``allreduce Average`` or ``broadcast 0``.
COLLECTIVE = "_horovod_collective"
ALLREDUCE, ALLGATHER, BROADCAST = "allreduce", "allgather", "broadcast"
INIT = "hvd.init"
AVERAGE, SUM = "Average", "Sum"
# The writers of a rank's files: a method of a session program, or a callback of Keras.
SAVER, MODEL_CHECKPOINT = "Saver.save", "ModelCheckpoint"
BACKUP, CSV_LOGGER, TENSORBOARD = "BackupAndRestore", "CSVLogger", "TensorBoard"
_VARIABLE = "HOROVOD_{}"
_OF_OPEN_MPI = "OMPI_COMM_WORLD_{}"


@dataclass(frozen=True)
class Rank:
    """The rank of a process of a Horovod program, and the number of processes on its host."""

    number: int  # the rank, from 0 on
    size: int  # the number of processes

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"rank {self.number}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that ``horovodrun`` and ``mpirun`` of Open MPI set."""
        values = {
            "RANK": self.number,
            "SIZE": self.size,
            "LOCAL_RANK": self.number,
            "LOCAL_SIZE": self.size,
        }
        across_hosts = {"CROSS_RANK": 0, "CROSS_SIZE": 1}
        return {
            variable.format(name): str(value)
            for variable, known in (
                (_VARIABLE, values | across_hosts),
                (_OF_OPEN_MPI, values),
            )
            for name, value in known.items()
        }

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Rank:
        """The rank that `environment` describes; raises ``KeyError`` without these variables."""
        number, size = (int(environment[_VARIABLE.format(name)]) for name in ("RANK", "SIZE"))
        return Rank(number, size)


@dataclass(frozen=True)
class FileWrite:
    """A file or directory that a rank has written, or that a callback of its `fit` will write."""

    writer: str  # the method or callback that writes, such as `MODEL_CHECKPOINT`
    path: str  # the path in the words of the program
    # The absolute path without symbolic links; equal for two ranks that write the same file.
    location: str
    frames: tuple[Frame, ...] = ()  # the user's source lines, the outermost first


@dataclass(frozen=True)
class RankRecord:
    """What one rank did until its first training step.

    Attributes:
        rank: the rank.
        collectives: the names of the collectives that the rank ran, in order.
        broadcast: the names of the variables that a broadcast has made equal.
        starts: digests of the values of the rank's variables before the first step, by name.
        gpus: the indices of the GPUs that the rank made visible; None if it sees all GPUs of the
            host.
        writes: the checkpoints, backups, logs and summaries that the rank writes.
        frames: the user's source lines, the outermost first, of the last run of each collective
            and of each assignment to a variable, by name, and of ``hvd.init`` as `INIT`.
    """

    rank: Rank
    collectives: Sequence[str] = ()
    broadcast: frozenset[str] = frozenset()
    starts: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpus: Sequence[int] | None = None
    writes: Sequence[FileWrite] = ()
    frames: Mapping[str, tuple[Frame, ...]] = field(default_factory=dict, repr=False)
