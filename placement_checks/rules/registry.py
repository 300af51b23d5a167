"""The rules by name, in the order of reports. The class of a rule is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Final

from placement_checks.core.impact import Impact
from placement_checks.core.op_types import COLLECTIVE_GATHER, COLLECTIVE_REDUCE

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from placement_checks.rules.base import Rule


# The module of each rule, and its impact. The name and the class of a rule follow from the name of
# its module. Verdicts are in this order; reports show the most severe findings first.
_IMPACTS: Final[Mapping[str, Impact]] = {
    "devices.placeable": Impact.EXECUTION,
    "devices.no_fallback": Impact.LAYOUT,
    "devices.variables_on_host": Impact.LAYOUT,
    "towers.equal_to_one_gpu": Impact.TRAINING,
    "towers.created_in_scope": Impact.TRAINING,
    "towers.variables_shared": Impact.TRAINING,
    "devices.slots_with_variables": Impact.LAYOUT,
    "devices.no_idle_device": Impact.LAYOUT,
    "towers.towers_alike": Impact.TRAINING,
    "towers.inputs_distinct": Impact.TRAINING,
    "towers.losses_apart": Impact.TRAINING,
    "devices.gradients_colocated": Impact.LAYOUT,
    "devices.averaging_on_host": Impact.LAYOUT,
    "towers.every_tower_counts": Impact.TRAINING,
    "towers.gradients_averaged": Impact.TRAINING,
    "towers.replicas_in_sync": Impact.TRAINING,
    "towers.aggregated_before_clipped": Impact.TRAINING,
    "towers.one_update": Impact.TRAINING,
    "towers.loss_of_all_towers": Impact.TRAINING,
    "towers.randomness_apart": Impact.TRAINING,
    "towers.files_apart": Impact.TRAINING,
    "towers.trainables_trained": Impact.TRAINING,
    "towers.names_portable": Impact.LAYOUT,
    "towers.update_ops_run": Impact.TRAINING,
    "devices.transfer_budget": Impact.LAYOUT,
    "devices.shards_balanced": Impact.LAYOUT,
    "devices.session_memory": Impact.LAYOUT,
    "runs.gradients_equal": Impact.TRAINING,
    "runs.weights_equal": Impact.TRAINING,
    "runs.towers_overlap": Impact.LAYOUT,
}
_MODULES: Final = {module.rpartition(".")[2].replace("_", "-"): module for module in _IMPACTS}
NAMES: Final = tuple(_MODULES)
# Findings of replicas-in-sync on collectives: a replica never joins, or there is no instance key.
_BLOCKING: Final = {
    ("replicas-in-sync", COLLECTIVE_REDUCE),
    ("replicas-in-sync", COLLECTIVE_GATHER),
}


def rule_class(name: str) -> type[Rule]:
    """Return the class of a rule of this package, such as NoFallback for no-fallback.

    Raises:
        KeyError: there is no such rule.
    """
    module = import_module(f"placement_checks.rules.{_MODULES[name]}")
    loaded: type[Rule] = getattr(module, name.title().replace("-", ""))
    return loaded


def impact_of(rule: type[Rule], op: str = "") -> Impact:
    """Return the impact of a rule's finding on the program.

    Args:
        rule: the class of the rule. A rule of another distribution declares its impact itself.
        op: the type of the op that the finding is about.
    """
    if (rule.name, op) in _BLOCKING:
        return Impact.EXECUTION
    module = _MODULES.get(rule.name)
    return rule.impact if module is None else _IMPACTS[module]


def _plugins() -> Mapping[str, EntryPoint]:
    """Return the rules of other distributions; the search takes place at the first use."""
    from placement_checks.rules.entry_points import discover

    return discover(NAMES)


class _Rules(Mapping[str, "type[Rule]"]):
    """The classes of the rules by name, in the order of reports; plugins come last."""

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
