"""The page: one file with its style, its script and what they show, which asks for no other.

Columns of ops as short texts: `page/data.js` reads them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any, NamedTuple

from placement_checks.util.text import printable

# In this order; each may use what stands before it.
_SCRIPTS = (
    *("words.js", "data.js", "counts.js", "state.js", "details.js", "boxes.js", "hosts.js"),
    *("cells.js", "lanes.js", "arrows.js", "findings.js", "timeline.js", "keys.js", "main.js"),
)
# What would end the element that the text stands in, or a line of a script.
_ESCAPES = {letter: f"\\u{ord(letter):04x}" for letter in ("<", ">", "&", "\u2028", "\u2029")}


def render_page(programs: Sequence[Mapping[str, Any]], next_step: str | None = None) -> str:
    """The page of some programs, as `model.program_data` has them, at least one.

    Its policy lets a browser load nothing, and run the script of this package alone: what a graph
    or a log says is data, and shown as text.

    Args:
        programs: in the order of the report.
        next_step: what to do next, in a sentence.
    """
    style, script = _asset("picture.css"), '"use strict";\n' + "\n".join(map(_asset, _SCRIPTS))
    data = "\n".join(
        f'<script type="application/json" class="program">{_json(each)}</script>'
        for each in programs
    )
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'",
        "title": escape(printable(programs[0]["program"])),
        "style": style,
        "next": escape(printable(next_step or "")),
        "overview": _json(_overview(programs)),
        "data": data,
        "script": script,
    }
    # Each mark once, in its place: what is put in is not searched for others.
    page = [_asset("page.html")]
    for mark, text in parts.items():
        before, after = page.pop().split(f"@{mark}@", 1)
        page += [before, text, after]
    return "".join(page)


def _overview(programs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of several programs the state of each rule, and how many findings it has."""
    names = dict.fromkeys(rule["rule"] for each in programs for rule in each["rules"])
    states = [
        {rule["rule"]: [rule["state"], rule["findings"]] for rule in each["rules"]}
        for each in programs
    ]
    return {
        "rules": list(names),
        "programs": [
            {"program": each["program"], "cells": [of.get(name, ["", 0]) for name in names]}
            for each, of in zip(programs, states, strict=True)
        ],
    }


def _json(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element, and that shows control characters."""
    text = json.dumps(_escape_controls(data), separators=(",", ":"), ensure_ascii=False)
    for letter, escaped in _ESCAPES.items():  # str.translate takes 25 times as long
        text = text.replace(letter, escaped)
    return text


def _escape_controls(data: Any) -> Any:
    """The data with what is not printable in its texts in escapes, but for the ends of lines."""
    if isinstance(data, str):
        return data if data.isprintable() else "\n".join(map(printable, data.split("\n")))
    if isinstance(data, Mapping):
        return {key: _escape_controls(value) for key, value in data.items()}
    if isinstance(data, Sequence):
        return [_escape_controls(value) for value in data]
    return data


@cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a browser computes it of the text of an element."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LONGEST_SHARED = len(_DIGITS) ** 2 - 1


class Table(NamedTuple):
    """Texts that occur again and again: each once, and its number wherever it occurs."""

    texts: Sequence[str]
    numbers: Sequence[int]


def index_texts(texts: Iterable[str]) -> Table:
    """The texts in the order in which they first occur."""
    seen: dict[str, int] = {}
    numbers = [seen.setdefault(text, len(seen)) for text in texts]
    return Table(list(seen), numbers)


def encode_runs(values: Iterable[int]) -> str:
    """``3*5,4`` for 3 3 3 3 3 4."""
    return ",".join(
        f"{value}*{times}" if times > 1 else str(value)
        for value, run in groupby(values)
        for times in [len(tuple(run))]
    )


def front_code(names: Iterable[str]) -> str:
    """A line a name: how many letters it shares with the one before, and the rest.

    The number is of two digits of base 36. A name has no line break, as `printable` sees to.
    """
    lines, before = [], ""
    for name in names:
        shared = _common_prefix_length(before, name)
        lines.append(f"{_DIGITS[shared // 36]}{_DIGITS[shared % 36]}{name[shared:]}")
        before = name
    return "\n".join(lines)


def _common_prefix_length(one: str, other: str) -> int:
    """How many letters two names begin with alike; by halves, as they may be long."""
    alike, end = 0, min(len(one), len(other), _LONGEST_SHARED)
    while alike < end:
        middle = (alike + end + 1) // 2
        if one[alike:middle] == other[alike:middle]:
            alike = middle
        else:
            end = middle - 1
    return alike
