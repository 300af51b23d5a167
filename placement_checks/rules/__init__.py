"""The rules, in the order in which reports list them."""

from __future__ import annotations

from placement_checks.rules.base import Rule
from placement_checks.rules.devices.averaging_on_host import AveragingOnHost
from placement_checks.rules.devices.gradients_colocated import GradientsColocated
from placement_checks.rules.devices.no_fallback import NoFallback
from placement_checks.rules.devices.no_idle_device import NoIdleDevice
from placement_checks.rules.devices.placeable import Placeable
from placement_checks.rules.devices.session_memory import SessionMemory
from placement_checks.rules.devices.shards_balanced import ShardsBalanced
from placement_checks.rules.devices.slots_with_variables import SlotsWithVariables
from placement_checks.rules.devices.transfer_budget import TransferBudget
from placement_checks.rules.devices.variables_on_host import VariablesOnHost
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.rules.runs.towers_overlap import TowersOverlap
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.rules.towers.every_tower_counts import EveryTowerCounts
from placement_checks.rules.towers.inputs_distinct import InputsDistinct
from placement_checks.rules.towers.loss_of_all_towers import LossOfAllTowers
from placement_checks.rules.towers.losses_apart import LossesApart
from placement_checks.rules.towers.names_portable import NamesPortable
from placement_checks.rules.towers.one_update import OneUpdate
from placement_checks.rules.towers.randomness_apart import RandomnessApart
from placement_checks.rules.towers.towers_alike import TowersAlike
from placement_checks.rules.towers.update_ops_run import UpdateOpsRun
from placement_checks.rules.towers.variables_shared import VariablesShared

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Placeable,
        NoFallback,
        VariablesOnHost,
        VariablesShared,
        SlotsWithVariables,
        NoIdleDevice,
        TowersAlike,
        InputsDistinct,
        LossesApart,
        GradientsColocated,
        AveragingOnHost,
        EveryTowerCounts,
        OneUpdate,
        LossOfAllTowers,
        RandomnessApart,
        NamesPortable,
        UpdateOpsRun,
        TransferBudget,
        ShardsBalanced,
        SessionMemory,
        GradientsEqual,
        WeightsEqual,
        TowersOverlap,
    )
}

__all__ = ["RULES", "Rule"]
