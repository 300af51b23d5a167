"""``python -m tools.generate`` writes the generated files.

Run it after a change of a rule. The files are the assertions, the public names for type checkers,
and the pages of `reference`.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import placement_checks
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import NAMES, RULES
from placement_checks.testing.assertion_factory import assertion_name, make_assertion

ROOT = Path(__file__).parents[1]
OWN = {name: RULES[name] for name in NAMES}  # without rules of installed plugins
COMMAND = "python -m tools.generate"
_WIDTH = 99  # line length, as in ruff's settings
# The names in annotations of assertions, in the two groups of imports.
_ASSERTION_IMPORTS: Sequence[Mapping[str, Sequence[str]]] = (
    {"collections.abc": ["Mapping", "Sequence"], "typing": ["Any", "Literal"]},
    {
        "placement_checks.core.evidence": ["Evidence"],
        "placement_checks.core.placement": ["Placement"],
        "placement_checks.core.program": ["Batch", "TargetLike"],
    },
)


def contents() -> Mapping[str, Callable[[], str]]:
    """The content of each generated file, by path."""
    from reference import pages  # it imports this module

    return {
        **pages(),
        "placement_checks/__init__.pyi": _stub,
        "placement_checks/testing/assertions.pyi": _assertions,
    }


def _assertions() -> str:
    imports = "\n\n".join(
        "\n".join(_import(module, names) for module, names in group.items())
        for group in _ASSERTION_IMPORTS
    )
    functions = "\n".join(_assertion(rule) for rule in OWN.values())
    return f'''"""An assertion for each rule, as type checkers read them. Written by {COMMAND}."""

{imports}

{functions}'''


def _assertion(rule: type[Rule]) -> str:
    """The stub of an assertion; its docstring is the first sentence of the rule's."""
    signature = inspect.signature(make_assertion(rule, ""))
    lines = []
    is_keyword = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            lines.append("    *,")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    sentence = rule.explanation().partition("\n\n")[0].replace("\n", " ")
    docstring = textwrap.fill(f'"""{sentence}"""', _WIDTH - 4)
    if "\n" in docstring:
        docstring = docstring.removesuffix('"""') + '\n"""'
    docstring = textwrap.indent(docstring, "    ")
    return "\n".join((f"def {assertion_name(rule)}(", *lines, ") -> None:", docstring, ""))


def _stub() -> str:
    homes: Mapping[str, str] = vars(placement_checks)["_HOMES"]
    names: dict[str, list[str]] = defaultdict(list)
    for name, home in homes.items():
        names[f"placement_checks.{home}"].append(name)
    imports = "\n".join(_import(module, names[module]) for module in sorted(names))
    listed = "\n".join(f'    "{name}",' for name in sorted(homes, key=_order))
    return f'''"""The public names, as type checkers read them. Written by {COMMAND}."""

{imports}

__all__ = [
{listed}
]

__version__: str
'''


def _import(module: str, names: Iterable[str]) -> str:
    found = sorted(names, key=_order)
    line = f"from {module} import {', '.join(found)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join((f"from {module} import (", *(f"    {name}," for name in found), ")"))


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, functions, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def main() -> None:
    """Write the files."""
    sys.path.insert(0, str(Path(__file__).parent))
    for path, content in contents().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
