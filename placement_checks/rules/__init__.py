"""The rules, in the order in which reports list them."""

from __future__ import annotations

from placement_checks.rules.averaging_on_host import AveragingOnHost
from placement_checks.rules.base import Evidence, Finding, Rule, State, Verdict
from placement_checks.rules.every_tower_counts import EveryTowerCounts
from placement_checks.rules.gradients_colocated import GradientsColocated
from placement_checks.rules.gradients_equal import GradientsEqual
from placement_checks.rules.inputs_distinct import InputsDistinct
from placement_checks.rules.loss_of_all_towers import LossOfAllTowers
from placement_checks.rules.losses_apart import LossesApart
from placement_checks.rules.names_portable import NamesPortable
from placement_checks.rules.no_fallback import NoFallback
from placement_checks.rules.no_idle_device import NoIdleDevice
from placement_checks.rules.one_update import OneUpdate
from placement_checks.rules.placeable import Placeable
from placement_checks.rules.randomness_apart import RandomnessApart
from placement_checks.rules.session_memory import SessionMemory
from placement_checks.rules.shards_balanced import ShardsBalanced
from placement_checks.rules.slots_with_variables import SlotsWithVariables
from placement_checks.rules.towers_alike import TowersAlike
from placement_checks.rules.towers_overlap import TowersOverlap
from placement_checks.rules.transfer_budget import TransferBudget
from placement_checks.rules.update_ops_run import UpdateOpsRun
from placement_checks.rules.variables_on_host import VariablesOnHost
from placement_checks.rules.variables_shared import VariablesShared
from placement_checks.rules.weights_equal import WeightsEqual

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

__all__ = ["RULES", "Evidence", "Finding", "Rule", "State", "Verdict"]
