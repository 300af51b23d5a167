"""Writes the HTML page as one file, and packs columns of ops into short texts.

`page/assets/data.js` unpacks the columns.
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

# In this order: each script may use the previous ones.
_SCRIPTS = (
    *("words.js", "data.js", "counts.js", "state.js", "details.js", "boxes.js", "hosts.js"),
    *("cells.js", "lanes.js", "arrows.js", "findings.js", "timeline.js", "keys.js", "main.js"),
)
# Characters that could end the script element or a line of the script.
_ESCAPES = {each: f"\\u{ord(each):04x}" for each in ("<", ">", "&", "\u2028", "\u2029")}


def render_page(programs: Sequence[Mapping[str, Any]], next_step: str | None = None) -> str:
    """Returns the page of several programs.

    The content security policy of the page prevents a browser from loading anything, and from
    running any other script than the script of this package: names from a graph or a log are shown
    as text.

    Args:
        programs: the data of the programs from `program_data`, at least one.
        next_step: the next step for the user.
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
    # Marks are replaced in order, so that inserted text is not searched for marks.
    page = [_asset("page.html")]
    for mark, text in parts.items():
        before, after = page.pop().split(f"@{mark}@", 1)
        page += [before, text, after]
    return "".join(page)


def _overview(programs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The state and the number of findings of each rule, for each program."""
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
    """JSON for a script element, with control characters escaped."""
    text = json.dumps(_escape_controls(data), separators=(",", ":"), ensure_ascii=False)
    for character, escaped in _ESCAPES.items():  # str.translate takes 25 times as long
        text = text.replace(character, escaped)
    return text


def _escape_controls(data: Any) -> Any:
    """The data with characters escaped that are not printable, except line breaks."""
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
    """The hash of the text of an element in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LONGEST_SHARED = len(_DIGITS) ** 2 - 1


class Table(NamedTuple):
    """Distinct texts, and the index of the text for each occurrence."""

    texts: Sequence[str]
    numbers: Sequence[int]


def index_texts(texts: Iterable[str]) -> Table:
    """Returns the distinct texts in the order of their first occurrence, with indices."""
    seen: dict[str, int] = {}
    numbers = [seen.setdefault(text, len(seen)) for text in texts]
    return Table(list(seen), numbers)


def encode_runs(values: Iterable[int]) -> str:
    """Returns the run-length encoding: ``3*5,4`` for 3 3 3 3 3 4."""
    return ",".join(
        f"{value}*{times}" if times > 1 else str(value)
        for value, run in groupby(values)
        for times in [len(tuple(run))]
    )


def front_code(names: Iterable[str]) -> str:
    """Returns a line for each name: the length of the prefix of the previous name, and the rest.

    The length has two digits of base 36. Names must be printable, so they have no line breaks.
    """
    lines, before = [], ""
    for name in names:
        shared = _common_prefix_length(before, name)
        lines.append(f"{_DIGITS[shared // 36]}{_DIGITS[shared % 36]}{name[shared:]}")
        before = name
    return "\n".join(lines)


def _common_prefix_length(one: str, other: str) -> int:
    """The length of the common prefix, by binary search, since names may be long."""
    start, end = 0, min(len(one), len(other), _LONGEST_SHARED)
    while start < end:
        middle = (start + end + 1) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            end = middle - 1
    return start
