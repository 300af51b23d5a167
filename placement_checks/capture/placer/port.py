"""Closes a listening port to everything but this machine.

``tf.distribute.Server`` listens on all interfaces and has no option against it: whoever reaches
the port can run graphs here. Binding the listening socket to the loopback *device* ends that, and
needs no privileges on Linux 5.7 and later (``SO_BINDTODEVICE``, socket(7)).
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

_LISTEN = "0A"


def close_to_others(port: int) -> None:
    """Make this process's listening sockets of ``port`` answer on loopback alone.

    Raises:
        OSError: no such socket, or the kernel refuses.
    """
    inodes = _listening(port)
    closed = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if match and match[1] in inodes:
            with socket.socket(fileno=os.dup(int(name))) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
            closed += 1
    if not closed:
        raise OSError(f"no socket of this process listens on port {port}")


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen on ``port``, as /proc/net/tcp shows them."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for row in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = row.split()
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                inodes.add(rest[5])
    return inodes
