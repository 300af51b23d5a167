"""Makes rules with the parameters of policies, and checks the values that users write."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from placement_checks.core.errors import ConfigError, PlacementError, UsageError
from placement_checks.core.program import CapturedProgram
from placement_checks.core.settings import Policy, Settings
from placement_checks.core.target import RowsToRead
from placement_checks.rules.base import Rule
from placement_checks.rules.plugins import FailedPlugin
from placement_checks.rules.registry import RULES, in_order
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

    names = [field.name for field in fields(owner)]
    if name not in names:
        known = f"its fields are {', '.join(names)}" if names else "it has no fields"
        known = f"its only field is {names[0]}" if len(names) == 1 else known
        raise ConfigError(
            "", "is not a known field", did_you_mean(name, names) or known, is_predicate=True
        )
    kind: Any = get_type_hints(owner, include_extras=True)[name]
    described = kind.__metadata__[0] if get_origin(kind) is Annotated else None
    if get_origin(kind) is Annotated and len(kind.__metadata__) > 1:
        kind = kind.__metadata__[1]
    if kind == tuple[str, ...] and isinstance(value, str):
        return (value,)
    kind = int | float if kind is float else kind  # messages show an int as an int
    try:
        return convert(_finite(value), kind)
    except (ValueError, ValidationError):
        if described is not None:
            expected = described
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


_R = TypeVar("_R", bound=Rule)

# The parts of the evidence that come from runs, and all parts that need a reference.
RUNS: Final = frozenset({Need.MEASUREMENT, Need.TRAJECTORY, Need.TRACE})
NEEDS_REFERENCE: Final = RUNS | {Need.REFERENCE}


def rules_for(settings: Settings) -> list[Rule]:
    """The rules that settings select, with the parameters of their policy.

    Raises:
        UsageError: a rule does not exist, or no rule is left.
    """
    return [rule_with(rule, settings.policy) for rule in _selected(settings)]


def evidence_used(settings: Settings) -> frozenset[Need]:
    """The parts of the evidence that the rules require or use that settings select.

    Raises:
        UsageError: a rule does not exist, or no rule is left.
    """
    rules = _selected(settings)
    return frozenset[Need]().union(*(rule.requires | rule.uses for rule in rules))


def _selected(settings: Settings) -> list[type[Rule]]:
    only, without = settings.rules, settings.without
    for name in (*only, *without):
        rule_named(name)
    names = [name for name in RULES if (not only or name in only) and name not in without]
    if not names:
        raise UsageError("", "no rule is left to check", "skip fewer rules (--without)")
    return in_order(RULES[name] for name in names)


def rows_used(used: Collection[Need]) -> RowsToRead:
    """The rows that must be read for evidence, as `evidence_used` returns it."""
    if not RUNS.isdisjoint(used):
        return "all"
    return "of-towers" if Need.ROWS in used else "none"


def rule_with(rule: type[_R], policy: Policy) -> _R:
    """A rule with the fields that a policy sets, for it or for the rule it is declared with."""
    if issubclass(rule, FailedPlugin):
        return rule()  # the verdict reports why the plugin failed; its fields are not known
    names = {field.name for field in fields(rule)}
    shared = policy.of(rule.declared_with)
    declared = {name: value for name, value in shared.items() if name in names}
    return rule(**{**declared, **policy.of(rule.name)})


def rule_named(name: str) -> type[Rule]:
    """The class of a rule.

    Raises:
        UsageError: the rule does not exist; the fix suggests a similar name.
    """
    if name in RULES:
        return RULES[name]
    fix = did_you_mean(name, RULES) or f"the rules are {', '.join(RULES)}"
    raise UsageError(f"rule '{name}'", "is not a known rule", fix, is_predicate=True)


def parse_policy(values: Mapping[str, Any], at: str = "") -> tuple[Policy, Sequence[ConfigError]]:
    """Check and convert the values of a policy, ``{rule: {field: value}}``.

    A single name may replace a list of names.

    Returns:
        The valid fields, and an error for each other field. Objects of errors start with ``at``.
    """
    policy: dict[str, dict[str, Any]] = {}
    errors: list[ConfigError] = []
    for name, own in values.items():
        try:
            rule = rule_named(name)
        except UsageError as error:
            errors.append(error.copy(ConfigError, object=f"{at}{name}"))
            continue
        if not isinstance(own, Mapping):
            errors.append(
                ConfigError(f"{at}{name}", "is not a table of fields", is_predicate=True)
            )
            continue
        policy[name] = {}
        for field, value in own.items():
            with collect_errors(errors, f"{at}{name}.{field}"):
                policy[name][field] = _parse_field(rule, field, value)
    return Policy(policy), errors


def _parse_field(rule: type[Rule], field: str, value: object) -> Any:
    if issubclass(rule, FailedPlugin):
        return value
    converted = convert_value(rule, field, value)
    rule(**{field: converted})  # the rule checks its fields
    return converted


def valid_policy(values: Mapping[str, Any], at: str = "") -> Policy:
    """Parse a policy as `parse_policy` does.

    Raises:
        ConfigError: a rule or field does not exist, or a value is invalid.
    """
    __tracebackhide__ = True
    policy, errors = parse_policy(values, at)
    if errors:
        raise errors[0]
    return policy


def declared_by(program: CapturedProgram) -> Policy:
    """The policy that a builder returned.

    Raises:
        ConfigError: the policy is invalid.
    """
    return valid_policy(program.step.policy, f"policy of {program.name}: ")


def judged_by(
    settings: Settings,
    policies: Sequence[Mapping[str, Mapping[str, Any]]] = (),
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Settings:
    """Settings that select other rules, with parameters that precede those of their policy.

    Args:
        settings: the settings.
        policies: parameters of rules; if several policies set a field, the first one applies.
        only: names of rules; empty for all rules.
        without: names of rules to skip.

    Raises:
        ConfigError: a policy is invalid.
    """
    __tracebackhide__ = True
    policy = settings.policy
    for each in reversed(policies):
        policy = valid_policy(each).over(policy)
    return replace(settings, policy=policy, rules=tuple(only), without=tuple(without))


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
