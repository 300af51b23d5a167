"""The placer process: ``python -m placement_checks.placer.worker.main phantom|session PARENT``.

Answers one request after the other, as `messages`, from standard input to standard output: each
reply carries the number of its request. It ends when its input ends, when the process PARENT is
gone, and when a request takes longer than its limit. What TensorFlow prints goes to standard
error.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from placement_checks.placer.worker import network, protocol
from placement_checks.placer.worker.protocol import Failed, GraphRefused
from placement_checks.tf import c_library
from placement_checks.util.child import end_with_parent, reserve_stdout

SHARED_NETWORK = "PLACEMENT_CHECKS_SHARED_NETWORK"  # set: do not move to a network of its own
_CONDITIONS = ("types", "tasks", "soft", "limit")
_GRACE = 30  # seconds beyond a request's limit, at which the parent ought to have ended this


def main() -> None:
    kind = sys.argv[1]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as it may be, no child can be awaited
    if kind == "phantom" and SHARED_NETWORK not in os.environ:
        network.leave_shared()  # before any thread starts; where it fails the port is closed later
    end_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    requests = os.fdopen(os.dup(0), "rb")
    replies = reserve_stdout()
    try:
        placer = _placer(kind)
    except _Unavailable as reason:
        protocol.write(replies, {"number": 0, "unavailable": str(reason)})
        return
    except Failed as failure:
        protocol.write(replies, {"number": 0, "failed": str(failure)})
        return
    protocol.write(replies, {"number": 0})
    while True:
        try:
            header, blobs = protocol.read(requests)
        except EOFError:
            os._exit(0)  # at once: to take TensorFlow down takes a tenth of a second
        number = {"number": header["number"]}
        # The kernel ends a process that hangs in C++, where no thread of Python's could.
        signal.alarm(int(header["limit"]) + _GRACE)
        try:
            with placer.placed(blobs.pop(), *map(header.get, _CONDITIONS)) as log:
                signal.alarm(0)  # from here on it may wait for the parent
                protocol.write(replies, number, log)
        except GraphRefused as refusal:
            signal.alarm(0)
            protocol.write(replies, {**number, "refused": str(refusal)})
        except Failed as failure:
            protocol.write(replies, {**number, "failed": str(failure)})
            return


class _Unavailable(Exception):
    """This installation cannot answer for GPUs; the message says why."""


def _placer(kind: str) -> Any:
    if kind == "session":
        from placement_checks.placer.worker.session import Session

        return Session()
    c_library.load()
    if not c_library.is_cuda_build():
        raise _Unavailable(
            f"tensorflow {c_library.version()} is a build without GPU kernels, so its "
            "placer cannot tell where a GPU machine would put an op; install the Linux x86-64 "
            "wheel of tensorflow, which is a CUDA build"
        )
    from placement_checks.placer.worker import gpu_less_server

    try:
        return gpu_less_server.Phantom()
    except OSError as error:
        raise Failed(
            f"the port of the placer could not be closed to other users ({error}); "
            f"set {gpu_less_server.OPEN_PORT}=1 to leave it open on a machine that nobody else "
            "uses"
        ) from None


if __name__ == "__main__":
    main()
