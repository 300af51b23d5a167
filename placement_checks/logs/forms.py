"""The forms in which TensorFlow prints where an op is: one reader each.

====  ==================================================  =====================================
form  text                                                printed by
====  ==================================================  =====================================
A     ``node: device``                                    the placer of TensorFlow 0.5 to 0.11
B, C  ``node: (Op): device``                              stdout since 0.12, stderr since 1.15
B2    ``node: (Op)device``                                stderr, 0.12 to 1.14
D     ``Executing op Op in device device``, ``on task``   eager execution
V     ``node(Op) placed on: device``                      the placer's VLOG(1)
====  ==================================================  =====================================

Sources: ``simple_placer.cc`` (to 1.3), ``placer.cc``, ``eager/execute.cc``. Only string methods
walk over a line: no text, however odd, takes more than linear time.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Record(NamedTuple):
    """Where one op was put.

    Attributes:
        node: its name; None for an op that ran eagerly.
        op: its type; None in logs before 0.12.
        device: the full name in today's spelling; ``""`` where it was not placed.
    """

    node: str | None
    op: str | None
    device: str


class Reading(NamedTuple):
    """A record as it stands on a line.

    Attributes:
        record: what it says.
        logged: whether it is the copy on stderr, with a log prefix (``… placer.cc:125] ``).
        whole: whether the line has nothing else.
    """

    record: Record
    logged: bool
    whole: bool


class _Words(NamedTuple):
    """The words of a record that come before its device, and what comes before them."""

    lead: bytes
    node: bytes | None
    op: bytes | None


_NODE = (string.ascii_letters + string.digits + "_.-/>").encode()
_OP = re.compile(rb"[A-Za-z0-9_>]+")
_RUN = re.compile(rb"\S+")  # also __wrapped__Sum_device_/job:localhost/…, a function
_STAMP = rb"\d{4}-\d\d-\d\d \d\d:\d\d:|[IWEF]\d{4} \d\d:\d\d:|[IWEF] \S{1,999}\.cc:\d+\] "
# An index ends before the date that a lost newline puts behind it: gpu:02017-10-17 is gpu:0.
_DEVICE = re.compile(
    rb"(/job:[A-Za-z]\w*/replica:\d+/task:\d+/)(device:)?([A-Za-z_]\w*):(\d+?)"
    rb"(?:(?=" + _STAMP + rb")|(?![\w/:.-]))"
)
_LOG_PREFIX = re.compile(rb"(?:[IWEF] )?\S+\.cc:\d+")
_CLOSING = b" \t\"'`,\\"
_UNPLACED = b"(unspecified)"
# Words that come before a device in prose, and are no names of nodes.
_PROSE = re.compile(rb"(?i).*(?:error|warning)|(?:.*_)?devices?")


def is_common(line: bytes) -> bool:
    """Whether a line is one record in one of the forms of graphs, and nothing else.

    Most lines of any log are, and there are millions: this is quick, and says no where in doubt.
    """
    lead, bracket, text = line.rpartition(b"] ")
    node, _, tail = text.partition(b": ")
    return _typed_tail(node, tail) is not None and (not bracket or _is_prefix(lead))


def read_whole(text: bytes) -> Record:
    """The record of a line that is nothing else, its log prefix taken off."""
    node, _, tail = text.partition(b": ")
    typed = _typed_tail(node, tail)
    return Record(node.decode(), *typed) if typed else read(text)[0].record


def read(line: bytes) -> list[Reading]:
    """Every record on a line, from the left."""
    start = line.rfind(b"/job:")
    if start < 0:
        return _without_device(line)
    known = _whole_device(line[start:])
    if known is None or line.find(b"/job:", 0, start) >= 0:
        return list(_several(line))
    device, old = known
    words = _words(line[:start], old=old)
    return [_reading(words, device, alone=True)] if words else []


def _typed_tail(node: bytes, tail: bytes) -> tuple[str | None, str] | None:
    """Op and device of a record that is cut in two behind its node; None where it is none."""
    typed = _known_tail(tail)
    if typed is None or not node or node.translate(None, _NODE) or node[0] in b"-/>":
        return None
    return None if typed[0] is None and _PROSE.fullmatch(node) else typed


def _several(line: bytes) -> Iterator[Reading]:
    """The records of a line with more than one device, or with text behind it."""
    end = 0
    for match in _DEVICE.finditer(line):
        rest = line[match.end() :]
        old = match[2] is None and not rest.strip(_CLOSING)
        words = _words(line[end : match.start()], old=old)
        if words:
            yield _reading(words, _spelled(match), alone=not end and not rest)
            end = match.end()


def _without_device(line: bytes) -> list[Reading]:
    """The record of an op that got no device: ``node: (Op): `` and nothing behind it."""
    words = _words(line.removesuffix(_UNPLACED), old=False)
    if words is None or not (_is_clear(words.lead) and line.endswith((b" ", _UNPLACED))):
        return []
    return [_reading(words, "", alone=True)]


def _reading(words: _Words, device: str, *, alone: bool) -> Reading:
    lead, node, op = words
    record = Record(node and node.decode(), op and op.decode(errors="replace"), device)  # type: ignore[arg-type]
    logged = _is_logged(lead)
    return Reading(record, logged, alone and (not lead or (logged and _is_prefix(lead[:-2]))))


def _words(before: bytes, *, old: bool) -> _Words | None:
    """What a form finds in the text before a device; ``old`` where form A is possible."""
    return (
        _typed(before) or _eager(before) or _verbose(before) or (_untyped(before) if old else None)
    )


def _typed(before: bytes) -> _Words | None:
    """Forms B, C and B2."""
    if before[-3:] == b"): ":
        head, found, op = before[:-3].rpartition(b": (")
    elif before[-1:] == b")":
        head, found, op = before[:-1].rpartition(b": (")
    else:
        return None
    return _named(head, op) if found and _decoded(op) else None


def _eager(before: bytes) -> _Words | None:
    """Form D."""
    for ending in (b" in device ", b" on task "):
        if before.endswith(ending):
            lead, found, op = before[: -len(ending)].rpartition(b"Executing op ")
            return _Words(lead, None, op) if found and _RUN.fullmatch(op) else None
    return None


def _verbose(before: bytes) -> _Words | None:
    """Form V."""
    if not before.endswith(b") placed on: "):
        return None
    head, found, op = before[: -len(b") placed on: ")].rpartition(b"(")
    return _named(head, op) if found and _decoded(op) else None


def _untyped(before: bytes) -> _Words | None:
    """Form A: so plain that much prose looks like it, such as ``available devices: /job:…``."""
    if not before.endswith(b": "):
        return None
    words = _named(before[:-2], None)
    if words is None or not _is_clear(words.lead):
        return None
    prose = _PROSE.fullmatch(words.node or b"") and not _is_logged(words.lead)
    return None if prose else words


def _named(head: bytes, op: bytes | None) -> _Words | None:
    """The name of a node at the end of ``head``, after a blank or a sign that no name has."""
    node = head[head.rfind(b" ") + 1 :]
    if node.translate(None, _NODE):
        if b"/job:" in node:  # the torn end of another record
            return None
        node = node[len(node.rstrip(_NODE)) :]
    node = node.lstrip(b"-/>")
    lead = head[: len(head) - len(node)]
    if lead[-1:] == b"\\":  # the n of an escaped newline
        node = node[1:]
    elif lead[-1:] == b":" and node.isdigit():  # of the tensor w:0
        return None
    return _Words(lead, node, op) if node else None


def _is_clear(lead: bytes) -> bool:
    """Whether what comes before a record is no word of a sentence."""
    before = lead.rstrip()
    return not before[-1:].isalpha() or before.endswith((b"stdout F", b"stderr F"))


def _is_logged(lead: bytes) -> bool:
    return lead[-2:] == b"] " and _is_prefix(lead[lead.rfind(b" ", 0, -1) + 1 : -2])


@lru_cache(256)
def _is_prefix(lead: bytes) -> bool:
    return _LOG_PREFIX.fullmatch(lead) is not None


@lru_cache(4096)
def _decoded(op: bytes) -> str | None:
    """An op type or the name of a function; None where it is neither."""
    return op.decode() if _OP.fullmatch(op) else None


@lru_cache(4096)
def _known_tail(text: bytes) -> tuple[str | None, str] | None:
    """Op and device of what comes behind the name of a node: ``(Op): device``, ``device``."""
    op, bracket, name = text.rpartition(b")")
    device = _whole_device(name.removeprefix(b": ") if bracket else name)
    if device is None or (not bracket and not device[1]):
        return None
    kind = _decoded(op[1:]) if op[:1] == b"(" else None
    return (kind, device[0]) if kind or not bracket else None


@lru_cache(4096)
def _whole_device(text: bytes) -> tuple[str, bool] | None:
    """A device name in today's spelling, and whether it was written in the one before 1.4."""
    match = _DEVICE.fullmatch(text)
    return (_spelled(match), match[2] is None) if match else None


def _spelled(match: re.Match[bytes]) -> str:
    task, device, kind, index = (part or b"" for part in match.groups())
    kind = kind if device else kind.upper()
    return b"".join((task, b"device:", kind, b":", index)).decode()
