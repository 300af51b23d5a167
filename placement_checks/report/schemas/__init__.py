"""The JSON documents as JSON Schema (draft 2020-12): ``COMMAND.json`` for each, and errors."""

from __future__ import annotations

from typing import Final

# Of the commands that print one, and of what any of them prints where an error ends it.
NAMES: Final = ("verify", "place", "log", "diff", "time", "error")


def schema(name: str) -> str:
    """The schema of that name, as text."""
    from importlib.resources import files  # not before somebody asks

    return files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
