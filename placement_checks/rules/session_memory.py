from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placement_checks.errors import ConfigError
from placement_checks.placement import Placement
from placement_checks.rules.base import Finding, Rule, Verdict


@dataclass(frozen=True)
class SessionMemory(Rule):
    """The session does not take all of every GPU's memory.

    TensorFlow 1 takes nearly all memory of every visible GPU when the session starts: a second
    program on the same machine fails, or runs on the CPU. `gpu_options.allow_growth`,
    `per_process_gpu_memory_fraction`, and `visible_device_list`, which leaves the other GPUs
    alone, say otherwise; so does TF_FORCE_GPU_ALLOW_GROWTH=true in the environment.

    `fraction` is the largest share of a GPU's memory that a program may take.
    """

    name = "session-memory"
    evidence = "configuration"

    fraction: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError("fraction", f"{self.fraction} is no share", "give one up to 1")

    def check(self, placement: Placement) -> Verdict:
        session = placement.training.session
        if session is None:
            return self.not_checked(
                "no session configuration is known; return it from the function that builds the "
                "graph: {'config': config}"
            )
        options = session.get("gpu_options") or {}
        if not isinstance(options, Mapping):
            return self.not_checked("the gpu_options of the session configuration are no mapping")
        fraction = options.get("per_process_gpu_memory_fraction", 0)
        if not isinstance(fraction, int | float):
            return self.not_checked(f"per_process_gpu_memory_fraction is {fraction!r}, no number")
        if options.get("allow_growth"):
            return self.verdict([], "the memory grows as it is needed")
        if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true":
            return self.verdict([], "TF_FORCE_GPU_ALLOW_GROWTH lets the memory grow")
        if 0 < fraction <= self.fraction:
            return self.verdict([], f"{fraction:g} of each GPU's memory")
        if options.get("visible_device_list") and not fraction:
            return self.verdict([], f"only the GPUs {options['visible_device_list']}")
        return self.verdict([self._finding(options, fraction)])

    def _finding(self, options: Mapping[str, Any], fraction: float) -> Finding:
        takes = f"{fraction:g}" if fraction else "all"
        of = f"GPUs {options['visible_device_list']}" if options.get("visible_device_list") else ""
        return Finding(
            object="gpu_options",
            op="",
            evidence="configuration",
            expected=f"allow_growth, or at most {self.fraction:g} of the memory",
            found=f"{takes} of it",
            message=f"the session takes {takes} of the memory of "
            f"{of or 'every visible GPU'} when it starts; a second program there fails",
            cure="set config.gpu_options.allow_growth = True, or "
            "per_process_gpu_memory_fraction to a share",
        )
