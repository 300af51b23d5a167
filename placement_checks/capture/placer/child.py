"""The placer process: ``python -m placement_checks.capture.placer.child phantom|session``.

Answers one request after the other, as `frames`, from standard input to standard output, and ends
when its input ends. What TensorFlow prints goes to standard error.
"""

from __future__ import annotations

import array
import os
import re
import sys
from typing import Any

from placement_checks.capture.placer import frames
from placement_checks.capture.placer.refusal import Refused

# Lowering a function puts a number of its own into the names: while/body/_12/Tanh.
_LOWERED = re.compile(r"/_\d+(?=/)")


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        placer = _placer(sys.argv[1])
    except _Unusable as reason:
        frames.write(replies, {"unusable": str(reason)})
        return
    frames.write(replies, {"ready": True})
    while True:
        try:
            header, blobs = frames.read(requests)
        except EOFError:
            return
        try:
            reply, answer = _serve(placer, header, *blobs)
            frames.write(replies, reply, *answer)
        except Refused as refusal:
            frames.write(replies, {"refused": str(refusal)})


class _Unusable(Exception):
    """Why this installation cannot answer for GPUs."""


def _placer(kind: str) -> Any:
    import tensorflow as tf

    if kind == "session":
        from placement_checks.capture.placer.session import Session

        return Session()
    if not tf.sysconfig.get_build_info()["is_cuda_build"]:
        raise _Unusable(
            f"tensorflow {tf.__version__} is a build without GPU kernels, so its placer cannot "
            "tell where a GPU machine would put an op; install the Linux x86-64 wheel of "
            "tensorflow, which is a CUDA build"
        )
    from placement_checks.capture.placer import phantom

    try:
        return phantom.Phantom()
    except OSError as error:
        raise _Unusable(
            f"the port of the placer could not be closed to other machines ({error}); Linux 5.7 "
            f"and later allow it, and {phantom.OPEN_PORT}=1 does without on a machine of your own"
        ) from None


def _serve(
    placer: Any, header: dict[str, Any], graph: bytes, names: bytes
) -> tuple[dict[str, Any], tuple[bytes]]:
    """Place one graph; answers with the index of each name's device in a list of devices."""
    wanted = names.decode().split("\n")
    position = {name: index for index, name in enumerate(wanted)}
    devices: dict[str, int] = {"": 0}
    found = array.array("I", bytes(4 * len(wanted)))
    placed = placer.place(
        graph, wanted[: header["targets"]], header["tasks"], header["soft"], header["limit"]
    )
    for name, device in placed:
        index = position.get(name)
        if index is None:
            index = position.get(_LOWERED.sub("", name))
        if index is not None:
            found[index] = devices.setdefault(device, len(devices))
    return {"devices": list(devices)}, (found.tobytes(),)


if __name__ == "__main__":
    main()
