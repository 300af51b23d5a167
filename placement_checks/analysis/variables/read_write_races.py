"""Races: a step reads and updates a variable in no defined order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from placement_checks.analysis.graph.data_flow import DataFlow, bits_of, union
from placement_checks.analysis.graph.updates import Updates
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import NOT_A_READ, PASSES_BUFFER
from placement_checks.core.placement import Placement


def races(placement: Placement) -> Mapping[str, str]:
    """Find the variables whose new values depend on a race in the step.

    In a race, the step reads variable A to update variable B, and no order is set between this
    read and the step's own updates of A. There is no race if the read waits for an update of A, or
    if an update of A waits for the read, even if other towers update A, too. For example, the
    update by a gradient waits for the reads that the gradient depends on. Every value computed
    from a racing read depends on the race.

    Returns:
        For each variable that depends on a race, a variable that the race reads; empty if the
        train op is unknown.
    """
    analysis = analyze(placement)
    return {} if analysis.updates.unknown else _Step(analysis.flow, analysis.updates).races()


class _Step:
    """The reads and updates of a step. Each updated variable has a bit."""

    def __init__(self, flow: DataFlow, updates: Updates) -> None:
        self._flow = flow
        self._in_step = updates.in_step
        self._updates = {op.op: op for of_one in updates.by_variable.values() for op in of_one}
        self._variables = list(updates.by_variable)
        self._bits = {name: 1 << bit for bit, name in enumerate(self._variables)}
        self._reads = dict(self._find_reads())

    def races(self) -> dict[str, str]:
        """Return the variables that depend on a race, each with a variable read in it."""
        found: dict[str, str] = {}
        raced_for = dict(self._racing_reads())
        readers: dict[str, list[OpId]] = defaultdict(list)
        for op, read in self._reads.items():
            for number in bits_of(read):
                readers[self._variables[number]].append(op)
        todo = list(raced_for)
        for op in todo:
            users: Sequence[OpId] = self._flow.consumers[op]
            if op in self._updates:
                name = self._updates[op].variable
                found.setdefault(name, raced_for[op])
                users = [*users, *readers[name]]
            for user in users:
                if user not in raced_for:
                    raced_for[user] = raced_for[op]
                    todo.append(user)
        return found

    def _racing_reads(self) -> Iterator[tuple[OpId, str]]:
        """Yield the ops with racing reads, each with one of the variables that it reads."""
        own = [0] * len(self._flow.names)
        for op, update in self._updates.items():
            own[op] = self._bits[update.variable]
        before, after = (
            self._flow.propagate(own, along=self._flow.waits_for, to_inputs=to_inputs)
            for to_inputs in (False, True)
        )
        for op, read in self._reads.items():
            racing = read & ~before[op] & ~after[op]
            if racing:
                yield op, self._variables[racing.bit_length() - 1]

    def _find_reads(self) -> Iterator[tuple[OpId, int]]:
        """Yield the ops that compute with updated variables, with the bits of the variables.

        An update reads the variable that it changes. An op that passes on a reference, such as the
        read of a reference variable, does not read the variable: the ops that take the reference
        read it.
        """
        flow = self._flow
        passed_on = {flow.number[name]: bit for name, bit in self._bits.items()}
        for op in flow.ops:
            read = union(passed_on.get(source, 0) for source in flow.inputs[op])
            if not read or not self._in_step[op]:
                continue
            if flow.types[op] in PASSES_BUFFER:
                passed_on[op] = read
            elif flow.types[op] not in NOT_A_READ and op not in flow.calls:
                yield op, read
