"""Functions about the process of a rank: initialization, numbers of ranks, and libraries.

All modules of the stand-in for Horovod have these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from placement_checks.core.ranks import INIT
from placement_checks.core.user_code import calling_frames
from placement_checks.horovod.collectives import process, unsupported_error


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Initialize the rank; the command line sets the number of ranks."""
    if process_sets:
        raise unsupported_error("a process set")
    if comm is not None and not (isinstance(comm, Sequence) and not comm):
        raise unsupported_error("init with a communicator of mpi4py")
    process().initialized = True
    process().frames[INIT] = calling_frames()


def shutdown() -> None:
    """End the use of Horovod."""
    process().initialized = False


def is_initialized() -> bool:
    """Whether `init` was called."""
    return process().initialized


def rank() -> int:
    """The number of this process among all processes."""
    return process().initialized_rank().number


def size() -> int:
    """The number of processes."""
    return process().initialized_rank().size


def local_rank() -> int:
    """The number of this process on its host; all ranks are on one host."""
    return rank()


def local_size() -> int:
    """The number of processes on this host."""
    return size()


def cross_rank() -> int:
    """The number of this host."""
    process().initialized_rank()
    return 0


def cross_size() -> int:
    """The number of hosts."""
    process().initialized_rank()
    return 1


def _no() -> bool:
    """Whether Horovod was built with a library that the stand-in does not claim."""
    return False


def _yes() -> bool:
    """Whether Horovod was built with Gloo or NCCL."""
    return True


mpi_built = mpi_enabled = ddl_built = ccl_built = rocm_built = mpi_threads_supported = _no
gloo_built = gloo_enabled = cuda_built = _yes


def nccl_built() -> int:
    """The version of NCCL that Horovod was built with."""
    return 21200


def start_timeline(*_args: Any, **_options: Any) -> None:
    """Do nothing: no timeline is written."""


def stop_timeline() -> None:
    """Do nothing: no timeline is written."""


global_process_set = SimpleNamespace(
    process_set_id=0,
    size=lambda: size(),
    rank=lambda: rank(),
    included=lambda: True,
)
