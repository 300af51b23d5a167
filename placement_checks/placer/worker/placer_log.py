"""Reads what the placer logs with ``log_device_placement``: a line for each node that it places.

It is ``NODE: (OP TYPE): DEVICE`` (core/common_runtime/placer.cc), alone on standard output. The
logs of users are another matter, which `placement_checks.logs` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO


def logged_nodes(log: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """The nodes of a log, each with its device; it is read from its beginning.

    Neither a name nor an op type has a space. Other lines, such as those of the devices of a
    session, are passed over; whether a node is missing is for those who know the graph.
    """
    log.seek(0)
    for line in log:
        node, is_typed, rest = line.partition(b": (")
        _, is_placed, device = rest.partition(b"): /")
        if is_typed and is_placed:
            yield node, b"/" + device.rstrip(b"\n")
