"""The rules by name, in the order of reports; a class is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from placement_checks.rules.base import Rule

# A rule is a file, and a line here; its name and its class are named as the file.
_FILES: Final = (
    "devices.placeable",
    "devices.no_fallback",
    "devices.variables_on_host",
    "towers.created_in_scope",
    "towers.variables_shared",
    "devices.slots_with_variables",
    "devices.no_idle_device",
    "towers.towers_alike",
    "towers.inputs_distinct",
    "towers.losses_apart",
    "devices.gradients_colocated",
    "devices.averaging_on_host",
    "towers.every_tower_counts",
    "towers.replicas_in_sync",
    "towers.aggregated_before_clipped",
    "towers.one_update",
    "towers.loss_of_all_towers",
    "towers.randomness_apart",
    "towers.trainables_trained",
    "towers.names_portable",
    "towers.update_ops_run",
    "devices.transfer_budget",
    "devices.shards_balanced",
    "devices.session_memory",
    "runs.gradients_equal",
    "runs.weights_equal",
    "runs.towers_overlap",
)
_FILE_OF: Final = {file.rpartition(".")[2].replace("_", "-"): file for file in _FILES}
NAMES: Final = tuple(_FILE_OF)


def rule(name: str) -> type[Rule]:
    """The class of a rule of this package; that of no-fallback is NoFallback in no_fallback.py.

    Raises:
        KeyError: there is no such rule.
    """
    module = import_module(f"placement_checks.rules.{_FILE_OF[name]}")
    found: type[Rule] = getattr(module, name.title().replace("-", ""))
    return found


def _installed() -> Mapping[str, EntryPoint]:
    """The rules of other distributions, which are looked for when they are asked for."""
    from placement_checks.rules.entry_points import found

    return found(NAMES)


class _Rules(Mapping[str, "type[Rule]"]):
    """The classes of the rules by name, in the order of reports: those of others come last."""

    def __getitem__(self, name: str) -> type[Rule]:
        if name in _FILE_OF:
            return rule(name)
        from placement_checks.rules.installed import loaded

        return loaded(_installed()[name], name)

    def __iter__(self) -> Iterator[str]:
        return chain(NAMES, _installed())

    def __len__(self) -> int:
        return len(NAMES) + len(_installed())

    def __repr__(self) -> str:
        return f"RULES({len(self)} rules: {', '.join(self)})"


RULES: Final[Mapping[str, type[Rule]]] = _Rules()
