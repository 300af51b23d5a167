"""A report of times as one HTML page: what the terminal shows, and pictures below it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from placement_checks.util.printable import printable

_WIDTH = 110
# Of the page's own colours: foreground, background, and the eight of a terminal.
_THEME = TerminalTheme(
    (255, 255, 255),
    (32, 36, 41),
    [
        (32, 36, 41), (178, 34, 34), (36, 120, 60), (150, 100, 0),
        (30, 90, 160), (130, 60, 140), (20, 115, 130), (110, 116, 122),
    ],
)  # fmt: skip
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>@title@</title>
<style>
{stylesheet}
body {{ margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: {foreground};
  background: {background}; font-family: system-ui, sans-serif; }}
pre {{ white-space: pre-wrap; line-height: 1.45; font-size: 0.85rem; }}
figure {{ margin: 2.5rem 0; }}
figcaption {{ margin-bottom: 0.75rem; }}
svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
<pre>{code}</pre>
@pictures@
</body>
</html>
"""


class Picture(NamedTuple):
    """An SVG, and what stands above it."""

    svg: str
    caption: str


def page(title: str, write: Callable[[Console], None], pictures: Sequence[Picture]) -> str:
    """The page of a report.

    Args:
        title: of the page.
        write: writes the report to a console.
        pictures: what is shown below it.
    """
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, file=nowhere, width=_WIDTH, force_terminal=True)
        write(console)
        html = console.export_html(theme=_THEME, code_format=_PAGE)
    figures = "\n".join(
        f"<figure><figcaption>{shown(picture.caption)}</figcaption>\n{picture.svg}\n</figure>"
        for picture in pictures
    )
    # The first and the last of these marks are the template's; others may be text of the report.
    above, _, below = html.replace("@title@", shown(title), 1).rpartition("@pictures@")
    return above + figures + below


def shown(text: str) -> str:
    """A text, escaped for HTML and with its control characters visible."""
    return escape(printable(text))
