"""Races: a step reads a variable and updates it, and nothing says which comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from placement_checks.analysis.graph.data_flow import DataFlow, StepOrder
from placement_checks.analysis.graph.updates import Updates
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.op_types import NOT_A_READ, PASSES_BUFFER
from placement_checks.core.placement import Placement


def races(placement: Placement) -> Mapping[str, str]:
    """The variables whose value after a step hangs on a race, each with the variable raced for.

    A step takes the value of that for an update of the other, and may read it before or after its
    own update. A read that waits for an update is after it; one that an update waits for is
    before it, as that of a gradient is, also where other towers update the same variable. What is
    computed from a variable that hangs on a race does so too.

    Empty where it is not known what a step is.
    """
    analysis = analyse(placement)
    if analysis.updates.unknown:
        return {}
    return _Step(analysis.flow, analysis.updates).races()


class _Step:
    """What a step reads and updates. Each variable that it updates has a bit."""

    def __init__(self, flow: DataFlow, updates: Updates) -> None:
        self._flow = flow
        self._order = StepOrder(flow, updates.roots)
        self._updates = {op.op: op for of_one in updates.by_variable.values() for op in of_one}
        self._variables = list(updates.by_variable)
        self._bits = {name: 1 << bit for bit, name in enumerate(self._variables)}
        self._reads = dict(self._all_reads())

    def races(self) -> dict[str, str]:
        """The variables whose value hangs on a race, each with the variable raced for."""
        found: dict[str, str] = {}
        about = dict(self._racing())
        readers = self._readers()
        todo = list(about)
        for op in todo:
            takers = self._flow.consumers[op]
            if op in self._updates:
                name = self._updates[op].variable
                found.setdefault(name, about[op])
                takers = [*takers, *readers[name]]
            for taker in takers:
                if taker not in about:
                    about[taker] = about[op]
                    todo.append(taker)
        return found

    def _racing(self) -> Iterator[tuple[int, str]]:
        """The reads that are ordered with no update of what they read, and one such variable."""
        own = {op: self._bits[update.variable] for op, update in self._updates.items()}
        before, after = self._order.waiting(own), self._order.awaited(own)
        for op, read in self._reads.items():
            racing = read & ~before[op] & ~after[op]
            if racing:
                yield op, next(self._names(racing))

    def _all_reads(self) -> Iterator[tuple[int, int]]:
        """The ops that compute with the values of updated variables, and the bits of those.

        An update is among them, which computes with what it changes.

        What passes a reference on, such as the read of a reference variable, does not read it: its
        value is there, in the variable, when the ops run that compute with it.
        """
        flow = self._flow
        passed_on = {flow.number[name]: bit for name, bit in self._bits.items()}
        for op in self._order.ops:
            read = 0
            for source in flow.inputs[op]:
                read |= passed_on.get(source, 0)
            if not read:
                continue
            if flow.types[op] in PASSES_BUFFER:
                passed_on[op] = read
            elif flow.types[op] not in NOT_A_READ and op not in flow.calls:
                yield op, read

    def _readers(self) -> Mapping[str, Sequence[int]]:
        """The ops that read each variable."""
        readers: dict[str, list[int]] = defaultdict(list)
        for op, read in self._reads.items():
            for name in self._names(read):
                readers[name].append(op)
        return readers

    def _names(self, bits: int) -> Iterator[str]:
        """The variables whose bits are set."""
        while bits:
            last = bits.bit_length() - 1
            yield self._variables[last]
            bits ^= 1 << last
