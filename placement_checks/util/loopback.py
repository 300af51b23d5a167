"""Closes a listening port to other machines, or to all processes.

``tf.distribute.Server`` always listens on all interfaces, without authentication: whoever reaches
the port can run graphs, which read and write files. Binding the listening socket to the loopback
*device* excludes other machines (``SO_BINDTODEVICE``, socket(7); needs no privileges on Linux 5.7
and later). A filter that drops every packet, or a shutdown of the socket, excludes everybody.
Existing connections stay open.
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
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER in asm-generic/socket.h; Python lacks the name
_DROP_EVERYTHING = struct.pack("HBBI", 6, 0, 0, 0)  # a packet filter: BPF_RET, 0 bytes
_POLL_INTERVAL = 0.005  # seconds


def close_to_others(port: int) -> None:
    """Restrict this process's listening sockets on ``port`` to loopback.

    Raises:
        OSError: there is no such socket, or the kernel refuses.
    """
    for listener in _listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")


def take(port: int, limit: float) -> None:
    """Wait for this process's own connection to its ``port``, then drop all later ones.

    The kernel may not permit the filter that drops connections; `close` then excludes them later.

    Args:
        port: the port of a server that does not answer yet.
        limit: seconds for the connection.

    Raises:
        OSError: there is no such socket.
        ConnectionError: there is no such connection, or another process connected first.
    """
    deadline = time.monotonic() + limit
    while not any(connection.remote.port == port for connection in _own_connections()):
        if time.monotonic() > deadline:
            raise ConnectionError(f"could not connect to its own port {port} within {limit:.0f} s")
        time.sleep(_POLL_INTERVAL)
    program = ctypes.create_string_buffer(_DROP_EVERYTHING)
    nothing = struct.pack("HP", 1, ctypes.addressof(program))
    for listener in _listeners(port):
        with contextlib.suppress(PermissionError):  # a hardened kernel
            listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, nothing)
    _check_no_other_connected(port)


def close(port: int) -> None:
    """Stop listening on ``port``. Existing connections stay open.

    Raises:
        OSError: there is no such socket.
        ConnectionError: another process connected first, and could use this process until it ends.
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
    """An address. Of IPv6 only the last 32 bits are used: the IPv4 address, if it maps one."""

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
    """Yield this process's sockets that listen on ``port``.

    Raises:
        OSError: there is none.
    """
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
