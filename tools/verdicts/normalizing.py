"""Removes from the document of ``verify`` what differs between two runs of the same program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

# The figures of these rules are measured in floating point or in seconds.
_MEASURED = ("gradients-equal", "weights-equal", "towers-overlap")
_TIMED = "towers-overlap"
_DECIMAL = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+")
_SECONDS = re.compile(r"\b\d+(?:\.\d+)? (?:CPU )?(s|ms|µs|seconds)\b")
_PERCENT = re.compile(r"\b\d+(?:\.\d+)?%")
_SAVED = re.compile(r"-[0-9a-f]{8}\.npz")
# Frames below the program in the process that judges it. With the command, there are none.
_BELOW = "tests/support/forked.py:"
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def normalized(document: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """A document without versions, times, absolute paths and exact results of runs.

    Args:
        document: the document of ``verify``.
        paths: texts that replace paths of this machine. The first match applies.
    """

    def text(value: str) -> str:
        for path, replacement in paths.items():
            value = value.replace(path, replacement)
        value = _ADDRESS.sub("0x…", _SAVED.sub("-….npz", value))
        return _SECONDS.sub(r"… \1", value)

    result: dict[str, Any] = _mapped(
        {key: value for key, value in document.items() if key != "versions"}, text
    )
    for program in result.get("programs", []):
        program["rules"] = [_of_rule(rule) for rule in program["rules"]]
        for finding in (each for rule in program["rules"] for each in rule["findings"]):
            finding["frames"] = [frame for frame in finding["frames"] if _BELOW not in frame]
    return result


def _of_rule(rule: dict[str, Any]) -> dict[str, Any]:
    if rule["rule"] not in _MEASURED:
        return rule
    is_timed = rule["rule"] == _TIMED

    def text(value: str) -> str:
        value = _DECIMAL.sub(lambda match: _rounded(float(match[0])), value)
        return _PERCENT.sub("…%", value) if is_timed else value

    mapped: dict[str, Any] = _mapped(rule, text, lambda number: float(_rounded(number)))
    if is_timed:
        mapped.pop("figures", None)
    return mapped


def _rounded(value: float) -> str:
    return f"{value:.0e}"


def _mapped(
    value: Any, text: Callable[[str], str], number: Callable[[float], float] = float
) -> Any:
    """JSON with all texts and floating-point numbers replaced."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list):
        return [_mapped(each, text, number) for each in value]
    if isinstance(value, dict):
        return {key: _mapped(each, text, number) for key, each in value.items()}
    return value
