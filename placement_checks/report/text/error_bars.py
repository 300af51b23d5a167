"""Draws the differences between variables of towers and of the reference as bars of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

_MAX_SHOWN = 8  # variables
_WIDTH = 24
_DECADES = 9  # a difference as large as the values is some 10^7 eps in float32
_STYLES = {"equal": "green", "noise": "dim", "too-coarse": "yellow", "differs": "bold red"}


def draw_error_bars(figures: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yields a line for each of the worst variables: ratio, error in eps, and a bar.

    The bars have a logarithmic scale. The mark in a bar is the limit of the error.
    """
    worst = sorted(figures, key=_severity, reverse=True)
    shown = worst[:_MAX_SHOWN]
    width = max(len(figure["variable"]) for figure in shown)
    yield Text(f"  {'variable':<{width}}       ratio  error, eps", "dim")
    for figure in shown:
        style = _STYLES[figure["state"]]
        ratio = "-" if figure["ratio"] is None else f"{figure['ratio']:.4g}"
        yield Text.assemble(
            f"  {figure['variable']:<{width}}  {ratio:>10}  {_number(_error(figure)):>10}  ",
            (_bar(figure), style),
            ("  noise" if figure["state"] == "noise" else "", style),
        )
    if worst[_MAX_SHOWN:]:
        yield Text(f"  and {len(worst) - _MAX_SHOWN} more, see --format json", "dim")


def _severity(figure: Mapping[str, Any]) -> tuple[bool, float]:
    return figure["state"] == "differs", _error(figure)


def _bar(figure: Mapping[str, Any]) -> str:
    length, limit = _column(_error(figure)), min(_WIDTH - 1, _column(figure["limit"] or 0.0))
    return "".join(
        "┃" if place == limit else "━" if place < length else " " for place in range(_WIDTH)
    )


def _column(error: float) -> int:
    decades = math.log10(1 + error) if math.isfinite(error) else _DECADES
    return min(_WIDTH, round(_WIDTH * decades / _DECADES))


def _error(figure: Mapping[str, Any]) -> float:
    return math.inf if figure["error"] is None else float(figure["error"])


def _number(error: float) -> str:
    if math.isinf(error):
        return "-"
    return f"{error:.1f}" if error < 1000 else f"{error:.1e}"
