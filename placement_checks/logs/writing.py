"""Writes records as TensorFlow does, so that what was read can be written and read again."""

from __future__ import annotations

import re

from placement_checks.logs.forms import Record

_KIND = re.compile(r"/device:(\w+)(?=:\d+$)")


def text_of(record: Record) -> str:
    """A record as one line: in form C, or A where it has no op type and D where it has no node."""
    node, op, device = record
    if node is None:
        return f"Executing op {op} in device {device}"
    if op is None:  # only known in the spelling that was in use while this form was
        return f"{node}: {_KIND.sub(lambda kind: '/' + kind[1].lower(), device)}"
    return f"{node}: ({op}): {device}"


def spellings(record: Record) -> tuple[str, str]:
    """A record of a graph as stdout has had it, with the device's name of today and until 1.3."""
    text = text_of(record)
    return text, _KIND.sub(lambda kind: "/" + kind[1].lower(), text)
