"""The rules, in the order in which reports list them."""

from __future__ import annotations

from placement_checks.rules.base import Evidence, Finding, Rule, State, Verdict
from placement_checks.rules.no_fallback import NoFallback
from placement_checks.rules.no_idle_device import NoIdleDevice
from placement_checks.rules.placeable import Placeable
from placement_checks.rules.variables_on_host import VariablesOnHost
from placement_checks.rules.variables_shared import VariablesShared

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (Placeable, NoFallback, VariablesOnHost, VariablesShared, NoIdleDevice)
}

__all__ = ["RULES", "Evidence", "Finding", "Rule", "State", "Verdict"]
