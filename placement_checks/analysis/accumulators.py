"""Accumulators: variables in which each tower adds up what it computes, until that is used."""

from __future__ import annotations

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.op_types import ADDITIONS, NOT_A_READ, OVERWRITES, RESTORES, is_update
from placement_checks.core.placement import Placement


class Accumulators:
    """The accumulators of a placement; `Placement.cached` keeps it.

    They are variables to which one tower adds what it computes, that nobody trains, and whose
    value reaches neither a loss nor an update: the host, or a summary, adds up those of all
    towers. A moving average is none, as its updates take its value: evaluation reads that.

    So are those in which one tower adds up its gradients over several runs. Updates of other
    variables take these, and another op than the initialiser empties them: that tells them from
    the slots of an optimiser, which remember.

    Attributes:
        tower_of: the number of the tower that adds to each accumulator, by its name.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis = analyse(placement)
        self.tower_of: dict[str, int] = {}
        trained = gradient_flow(placement).trained
        for name, *_ in placement.variables:
            if name not in trained:
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
        if not any(analysis.flow.types[op] in ADDITIONS for op, _ in writers):
            return 0
        behind = 0
        for _, values in writers:
            for value in values:
                behind |= analysis.towers_behind[value]
        if not self._is_used_up(variable, bool(behind & analysis.gradient_bit)):
            return 0
        return behind & analysis.all_towers

    def _is_used_up(self, variable: int, of_gradients: bool) -> bool:
        """Whether a variable is only shown, or its gradients are emptied after updates."""
        analysis = self._analysis
        read = analysis.flow.names[variable] in analysis.variables_read
        if not read and self._reaches_no(variable, updates=True):
            return True
        return of_gradients and self.is_emptied(variable) and self._reaches_no(variable)

    def is_emptied(self, variable: int) -> bool:
        """Whether ops other than one initialiser set it to what is neither computed nor saved."""
        analysis = self._analysis
        flow = analysis.flow
        constant = [
            op
            for op, values in flow.writers.get(variable, ())
            if flow.types[op] in OVERWRITES
            and not any(analysis.towers_behind[value] for value in values)
            and not any(flow.types[value] in RESTORES for value in values)
        ]
        return len(constant) > 1

    def _reaches_no(self, variable: int, *, updates: bool = False) -> bool:
        """Whether the value of a variable reaches no loss, and no update of another with it."""
        flow = self._analysis.flow
        reached = [variable]
        seen = {variable}
        for op in reached:
            takers = [taker for taker in flow.consumers[op] if flow.types[taker] not in NOT_A_READ]
            for taker in takers:
                takes = is_update(flow.types[taker]) and op in flow.inputs[taker][1:]
                if (updates and takes) or self._analysis.reads_by_gpu.in_loss(taker):
                    return False
            reached += [taker for taker in takers if taker not in seen]
            seen.update(takers)
        return True


def accumulators(placement: Placement) -> Accumulators:
    """The accumulators of a placement, found once."""
    return placement.cached(Accumulators)
