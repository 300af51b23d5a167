"""Load the rules of other distributions.

A rule that cannot be loaded becomes a `FailedPlugin`: it is not checked, and its verdict states
the reason. The other rules are judged as usual.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from functools import cache
from importlib.metadata import EntryPoint
from typing import ClassVar, get_args, get_origin, get_type_hints

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import EvidenceKind, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.entry_points import distribution

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class FailedPlugin(Rule):
    """A rule that cannot be loaded.

    Attributes:
        error: the reason, and the distribution of the rule.
    """

    kind = "configuration"
    error: ClassVar[ConfigError]

    def check(self, _evidence: Evidence) -> Verdict:
        """Raise the error."""
        raise self.error

    @classmethod
    def explanation(cls) -> str:
        """Raise the error, since there is no docstring to return."""
        raise cls.error


@cache
def load(entry: EntryPoint, name: str) -> type[Rule]:
    """Return the rule of an entry point, or a `FailedPlugin` if it is not a valid rule.

    Args:
        entry: the entry point.
        name: the rule's name in reports. It differs from the entry point's name if another rule
            has this name.
    """
    try:
        rule = entry.load() if name == entry.name else None
    except (Exception, SystemExit) as fault:
        lines = str(fault).splitlines() or [""]
        message = f"{entry.value} cannot be imported: {type(fault).__name__}: {lines[0]}"
        return _failed_plugin(entry, name, message, "fix the import", fault)
    if rule is None:
        message = f"{entry.value} has the name {entry.name} of another rule"
        return _failed_plugin(entry, name, message, "rename it")
    if mistake := _find_mistake(rule, entry.name):
        message, fix = mistake
        return _failed_plugin(entry, name, f"{entry.value} {message}", fix)
    valid: type[Rule] = rule
    return valid


def _failed_plugin(
    entry: EntryPoint, name: str, message: str, fix: str, fault: BaseException | None = None
) -> type[FailedPlugin]:
    fix = f"{fix}, uninstall {distribution(entry)}, or skip it: --without '{name}'"
    error = ConfigError(distribution(entry), message, fix)
    error.__cause__ = fault
    return type("FailedPlugin", (FailedPlugin,), {"name": name, "error": error})


def _find_mistake(rule: object, name: str) -> tuple[str, str] | None:
    """Return why an object is not a valid rule, and the fix; None if it is valid."""
    if not (inspect.isclass(rule) and issubclass(rule, Rule)):
        return "is not a rule", "derive it from placement_checks.Rule"
    if inspect.isabstract(rule):
        return "does not implement check", "add check(self, evidence), which returns a Verdict"
    own_name, kind = getattr(rule, "name", None), getattr(rule, "kind", None)
    if own_name != name or not _NAME.fullmatch(name):
        return (
            f"has the name {own_name!r}, but its entry point is named '{name}'",
            "use one name for both, of lowercase letters, digits and hyphens",
        )
    if kind not in get_args(EvidenceKind):
        kinds = " or ".join(map(repr, get_args(EvidenceKind)))
        return f"has the invalid kind {kind!r}", f"set kind to {kinds}"
    return _find_field_mistake(rule)


def _find_field_mistake(rule: type[Rule]) -> tuple[str, str] | None:
    try:
        kinds = get_type_hints(rule)
    except Exception as fault:
        return f"has a field whose type cannot be resolved: {fault}", "import the type"
    known = {field.name: field for field in fields(rule)}
    for name in inspect.get_annotations(rule):
        if name not in known and get_origin(kinds[name]) is not ClassVar:
            return f"has the annotation {name}, but no field of that name", (
                "decorate it with @dataclass(frozen=True)"
            )
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING:
            return f"has no default for its field {name}", "add one"
    return None
