"""The placer process: ``python -m placement_checks.placer.worker.main phantom|session PARENT``.

Answers one request after the other, as `messages`, from standard input to standard output: each
reply carries the number of its request. It ends when its input ends, when the process PARENT is
gone, and when a request takes longer than its limit. What TensorFlow prints goes to standard
error.
"""

from __future__ import annotations

import array
import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import Any

from placement_checks.placer.worker import light_tensorflow, messages, network
from placement_checks.placer.worker.refused import Failed, GraphRefused
from placement_checks.util.child import answer_stream, end_with_parent

# Lowering a function puts a number of its own into the names: while/body/_12/Tanh.
_LOWERED = re.compile(rb"/_\d+(?=/)")
SHARED_NETWORK = "PLACEMENT_CHECKS_SHARED_NETWORK"  # set: do not move to a network of its own
_CONDITIONS = ("types", "tasks", "soft", "limit")
_GRACE = 30  # seconds beyond a request's limit, at which the parent ought to have ended this


def main() -> None:
    kind = sys.argv[1]
    if kind == "phantom" and SHARED_NETWORK not in os.environ:
        network.leave_shared()  # before any thread starts; where it fails the port is closed later
    end_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    requests = os.fdopen(os.dup(0), "rb")
    replies = answer_stream()
    try:
        placer = _placer(kind)
    except _Unavailable as reason:
        messages.write(replies, {"number": 0, "unavailable": str(reason)})
        return
    except Failed as failure:
        messages.write(replies, {"number": 0, "failed": str(failure)})
        return
    messages.write(replies, {"number": 0})
    while True:
        try:
            header, blobs = messages.read(requests)
        except EOFError:
            return
        number = {"number": header["number"]}
        # The kernel ends a process that hangs in C++, where no thread of Python's could.
        signal.alarm(int(header["limit"]) + _GRACE)
        try:
            names = blobs.pop()
            with placer.placed(blobs.pop(), *map(header.get, _CONDITIONS)) as nodes:
                devices, indices = _answer(nodes, names, header["own"])
                messages.write(replies, {**number, "devices": devices}, indices)
        except GraphRefused as refusal:
            messages.write(replies, {**number, "refused": str(refusal)})
        except Failed as failure:
            messages.write(replies, {**number, "failed": str(failure)})
            return
        signal.alarm(0)


class _Unavailable(Exception):
    """This installation cannot answer for GPUs; the message says why."""


def _placer(kind: str) -> Any:
    if kind == "session":
        from placement_checks.placer.worker.session import Session

        return Session()
    light_tensorflow.load()
    if not light_tensorflow.is_cuda_build():
        raise _Unavailable(
            f"tensorflow {light_tensorflow.version()} is a build without GPU kernels, so its "
            "placer cannot tell where a GPU machine would put an op; install the Linux x86-64 "
            "wheel of tensorflow, which is a CUDA build"
        )
    from placement_checks.placer.worker import phantom

    try:
        return phantom.Phantom()
    except OSError as error:
        raise Failed(
            f"the port of the placer could not be closed to other users ({error}); "
            f"set {phantom.OPEN_PORT}=1 to leave it open on a machine that nobody else uses"
        ) from None


def _answer(
    nodes: Iterable[tuple[bytes, bytes]], names: bytes, own: int
) -> tuple[list[str], bytes]:
    """A list of devices, and the index of each name's device in it.

    Args:
        nodes: what was placed, with its device.
        names: those asked for, a line each.
        own: how many of them, the first, are the graph's own nodes; the others are in functions.
    """
    position = {name: index for index, name in enumerate(names.split(b"\n"))}
    devices: dict[bytes, int] = {b"": 0}
    device_of = array.array("I", bytes(4 * len(position)))
    for name, device in nodes:
        index = position.get(name)
        if index is None:
            index = position.get(_LOWERED.sub(b"", name))
        if index is not None:
            place = devices.setdefault(device, len(devices))
            if device_of[index] not in (0, place) and index < own:
                raise Failed(
                    f"placed '{name.decode()}' on {device.decode()} and on another device"
                )
            device_of[index] = place
    return [device.decode() for device in devices], device_of.tobytes()


if __name__ == "__main__":
    main()
