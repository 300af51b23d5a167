"""Closes a listening port to other machines or to everybody.

``tf.distribute.Server`` listens on all interfaces, has no option against it, and authenticates
nobody: whoever reaches the port can run graphs here, which read and write files. Binding the
listening socket to the loopback *device* ends that for other machines (``SO_BINDTODEVICE``,
socket(7); no privileges are needed on Linux 5.7 and later); a filter that drops every packet, or
shutting it down, ends it for everybody. Connections that were made before go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ESTABLISHED, _CLOSE_WAIT, _LISTEN = "01", "08", "0A"
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of asm-generic/socket.h, to which Python gives no name
_DROP_EVERYTHING = struct.pack("HBBI", 6, 0, 0, 0)  # a program for packets: BPF_RET, 0 bytes
_POLL_INTERVAL = 0.005  # seconds


def close_to_others(port: int) -> None:
    """Make this process's listening sockets of ``port`` answer on loopback alone.

    Raises:
        OSError: no such socket, or the kernel refuses.
    """
    for listener in _listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")


def take(port: int, limit: float) -> None:
    """Keep ``port``, on which this process listens, for the connection that it is making to it.

    What comes later is dropped, where the kernel lets this process say so.

    Args:
        port: of a server that does not answer yet.
        limit: seconds until the connection must be there.

    Raises:
        OSError: no such socket.
        ConnectionError: there is no such connection, or somebody else connected first.
    """
    deadline = time.monotonic() + limit
    while not any(connection.remote.port == port for connection in _own_connections()):
        if time.monotonic() > deadline:
            raise ConnectionError(f"could not connect to its own port {port} within {limit:.0f} s")
        time.sleep(_POLL_INTERVAL)
    program = ctypes.create_string_buffer(_DROP_EVERYTHING)
    nothing = struct.pack("HP", 1, ctypes.addressof(program))
    for listener in _listeners(port):
        with contextlib.suppress(PermissionError):  # a hardened kernel: `close` looks again
            listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, nothing)
    _check_no_other_connected(port)


def close(port: int) -> None:
    """Let nobody connect to ``port``, on which this process listens; its own connection stays.

    Raises:
        OSError: no such socket.
        ConnectionError: somebody else connected first, and may use this process until it ends.
    """
    for listener in _listeners(port):
        listener.shutdown(socket.SHUT_RDWR)
    _check_no_other_connected(port)


def _check_no_other_connected(port: int) -> None:
    own = {connection.local for connection in _own_connections()}
    for connection in _connections():
        if (
            connection.is_connected
            and connection.local.port == port
            and connection.remote not in own
        ):
            raise ConnectionError(f"found that another process had connected to its port {port}")


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

    @property
    def is_connected(self) -> bool:
        return self.state in (_ESTABLISHED, _CLOSE_WAIT)


def _listeners(port: int) -> Iterator[socket.socket]:
    """This process's sockets that listen on ``port``; there is one at least, or OSError."""
    listening = {
        connection.inode
        for connection in _connections()
        if connection.state == _LISTEN and connection.local.port == port
    }
    own = {inode: name for inode, name in _own_sockets().items() if inode in listening}
    if not own:
        raise OSError(f"no socket of this process listens on port {port}")
    for name in own.values():
        with socket.socket(fileno=os.dup(int(name))) as listener:
            yield listener


def _own_connections() -> list[_Connection]:
    """The connected sockets of this process."""
    inodes = _own_sockets()
    return [
        connection
        for connection in _connections()
        if connection.inode in inodes and connection.is_connected
    ]


def _own_sockets() -> dict[str, str]:
    """The file descriptors of this process's sockets, by inode."""
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{name}"))
            if match:
                descriptors[match[1]] = name
    return descriptors


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
