"""Writes what follows from the rules: ``python -m tests.generate``, after a rule has changed.

The assertions, the public names for type checkers, the README's table, and docs/rules.md.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path

import placement_checks
from placement_checks.rules.base import Rule
from placement_checks.rules.examples import example
from placement_checks.rules.registry import NAMES, RULES

ROOT = Path(__file__).parents[1]
OWN = {name: RULES[name] for name in NAMES}  # and not those of whatever is installed beside it
COMMAND = "python -m tests.generate"
_WIDTH = 99  # of a line, as ruff is told
_EVIDENCE = "Evidence | Placement"  # what an assertion is given to look at
_MARKS = (f"<!-- written by {COMMAND} -->", "<!-- until here -->")
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
    "check_run": "placement_checks.testing.runs",
}
# What is said of programs that an assertion runs.
_RUN = """ by running a program beside the same for one GPU.

`towers` and `single` are the functions that build the two, with the same names of variables,
or targets that name them. `batch(rng, n)` gives arrays of n rows by the names of the inputs;
a target or a saved case will do as well, and without it rows are made up. `gpus` is how many
the towers are built for."""


def contents() -> Mapping[str, Callable[[], str]]:
    """What each generated file should hold, by its path."""
    return {
        "README.md": _readme,
        "docs/rules.md": _rules_page,
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
        if _runs(rule)
        else [f"evidence: {_EVIDENCE}"]
    )
    parameters = [
        *given,
        *(f"{field.name}: {_accepted(field)} | None = None" for field in _of(rule)),
    ]
    passed = [f"{field.name}={field.name}" for field in _of(rule)]
    call = (
        _call("check_run", f'"{rule.name}"', "towers", "single", "batch", "gpus", *passed)
        if _runs(rule)
        else _call("check_rule", "evidence", f'"{rule.name}"', *passed)
    )
    headline = f"Assert `{rule.name}`{_RUN if _runs(rule) else '.'}"
    return "\n".join(
        (
            f"def {_function(rule)}(",
            *(f"    {parameter}," for parameter in parameters),
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
    return f"{text}\n\n{own}\n" if _of(rule) else f"{text}\n"


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


def _readme() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, begin, rest = text.partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    assert begin
    assert end
    rows = "".join(
        _row(f"[`{name}`](docs/rules.md#{name})", _condition(rule)) for name, rule in OWN.items()
    )
    return f"{before}{begin}\n{_row('rule', 'holds when')}|---|---|\n{rows}{end}{after}"


def _condition(rule: type[Rule]) -> str:
    """The first sentence, as the end of another."""
    sentence = rule.explanation().splitlines()[0].removesuffix(".")
    return sentence[0].lower() + sentence[1:]


def _rules_page() -> str:
    sections = "\n".join(map(_section, OWN.values()))
    return f"""<!-- written by {COMMAND} -->
# The rules

As `placement-checks explain RULE` and the assertions' `help()` have them. A field is set by the
program's policy, in the configuration (`[tool.placement_checks.policy.RULE]`), by
`--set RULE.FIELD=VALUE`, or as an argument of the assertion. A name, where a field takes a list of
them, does as well.

Each has a program that breaks it, by the lines with `-`, and keeps it with those with `+` instead,
for `import tensorflow as tf; tf1 = tf.compat.v1`.

{sections}"""


def _section(rule: type[Rule]) -> str:
    wanted = "towers, single, batch, gpus=2" if _runs(rule) else "evidence"
    call = (
        f"`{_function(rule)}({', '.join((wanted, *(f'{field.name}=…' for field in _of(rule))))})`"
    )
    table = "".join(
        _row(f"`{field.name}`", f"`{_accepted(field)}`", f"`{field.default!r}`")
        for field in _of(rule)
    )
    head = f"\n{_row('field', 'takes', 'default')}|---|---|---|\n" if table else ""
    text = inspect.cleandoc(rule.__doc__ or "")
    diff = "\n".join(("```diff", *example(rule.name), "```"))
    return f"## {rule.name}\n\n{_markdown(text)}\n\n{diff}\n\n{call}\n{head}{table}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _markdown(text: str) -> str:
    """The text, in which nothing but quoted code has a meaning."""
    quoted = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in quoted
    )


def _runs(rule: type[Rule]) -> bool:
    """Whether an assertion runs a program; the others look at what `place` made."""
    return rule.kind == "executed"


def _of(rule: type[Rule]) -> tuple[Field[object], ...]:
    return fields(rule)


def _accepted(field: Field[object]) -> str:
    """What a call may give for a field: for a list of names a single one will do."""
    kinds = [
        re.sub(r"^tuple\[(.*), \.\.\.\]$", r"Sequence[\1]", kind)
        for kind in str(field.type).replace("'", '"').split(" | ")
        if kind != "None"
    ]
    if "Sequence[str]" in kinds:
        kinds = ["str", *(kind for kind in kinds if kind != "str")]
    return " | ".join(kinds)


def _function(rule: type[Rule]) -> str:
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
    for path, content in contents().items():
        (ROOT / path).write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
