"""Closes a listening port to other machines, or to all processes.

``tf.distribute.Server`` always listens on all interfaces, without authentication: whoever reaches
the port can run graphs, which read and write files. Binding the listening socket to the loopback
*device* excludes other machines (``SO_BINDTODEVICE``, socket(7); needs no privileges on Linux 5.7
and later). A filter that drops every packet excludes everybody. Existing connections stay open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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


def reserve(port: int, limit: float) -> None:
    """Wait for this process's own connection to its ``port``, then drop all later connections.

    Args:
        port: the port of a server that does not answer yet.
        limit: seconds for the connection.

    Raises:
        OSError: there is no such socket, or the kernel refuses the filter.
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
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, nothing)
    own = {connection.local for connection in _own_connections()}
    for connection in _connections():
        is_other = connection.is_connected and connection.remote not in own
        if is_other and connection.local.port == port:
            raise ConnectionError(f"found that another process had connected to its port {port}")


class _Address(NamedTuple):
    """An IPv4 address, or the last 32 bits of an IPv6 address, which may map an IPv4 address."""

    host: str
    port: int


class _Connection(NamedTuple):
    """A row of /proc/net/tcp, and the descriptor of the socket if this process has it."""

    local: _Address
    remote: _Address
    state: str
    descriptor: int | None

    @property
    def is_connected(self) -> bool:
        return self.state in (_ESTABLISHED, _CLOSE_WAIT)


def _listeners(port: int) -> Iterator[socket.socket]:
    """Yield this process's sockets that listen on ``port``.

    Raises:
        OSError: there is no such socket.
    """
    own = [
        connection.descriptor
        for connection in _connections()
        if connection.descriptor is not None
        and (connection.state, connection.local.port) == (_LISTEN, port)
    ]
    if not own:
        raise OSError(f"no socket of this process listens on port {port}")
    for descriptor in own:
        with socket.socket(fileno=os.dup(descriptor)) as listener:
            yield listener


def _own_connections() -> list[_Connection]:
    return [each for each in _connections() if each.is_connected and each.descriptor is not None]


def _connections() -> Iterator[_Connection]:
    """The TCP sockets of this machine, as /proc/net/tcp shows them."""
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            descriptors[os.readlink(f"/proc/self/fd/{name}")] = int(name)
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for row in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, remote, state, *rest = row.split()
            descriptor = descriptors.get(f"socket:[{rest[5]}]")
            yield _Connection(_address(local), _address(remote), state, descriptor)


def _address(text: str) -> _Address:
    host, _, port = text.rpartition(":")
    return _Address(host[-8:], int(port, 16))
