"""Check where TensorFlow places every op of multi-GPU code, and find mistakes.

The names below are loaded on first use, so that the pytest plugin adds little to other test runs.
Only functions that place, run or average load TensorFlow. Type checkers, linters and editors read
the imports under `TYPE_CHECKING`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placement_checks.capture.block import watch
    from placement_checks.core.devices import Device
    from placement_checks.core.errors import PlacementError
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.impact import Impact
    from placement_checks.core.machines import Machine
    from placement_checks.core.missing import Missing
    from placement_checks.core.placement import Op, Placement
    from placement_checks.core.program import Program, Step
    from placement_checks.core.results import Finding, Report, Verdict
    from placement_checks.core.timing import Timing
    from placement_checks.core.variables import Variable
    from placement_checks.logs import Log, read_logs
    from placement_checks.logs.live import CaughtLog, catch_log
    from placement_checks.rules.base import Rule
    from placement_checks.rules.registry import RULES
    from placement_checks.rules.requirements import Need
    from placement_checks.run.averaging import average_gradients
    from placement_checks.run.cluster.clusters import Cluster, LocalCluster, local_cluster
    from placement_checks.run.simulated_gpus import simulated_gpus
    from placement_checks.testing.assertions import (
        assert_aggregated_before_clipped,
        assert_averaging_on_host,
        assert_created_in_scope,
        assert_equal_to_one_gpu,
        assert_every_tower_counts,
        assert_files_apart,
        assert_gradients_averaged,
        assert_gradients_colocated,
        assert_gradients_equal,
        assert_inputs_distinct,
        assert_loss_of_all_towers,
        assert_losses_apart,
        assert_names_portable,
        assert_no_fallback,
        assert_no_idle_device,
        assert_one_update,
        assert_placeable,
        assert_randomness_apart,
        assert_replicas_in_sync,
        assert_session_memory,
        assert_shards_balanced,
        assert_slots_with_variables,
        assert_towers_alike,
        assert_towers_overlap,
        assert_trainables_trained,
        assert_transfer_budget,
        assert_update_ops_run,
        assert_variables_on_host,
        assert_variables_shared,
        assert_weights_equal,
    )
    from placement_checks.testing.baselines import PlacementBaseline
    from placement_checks.testing.checking import assert_rules, assert_training_equal
    from placement_checks.testing.fixtures import Place
    from placement_checks.verification.judging import verify
    from placement_checks.verification.placing import place
    from placement_checks.verification.running import with_numbers

    __version__: str

__all__ = [
    "RULES",
    "CaughtLog",
    "Cluster",
    "Device",
    "Evidence",
    "Finding",
    "Impact",
    "LocalCluster",
    "Log",
    "Machine",
    "Missing",
    "Need",
    "Op",
    "Place",
    "Placement",
    "PlacementBaseline",
    "PlacementError",
    "Program",
    "Report",
    "Rule",
    "Step",
    "Timing",
    "Variable",
    "Verdict",
    "assert_aggregated_before_clipped",
    "assert_averaging_on_host",
    "assert_created_in_scope",
    "assert_equal_to_one_gpu",
    "assert_every_tower_counts",
    "assert_files_apart",
    "assert_gradients_averaged",
    "assert_gradients_colocated",
    "assert_gradients_equal",
    "assert_inputs_distinct",
    "assert_loss_of_all_towers",
    "assert_losses_apart",
    "assert_names_portable",
    "assert_no_fallback",
    "assert_no_idle_device",
    "assert_one_update",
    "assert_placeable",
    "assert_randomness_apart",
    "assert_replicas_in_sync",
    "assert_rules",
    "assert_session_memory",
    "assert_shards_balanced",
    "assert_slots_with_variables",
    "assert_towers_alike",
    "assert_towers_overlap",
    "assert_trainables_trained",
    "assert_training_equal",
    "assert_transfer_budget",
    "assert_update_ops_run",
    "assert_variables_on_host",
    "assert_variables_shared",
    "assert_weights_equal",
    "average_gradients",
    "catch_log",
    "local_cluster",
    "place",
    "read_logs",
    "simulated_gpus",
    "verify",
    "watch",
    "with_numbers",
]

# The modules of all names except the assertions of rules.
_HOMES = {
    "CaughtLog": "logs.live",
    "Cluster": "run.cluster.clusters",
    "Device": "core.devices",
    "Evidence": "core.evidence",
    "Finding": "core.results",
    "Impact": "core.impact",
    "LocalCluster": "run.cluster.clusters",
    "Log": "logs",
    "Machine": "core.machines",
    "Missing": "core.missing",
    "Need": "rules.requirements",
    "Op": "core.placement",
    "Place": "testing.fixtures",
    "Placement": "core.placement",
    "PlacementBaseline": "testing.baselines",
    "PlacementError": "core.errors",
    "Program": "core.program",
    "RULES": "rules.registry",
    "Report": "core.results",
    "Rule": "rules.base",
    "Step": "core.program",
    "Timing": "core.timing",
    "Variable": "core.variables",
    "Verdict": "core.results",
    "assert_rules": "testing.checking",
    "assert_training_equal": "testing.checking",
    "average_gradients": "run.averaging",
    "catch_log": "logs.live",
    "local_cluster": "run.cluster.clusters",
    "place": "verification.placing",
    "read_logs": "logs",
    "simulated_gpus": "run.simulated_gpus",
    "verify": "verification.judging",
    "watch": "capture.block",
    "with_numbers": "verification.running",
}


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version(__name__)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _HOMES.get(name, "testing.assertions")
        try:
            return getattr(import_module(f"{__name__}.{module}"), name)
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            from placement_checks.tf.startup import INSTALL

            message = f"{__name__}.{name} needs TensorFlow, which is not installed; {INSTALL}"
            raise ModuleNotFoundError(message, name=error.name) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
