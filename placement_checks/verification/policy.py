"""Which rules are checked, and with which parameters."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from placement_checks.core.errors import ConfigError, PlacementError, UsageError
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import RULES
from placement_checks.util.text import did_you_mean

Policy = Mapping[str, Mapping[str, Any]]


def rules_for(
    policies: Sequence[Policy],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> list[Rule]:
    """The rules to check, each with the parameters of the first policy that has them.

    Args:
        policies: ``{rule: {field: value}}``, the one that counts most first.
        only: names of rules; empty for all.
        without: names of rules to leave out.

    Raises:
        UsageError: there is no such rule.
    """
    for name in [*only, *without]:
        known_rule(name)
    chosen = [name for name in RULES if (not only or name in only) and name not in without]
    if not chosen:
        raise UsageError("", "no rule is left to check", "take away a --without")
    return [
        made(
            name, {k: v for policy in reversed(policies) for k, v in policy.get(name, {}).items()}
        )
        for name in chosen
    ]


def known_rule(name: str) -> type[Rule]:
    """The rule of that name.

    Raises:
        UsageError: there is none; the message offers the nearest.
    """
    if name in RULES:
        return RULES[name]
    cure = did_you_mean(name, RULES) or f"the rules are {', '.join(RULES)}"
    raise UsageError(f"rule '{name}'", "there is no such rule", cure)


def made(name: str, values: Mapping[str, Any]) -> Rule:
    """A rule with parameters; for a list of names a single one will do."""
    types = {each.name: str(each.type) for each in dataclasses.fields(RULES[name])}
    return RULES[name](**{field: _value(value, types[field]) for field, value in values.items()})


def policy_errors(policy: Policy, at: str = "") -> list[ConfigError]:
    """Everything that is wrong with a policy, one error a field; ``at`` says where it stands."""
    errors = []
    for name, values in policy.items():
        try:
            rule = known_rule(name)
        except UsageError as error:
            errors.append(ConfigError(f"{at}{name}", error.message, error.cure))
            continue
        if not isinstance(values, Mapping):
            errors.append(ConfigError(f"{at}{name}", "is no table of fields"))
            continue
        for field, value in values.items():
            errors += _field_errors(rule, field, value, f"{at}{name}.{field}")
    return errors


def parse_setting(text: str) -> tuple[str, str, Any]:
    """``RULE.FIELD=VALUE``; the value is TOML, or else the text as it stands.

    Raises:
        UsageError: it has another form.
    """
    path, equals, value = text.partition("=")
    rule, dot, field = path.strip().partition(".")
    if not (equals and dot):
        raise UsageError(
            f"--set {text}",
            "is not of the form RULE.FIELD=VALUE",
            "write it like --set variables-on-host.device=/gpu:0",
        )
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # no TOML, or such as nobody means
        parsed = value.strip()
    return rule, field, parsed


def _field_errors(rule: type[Rule], field: str, value: Any, at: str) -> Iterator[ConfigError]:
    fields = {each.name: each for each in dataclasses.fields(rule)}
    if field not in fields:
        known = f"its fields are {', '.join(fields)}" if fields else "it has no fields"
        cure = did_you_mean(field, fields) or known
        yield ConfigError(at, f"{rule.name} has no such field", cure)
        return
    wanted = _wanted(str(fields[field].type))
    if not _fits(value, wanted):
        yield ConfigError(at, f"{value!r} does not fit", f"give {wanted}")
        return
    try:
        made(rule.name, {field: value})
    except PlacementError as error:
        yield ConfigError(at, f"{error.object}: {error.message}", error.cure)


def _value(value: Any, wanted: str) -> Any:
    if isinstance(value, str) and wanted.startswith("tuple"):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _wanted(annotation: str) -> str:
    """What a field takes, in words, by its annotation."""
    if annotation.startswith("int"):
        return "a whole number"
    if annotation == "float":
        return "a number"
    if annotation.startswith("tuple[int"):
        return "a list of whole numbers, such as [3, 1]"
    if annotation.startswith("tuple[Mapping"):
        return "a list of tables, such as [{allow_growth = 1}]"
    return "a name or a list of names" if "tuple" in annotation else "a name"


def _fits(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return False
    if wanted.startswith("a list of whole numbers"):
        listed = isinstance(value, list | tuple)
        return listed and all(_fits(each, "a whole number") for each in value)
    if wanted.startswith("a list of tables"):
        listed = isinstance(value, list | tuple)
        return listed and all(isinstance(each, Mapping) for each in value)
    if wanted.endswith("number"):
        return isinstance(value, int if "whole" in wanted else int | float) and _is_finite(value)
    if isinstance(value, list | tuple) and "list" in wanted:
        return all(isinstance(each, str) for each in value)
    return isinstance(value, str)


def _is_finite(value: float) -> bool:
    """Whether a number is one that a float can be; TOML writes whole numbers of any length."""
    return abs(value) <= sys.float_info.max
