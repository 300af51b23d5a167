"""Which rules are checked, and with which parameters."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from placement_checks.core.errors import ConfigError, UsageError
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import RULES
from placement_checks.util.text import did_you_mean
from placement_checks.verification.fields import collected, fitted

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
    fix = did_you_mean(name, RULES) or f"the rules are {', '.join(RULES)}"
    raise UsageError(f"rule '{name}'", "there is no such rule", fix)


def made(name: str, values: Mapping[str, Any]) -> Rule:
    """A rule with parameters; for a list of names a single one will do.

    Raises:
        PlacementError: a field that the rule does not have, or a value that makes no sense.
    """
    rule = RULES[name]
    return rule(**{field: fitted(rule, field, value) for field, value in values.items()})


def policy_errors(policy: Policy, at: str = "") -> list[ConfigError]:
    """Everything that is wrong with a policy, one error a field; ``at`` says where it stands."""
    errors: list[ConfigError] = []
    for name, values in policy.items():
        try:
            known_rule(name)
        except UsageError as error:
            errors.append(ConfigError(f"{at}{name}", error.message, error.fix))
            continue
        if not isinstance(values, Mapping):
            errors.append(ConfigError(f"{at}{name}", "is no table of fields"))
            continue
        for field, value in values.items():
            with collected(errors, f"{at}{name}.{field}"):
                made(name, {field: value})
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
