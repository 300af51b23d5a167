"""Says where TensorFlow puts every op of multi-GPU code, and what is wrong with it.

The names below are loaded on first use, so that the pytest plugin costs nothing where it is not
used; TensorFlow is loaded only by what places, runs or averages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placement_checks.core.devices import Device as Device
    from placement_checks.core.errors import PlacementError as PlacementError
    from placement_checks.core.machines import Machine as Machine
    from placement_checks.core.placement import Op as Op
    from placement_checks.core.placement import Placement as Placement
    from placement_checks.core.placement import Variable as Variable
    from placement_checks.core.program import Program as Program
    from placement_checks.core.program import Step as Step
    from placement_checks.core.results import Finding as Finding
    from placement_checks.core.results import Verdict as Verdict
    from placement_checks.logs import Log as Log
    from placement_checks.logs import read_logs as read_logs
    from placement_checks.logs.live import catch_log as catch_log
    from placement_checks.rules.base import Rule as Rule
    from placement_checks.rules.registry import RULES as RULES
    from placement_checks.run.averaging import average_gradients as average_gradients
    from placement_checks.run.averaging import mean_of_stacked as mean_of_stacked
    from placement_checks.run.cluster import Cluster as Cluster
    from placement_checks.run.cluster import LocalCluster as LocalCluster
    from placement_checks.run.cluster import local_cluster as local_cluster
    from placement_checks.run.eager import simulated_gpus as simulated_gpus
    from placement_checks.testing.assertions import (
        assert_averaging_on_host as assert_averaging_on_host,
    )
    from placement_checks.testing.assertions import (
        assert_every_tower_counts as assert_every_tower_counts,
    )
    from placement_checks.testing.assertions import (
        assert_gradients_colocated as assert_gradients_colocated,
    )
    from placement_checks.testing.assertions import (
        assert_inputs_distinct as assert_inputs_distinct,
    )
    from placement_checks.testing.assertions import (
        assert_loss_of_all_towers as assert_loss_of_all_towers,
    )
    from placement_checks.testing.assertions import assert_losses_apart as assert_losses_apart
    from placement_checks.testing.assertions import assert_names_portable as assert_names_portable
    from placement_checks.testing.assertions import assert_no_fallback as assert_no_fallback
    from placement_checks.testing.assertions import assert_no_idle_device as assert_no_idle_device
    from placement_checks.testing.assertions import assert_one_update as assert_one_update
    from placement_checks.testing.assertions import assert_placeable as assert_placeable
    from placement_checks.testing.assertions import (
        assert_randomness_apart as assert_randomness_apart,
    )
    from placement_checks.testing.assertions import assert_rules as assert_rules
    from placement_checks.testing.assertions import assert_session_memory as assert_session_memory
    from placement_checks.testing.assertions import (
        assert_shards_balanced as assert_shards_balanced,
    )
    from placement_checks.testing.assertions import (
        assert_slots_with_variables as assert_slots_with_variables,
    )
    from placement_checks.testing.assertions import assert_towers_alike as assert_towers_alike
    from placement_checks.testing.assertions import (
        assert_transfer_budget as assert_transfer_budget,
    )
    from placement_checks.testing.assertions import assert_update_ops_run as assert_update_ops_run
    from placement_checks.testing.assertions import (
        assert_variables_on_host as assert_variables_on_host,
    )
    from placement_checks.testing.assertions import (
        assert_variables_shared as assert_variables_shared,
    )
    from placement_checks.testing.equality import assert_gradients_equal as assert_gradients_equal
    from placement_checks.testing.equality import assert_training_equal as assert_training_equal
    from placement_checks.verification.gathering import place as place
    from placement_checks.verification.gathering import with_numbers as with_numbers
    from placement_checks.verification.judging import verify as verify

_HOMES = {
    "Cluster": "run.cluster",
    "Device": "core.devices",
    "Finding": "core.results",
    "LocalCluster": "run.cluster",
    "Log": "logs",
    "Machine": "core.machines",
    "Op": "core.placement",
    "Placement": "core.placement",
    "PlacementError": "core.errors",
    "Program": "core.program",
    "RULES": "rules.registry",
    "Rule": "rules.base",
    "Step": "core.program",
    "Variable": "core.placement",
    "Verdict": "core.results",
    "assert_averaging_on_host": "testing.assertions",
    "assert_every_tower_counts": "testing.assertions",
    "assert_gradients_colocated": "testing.assertions",
    "assert_gradients_equal": "testing.equality",
    "assert_inputs_distinct": "testing.assertions",
    "assert_loss_of_all_towers": "testing.assertions",
    "assert_losses_apart": "testing.assertions",
    "assert_names_portable": "testing.assertions",
    "assert_no_fallback": "testing.assertions",
    "assert_no_idle_device": "testing.assertions",
    "assert_one_update": "testing.assertions",
    "assert_placeable": "testing.assertions",
    "assert_randomness_apart": "testing.assertions",
    "assert_rules": "testing.assertions",
    "assert_session_memory": "testing.assertions",
    "assert_shards_balanced": "testing.assertions",
    "assert_slots_with_variables": "testing.assertions",
    "assert_towers_alike": "testing.assertions",
    "assert_towers_overlap": "testing.equality",
    "assert_training_equal": "testing.equality",
    "assert_transfer_budget": "testing.assertions",
    "assert_update_ops_run": "testing.assertions",
    "assert_variables_on_host": "testing.assertions",
    "assert_variables_shared": "testing.assertions",
    "average_gradients": "run.averaging",
    "catch_log": "logs.live",
    "local_cluster": "run.cluster",
    "mean_of_stacked": "run.averaging",
    "place": "verification.gathering",
    "read_logs": "logs",
    "simulated_gpus": "run.eager",
    "verify": "verification.judging",
    "with_numbers": "verification.gathering",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
