"""Messages between the placer process and its parent: a JSON header and blobs of bytes.

The process answers a request with a log, or with one of the errors defined here.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, Literal

# How the process is isolated from other users of this machine:
# own-network: the process has a network namespace of its own.
# filtered: its port drops all connections of other processes.
# open: its port is open.
Isolation = Literal["own-network", "filtered", "open"]

_LENGTH = struct.Struct("<Q")


def write(stream: BinaryIO, header: dict[str, Any], *blobs: bytes) -> None:
    """Send one message.

    Raises:
        OSError: the other process has ended.
    """
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    stream.write(_LENGTH.pack(len(text)) + text)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def read(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Receive one message.

    Raises:
        EOFError: the other process has ended.
    """
    header = json.loads(
        _read_exactly(stream, _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))[0])
    )
    return header, [_read_exactly(stream, length) for length in header.pop("blobs")]


def _read_exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


class GraphRefused(Exception):
    """The placer refused the graph; the message is the placer's message."""


class Failed(Exception):
    """The placer could not be reached, or gave no usable answer; the message gives the reason.

    Attributes:
        fix: what to do; ``""`` if it may be a bug of this package.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix
