"""The messages between the placer process and its parent: a JSON header and blobs of bytes.

The errors that the placer process gives instead of an answer.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")


def write(stream: BinaryIO, header: dict[str, Any], *blobs: bytes) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone.
    """
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    stream.write(_LENGTH.pack(len(text)) + text)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def read(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Receive one message.

    Raises:
        EOFError: the other side is gone.
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
    """The placer does not place the graph; the message is its own."""


class Failed(Exception):
    """The placer could not be reached, or gave no usable answer; the message says why."""
