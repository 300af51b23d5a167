"""The rules by name, in the order of reports; a class is loaded when it is asked for."""

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


# A rule is a file, and a line here; its name and its class are named as the file. The order is
# that of verdicts; reports show the findings of the lowest impact first.
_FILES: Final[Mapping[str, Impact]] = {
    "devices.placeable": Impact.EXECUTION,
    "devices.no_fallback": Impact.LAYOUT,
    "devices.variables_on_host": Impact.LAYOUT,
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
    "towers.replicas_in_sync": Impact.TRAINING,
    "towers.aggregated_before_clipped": Impact.TRAINING,
    "towers.one_update": Impact.TRAINING,
    "towers.loss_of_all_towers": Impact.TRAINING,
    "towers.randomness_apart": Impact.TRAINING,
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
_FILE_OF: Final = {file.rpartition(".")[2].replace("_", "-"): file for file in _FILES}
NAMES: Final = tuple(_FILE_OF)
# Findings of replicas-in-sync on collectives: some replica never joins, or nothing gives a key.
_STOPS: Final = {
    ("replicas-in-sync", COLLECTIVE_REDUCE),
    ("replicas-in-sync", COLLECTIVE_GATHER),
}


def rule(name: str) -> type[Rule]:
    """The class of a rule of this package; that of no-fallback is NoFallback in no_fallback.py.

    Raises:
        KeyError: there is no such rule.
    """
    module = import_module(f"placement_checks.rules.{_FILE_OF[name]}")
    found: type[Rule] = getattr(module, name.title().replace("-", ""))
    return found


def impact_of(rule: type[Rule], op: str = "") -> Impact:
    """What a finding of a rule means for the program; a rule of others declares it itself.

    Args:
        rule: the class of the rule.
        op: the type of the op that the finding is about.
    """
    if (rule.name, op) in _STOPS:
        return Impact.EXECUTION
    file = _FILE_OF.get(rule.name)
    return rule.impact if file is None else _FILES[file]


def _installed() -> Mapping[str, EntryPoint]:
    """The rules of other distributions, which are looked for when they are asked for."""
    from placement_checks.rules.entry_points import discover

    return discover(NAMES)


class _Rules(Mapping[str, "type[Rule]"]):
    """The classes of the rules by name, in the order of reports: those of others come last."""

    def __getitem__(self, name: str) -> type[Rule]:
        if name in _FILE_OF:
            return rule(name)
        from placement_checks.rules.plugins import load

        return load(_installed()[name], name)

    def __iter__(self) -> Iterator[str]:
        return chain(NAMES, _installed())

    def __len__(self) -> int:
        return len(NAMES) + len(_installed())

    def __repr__(self) -> str:
        return f"RULES({len(self)} rules: {', '.join(self)})"


RULES: Final[Mapping[str, type[Rule]]] = _Rules()
