"""The placer process: ``python -m placement_checks.placer.worker.main PARENT``.

It reads requests from standard input and writes replies to standard output, one at a time, as
messages of `protocol`; each reply carries the number of its request. It ends when its input ends,
when the process PARENT ends, and when a request exceeds its limit. TensorFlow's own output goes to
standard error.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from placement_checks.placer.worker import network, protocol
from placement_checks.placer.worker.protocol import Failed, GraphRefused, Isolation
from placement_checks.tf import c_library
from placement_checks.tf.startup import INSTALL_GPU_KERNELS, NO_GPU_KERNELS, build_info
from placement_checks.util.child import end_with_parent, reserve_stdout

if TYPE_CHECKING:
    from placement_checks.placer.worker.gpu_less_server import GpuLessServer

SHARED_NETWORK = "PLACEMENT_CHECKS_SHARED_NETWORK"  # if set: stay in the shared network
OPEN_PORT = "PLACEMENT_CHECKS_OPEN_PORT"  # if set: leave the server's port open to other users
_ARGUMENTS = ("types", "tasks", "soft", "limit")  # header fields that are arguments of `place`
_GRACE = 30  # seconds after a request's limit; by then the parent should have ended this process


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, waitpid fails
    isolation = _isolate()  # before any thread starts
    end_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    requests = os.fdopen(os.dup(0), "rb")
    replies = reserve_stdout()
    try:
        placer = _start(isolation)
    except _Unavailable as fault:
        reason, fix = fault.args
        return protocol.write(replies, {"number": 0, "unavailable": reason, "fix": fix})
    except Failed as failure:
        return protocol.write(replies, {"number": 0, "failed": str(failure), "fix": failure.fix})
    protocol.write(replies, {"number": 0, "isolation": isolation})
    while True:
        try:
            header, blobs = protocol.read(requests)
        except EOFError:
            os._exit(0)  # a normal exit would spend 0.1 seconds on TensorFlow's destructors
        number = {"number": header["number"]}
        # An alarm ends a process that hangs in C++, which no Python thread could interrupt.
        signal.alarm(int(header["limit"]) + _GRACE)
        try:
            with placer.place(blobs.pop(), *map(header.__getitem__, _ARGUMENTS)) as log:
                signal.alarm(0)  # writing may wait for the parent
                protocol.write(replies, number, log)
        except GraphRefused as refusal:
            signal.alarm(0)
            protocol.write(replies, {**number, "refused": str(refusal)})
        except Failed as failure:
            return protocol.write(replies, {**number, "failed": str(failure), "fix": failure.fix})


def _isolate() -> Isolation:
    if SHARED_NETWORK not in os.environ and network.leave_shared():
        return "own-network"
    return "open" if OPEN_PORT in os.environ else "filtered"


class _Unavailable(Exception):
    """This installation has no kernels for GPUs; the arguments are the reason and the fix."""


def _start(isolation: Isolation) -> GpuLessServer:
    """Start TensorFlow's server.

    Raises:
        _Unavailable: this installation has no kernels for GPUs.
        Failed: the port of the server could not be closed to other users.
    """
    c_library.load()
    if not build_info()["is_cuda_build"]:
        raise _Unavailable(
            f"tensorflow {c_library.version()} {NO_GPU_KERNELS}", INSTALL_GPU_KERNELS
        )
    from placement_checks.placer.worker.gpu_less_server import GpuLessServer

    try:
        return GpuLessServer(is_filtered=isolation == "filtered")
    except OSError as error:
        raise Failed(
            f"its port could not be closed to other users ({error})",
            f"on a machine without other users, set {OPEN_PORT}=1 to leave it open",
        ) from None


if __name__ == "__main__":
    main()
