"""Read the forms in which TensorFlow prints the device of an op.

====  ==================================================  =====================================
form  text                                                printed by
====  ==================================================  =====================================
A     ``node: device``                                    the placer of TensorFlow 0.5 to 0.11
B, C  ``node: (Op): device``                              stdout since 0.12, stderr since 1.15
B2    ``node: (Op)device``                                stderr, 0.12 to 1.14
D     ``Executing op Op in device device``, ``on task``   eager execution
V     ``node(Op) placed on: device``                      the placer's VLOG(1)
====  ==================================================  =====================================

Sources: ``simple_placer.cc`` (to 1.3), ``placer.cc``, ``eager/execute.cc``. Lines are split with
string methods, so that reading a line takes linear time, whatever its text.

`text_of` writes a record as TensorFlow does.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Record(NamedTuple):
    """The placement of one op."""

    node: str | None  # the op's name; None for an op that ran eagerly
    op: str | None  # the op's type; None in logs before TensorFlow 0.12
    device: str  # the full device name in today's spelling; `""` if the op was not placed


class Reading(NamedTuple):
    """A record on a line, and the stream that it comes from."""

    record: Record  # the record
    logged: bool  # whether the record has a log prefix (`… placer.cc:125] `), as on stderr


class _Words(NamedTuple):
    """The node and op type of a record, and ``lead``, the text in front of the record."""

    lead: bytes
    node: bytes | None
    op: bytes | None


NODE = (string.ascii_letters + string.digits + "_.-/>").encode()
# An op type is a plain word, or the name of a function: f.g, f<lambda>, förlust.
OP = rb"[!-'*-9;-~\x80-\xff]"  # everything but spaces, parentheses and colons
_NO_BEGINNINGS = (b"", b"-", b"/", b">")  # first characters that no node's name has
_OP = re.compile(OP + rb"+")
_RUN = re.compile(rb"[!-~\x80-\xff]+")  # or a function: __wrapped__Sum_device_/job:localhost/…
_STAMP = rb"\d{4}-\d\d-\d\d \d\d:\d\d:|[IWEF]\d{4} \d\d:\d\d:|[IWEF] \S{1,200}\.cc:\d+\] "
# If a newline is lost, other text follows the index: gpu:02017-10-17 is gpu:0, gpu:1y is gpu:1.
# gpu:12y may be gpu:1 or gpu:12. No index is written like gpu:012.
DEVICE = (
    rb"(/job:[A-Za-z]\w*/replica:\d{1,9}/task:\d{1,9}/)(?:(device:)|(?=[a-z][a-z\d_]*:))"
    rb"([A-Za-z_]\w*):(0|[1-9]\d{0,8}?)"
    rb"(?:(?=" + _STAMP + rb")|(?![\w/:-]|\.\w)|(?<=:\d)(?=\.?[A-Za-z_]))"
)
_DEVICE = re.compile(DEVICE)
_PREFIX = re.compile(rb"(?:I )?\S{1,200}\.cc:\d+")
_SEVERITY = re.compile(rb"(?:^|[^\w/.-])([IWEF])(?:\d{4} [\d:.]+ +\d+)? \S{1,200}\.cc:\d+\] $")
_CLOSING = b" \t\"'`,\\"
_UNPLACED = b"(unspecified)"
# Words in front of a device name in prose. They are not names of nodes.
_PROSE = re.compile(
    rb"(?:[\w.]*\.)?[A-Z]\w*(?:Error|Exception|Warning)|(?:\w+_)?[Dd]evices?(?:_name)?"
)
_LONGEST = 500  # bytes of an op with its device, for the caches
_CONTEXT = 4096  # bytes in front of a device that are searched for its node and op type


def read_common(text: bytes) -> Record | None:
    """Read a text without log prefix that is one record of a graph; None if in doubt.

    This function is fast: logs have millions of lines, and most of them are such records.
    """
    node, _, tail = text.partition(b": ")
    typed = _op_and_device(tail) if len(tail) < _LONGEST else None
    if typed is None or node[:1] in _NO_BEGINNINGS or node.translate(None, NODE):
        return None
    if typed[0] is None and _PROSE.fullmatch(node):
        return None
    return Record(node.decode(), *typed)


def read(line: bytes) -> list[Reading]:
    """Read all records on a line, from left to right."""
    start = line.rfind(b"/job:")
    if start < 0:
        return _without_device(line)
    device = device_of(line[start:])
    if device is None or line.find(b"/job:", 0, start) >= 0:
        return list(_several(line))
    words = _words(line[:start], old=b"/device:" not in line[start:])
    return _readings(words, device)


def device_of(text: bytes) -> str | None:
    """The full device name in today's spelling; None if the text is not a device name."""
    return (_known_device if len(text) < _LONGEST else _parsed_device)(text)


def _parsed_device(text: bytes) -> str | None:
    match = _DEVICE.fullmatch(text)
    return _spelled(match) if match else None


_known_device = lru_cache(4096)(_parsed_device)


def _several(line: bytes) -> Iterator[Reading]:
    """The records of a line with several devices, or with text behind its device."""
    end = 0
    for match in _DEVICE.finditer(line):
        old = match[2] is None and not line[match.end() : match.end() + 99].strip(_CLOSING)
        begin = max(end, match.start() - _CONTEXT)  # the whole line for each device is quadratic
        words = _words(line[begin : match.start()], old=old)
        if words and (words.lead or begin == end):  # the name is not cut off
            yield from _readings(words, _spelled(match))
            end = match.end()


def _without_device(line: bytes) -> list[Reading]:
    """The record of an op without a device: ``node: (Op): `` at the end of a line."""
    if not line.endswith((b" ", _UNPLACED)):
        return []
    words = _words(line.removesuffix(_UNPLACED), old=False)
    return _readings(words, "") if words and _is_clear(words.lead) else []


def _readings(words: _Words | None, device: str) -> list[Reading]:
    """The record of these words, unless they belong to a warning or an error."""
    if words is None:
        return []
    lead, node, op = words
    severity = _severity(lead)
    if severity not in ("", "I"):
        return []
    name = None if node is None else node.decode()
    record = Record(name, None if op is None else _text(op), device)
    return [Reading(record, severity == "I")]


def _words(before: bytes, *, old: bool) -> _Words | None:
    """The words of the form that matches the text in front of a device.

    Args:
        before: the text.
        old: whether form A is possible.
    """
    return (
        _typed(before) or _eager(before) or _verbose(before) or (_untyped(before) if old else None)
    )


def _typed(before: bytes) -> _Words | None:
    """Match forms B, C and B2."""
    if before[-3:] == b"): ":
        head, found, op = before[:-3].rpartition(b": (")
    elif before[-1:] == b")":
        head, found, op = before[:-1].rpartition(b": (")
    else:
        return None
    return _named(head, op) if found and _OP.fullmatch(op) else None


def _eager(before: bytes) -> _Words | None:
    """Match form D."""
    for ending in (b" in device ", b" on task "):
        if before.endswith(ending):
            lead, found, op = before[: -len(ending)].rpartition(b"Executing op ")
            return _Words(lead, None, op) if found and _RUN.fullmatch(op) else None
    return None


def _verbose(before: bytes) -> _Words | None:
    """Match form V."""
    if not before.endswith(b") placed on: "):
        return None
    head, found, op = before[: -len(b") placed on: ")].rpartition(b"(")
    return _named(head, op) if found and _OP.fullmatch(op) else None


def _untyped(before: bytes) -> _Words | None:
    """Match form A, but not similar prose, such as ``available devices: /job:…``."""
    if not before.endswith(b": "):
        return None
    words = _named(before[:-2], None)
    if words is None or not _is_clear(words.lead):
        return None
    return None if _PROSE.fullmatch(words.node or b"") and not _severity(words.lead) else words


def _named(head: bytes, op: bytes | None) -> _Words | None:
    """The words of a record, given the text up to its node; None if it is not a record."""
    node = head[head.rfind(b" ") + 1 :]
    if node.translate(None, NODE):
        if b"/job:" in node:  # the end of another record, which is torn
            return None
        node = node[len(node.rstrip(NODE)) :]
    before = head[: len(head) - len(node)]
    if before[-1:] == b"<":  # a tag: <pre>, <6>
        node = node.partition(b">")[2]
    elif before[-1:] == b"\\":  # the n of an escaped newline
        node = node[1:]
    elif before[-1:] == b":" and node.isdigit():  # the index of a tensor: w:0
        return None
    node = node.lstrip(b"-/>")
    return _Words(head[: len(head) - len(node)], node, op) if node else None


def _is_clear(lead: bytes) -> bool:
    """Whether the text in front of a record does not end with a word of a sentence."""
    before = lead.rstrip()
    return not before[-1:].isalpha() or before.endswith((b"stdout F", b"stderr F"))


def _severity(lead: bytes) -> str:
    """The severity in the log prefix at the end of ``lead``; ``""`` if there is no prefix."""
    if lead[-2:] != b"] ":
        return ""
    match = _SEVERITY.search(lead[-_LONGEST:])
    if match:
        return match[1].decode()
    return "I" if _PREFIX.fullmatch(lead[lead.rfind(b" ", 0, -1) + 1 : -2]) else ""


@lru_cache(4096)
def _op_and_device(text: bytes) -> tuple[str | None, str] | None:
    """Op type and device in ``(Op): device`` or ``device``; None for any other text."""
    op, bracket, name = text.rpartition(b")")
    device = device_of(name.removeprefix(b": ") if bracket else name)
    if device is None:
        return None
    if bracket:
        return (_text(op[1:]), device) if op[:1] == b"(" and _OP.fullmatch(op[1:]) else None
    return None if b"/device:" in name else (None, device)


def _text(op: bytes) -> str:
    """An op type as text. Bytes that are not printable are escaped."""
    text = op.decode(errors="backslashreplace")
    return text if text.isprintable() else ascii(text)[1:-1]


def _spelled(match: re.Match[bytes]) -> str:
    task, device, kind, index = (part or b"" for part in match.groups())
    kind = kind if device else kind.upper()
    return b"".join((task, b"device:", kind, b":", index)).decode()


_KIND = re.compile(r"/device:(\w+)(?=:\d+$)")


def text_of(record: Record) -> str:
    """Write a record as one line: in form D without a node, in A without an op type, else in C."""
    node, op, device = record
    if node is None:
        return f"Executing op {op} in device {device}"
    if op is None:  # form A has the device name in its old spelling
        return f"{node}: {_old_spelling(device)}"
    return f"{node}: ({op}): {device}"


def _old_spelling(text: str) -> str:
    return _KIND.sub(lambda kind: "/" + kind[1].lower(), text)
