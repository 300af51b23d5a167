"""Phases: the columns and boxes of the picture, by what an op does in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from placement_checks.analysis.addresses import Part


class Phase(IntEnum):
    """Where an op is drawn. `page/data.js` has the same numbers."""

    VARIABLE = 0
    READ = 1
    FORWARD = 2
    BACKWARD = 3
    AVERAGE = 4
    UPDATE = 5
    OUTSIDE = 6  # of a step
    ANY = 7  # nothing is known but its device, as of a log, or what it does in a step


PHASES: Mapping[Part, Phase] = {
    "variable": Phase.VARIABLE,
    "reads": Phase.READ,
    "input": Phase.FORWARD,
    "shared input": Phase.FORWARD,
    "forward": Phase.FORWARD,
    "shared forward": Phase.FORWARD,
    "evaluate": Phase.FORWARD,
    "shared evaluate": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "shared backward": Phase.BACKWARD,
    "average": Phase.AVERAGE,
    "apply": Phase.UPDATE,
    "update": Phase.UPDATE,
    "summaries": Phase.OUTSIDE,
    "init": Phase.OUTSIDE,
    "save": Phase.OUTSIDE,
    "other": Phase.OUTSIDE,
}
# What a copy of a value carries, by the part of the op that yields it.
KINDS: Sequence[str] = (
    *("parameters", "inputs", "activations", "gradients", "all-reduce", "updates", "other"),
)
_KINDS: Mapping[Part, str] = {
    "variable": "parameters",
    "reads": "parameters",
    "input": "inputs",
    "shared input": "inputs",
    "forward": "activations",
    "shared forward": "activations",
    "backward": "gradients",
    "shared backward": "gradients",
    "average": "gradients",
    "apply": "updates",
    "update": "updates",
}


def kind_of(part: Part) -> int:
    """The number among `KINDS` of what an op of this part yields."""
    return KINDS.index(_KINDS.get(part, "other"))
