"""Check where TensorFlow places every op of multi-GPU code, and find mistakes.

The names below are loaded on first use, so that the pytest plugin adds little to other test runs.
Only functions that place, run or average load TensorFlow. Type checkers and editors read the names
in ``__init__.pyi``.
"""

from __future__ import annotations

from importlib import import_module

from placement_checks.rules.registry import NAMES

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
} | {f"assert_{name.replace('-', '_')}": "testing.assertions" for name in NAMES}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        from placement_checks.tf.startup import INSTALL

        message = f"{__name__}.{name} needs TensorFlow, which is not installed; {INSTALL}"
        raise ModuleNotFoundError(message, name=error.name) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
