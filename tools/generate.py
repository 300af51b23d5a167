"""Writes what follows from the code: ``python -m tools.generate``, after a rule has changed.

The assertions, the public names for type checkers, and the pages that `reference` makes.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path

import placement_checks
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import NAMES, RULES

ROOT = Path(__file__).parents[1]
OWN = {name: RULES[name] for name in NAMES}  # and not those of whatever is installed beside it
COMMAND = "python -m tools.generate"
_WIDTH = 99  # of a line, as ruff is told
_EVIDENCE = "Evidence | Placement"  # what an assertion is given to look at
# What the assertions' annotations are made of.
_HOMES = {
    "Any": "typing",
    "Batch": "placement_checks.core.program",
    "Evidence": "placement_checks.core.evidence",
    "Literal": "typing",
    "Mapping": "collections.abc",
    "Placement": "placement_checks.core.placement",
    "Sequence": "collections.abc",
    "Target": "placement_checks.core.program",
    "check_rule": "placement_checks.testing.checking",
    "check_run": "placement_checks.testing.checking",
}
# What is said of programs that an assertion runs.
_RUN = """ by running a program beside the same for one GPU.

`towers` and `single` are the functions that build the two, with the same names of variables,
or targets that name them. `batch(rng, n)` gives arrays of n rows by the names of the inputs;
a target or a saved case will do as well, and without it rows are made up. `gpus` is how many
the towers are built for."""


def contents() -> Mapping[str, Callable[[], str]]:
    """What each generated file should hold, by its path."""
    from reference import pages  # which imports this module

    return {
        **pages(),
        "placement_checks/__init__.pyi": _stub,
        "placement_checks/testing/assertions.py": _assertions,
    }


def _assertions() -> str:
    body = "\n\n\n".join(map(_assertion, OWN.values()))
    return f'''"""An assertion for each rule. Written by {COMMAND}."""

from __future__ import annotations

{_imports(body)}


{body}
'''


def _assertion(rule: type[Rule]) -> str:
    given = (
        ["towers: Target", "single: Target", "batch: Batch = None", "*", "gpus: int = 2"]
        if runs(rule)
        else [f"evidence: {_EVIDENCE}"]
    )
    accepts = [
        *given,
        *(f"{field.name}: {accepted(field)} | None = None" for field in parameters(rule)),
    ]
    passed = [f"{field.name}={field.name}" for field in parameters(rule)]
    call = (
        _call("check_run", f'"{rule.name}"', "towers", "single", "batch", "gpus", *passed)
        if runs(rule)
        else _call("check_rule", "evidence", f'"{rule.name}"', *passed)
    )
    headline = f"Assert `{rule.name}`{_RUN if runs(rule) else '.'}"
    return "\n".join(
        (
            f"def {assertion_of(rule)}(",
            *(f"    {parameter}," for parameter in accepts),
            ") -> None:",
            _indented(f'"""{headline}\n\n{_help(rule)}"""'),
            "    __tracebackhide__ = True",
            call,
        )
    )


def _help(rule: type[Rule]) -> str:
    text = rule.explanation()
    assert "\\" not in text
    assert '"""' not in text
    own = "Fields that are not given are those of the program's policy, else the rule's own."
    return f"{text}\n\n{own}\n" if parameters(rule) else f"{text}\n"


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


def runs(rule: type[Rule]) -> bool:
    """Whether an assertion runs a program; the others look at what `place` made."""
    return rule.kind == "executed"


def parameters(rule: type[Rule]) -> tuple[Field[object], ...]:
    return fields(rule)


def accepted(field: Field[object]) -> str:
    """What a call may give for a field: for a list of names a single one will do."""
    kinds = [
        re.sub(r"^tuple\[(.*), \.\.\.\]$", r"Sequence[\1]", kind)
        for kind in str(field.type).replace("'", '"').split(" | ")
        if kind != "None"
    ]
    if "Sequence[str]" in kinds:
        kinds = ["str", *(kind for kind in kinds if kind != "str")]
    return " | ".join(kinds)


def assertion_of(rule: type[Rule]) -> str:
    return f"assert_{rule.name.replace('-', '_')}"


def _call(function: str, *arguments: str) -> str:
    line = f"    {function}({', '.join(arguments)})"
    if len(line) <= _WIDTH:
        return line
    return "\n".join(
        (f"    {function}(", *(f"        {argument}," for argument in arguments), "    )")
    )


def _imports(code: str) -> str:
    """The imports of the names that a module uses, outside its docstrings."""
    words = set(re.findall(r"\w+", re.sub(r'""".*?"""', "", code, flags=re.DOTALL)))
    used: dict[str, list[str]] = defaultdict(list)
    for name in words & _HOMES.keys():
        used[_HOMES[name]].append(name)
    lines = [_import(module, used[module]) for module in sorted(used)]
    own = [line for line in lines if line.startswith("from placement_checks.")]
    return "\n".join((*(line for line in lines if line not in own), "", *own))


def _import(module: str, names: Iterable[str]) -> str:
    found = sorted(names, key=_order)
    line = f"from {module} import {', '.join(found)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join((f"from {module} import (", *(f"    {name}," for name in found), ")"))


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, functions, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def main() -> None:
    """Write the files."""
    sys.path.insert(0, str(Path(__file__).parent))
    for path, content in contents().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
