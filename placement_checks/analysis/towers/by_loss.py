"""Towers by loss: the losses of each copy of the model, and the ops that each loss uses.

Devices and names have no influence, so the result stays the same if a refactor moves or renames
ops. `analysis.towers.discovery` combines the result with the requested devices. Addresses and
baselines use only this result.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, NamedTuple, cast

from placement_checks.analysis.graph.analysis import GraphAnalysis
from placement_checks.analysis.graph.data_flow import DataFlow, connected_groups
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.op_types import SUMS_UP

Groups = Sequence[Sequence[OpId]]
# Copies of a model have at least this share of their ops in common: `_SIMILAR` applies to copies
# on different devices, `_ALIKE` to copies that read the same variables.
_SIMILAR, _ALIKE = 0.5, 0.75


class ModelCopies(NamedTuple):
    """The copies of the model that a program trains, found by reachability from its losses.

    Attributes:
        losses: the loss ops of each copy. If one joint loss trains all copies, these are the last
            ops before the joint loss that belong to a single copy.
        likeness: "same" if the copies have the same variables or the same op types; "similar" if
            at least half of the ops have a counterpart; "" if fewer ops have a counterpart, or if
            there is only one copy.
    """

    losses: Groups
    likeness: Literal["same", "similar", ""]


class CopiesByLoss:
    """Groups the losses of a program by the copy of the model that computes them.

    Losses that share a value computed from both examples and variables belong to one copy, such
    as the losses of a discriminator and its generator. A penalty on the weights, and the input
    pipeline, may be shared by all copies. One joint loss is split where the losses of the copies
    are summed, or where their outputs are concatenated.
    """

    def __init__(self, graph: GraphAnalysis) -> None:
        self._flow = graph.flow
        self._layers = graph.layers.by_op
        self._in_model = graph.in_model

    def copies(self, losses: Sequence[OpId]) -> ModelCopies:
        """Return the copies of the model.

        Args:
            losses: all loss ops of the program.
        """
        groups = self._disjoint_groups(losses)
        # Leave out penalties on weights, which may belong to all copies.
        groups = [group for group in groups if any(self._in_model[op] for op in group)] or groups
        if len(groups) > 1:
            matched = self._match(groups)
            if matched:
                return ModelCopies(matched, "same")
            return ModelCopies(groups, "similar" if self._are_similar(groups) else "")
        split = self._split_joint_losses(losses)
        return ModelCopies(split, "same") if split else ModelCopies(groups, "")

    def _disjoint_groups(self, ops: Sequence[OpId]) -> Groups:
        """Group ops so that no two groups use the same value of the model."""
        user: dict[OpId, OpId] = {}  # for each value, the first op that uses it
        pairs = set[tuple[OpId, OpId]]()
        for end in ops:
            behind = self._flow.reachable(
                [end], until=lambda op: op in user or not self._in_model[op]
            )
            pairs.update((end, user.setdefault(op, end)) for op in behind if self._in_model[op])
        return connected_groups(ops, pairs)

    def _split_joint_losses(self, losses: Sequence[OpId]) -> Groups:
        """Split joint losses into the losses of the copies; empty if any loss cannot be split."""
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
        groups = self._disjoint_groups([op for split in splits for copy in split for op in copy])
        return groups if len(groups) == len(splits[0]) else ()

    def _split_joint_loss(self, loss: OpId) -> Groups:
        """Split one joint loss into the losses of the copies; empty if it cannot be split."""
        ends, seen = self._summands([loss]), set[OpId]()
        while len(ends) == 1 and ends[0] not in seen:  # a loop leads back
            seen.add(ends[0])
            ends = self._summands(self._model_inputs(ends[0]))
        groups = self._disjoint_groups(ends)
        if len(groups) < 2 or not self._have_most_variables(groups, loss):
            return ()
        copies = self._match(groups)
        if not copies:
            return ()
        # The losses of a copy are the last ops before the joint loss that belong to this copy
        # alone.
        masks = self._flow.propagate(self._flow.marks(copies))
        found: list[list[OpId]] = [[] for _ in copies]
        for op in self._flow.reachable([loss], until=lambda op: masks[op].bit_count() < 2):
            number = single_tower(masks[op])
            if number is not None:
                found[number].append(op)
        return list(map(sorted, found))

    def _summands(self, ops: Iterable[OpId]) -> Sequence[OpId]:
        """Return the ops that ``ops`` add up or concatenate, directly or in several steps."""

        def summands(op: OpId) -> Sequence[OpId]:
            return self._model_inputs(op) if self._flow.types[op] in SUMS_UP else ()

        return sorted(op for op in self._flow.reachable(ops, along=summands) if not summands(op))

    def _model_inputs(self, op: OpId) -> Sequence[OpId]:
        return [source for source in self._flow.inputs[op] if self._in_model[source]]

    def _have_most_variables(self, groups: Groups, loss: OpId) -> bool:
        """Whether groups read more than half of the variables behind a joint loss.

        Groups that read fewer variables are branches at the start of one model, or steps of a
        sequence.
        """
        read = frozenset().union(*(self._model_before(group)[1] for group in groups))
        return 2 * len(read) > len(self._model_before([loss])[1])

    def _match(self, groups: Groups) -> Groups:
        """Combine groups into copies of the model; empty if they do not form copies.

        A model may have several tasks, with one group for each task. Groups have the same task if

        * they have the same op types, and each set of variables is read by equally many groups; or
        * they read the same variables, and most of their ops have the same types.

        Each copy has one group of each task. The groups of a task have equally many losses: a
        group with more losses holds several towers that share results.
        """
        computed = list(map(self._model_before, groups))
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
        return self._have_in_common([self._model_before(group)[0] for group in groups], _SIMILAR)

    @staticmethod
    def _have_in_common(types: Sequence[Counter[str]], share: float) -> bool:
        """Whether each group has this share of its op types in common with the first group."""
        first, *others = types
        return all((first & other).total() >= share * (first | other).total() for other in others)

    def _model_before(self, ops: Sequence[OpId]) -> tuple[Counter[str], frozenset[OpId | None]]:
        """Count the model ops before ``ops`` by type, and return the variables that they read."""
        behind = self._flow.reachable(ops, until=lambda op: not self._in_model[op])
        model = [op for op in behind if self._in_model[op]]
        return (
            Counter(self._flow.types[op] for op in model),
            frozenset(self._layers[op] for op in model),
        )


def towers_by_op(graph: GraphAnalysis, losses: Groups) -> Sequence[TowerMask]:
    """Return for each op the towers whose losses use its value.

    If an op reaches no loss, or the losses of several towers, the result is the towers of its
    inputs instead. A variable has no towers.

    Args:
        graph: the program.
        losses: the loss ops of each tower.
    """
    reached = reachability_masks(graph.flow, losses)
    passed_on = graph.layers.passed_on
    towers = [0] * len(reached)
    for op, sources in zip(graph.flow.ops, graph.flow.inputs, strict=True):
        if passed_on[op] == op:
            continue
        if single_tower(reached[op]) is not None:
            towers[op] = reached[op]
            continue
        for source in sources:
            if passed_on[source] is None:
                towers[op] |= towers[source]
    return cast(list[TowerMask], towers)


def reachability_masks(flow: DataFlow, ends: Groups) -> Sequence[TowerMask]:
    """Return for each op the mask of the groups of ends that its value reaches."""
    return cast(list[TowerMask], flow.propagate(flow.marks(ends), to_inputs=True))


def single_tower(towers: int) -> TowerIndex | None:
    """Return the only tower in a mask; None if it has no tower or several."""
    return TowerIndex(towers.bit_length() - 1) if towers.bit_count() == 1 else None
