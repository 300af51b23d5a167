"""Mixed losses: losses of a tower that contain values of another tower, and doubled penalties.

A penalty is a part of a loss that depends on weights alone, such as weight decay.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import permutations, product
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import connected_groups, union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.by_loss import reachability_masks, single_tower
from placement_checks.analysis.towers.discovery import complete_device
from placement_checks.analysis.variables.tower_terms import tower_terms
from placement_checks.core.devices import Device
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import CONST
from placement_checks.core.placement import Placement
from placement_checks.step.kinds import ONE, AtomId, Monomial


class MixedLoss(NamedTuple):
    """A loss that contains values of another tower.

    Attributes:
        tower: the number of the tower that the loss belongs to.
        other: the number of the other tower.
        path: the ops from the loss back to an op of the other tower.
    """

    tower: TowerIndex
    other: TowerIndex
    path: Sequence[OpId]


class WaitingLoss(NamedTuple):
    """A loss that waits until another tower has updated a variable.

    Attributes:
        tower: the number of the tower that the loss belongs to.
        other: the number of the tower that computes the new value of the variable.
        variable: the name of the variable.
        path: the ops from the loss back to the update.
    """

    tower: TowerIndex
    other: TowerIndex
    variable: str
    path: Sequence[OpId]


class MixedLosses:
    """The losses that contain values of another tower; `mixed_losses` finds them once.

    Towers that depend on each other mutually do so on purpose: they share moments, or a loss
    contrasts the examples of all towers. A loss is mixed in two cases: one of its summands depends
    on another tower, but not on its own tower; or it depends on another tower that does not depend
    on the tower of the loss.

    A value of another tower counts only if it is computed from examples of that tower, with a
    variable that both towers read, or have copies of. A layer that one GPU computes for all towers
    does not count. A penalty on the weights counts if both towers compute it, and the loss
    contains it twice.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis = analyze(placement)
        self._model = tower_terms(placement)
        self._towers_by_op: dict[OpId, TowerMask] = {}
        self._forms = self._model.losses

    @property
    def unread(self) -> Missing | None:
        """Why a loss cannot be read; None if all losses are read."""
        for loss, form in self._forms.items():
            if isinstance(form, Missing):
                return form
            terms = self._model.terms
            for atom in map(terms.__getitem__, self._model.atoms_behind(terms.atoms_in(form))):
                cause = atom.status.cause
                is_unknown = atom.op == "Unknown" and not atom.operands
                if is_unknown and not (cause and cause.op == CONST):  # a large constant
                    name = self._analysis.flow.names[loss]
                    return Missing(
                        f"{name} uses an op that {cause.text if cause else 'is unknown'}"
                    )
        return None

    @cached_property
    def all(self) -> Sequence[MixedLoss]:
        """The mixed losses, in the order of towers."""
        return list(self._find())

    def _find(self) -> Iterator[MixedLoss]:
        doubled = self._doubled_summands()
        for number, losses in self._analysis.losses.items():
            for loss in losses:
                contained = self._contained(number, loss)
                ops = self._ops_of(contained, number) if contained else {}
                misplaced = self._misplaced.get(number, {})
                for others in (ops, misplaced, doubled.get(loss, {})):
                    if others and (path := self._analysis.flow.path(loss, others.__contains__)):
                        yield MixedLoss(number, others[path[-1]], path)
                        break

    def _summands(self, loss: OpId) -> Sequence[tuple[Monomial, float]]:
        form = self._forms[loss]
        return () if isinstance(form, Missing) else self._model.terms.summands(form)

    # --- values of other towers ---

    def _contained(self, number: TowerIndex, loss: OpId) -> int:
        """Return a bit mask of the towers that a loss of a tower wrongly contains."""
        contained = 0
        for other in self._analysis.towers_in(self._computed_for(number, [loss])):
            one_sided = not self._others_behind[other] >> number & 1
            if one_sided or self._has_summand_of(other, loss, without=number):
                contained |= 1 << other
        return contained

    @cached_property
    def _others_behind(self) -> Sequence[int]:
        """For each tower a bit mask of the other towers whose values its losses contain."""
        return [
            self._computed_for(number, losses) for number, losses in self._analysis.losses.items()
        ]

    def _computed_for(self, number: TowerIndex, losses: Sequence[OpId]) -> int:
        """Return a bit mask of the other towers that compute values for losses of a tower."""
        forms = [form for loss in losses if not isinstance(form := self._forms[loss], Missing)]
        atoms = {atom for form in forms for atom in self._model.terms.atoms_in(form)}
        return self._others_in(atoms, number)

    def _others_in(self, atoms: Collection[AtomId], number: TowerIndex) -> int:
        """Return a bit mask of the other towers that compute values from shared variables.

        Args:
            atoms: the atoms of which a value consists.
            number: the number of the tower that the value belongs to.
        """
        found, shared = 0, self._shared_variables[number]
        for atom in self._model.atoms_behind(atoms):
            towers = self._model.towers_of_atom(atom)
            is_new = towers.bit_count() == 1 and not (found | 1 << number) & towers
            if is_new and not shared.isdisjoint(self._model.sources(atom).variables):
                found |= towers
        return found

    @cached_property
    def _shared_variables(self) -> Sequence[frozenset[str]]:
        """For each tower the variables that it reads; of copies the first one."""
        names = self._model.first_copies
        return [
            frozenset(names.get(variable, variable) for variable in tower.reads)
            for tower in self._analysis.towers
        ]

    def _has_summand_of(self, other: TowerIndex, loss: OpId, *, without: TowerIndex) -> bool:
        """Whether a summand of a loss depends on ``other`` but not on ``without``.

        A power of a sum of towers, such as the square of their mean, is no such summand, although
        it is a sum of products.
        """
        both: set[AtomId] = set()
        alone: list[set[AtomId]] = []
        for monomial, _ in self._summands(loss):
            towers = self._model.towers_of_summand(monomial)
            atoms = {monomial[0], *(atom for atom, _ in monomial[1])} - {ONE}
            if towers >> other & 1 and towers >> without & 1:
                both |= atoms
            elif towers >> other & 1 and self._others_in(atoms, without) >> other & 1:
                alone.append(atoms)
        return any(both.isdisjoint(atoms) for atoms in alone)

    def _ops_of(self, towers: int, number: TowerIndex) -> Mapping[OpId, TowerIndex]:
        """Return the ops of towers that read a variable of another tower, or a copy of it.

        Args:
            towers: a bit mask of the towers of the ops.
            number: the number of the other tower.

        Returns:
            For each op the tower that it belongs to.
        """
        analysis, names = self._analysis, self._model.first_copies
        return {
            op: tower
            for variable, readers in analysis.reads_by_site.readers.items()
            if names.get(variable, variable) in self._shared_variables[number]
            for op in readers
            if (tower := analysis.tower_of[op]) is not None
            and towers >> tower & 1
            and self._model.holds_examples(op)
            and not analysis.backward.ops[op]
        }

    @cached_property
    def shared_ops(self) -> Mapping[OpId, TowerMask]:
        """The first op that combines each tower with other towers, and a mask of all these towers.

        Only towers that depend on each other mutually count.
        """
        analysis = self._analysis
        found = {}
        for number, losses in analysis.losses.items():
            mutual = self._others_behind[number]
            for loss in losses:
                mutual &= ~self._contained(number, loss)
            reached = sorted(analysis.flow.reachable(losses if mutual else ()))
            joint = next((op for op in reached if self._joins(op, number, mutual)), None)
            if joint is not None:
                found[joint] = self._towers_of_op(joint)
        return found

    def _joins(self, op: OpId, number: TowerIndex, others: int) -> bool:
        """Whether an op combines values of a tower and of one of other towers."""
        towers = self._towers_of_op(op)
        return bool(towers & others and towers >> number & 1)

    def _towers_of_op(self, op: OpId) -> TowerMask:
        if op not in self._towers_by_op:
            form = self._model.form(op)
            towers = 0 if isinstance(form, Missing) else self._model.towers_of(form)
            self._towers_by_op[op] = TowerMask(towers)
        return self._towers_by_op[op]

    # --- updates that losses wait for ---

    @cached_property
    def waiting(self) -> Sequence[WaitingLoss]:
        """The losses that wait for updates of another tower that does not wait for their tower.

        Updates by gradients do not count: towers that are trained in turn wait for them.
        """
        flow = self._analysis.flow
        awaited = [self._updates_before(losses) for _, losses in self._analysis.losses.items()]
        found = []
        for number, losses in self._analysis.losses.items():
            for other, update in awaited[number].items():
                if number in awaited[other]:
                    continue
                for loss in losses:
                    path = flow.path(loss, update.__eq__, flow.all_inputs.__getitem__)
                    if path:
                        holder = flow.names[flow.first_holder(update) or update]
                        found.append(WaitingLoss(number, other, holder, path))
        return found

    def _updates_before(self, losses: Sequence[OpId]) -> Mapping[TowerIndex, OpId]:
        """Return the towers whose updates losses wait for, each with its first such update."""
        flow, model = self._analysis.flow, self._model
        found: dict[TowerIndex, OpId] = {}
        for name in sorted({each for loss in losses for each in model.updates_before(loss)}):
            update = flow.number[name]
            if self._analysis.has_gradient(update):
                continue
            forms = [model.form(each) for each in flow.inputs[update]]
            towers = [model.towers_of(form) for form in forms if not isinstance(form, Missing)]
            tower = single_tower(TowerMask(union(towers)))
            if tower is not None:
                found[tower] = min(update, found.get(tower, update))
        return found

    # --- penalties that count twice ---

    def _doubled_summands(self) -> Mapping[OpId, Mapping[OpId, TowerIndex]]:
        """Find the losses that contain the penalties of their tower and of another tower.

        If each tower computes a penalty on the shared weights, and one tower adds up all these
        penalties, they count several times in its loss. A penalty that is computed once, and added
        by every tower, counts once in each loss. Towers may have weights, which multiply the
        penalties and the other terms alike.

        Returns:
            For each such loss, the op of the other tower that computes the penalty, and this
            tower.
        """
        losses = dict(self._analysis.losses.items())
        summands = {
            loss: self._aligned(number, loss) for number, ops in losses.items() for loss in ops
        }
        found: dict[OpId, Mapping[OpId, TowerIndex]] = {}
        for number, other in permutations(losses, 2):
            for loss, other_loss in product(losses[number], losses[other]):
                doubled = self._counted_again(summands[loss], summands[other_loss])
                op = self._op_in_both(doubled, loss, other_loss) if doubled else None
                if op is not None:
                    found[loss] = {op: other}
        return found

    def _counted_again(
        self, mine: Mapping[Monomial, float], its: Mapping[Monomial, float]
    ) -> Collection[Monomial]:
        """The summands that count several times as often in a loss as in another tower's loss.

        Args:
            mine: the summands of the loss, with the parts of the first tower.
            its: the summands of the other tower's loss, likewise.
        """
        model = self._model
        ratios = {each: mine[each] / its[each] for each in mine if each in its}
        of_towers = [ratio for each, ratio in ratios.items() if model.towers_of_summand(each)]
        weight = min(of_towers, default=1.0)
        return [
            each
            for each, ratio in ratios.items()
            if not model.towers_of_summand(each) and _is_multiple(ratio / weight)
        ]

    def _aligned(self, tower: TowerIndex, loss: OpId) -> Mapping[Monomial, float]:
        """The summands of a loss with the parts of the first tower; empty if it is not read."""
        form = self._forms[loss]
        aligned = None
        if not isinstance(form, Missing):
            aligned = self._model.as_of_first_tower(form, tower)
        return {} if aligned is None else dict(self._model.terms.summands(aligned))

    def _op_in_both(
        self, summands: Collection[Monomial], loss: OpId, other_loss: OpId
    ) -> OpId | None:
        """The first op that two losses use, and whose value is a multiple of a summand."""
        flow, terms = self._analysis.flow, self._model.terms
        wanted = set(summands)
        for op in sorted(flow.reachable([loss]) & flow.reachable([other_loss])):
            form = self._model.form(op)
            if not isinstance(form, Missing):
                summands_of_op = terms.summands(form)
                if len(summands_of_op) == 1 and summands_of_op[0][0] in wanted:
                    return op
        return None

    # --- parts of a tower on the GPU of another ---

    @cached_property
    def _misplaced(self) -> Mapping[TowerIndex, Mapping[OpId, TowerIndex]]:
        """For each tower its ops that request the GPU of another tower, with the other tower.

        Two ops belong to one group if they work for the same tower, request the same GPU, and one
        op takes the value of the other. If an op of a group reads a variable on this GPU, the
        group is not misplaced: it uses a shard of a table, or an expert, as all towers do.
        """
        analysis = self._analysis
        flow, by_loss, placement = analysis.flow, analysis.by_loss, analysis.placement
        if by_loss is None:
            return {}
        sites = by_loss.by_site.items()
        owners = {site.device: tower for site, tower in sites if site.tower is None}
        misplaced_ops: dict[OpId, tuple[TowerIndex, Device]] = {}
        for op, mask in zip(flow.ops, reachability_masks(flow, by_loss.losses), strict=True):
            tower, request = single_tower(mask), placement.by_number[op].requested
            if tower is not None and request.is_gpu and analysis.examples[op]:
                device = complete_device(request)
                is_bound = placement.by_number[op].colocated or analysis.backward.ops[op]
                if not is_bound and owners.get(device, tower) != tower:
                    misplaced_ops[op] = tower, device
        with_variable = {
            op
            for variable, readers in analysis.reads_by_site.readers.items()
            for op in readers
            if op in misplaced_ops
            and complete_device(placement.ops[variable].requested) == misplaced_ops[op][1]
        }
        found: dict[TowerIndex, dict[OpId, TowerIndex]] = defaultdict(dict)
        pairs = [
            (op, source)
            for op, label in misplaced_ops.items()
            for source in flow.inputs[op]
            if misplaced_ops.get(source) == label
        ]
        for group in connected_groups(misplaced_ops, pairs):
            if with_variable.isdisjoint(group):
                for op in group:
                    tower, device = misplaced_ops[op]
                    found[tower][op] = owners[device]
        return found


def _is_multiple(ratio: float) -> bool:
    """Whether a number is a whole number above 1, but for rounding."""
    return ratio > 1.5 and math.isclose(ratio, round(ratio), rel_tol=1e-4)


def mixed_losses(placement: Placement) -> MixedLosses:
    """Return the losses that contain or await values of another tower, found once."""
    return placement.cached(MixedLosses)
