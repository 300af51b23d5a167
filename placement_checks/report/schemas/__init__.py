"""JSON Schema (draft 2020-12) of each command's document, ``COMMAND.json``, and of errors."""

from __future__ import annotations

from typing import Final

# The commands that print JSON; `error` is the output of a command that ends with an error.
NAMES: Final = ("verify", "place", "log", "diff", "time", "doctor", "error")


def schema(name: str) -> str:
    """The text of the schema of a command."""
    from importlib.resources import files  # imported late: rarely needed

    return files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
