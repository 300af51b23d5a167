"""Reads what the placer logs with ``log_device_placement``: a line for each node that it places.

It is ``NODE: (OP TYPE): DEVICE`` (core/common_runtime/placer.cc), alone on standard output. The
logs of users are another matter, which `placement_checks.logs` reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Neither a name nor an op type has a space; other lines tell of the devices of a session.
_PLACED = re.compile(r"^([^ \n]+): \([^ \n]+\): (/.+)$", re.MULTILINE)


def logged_devices(log: str) -> Mapping[str, str]:
    """The device of each node of a log, by the node's name.

    Whether a node is missing is for those who know the graph.

    Raises:
        ValueError: a node is said to be on two devices.
    """
    placed = _PLACED.findall(log)
    devices = dict(placed)
    if len(devices) < len(placed):
        for node, device in placed:
            if devices[node] != device:
                raise ValueError(f"placed '{node}' on {device} and on {devices[node]}")
    return devices
