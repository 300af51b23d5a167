"""The rules by name, in the order of reports. The class of a rule is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from placement_checks.rules.base import Rule


# The module of each rule, in the order of verdicts. The name and the class of a rule follow from
# the name of its module. Reports show the findings with the most severe impact first.
_MODULES: Final = (
    "devices.placeable",
    "devices.no_fallback",
    "devices.variables_on_host",
    "towers.equal_to_one_gpu",
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
    "towers.gradients_averaged",
    "towers.replicas_in_sync",
    "towers.aggregated_before_clipped",
    "towers.one_update",
    "towers.loss_of_all_towers",
    "towers.randomness_apart",
    "towers.files_apart",
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
_BY_NAME: Final = {module.rpartition(".")[2].replace("_", "-"): module for module in _MODULES}
NAMES: Final = tuple(_BY_NAME)


def rule_class(name: str) -> type[Rule]:
    """Return the class of a rule of this package, such as NoFallback for no-fallback.

    Raises:
        KeyError: there is no such rule.
    """
    module = import_module(f"placement_checks.rules.{_BY_NAME[name]}")
    loaded: type[Rule] = getattr(module, name.title().replace("-", ""))
    return loaded


def _plugins() -> Mapping[str, EntryPoint]:
    """Return the rules of other distributions; the search takes place at the first use."""
    from placement_checks.rules.entry_points import discover

    return discover(NAMES)


class _Rules(Mapping[str, "type[Rule]"]):
    """The classes of the rules by name, in the order of reports; plugins come last."""

    def __getitem__(self, name: str) -> type[Rule]:
        if name in _BY_NAME:
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
