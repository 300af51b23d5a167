"""The assertions of the rules: the module of the package that has them, and its public names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from textwrap import indent, wrap

from placement_checks.rules.base import Rule
from placement_checks.rules.registry import NAMES, RULES

MODULE = "placement_checks/testing/assertions.py"
PACKAGE = "placement_checks/__init__.py"
_OWN = [RULES[name] for name in NAMES]  # without rules of installed plugins
_WIDTH = 99
_HEAD = '''\
"""An assertion for each rule: `assert_no_fallback` asserts the rule ``no-fallback``.

An assertion takes the return value of `place`, or a placement alone. Assertions on runs take a
program and its reference: see `assert_gradients_equal`. The other parameters are the fields of
the rule, which ``placement-checks explain no-fallback`` describes. If a field is None, the value
of the program's policy applies, or else the default of the rule.

An assertion raises an `AssertionError` if the rule is broken or could not be checked, and a
`ConfigError` if a field has an invalid value. An assertion on a run raises an `InputError` if a
program or the batch function fails.

This file is written by ``python -m tools.generate``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.program import Batch, TargetLike
from placement_checks.testing.checking import check_rule, check_run

__tracebackhide__ = True  # of all functions below, in pytest
'''
_RUN = (
    "`towers` and `single` are the functions that build the two programs, with equal names of "
    "variables, or targets that name these functions. `batch(rng, n)` returns arrays of n rows by "
    "input name; a target or a saved case also works. Without it, rows are generated. `gpus` is "
    "the number of GPUs that the towers are built for."
)


def assertion_name(rule: type[Rule]) -> str:
    """The name of a rule's assertion: `assert_no_fallback` for no-fallback."""
    return f"assert_{rule.name.replace('-', '_')}"


def field_types(rule: type[Rule]) -> Mapping[str, str]:
    """The types of an assertion's parameters: a sequence for a tuple, or a single name."""
    return {field.name: _accepted(str(field.type).replace("'", '"')) for field in fields(rule)}


def _accepted(field: str) -> str:
    kinds = [
        re.sub(r"^tuple\[(.*), \.\.\.\]$", r"Sequence[\1]", each) for each in field.split(" | ")
    ]
    names = ["str"] if "Sequence[str]" in kinds and "str" not in kinds else []
    return " | ".join([*names, *(each for each in kinds if each != "None"), "None"])


def module() -> str:
    """The text of the module `placement_checks.testing.assertions`."""
    return "\n\n".join((_HEAD, *(f"{_assertion(rule)}\n" for rule in _OWN)))


def _assertion(rule: type[Rule]) -> str:
    runs = rule.kind == "executed"
    given = ["evidence: Evidence | Placement"]
    if runs:
        given = ["towers: TargetLike", "single: TargetLike", "batch: Batch = None", "*"]
        given.append("gpus: int = 2")
    given += [f"{name}: {kind} = None" for name, kind in field_types(rule).items()]
    passed = [f'"{rule.name}"', "towers", "single", "batch", "gpus"]
    if not runs:
        passed = ["evidence", passed[0]]
    passed += [f"{name}={name}" for name in field_types(rule)]
    return "\n".join(
        (
            _call(f"def {assertion_name(rule)}", given, " -> None:"),
            indent("\n".join(_docstring(rule)), "    "),
            indent(_call("check_run" if runs else "check_rule", passed, width=_WIDTH - 4), "    "),
        )
    )


def _call(name: str, arguments: list[str], end: str = "", width: int = _WIDTH) -> str:
    """A call on one line, with all arguments on one line, or with a line for each argument."""
    joined = ", ".join(arguments)
    if len(line := f"{name}({joined}){end}") <= width:
        return line
    lines = [joined] if len(joined) + 4 <= width else [f"{argument}," for argument in arguments]
    return "\n    ".join((f"{name}(", *lines)) + f"\n){end}"


def _docstring(rule: type[Rule]) -> Iterator[str]:
    condition = " ".join(rule.explanation().partition("\n\n")[0].split())
    first = f'"""Assert `{rule.name}`: {condition[0].lower()}{condition[1:]}'
    paragraphs = [first, _RUN] if rule.kind == "executed" else [first]
    if len(paragraphs) == 1 and len(first) <= _WIDTH - 7:
        yield f'{first}"""'
        return
    for paragraph in paragraphs:
        yield from ("", *wrap(paragraph, _WIDTH - 7))[paragraph is first :]
    yield '"""'


def public_names(text: str) -> str:
    """The text of the package's module, with the assertions of all rules."""
    own = sorted(map(assertion_name, _OWN))
    imports = "".join(f"        {name},\n" for name in own)
    home = "    from placement_checks.testing.assertions import (\n"
    text = re.sub(rf"{re.escape(home)}[^)]*", lambda _: f"{home}{imports}    ", text)
    names = sorted({*own, "assert_rules", "assert_training_equal"})
    exported = "".join(f'    "{name}",\n' for name in names)
    return re.sub(r'(?<=,\n)(?:    "assert_\w+",\n)+', exported, text, count=1)
