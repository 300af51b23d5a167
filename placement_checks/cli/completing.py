"""Arguments for which a shell offers what there is; they are texts, and checked later."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from placement_checks.rules.registry import RULES


class _File(StringParamType):
    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, text: str
    ) -> list[CompletionItem]:
        """What the shell knows of files."""
        return [CompletionItem(text, type="file")]


class _Rule(StringParamType):
    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, text: str
    ) -> list[CompletionItem]:
        """The names that begin with a text."""
        return [CompletionItem(name) for name in RULES if name.startswith(text)]


FILE = _File()
RULE = _Rule()
