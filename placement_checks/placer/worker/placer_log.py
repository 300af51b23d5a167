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
    devices: dict[str, str] = {}
    one = devices.setdefault
    names: dict[str, str] = {}  # one text for all nodes of a device
    for match in _PLACED.finditer(log):
        node, device = match.groups()
        if one(node, names.setdefault(device, device)) != device:
            raise ValueError(f"placed '{node}' on {devices[node]} and on {device}")
    return devices
