"""The option --format, which is the same for all commands that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def format_option(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option, of the formats of a command; the first is the one by default."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="How the report is written.",
    )
