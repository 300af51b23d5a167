"""Towers by loss: which losses belong to one copy of the model, and which ops each loss uses.

No device and no name decides, so the answer stays the same when a refactor moves or renames ops.
`analysis.towers.discovery` combines it with the requested devices; addresses and baselines use
it alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from placement_checks.analysis.graph.backward import Backward
from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.analysis.graph.layers import NONE, Layers
from placement_checks.core.op_types import SUMS_UP
from placement_checks.core.placement import StepOps, producer_of

Groups = Sequence[Sequence[int]]
# The part of their ops that copies of a model have in common, at least: of which only the device
# shows that they are copies, and of which the variables that they read show it too.
_SIMILAR, _ALIKE = 0.5, 0.75


def loss_ops(step: StepOps, flow: DataFlow) -> Sequence[int]:
    """The ops that the program takes gradients of, or else the losses that it reports.

    If the gradients of a tensor are part of another loss, as in a gradient penalty or an inner
    loop of MAML, the tensor is not a loss itself and is left out.
    """
    outer = _without_inner(step, flow)
    names = map(producer_of, outer or step.losses)
    return list(dict.fromkeys(flow.number[name] for name in names if name in flow.number))


def _without_inner(step: StepOps, flow: DataFlow) -> Sequence[str]:
    """The objectives, without the ones that other objectives take gradients of."""
    gradients = {
        name: [flow.number[op] for op in step.gradients.get(name, ()) if op in flow.number]
        for name in dict.fromkeys(step.objectives)
    }
    if len(gradients) < 2 or not any(gradients.values()):
        return step.objectives
    own = [0] * len(flow.names)
    for bit, ops in enumerate(gradients.values()):
        for op in ops:
            own[op] |= 1 << bit
    behind = flow.masks(own)
    inner = 0
    for bit, name in enumerate(gradients):
        objective = flow.number.get(producer_of(name))
        if objective is not None:
            inner |= behind[objective] & ~(1 << bit)
    outer = [name for bit, name in enumerate(gradients) if not inner >> bit & 1]
    return outer or step.objectives


class Copies(NamedTuple):
    """The copies of the model that a program trains.

    Attributes:
        losses: the loss ops of each copy. If one joint loss trains all copies, these are the last
            ops before it that belong to one copy.
        alike: how alike the copies are. "same": the same variables or the same op types in each;
            "similar": at least half of the ops have a counterpart; "": less, or one copy.
    """

    losses: Groups
    alike: str


class CopiesByLoss:
    """Groups the losses of a program by the copy of the model that computes them.

    Losses that share a value computed from both examples and variables belong to one copy, such
    as the losses of a discriminator and its generator. A penalty on the weights, and the input
    pipeline, may be shared by all copies. One joint loss is split where the losses of the copies
    are summed, or where their outputs are concatenated.
    """

    def __init__(
        self, flow: DataFlow, layers: Layers, backward: Backward, examples: Sequence[int]
    ) -> None:
        self._flow = flow
        self._layers = layers.of
        self.in_model = [
            layer != NONE and bool(is_example) and not is_backward
            for layer, is_example, is_backward in zip(
                layers.of, examples, backward.ops, strict=True
            )
        ]

    def losses(self, losses: Sequence[int]) -> Groups:
        """The losses of each copy; empty if there are none.

        Args:
            losses: all loss ops of the program.
        """
        return self.copies(losses).losses

    def copies(self, losses: Sequence[int]) -> Copies:
        """The copies of the model, and how alike they are."""
        groups = self._of_model(self._sharing_nothing(losses))
        if len(groups) > 1:
            matched = self._match(groups)
            if matched:
                return Copies(matched, "same")
            return Copies(groups, "similar" if self._are_similar(groups) else "")
        split = self._split_joint_losses(losses)
        return Copies(split, "same") if split else Copies(groups, "")

    def _sharing_nothing(self, ops: Sequence[int]) -> Groups:
        """The ops in groups that have no value of the model in common, in their order."""
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

    def _of_model(self, groups: Groups) -> Groups:
        """The groups that compute with examples, if there are any; a penalty alone does not."""
        return [group for group in groups if any(map(self.in_model.__getitem__, group))] or groups

    def _owners_behind(self, end: int, owner: dict[int, int]) -> Iterator[int]:
        """Make ``end`` the owner of the ops behind it; yields the owners of ops that have one."""
        for op in self._flow.walk_back([end], lambda op: owner.get(op) == end):
            if self.in_model[op] and owner.setdefault(op, end) != end:
                yield owner[op]

    def _split_joint_losses(self, losses: Sequence[int]) -> Groups:
        """The losses of the copies that joint losses are made of; empty if one is of one copy."""
        splits: list[Groups] = []
        for loss in losses:
            split = self._split_joint_loss(loss)
            if not split or len(split) != len((splits or [split])[0]):
                return ()
            splits.append(split)
        if not splits:
            return ()
        if len(splits) == 1:
            return splits[0]
        groups = self._sharing_nothing([op for split in splits for copy in split for op in copy])
        return groups if len(groups) == len(splits[0]) else ()

    def _split_joint_loss(self, loss: int) -> Groups:
        """The losses of the copies that one joint loss is made of; empty if it is of one copy."""
        ends, seen = self._ends([loss]), set[int]()
        while len(ends) == 1 and ends[0] not in seen:  # a loop leads back
            seen.add(ends[0])
            ends = self._ends(self._sources(ends[0]))
        groups = self._sharing_nothing(ends)
        if len(groups) < 2 or not self._have_most_variables(groups, loss):
            return ()
        copies = self._match(groups)
        if not copies:
            return ()
        own = [0] * len(self._flow.names)
        for number, copy in enumerate(copies):
            for op in copy:
                own[op] = 1 << number
        return self._last_of_one(loss, self._flow.masks(own), len(copies))

    def _ends(self, ops: Sequence[int]) -> Sequence[int]:
        """The ops behind a chain of sums and concatenations that are none themselves."""
        ends, todo, seen = list[int](), list(ops), set(ops)
        for op in todo:
            sources = self._sources(op) if self._flow.types[op] in SUMS_UP else ()
            if not sources:
                ends.append(op)
            todo += [source for source in sources if source not in seen]
            seen.update(sources)
        return sorted(ends)

    def _sources(self, op: int) -> Sequence[int]:
        """The inputs of an op that belong to the model, each once."""
        return list(dict.fromkeys(s for s in self._flow.inputs[op] if self.in_model[s]))

    def _have_most_variables(self, groups: Groups, loss: int) -> bool:
        """Whether groups read more than half of the variables behind a joint loss.

        Otherwise they are branches at the start of one model, or steps of a sequence.
        """
        read = frozenset().union(*(self._computed(group)[1] for group in groups))
        return 2 * len(read) > len(self._computed([loss])[1])

    def _match(self, groups: Groups) -> Groups:
        """The groups combined to copies of the model; empty if they are no copies.

        Groups are of one task if they have the same op types, and each set of variables is read
        by equally many of them: by all, or by the groups of one copy. Otherwise they are of one
        task if they read the same variables, and most of their ops have the same types. Each copy
        has one group of each task. The groups of a task have equally many losses: a group with
        more losses holds several towers that share results.
        """
        computed = list(map(self._computed, groups))
        by_types: dict[Hashable, list[int]] = defaultdict(list)
        by_variables: dict[Hashable, list[int]] = defaultdict(list)
        for number, (types, variables) in enumerate(computed):
            by_types[frozenset(types.items())].append(number)
            by_variables[variables].append(number)
        read_evenly = all(
            len(set(Counter(computed[number][1] for number in task).values())) == 1
            for task in by_types.values()
        )
        are_alike = all(
            self._have_in_common([computed[number][0] for number in task], _ALIKE)
            for task in by_variables.values()
        )
        for tasks, is_sound in ((by_types, read_evenly), (by_variables, are_alike)):
            counts = {len(task) for task in tasks.values()}
            losses = [{len(groups[number]) for number in task} for task in tasks.values()]
            are_even = len(counts) == 1 and all(len(each) == 1 for each in losses)
            if is_sound and are_even and counts != {1}:
                return [
                    [end for number in copy for end in groups[number]]
                    for copy in zip(*tasks.values(), strict=True)
                ]
        return ()

    def _are_similar(self, groups: Groups) -> bool:
        """Whether groups have equally many losses, and at least half of their ops in common."""
        if len(set(map(len, groups))) > 1:
            return False
        return self._have_in_common([self._computed(group)[0] for group in groups], _SIMILAR)

    @staticmethod
    def _have_in_common(types: Sequence[Counter[str]], part: float) -> bool:
        """Whether each has at least a part of its ops in common with the first, by op type."""
        first, *others = types
        return all((first & other).total() >= part * (first | other).total() for other in others)

    def _computed(self, ops: Sequence[int]) -> tuple[Counter[str], frozenset[int]]:
        """The op types of the model behind some ops, counted, and the variables that they read."""
        behind = self._flow.walk_back(ops, self.in_model.__getitem__)
        model = [op for op in behind if self.in_model[op]]
        return (
            Counter(self._flow.types[op] for op in model),
            frozenset(self._layers[op] for op in model),
        )

    def _last_of_one(self, loss: int, masks: Sequence[int], copies: int) -> Groups:
        """For each copy the last ops behind a joint loss that belong to it alone."""
        found: list[list[int]] = [[] for _ in range(copies)]
        for op in self._flow.walk_back([loss], lambda op: masks[op].bit_count() > 1):
            number = single_tower(masks[op])
            if number != NONE:
                found[number].append(op)
        return found


def towers_by_op(flow: DataFlow, layers: Layers, losses: Groups) -> Sequence[int]:
    """For each op a bit mask of the towers that it serves: their losses use its value.

    An op that reaches no loss, or losses of several towers, has the bits of its inputs. A variable
    has none.

    Args:
        flow: the edges of the program.
        layers: tells variables, and the ops that pass them on.
        losses: the loss ops of each tower.
    """
    reached = reachability_masks(flow, losses)
    bits = [0] * len(reached)
    for op, sources in enumerate(flow.inputs):
        if layers.passed_on[op] == op:
            continue
        if single_tower(reached[op]) != NONE:
            bits[op] = reached[op]
            continue
        for source in sources:
            if layers.passed_on[source] == NONE:
                bits[op] |= bits[source]
    return bits


def reachability_masks(flow: DataFlow, ends: Groups) -> Sequence[int]:
    """For each op a bit mask of the groups of ends that its value reaches."""
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


def single_tower(mask: int) -> int:
    """The number of the single bit that is set, or -1."""
    return mask.bit_length() - 1 if mask and not mask & (mask - 1) else NONE
