"""Writes the HTML page as one file. `page/assets/data.js` reads its data."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from placement_checks.core.results import NO_STEP, NextStep
from placement_checks.util.text import printable

# In this order: each script may use the previous ones.
_SCRIPTS = (
    *("words.js", "data.js", "counts.js", "state.js", "details.js", "boxes.js", "hosts.js"),
    *("cells.js", "lanes.js", "arrows.js", "findings.js", "timeline.js", "keys.js", "main.js"),
)


def render_page(programs: Sequence[Mapping[str, Any]], next_step: NextStep = NO_STEP) -> str:
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
        f'<script type="text/plain" class="program">{_compressed(each)}</script>'
        for each in programs
    )
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'",
        "title": escape(printable(programs[0]["program"])),
        "style": style,
        "next": "\n".join(escape(printable(line)) for line in (next_step, *next_step.to_paste)),
        "overview": _compressed(_overview(programs)),
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


def _compressed(data: Mapping[str, Any]) -> str:
    """JSON, compressed by gzip, as base64; the same for the same data."""
    packed = gzip.compress(msgspec.json.encode(_escape_controls(data)), mtime=0)
    return base64.b64encode(packed).decode()


def _escape_controls(data: Any) -> Any:
    """The data with characters escaped that are not printable, except line breaks."""
    if isinstance(data, str):
        return "\n".join(map(printable, data.split("\n")))
    if isinstance(data, Mapping):
        return {key: _escape_controls(value) for key, value in data.items()}
    if isinstance(data, Sequence):
        return [value if type(value) is int else _escape_controls(value) for value in data]
    return data


@cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash of the text of an element in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
