"""Makes rules with the parameters of policies, and checks the values that users write."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from placement_checks.core.errors import ConfigError, PlacementError, UsageError
from placement_checks.core.target import RowsToRead
from placement_checks.rules.base import Rule
from placement_checks.rules.plugins import FailedPlugin
from placement_checks.rules.registry import RULES
from placement_checks.rules.requirements import Need
from placement_checks.util.text import did_you_mean

# Descriptions of valid values, by the type of a field. An annotation of the field replaces them.
_DESCRIPTIONS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    int | None: "a whole number",
    int | float: "a number",
    str: "a name",
    tuple[str, ...]: "a name or a list of names",
    str | tuple[str, ...]: "a name or a list of names",
    tuple[int, ...]: "a list of whole numbers, such as [3, 1]",
    tuple[Mapping[str, Any], ...]: "a list of tables, such as [{allow_growth = 1}]",
}


def convert_value(owner: type[Any], name: str, value: object) -> Any:
    """Convert a value to the type of a dataclass field: a list or a single name to a tuple.

    Raises:
        ConfigError: the field does not exist, or the value is of another type. The object of the
            error is ``""``.
    """
    from msgspec import ValidationError, convert  # imported late: most calls convert nothing

    names = [field.name for field in dataclasses.fields(owner)]
    if name not in names:
        known = f"its fields are {', '.join(names)}" if names else "it has no fields"
        known = f"its only field is {names[0]}" if len(names) == 1 else known
        raise ConfigError(
            "", "is not a known field", did_you_mean(name, names) or known, is_predicate=True
        )
    kind: Any = get_type_hints(owner, include_extras=True)[name]
    if kind == tuple[str, ...] and isinstance(value, str):
        return (value,)
    kind = int | float if kind is float else kind  # messages show an int as an int
    try:
        return convert(_finite(value), kind)
    except (ValueError, ValidationError):
        if get_origin(kind) is Annotated:
            expected = str(kind.__metadata__[0])
        elif get_origin(kind) is Literal:
            expected = " or ".join(repr(choice) for choice in get_args(kind) if choice)
        else:
            expected = _DESCRIPTIONS.get(kind) or f"a value of the type {kind}"
        raise ConfigError("", f"{value!r} does not fit", f"give {expected}") from None


@contextmanager
def collect_errors(errors: list[ConfigError], at: str) -> Iterator[None]:
    """Add an error of the block to ``errors``, for the field ``at``."""
    try:
        yield
    except PlacementError as error:
        is_named = error.object in ("", at.rpartition(".")[2])
        message = error.message if is_named else error.fault
        is_predicate = is_named and error.is_predicate
        errors.append(ConfigError(at, message, error.fix, is_predicate=is_predicate))


def _finite(value: object) -> object:
    """Convert numpy floats to Python floats, which msgspec requires.

    Raises:
        ValueError: a number is infinite, NaN, or an integer too large for a float.
    """
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise ValueError
    return float(value) if isinstance(value, float) else value


Policy = Mapping[str, Mapping[str, Any]]

# The parts of the evidence that come from runs, and all parts that need a reference.
RUNS: Final = frozenset({Need.MEASUREMENT, Need.TRAJECTORY, Need.TRACE})
NEEDS_REFERENCE: Final = RUNS | {Need.REFERENCE}


def rules_for(
    policy: Policy,
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> list[Rule]:
    """The rules to check, with their parameters.

    Args:
        policy: ``{rule: {field: value}}``.
        only: names of rules; empty for all rules.
        without: names of rules to skip.

    Raises:
        UsageError: a rule does not exist, or no rule is left.
    """
    for name in [*only, *without]:
        rule_named(name)
    names = [name for name in RULES if (not only or name in only) and name not in without]
    if not names:
        raise UsageError("", "no rule is left to check", "skip fewer rules (--without)")
    return [make_rule(name, _declared_fields(RULES[name], policy)) for name in names]


def evidence_used(only: Collection[str] = (), without: Collection[str] = ()) -> frozenset[Need]:
    """The parts of the evidence that rules require or use; the arguments are as for `rules_for`.

    Raises:
        UsageError: a rule does not exist, or no rule is left.
    """
    rules = rules_for({}, only=only, without=without)
    return frozenset[Need]().union(*(rule.requires | rule.uses for rule in rules))


def rows_used(used: Collection[Need]) -> RowsToRead:
    """The rows that must be read for evidence, as `evidence_used` returns it."""
    if not RUNS.isdisjoint(used):
        return "all"
    return "of-towers" if Need.ROWS in used else "none"


def merge_policies(*policies: Policy) -> Policy:
    """One policy; if several policies set a field, the first one applies."""
    merged: dict[str, dict[str, Any]] = {}
    for policy in reversed(policies):
        for rule, values in policy.items():
            merged[rule] = merged.get(rule, {}) | dict(values)
    return merged


def _declared_fields(rule: type[Rule], policy: Policy) -> Mapping[str, Any]:
    """The fields of a rule that a policy sets, for it or for the rule that it is declared with."""
    names = {field.name for field in dataclasses.fields(rule)}
    shared = policy.get(rule.declared_with, {})
    declared = {name: value for name, value in shared.items() if name in names}
    return declared | dict(policy.get(rule.name, {}))


def rule_named(name: str) -> type[Rule]:
    """The class of a rule.

    Raises:
        UsageError: the rule does not exist; the fix suggests a similar name.
    """
    if name in RULES:
        return RULES[name]
    fix = did_you_mean(name, RULES) or f"the rules are {', '.join(RULES)}"
    raise UsageError(f"rule '{name}'", "is not a known rule", fix, is_predicate=True)


def make_rule(name: str, values: Mapping[str, Any]) -> Rule:
    """A rule with parameters; a single name may replace a list of names.

    Raises:
        PlacementError: the rule lacks a field, or a value is invalid.
    """
    rule = RULES[name]
    if issubclass(rule, FailedPlugin):
        return rule()  # the verdict reports why the plugin failed; its fields are not known
    return rule(**{field: convert_value(rule, field, value) for field, value in values.items()})


def policy_errors(policy: Policy, at: str = "") -> list[ConfigError]:
    """All errors of a policy, one for each field; their objects start with ``at``."""
    errors: list[ConfigError] = []
    for name, values in policy.items():
        try:
            rule_named(name)
        except UsageError as error:
            errors.append(error.copy(ConfigError, object=f"{at}{name}"))
            continue
        if not isinstance(values, Mapping):
            errors.append(
                ConfigError(f"{at}{name}", "is not a table of fields", is_predicate=True)
            )
            continue
        for field, value in values.items():
            with collect_errors(errors, f"{at}{name}.{field}"):
                make_rule(name, {field: value})
    return errors


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Parse ``RULE.FIELD=VALUE``. A value that is not TOML is a string.

    Returns:
        The rule, the field and the value.

    Raises:
        UsageError: the text has another form.
    """
    path, equals, value = text.partition("=")
    rule, dot, field = path.strip().partition(".")
    if not (equals and dot):
        raise UsageError(
            f"--set {text}",
            "is not of the form RULE.FIELD=VALUE",
            "write it like --set variables-on-host.device=/gpu:0",
            is_predicate=True,
        )
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # not TOML, or nested too deeply
        parsed = value.strip()
    return rule, field, parsed
