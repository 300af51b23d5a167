"""Which tower each op serves, by the losses that its value reaches; no device decides."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from placement_checks.analysis.backward import Backward
from placement_checks.analysis.data_flow import DataFlow
from placement_checks.analysis.layers import NONE, Layers
from placement_checks.core.op_types import SUMS_UP
from placement_checks.core.placement import StepOps, producer_of

Groups = Sequence[Sequence[int]]


def losses_of(step: StepOps, flow: DataFlow) -> Sequence[int]:
    """What gradients were taken of, or else the losses reported."""
    names = map(producer_of, step.objectives or step.losses)
    return list(dict.fromkeys(flow.number[name] for name in names if name in flow.number))


class LossesByTower:
    """The losses of each tower, as ops.

    Losses that share what was computed with examples and variables are of one tower, as those of a
    discriminator and its generator; a penalty on the weights may be shared by all. One loss of all
    towers is taken apart where it is summed up, or where their outputs are joined before it.
    """

    def __init__(
        self, flow: DataFlow, layers: Layers, backward: Backward, examples: Sequence[int]
    ) -> None:
        self._flow = flow
        self._layers = layers.of
        self._in_model = [
            layer != NONE and bool(is_example) and not is_backward
            for layer, is_example, is_backward in zip(
                layers.of, examples, backward.ops, strict=True
            )
        ]

    def of(self, losses: Sequence[int]) -> Groups:
        """The losses of each tower; empty where there are none.

        Args:
            losses: those of the program.
        """
        towers = self._sharing_nothing(losses)
        if len(towers) != 1:
            return towers
        return next(filter(None, map(self._taken_apart, losses)), towers)

    def _sharing_nothing(self, ops: Sequence[int]) -> Groups:
        """The ops in groups that are computed of nothing in common, in their order."""
        group = {op: op for op in ops}

        def first(op: int) -> int:
            while group[op] != op:
                op = group[op] = group[group[op]]
            return op

        owner: dict[int, int] = {}
        for op in ops:
            for other in self._owners_behind(op, owner):
                group[first(op)] = first(other)
        groups: dict[int, list[int]] = defaultdict(list)
        for op in ops:
            groups[first(op)].append(op)
        return list(groups.values())

    def _owners_behind(self, end: int, owner: dict[int, int]) -> Iterator[int]:
        """Make ``end`` the owner of what it is computed of; yields who owns a part already."""
        for op in self._flow.walk_back([end], lambda op: owner.get(op) == end):
            if self._in_model[op] and owner.setdefault(op, end) != end:
                yield owner[op]

    def _taken_apart(self, loss: int) -> Groups | None:
        """The losses of the towers of which one joint loss is made; None if it is one tower's."""
        ends, seen = self._ends([loss]), set[int]()
        while len(ends) == 1 and ends[0] not in seen:  # a loop leads back
            seen.add(ends[0])
            ends = self._ends(self._sources(ends[0]))
        groups = self._sharing_nothing(ends)
        towers = self._as_towers(groups, loss) if len(groups) > 1 else ()
        if not towers:
            return None
        own = [0] * len(self._flow.names)
        for number, tower in enumerate(towers):
            for op in tower:
                own[op] = 1 << number
        return self._last_of_one(loss, self._flow.masks(own), len(towers))

    def _ends(self, ops: Sequence[int]) -> Sequence[int]:
        """The ops that sums and joins lead back to, which are none themselves."""
        ends, todo, seen = list[int](), list(ops), set(ops)
        for op in todo:
            sources = self._sources(op) if self._flow.types[op] in SUMS_UP else ()
            if not sources:
                ends.append(op)
            todo += [source for source in sources if source not in seen]
            seen.update(sources)
        return sorted(ends)

    def _sources(self, op: int) -> Sequence[int]:
        """What an op takes of the model, each once."""
        return list(dict.fromkeys(s for s in self._flow.inputs[op] if self._in_model[s]))

    def _as_towers(self, groups: Groups, loss: int) -> Groups:
        """The ends of each tower; empty if they are branches of one model, or steps of a sequence.

        Towers compute with the same variables, by as many outputs each. Or each has variables of
        its own, and then all compute alike. Most variables behind the loss are the towers'.
        """
        types, layers = zip(*map(self._computed, groups), strict=True)
        if 2 * len(frozenset().union(*layers)) <= len(self._computed([loss])[1]):
            return ()
        outputs: dict[frozenset[int], list[Sequence[int]]] = defaultdict(list)
        for ends, variables in zip(groups, layers, strict=True):
            outputs[variables].append(ends)
        if len(outputs) == len(groups):
            return groups if all(each == types[0] for each in types) else ()
        if len({len(each) for each in outputs.values()}) > 1:
            return ()
        return [
            [end for ends in tower for end in ends]
            for tower in zip(*outputs.values(), strict=True)
        ]

    def _computed(self, ops: Sequence[int]) -> tuple[Counter[str], frozenset[int]]:
        """How many ops of each type are behind some, and their layers."""
        behind = self._flow.walk_back(ops, self._in_model.__getitem__)
        model = [op for op in behind if self._in_model[op]]
        return (
            Counter(self._flow.types[op] for op in model),
            frozenset(self._layers[op] for op in model),
        )

    def _last_of_one(self, loss: int, masks: Sequence[int], towers: int) -> Groups:
        """For each tower the last ops behind a loss that are of it alone."""
        found: list[list[int]] = [[] for _ in range(towers)]
        for op in self._flow.walk_back([loss], lambda op: masks[op].bit_count() > 1):
            number = only(masks[op])
            if number != NONE:
                found[number].append(op)
        return found


def served(flow: DataFlow, layers: Layers, towers: Groups) -> Sequence[int]:
    """For each op the towers that it serves, a bit each: those whose losses its value reaches.

    An op that reaches no loss, or those of several towers, has the bits of what it takes; a
    variable has none.

    Args:
        flow: the edges of the program.
        layers: which ops are variables, or pass one on.
        towers: the losses of each.
    """
    reached = reaching(flow, towers)
    bits = [0] * len(reached)
    for op, sources in enumerate(flow.inputs):
        if layers.passed_on[op] == op:
            continue
        if only(reached[op]) != NONE:
            bits[op] = reached[op]
            continue
        for source in sources:
            if layers.passed_on[source] == NONE:
                bits[op] |= bits[source]
    return bits


def reaching(flow: DataFlow, ends: Groups) -> Sequence[int]:
    """For each op the groups of ends that its value reaches, a bit each."""
    reached = [0] * len(flow.names)
    for number, group in enumerate(ends):
        for end in group:
            reached[end] |= 1 << number
    while True:  # a second time only where a loop leads backwards
        before = list(reached) if flow.looped else reached
        for op in range(len(reached) - 1, -1, -1):
            if reached[op]:
                for source in flow.inputs[op]:
                    reached[source] |= reached[op]
        if reached == before:
            return reached


def only(mask: int) -> int:
    """The number of the one tower whose bit is set, or -1."""
    return mask.bit_length() - 1 if mask and not mask & (mask - 1) else NONE
