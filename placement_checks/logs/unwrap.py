"""Remove the additions of other programs from the lines of a log.

Terminals add colors and single carriage returns. Windows ends lines with CRLF. PowerShell writes
UTF-16. Container runtimes wrap each line in JSON, or put the time and the stream in front of the
line, and split long lines. GitHub Actions, docker-compose, mpirun and srun put a time or a name in
front of each line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from placement_checks.core import limits

# Escape sequences, also as syslog, `cat -v` and source code write them.
_ANSI = re.compile(
    rb"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[()*+][A-Za-z0-9]|\x1b[@-Z\\-_](?<!\[)"
    rb"|(?:\x1b|#033|\^\[|\\x1b|\\033|\\e|\\u001b)\[[0-?]*[ -/]*[@-~]"
    rb"|[\x9b\[]\d{1,3}(?:;\d{1,3})*m"
)
_ENTITIES = {b"&gt;": b">", b"&lt;": b"<", b"&quot;": b'"', b"&#39;": b"'", b"&amp;": b"&"}
# 2024-01-21T21:16:10.1797413Z, with or without the T, the fraction and the zone.
_TIME = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_MARKS = re.compile(
    rb"(?m)^(?:"
    + _TIME
    + rb"[ \t]"  # GitHub Actions, kubectl logs --timestamps, journalctl
    + rb"|[^\t\n]{1,200}\t[^\t\n]{1,200}\t(?="
    + _TIME
    + rb")"  # gh run view --log
    + rb"|[\w.-]{1,200} +\| "  # docker-compose
    + rb"|\[\d+,\d+\](?:<\w+>)?: ?"  # mpirun --tag-output
    + rb"| *\d{1,9}: (?![(/]))+"  # srun --label; "3: (" and "3: /" begin records of a node named 3
)
_CRI = re.compile(rb"(?m)^(\S+) (stdout|stderr) ([PF])(?: (.*))?$")
_SAMPLE = 4096  # bytes; prefixes are only removed if the start of the block contains a prefix


class Unwrapper:
    """Restores the lines of a process, block by block. Stores pieces until a line is complete."""

    def __init__(self) -> None:
        self.troubles: set[str] = set()  # why lines were not joined, one clause each
        self._pieces: dict[str, bytearray] = {}
        self._docker = False

    def unwrap(self, block: bytes) -> bytes:
        """Return the whole lines of ``block`` as the process printed them.

        NUL bytes are removed, which turns UTF-16 into ASCII.
        """
        if b"\0" in block:
            block = block.replace(b"\0", b"")
        if b"{" in block:
            block = b"\n".join(self._from_json(block.split(b"\n")))
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if any(sign in block for sign in (b"\x1b", b"[", b"\x9b")):
            block = _ANSI.sub(b"", block)
        if b"&" in block:
            for entity, sign in _ENTITIES.items():
                block = block.replace(entity, sign)
        if _CRI.search(block, 0, _SAMPLE):
            block = b"\n".join(self._from_cri(block.split(b"\n")))
        if _MARKS.search(block, 0, _SAMPLE):
            block = _MARKS.sub(b"", block)
        return block

    def rest(self) -> bytes:
        """The pieces of lines without an end."""
        return b"\n".join(self._pieces.values())

    def _from_json(self, lines: list[bytes]) -> Iterator[bytes]:
        """Yield lines, and for a line of JSON its strings.

        In Docker's json-file, "log" contains a line, or a piece of a line. Only the last piece of
        a line ends with a newline. Other loggers write the same JSON without any newline: if no
        newline was found yet, each "log" is a whole line.
        """
        for line in lines:
            is_json = line[:1] in b"{\xef" and len(line) <= limits.LOG_PIECES.most
            value = _parsed(line) if is_json else None
            if not isinstance(value, dict):
                yield line
            elif isinstance(text := value.get("log"), str) and "stream" in value:
                self._docker = self._docker or text.endswith("\n")
                yield from self._joined(
                    f"json {value['stream']}",
                    text.removesuffix("\n").encode(errors="replace"),
                    ends=text.endswith("\n") or not self._docker,
                )
            else:
                for text in dict.fromkeys(_strings(value)):
                    yield from text.encode(errors="replace").split(b"\n")

    def _from_cri(self, lines: list[bytes]) -> Iterator[bytes]:
        """Yield lines without Kubernetes' prefix: time, stream, P (piece of a line) or F (end)."""
        for line in lines:
            match = _CRI.fullmatch(line)
            if match is None:
                yield line
            else:
                stream, text = match[2].decode(), match[4] or b""
                yield from self._joined(f"cri {stream}", text, ends=match[3] == b"F")

    def _joined(self, stream: str, text: bytes, *, ends: bool) -> Iterator[bytes]:
        line = self._pieces.pop(stream, bytearray())
        line += text
        is_long = len(line) > limits.LOG_PIECES.most
        if not ends and not is_long and len(self._pieces) < limits.LOG_STREAMS.most:
            self._pieces[stream] = line
            return
        if not ends:
            limit = limits.LOG_PIECES if is_long else limits.LOG_STREAMS
            self.troubles.add(f"it exceeds the limit of {limit}, and lines were not joined")
        yield from bytes(line).split(b"\n")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError):
        return None


def _strings(value: Any) -> Iterator[str]:
    """The strings in a JSON value, and texts that journald writes as lists of bytes."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list):
            if item and all(isinstance(byte, int) and 0 <= byte < 256 for byte in item):
                yield bytes(item).decode(errors="replace")
            else:
                todo += item
