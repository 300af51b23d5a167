"""Accumulators: variables in which each tower adds up what the program shows of it."""

from __future__ import annotations

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.op_types import ADDITIONS, NOT_A_READ, is_update
from placement_checks.core.placement import TRAINABLE, Placement


class Accumulators:
    """The accumulators of a placement; `Placement.cached` keeps it.

    They are variables to which one tower adds what it computes, that nobody trains, and whose
    value reaches neither a loss nor an update: the host, or a summary, adds up those of all
    towers. A moving average is none, as its updates take its value: evaluation reads that.

    Attributes:
        tower_of: the number of the tower that adds to each accumulator, by its name.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis = analyse(placement)
        self.tower_of: dict[str, int] = {}
        trainable = placement.collected.get(TRAINABLE, ())
        for name, *_ in placement.variables:
            if name not in trainable and name not in self._analysis.variables_read:
                towers = self._added(self._analysis.flow.number[name])
                if towers.bit_count() == 1:
                    self.tower_of[name] = towers.bit_length() - 1

    def _added(self, variable: int) -> int:
        """The towers, a bit each, that set a variable of which one adds to it; else 0."""
        analysis = self._analysis
        writers = [
            (op, values)
            for op, values in analysis.flow.writers.get(variable, ())
            if is_update(analysis.flow.types[op])
        ]
        adds = any(analysis.flow.types[op] in ADDITIONS for op, _ in writers)
        if not adds or not self._is_only_shown(variable):
            return 0
        towers = 0
        for _, values in writers:
            for value in values:
                towers |= analysis.towers_behind[value] & analysis.all_towers
        return towers

    def _is_only_shown(self, variable: int) -> bool:
        """Whether the value of a variable reaches neither a loss nor an update."""
        flow = self._analysis.flow
        reached = [variable]
        seen = {variable}
        for op in reached:
            takers = [taker for taker in flow.consumers[op] if flow.types[taker] not in NOT_A_READ]
            for taker in takers:
                updates = is_update(flow.types[taker]) and op in flow.inputs[taker][1:]
                if updates or self._analysis.reads_by_gpu.in_loss(taker):
                    return False
            reached += [taker for taker in takers if taker not in seen]
            seen.update(takers)
        return True


def accumulators(placement: Placement) -> Accumulators:
    """The accumulators of a placement, found once."""
    return placement.cached(Accumulators)
