"""Loads the rules of other distributions. What cannot be loaded is `Unloaded`: it is not checked,
which says why, and the others are.
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
from placement_checks.core.results import Kind, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.entry_points import distribution

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class FailedPlugin(Rule):
    """A rule that cannot be loaded.

    Attributes:
        error: why, and whose it is.
    """

    kind = "configuration"
    error: ClassVar[ConfigError]

    def check(self, _evidence: Evidence) -> Verdict:
        """Fail, as the rules that fail themselves do.

        Raises:
            ConfigError: always.
        """
        raise self.error

    @classmethod
    def explanation(cls) -> str:
        """Fail: there is nothing to explain.

        Raises:
            ConfigError: always.
        """
        raise cls.error


@cache
def load(entry: EntryPoint, name: str) -> type[Rule]:
    """The rule of an entry point, which is known by a name; `Unloaded` where it is none."""
    try:
        rule = entry.load() if name == entry.name else None
    except (Exception, SystemExit) as fault:
        lines = str(fault).splitlines() or [""]
        message = f"{entry.value} cannot be imported: {type(fault).__name__}: {lines[0]}"
        return _unloaded(entry, name, message, "mend it", fault)
    if rule is None:
        message = f"there is another rule named {entry.name} than its {entry.value}"
        return _unloaded(entry, name, message, "let it rename its rule")
    if wrong := _wrong(rule, entry.name):
        message, fix = wrong
        return _unloaded(entry, name, f"{entry.value} {message}", fix)
    made: type[Rule] = rule
    return made


def _unloaded(
    entry: EntryPoint, name: str, message: str, fix: str, fault: BaseException | None = None
) -> type[FailedPlugin]:
    fix = f"{fix}, uninstall {distribution(entry)}, or leave it out: --without '{name}'"
    error = ConfigError(distribution(entry), message, fix)
    error.__cause__ = fault
    return type("UnloadedRule", (FailedPlugin,), {"name": name, "error": error})


def _wrong(rule: object, name: str) -> tuple[str, str] | None:
    """What is wrong with what an entry point names, and what to do about it."""
    if not (inspect.isclass(rule) and issubclass(rule, Rule)):
        return "is not a rule", "derive it from placement_checks.Rule"
    if inspect.isabstract(rule):
        return "has no method check", "add check(self, evidence), which returns a Verdict"
    given, kind = getattr(rule, "name", None), getattr(rule, "kind", None)
    if given != name or not _NAME.fullmatch(name):
        wanted = "the same name in both, of small letters, digits and hyphens"
        return f"has the name {given!r}, and its entry point '{name}'", f"give it {wanted}"
    if kind not in get_args(Kind):
        return f"has the kind {kind!r}", f"set kind to {' or '.join(map(repr, get_args(Kind)))}"
    return _wrong_fields(rule)


def _wrong_fields(rule: type[Rule]) -> tuple[str, str] | None:
    try:
        kinds = get_type_hints(rule)
    except Exception as fault:
        return f"has a field of a type that is not known: {fault}", "import the type"
    known = {field.name: field for field in fields(rule)}
    for name in inspect.get_annotations(rule):
        if name not in known and get_origin(kinds[name]) is not ClassVar:
            return f"does not know its field {name}", "decorate it with @dataclass(frozen=True)"
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING:
            return f"has no default for its field {name}", "give it one"
    return None
