"""Closes a listening port, to other machines or to everybody.

``tf.distribute.Server`` listens on all interfaces and has no option against it, and asks nobody
who he is: whoever reaches the port can run graphs here, which read and write files. Binding the
listening socket to the loopback *device* ends that for other machines (``SO_BINDTODEVICE``,
socket(7); no privileges are needed on Linux 5.7 and later), shutting it down for everybody.
Connections that were made before go on.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from placement_checks.capture.placer.refusal import Failed

_ESTABLISHED, _LISTEN = "01", "0A"


def close_to_others(port: int) -> None:
    """Make this process's listening sockets of ``port`` answer on loopback alone.

    Raises:
        OSError: no such socket, or the kernel refuses.
    """
    for listener in _listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")


def close(port: int) -> None:
    """Let nobody connect to ``port``, on which this process listens; its own connection stays.

    Raises:
        OSError: no such socket.
        Failed: somebody else was quicker, and may use this process until it ends.
    """
    for listener in _listeners(port):
        listener.shutdown(socket.SHUT_RDWR)
    connections = list(_connections())
    inodes = _own_sockets()
    own = {each.local for each in connections if each.inode in inodes}
    for each in connections:
        if each.state == _ESTABLISHED and each.local.port == port and each.remote not in own:
            raise Failed(f"found that another process had connected to its port {port}")


class _Address(NamedTuple):
    """Of an IPv6 address the last 32 bits, which are the IPv4 address if it stands for one."""

    host: str
    port: int


class _Connection(NamedTuple):
    """A row of /proc/net/tcp."""

    local: _Address
    remote: _Address
    state: str
    inode: str


def _listeners(port: int) -> Iterator[socket.socket]:
    """This process's sockets that listen on ``port``; there is one at least, or OSError."""
    listening = {
        each.inode for each in _connections() if each.state == _LISTEN and each.local.port == port
    }
    found = {inode: name for inode, name in _own_sockets().items() if inode in listening}
    if not found:
        raise OSError(f"no socket of this process listens on port {port}")
    for name in found.values():
        with socket.socket(fileno=os.dup(int(name))) as listener:
            yield listener


def _own_sockets() -> dict[str, str]:
    """The file descriptors of this process's sockets, by inode."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{name}"))
            if match:
                found[match[1]] = name
    return found


def _connections() -> Iterator[_Connection]:
    """The TCP sockets of this machine, as /proc/net/tcp shows them."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for row in Path(table).read_text().splitlines()[1:]:
            _, local, remote, state, *rest = row.split()
            yield _Connection(_address(local), _address(remote), state, rest[5])


def _address(text: str) -> _Address:
    host, _, port = text.rpartition(":")
    return _Address(host[-8:], int(port, 16))
