"""Which rules are checked, and with which parameters."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from placement_checks.core.errors import ConfigError, UsageError
from placement_checks.rules.base import Rule
from placement_checks.rules.installed import Unloaded
from placement_checks.rules.registry import RULES
from placement_checks.util.text import did_you_mean
from placement_checks.verification.fields import collecting, converted

Policy = Mapping[str, Mapping[str, Any]]


def rules_for(
    policies: Sequence[Policy],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> list[Rule]:
    """The rules to check, each with the parameters of the first policy that has them.

    Args:
        policies: ``{rule: {field: value}}``; where two name the same field, the first counts.
        only: names of rules; empty for all.
        without: names of rules to leave out.

    Raises:
        UsageError: a rule does not exist, or none is left.
    """
    for name in [*only, *without]:
        rule_named(name)
    names = [name for name in RULES if (not only or name in only) and name not in without]
    if not names:
        raise UsageError("", "no rule is left to check", "leave out fewer of them (--without)")
    return [
        make_rule(
            name, {k: v for policy in reversed(policies) for k, v in policy.get(name, {}).items()}
        )
        for name in names
    ]


def rule_named(name: str) -> type[Rule]:
    """The rule of that name.

    Raises:
        UsageError: it does not exist; the message offers the nearest.
    """
    if name in RULES:
        return RULES[name]
    fix = did_you_mean(name, RULES) or f"the rules are {', '.join(RULES)}"
    raise UsageError(f"rule '{name}'", "is not a known rule", fix)


def make_rule(name: str, values: Mapping[str, Any]) -> Rule:
    """A rule with parameters; for a list of names a single one will do.

    Raises:
        PlacementError: a field that the rule does not have, or a value that is not valid.
    """
    rule = RULES[name]
    if issubclass(rule, Unloaded):
        return rule()  # judging says why, which is more than that it has no such field
    return rule(**{field: converted(rule, field, value) for field, value in values.items()})


def policy_errors(policy: Policy, at: str = "") -> list[ConfigError]:
    """All errors of a policy, one a field; ``at`` is the prefix of their objects."""
    errors: list[ConfigError] = []
    for name, values in policy.items():
        try:
            rule_named(name)
        except UsageError as error:
            errors.append(ConfigError(f"{at}{name}", error.message, error.fix))
            continue
        if not isinstance(values, Mapping):
            errors.append(ConfigError(f"{at}{name}", "is not a table of fields"))
            continue
        for field, value in values.items():
            with collecting(errors, f"{at}{name}.{field}"):
                make_rule(name, {field: value})
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
    except (ValueError, RecursionError):  # not TOML, or nested too deep
        parsed = value.strip()
    return rule, field, parsed
