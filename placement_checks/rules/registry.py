"""The rules by name. Each is a module of a group, imported when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Final

from placement_checks.core.facts import FactKind
from placement_checks.util.modules import find_modules

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from placement_checks.rules.base import Rule

# The name and the class of a rule follow from the name of its module.
_MODULES: Final = find_modules(
    *(f"placement_checks.rules.{group}" for group in ("devices", "towers", "runs"))
)
NAMES: Final = tuple(_MODULES)
_ORDER: Final[Mapping[FactKind | None, int]] = {kind: place for place, kind in enumerate(FactKind)}


def rule_class(name: str) -> type[Rule]:
    """Return the class of a rule of this package, such as NoFallback for no-fallback.

    Raises:
        KeyError: there is no such rule.
    """
    loaded: type[Rule] = getattr(import_module(_MODULES[name]), name.title().replace("-", ""))
    return loaded


def in_order(rules: Iterable[type[Rule]]) -> list[type[Rule]]:
    """Sort rules as in reports: by the kind of facts that they state, then by name."""
    return sorted(rules, key=lambda rule: (_ORDER.get(rule.states, len(_ORDER)), rule.name))


def _plugins() -> Mapping[str, EntryPoint]:
    """Return the rules of other distributions; the search takes place at the first use."""
    from placement_checks.rules.entry_points import discover

    return discover(NAMES)


class _Rules(Mapping[str, "type[Rule]"]):
    """The classes of the rules by name; plugins come last."""

    def __getitem__(self, name: str) -> type[Rule]:
        if name in _MODULES:
            return rule_class(name)
        from placement_checks.rules.plugins import load

        return load(_plugins()[name], name)

    def __iter__(self) -> Iterator[str]:
        return chain(NAMES, _plugins())

    def __len__(self) -> int:
        return len(NAMES) + len(_plugins())

    def __repr__(self) -> str:
        return f"RULES({len(self)} rules: {', '.join(self)})"


RULES: Final[Mapping[str, type[Rule]]] = _Rules()
