"""Reads which rules the programs of fixtures/ break, and generates the table of its README."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from placement_checks.rules.registry import NAMES

_FIXTURES = Path(__file__).parents[1] / "fixtures"
# A sentence in the docstring of a program: the rules, and their objects.
_BREAKS = re.compile(r"Breaks ([a-z-]+(?:(?:, | and )[a-z-]+)*)(?:: (.*?))?\.(?!\S)", re.DOTALL)


def broken_rules(file: Path) -> Mapping[str, Mapping[str, str]]:
    """Return the functions of a file whose docstring says which rules they break.

    A docstring says ``Breaks one-update: step.`` Each rule has its objects, or ``""``.
    """
    functions = (
        each
        for each in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef)
    )
    found = {
        each.name: {
            rule: objects
            for rules, objects in _BREAKS.findall(ast.get_docstring(each) or "")
            for rule in re.split(", | and ", rules)
        }
        for each in functions
    }
    return {name: rules for name, rules in found.items() if rules}


def fixture_table() -> str:
    """A table of rules, each with the programs of fixtures/ that break it."""
    programs: dict[str, list[str]] = defaultdict(list)
    for file in sorted((_FIXTURES / "defects").rglob("*.py")):
        path = file.relative_to(_FIXTURES)
        for name, rules in broken_rules(file).items():
            for rule in rules:
                programs[rule].append(f"`{path}:{name}`".replace(":build_towers", ""))
    rows = "\n".join(
        f"| {rule} | {', '.join(programs[rule]) or '*only programs in tests*'} |" for rule in NAMES
    )
    return f"| rule | programs that break it |\n|---|---|\n{rows}\n"
