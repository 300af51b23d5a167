"""How programs are run to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Conditions:
    """How programs are run.

    Attributes:
        rows: of the global batch; 0 for as many as the placeholders are made for, or a few.
        shares: the parts of the batch for each tower; empty for equal ones.
        scale: what the gradients of the program are multiplied by on purpose.
        statistics_per_tower: whether the reference is to compute on the rows of each tower alone.
        steps: how many are taken.
        steps_on_parts: whether steps are taken where the reference computes on the rows of each
            tower; its own statistics are then those of one of them.
        seconds: that one run may take.
        seed: of the batches.
    """

    rows: int = 0
    shares: Sequence[int] = ()
    scale: float = 1.0
    statistics_per_tower: bool = False
    steps: int = 3
    steps_on_parts: bool = False
    seconds: float = 60.0
    seed: int = 0
