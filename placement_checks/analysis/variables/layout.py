"""Layouts: how the towers share each variable of the model, found by data flow."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple, TypeVar, cast

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.towers.discovery import complete_device
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.analysis.variables.step_changes import step_changes
from placement_checks.core.devices import Device
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.variables import Variable
from placement_checks.step.kinds import Form
from placement_checks.util.text import plural

_T = TypeVar("_T")
LayoutKind = Literal["central", "mirrored", "sharded", "split", "own"]

_SUFFIXES: Mapping[LayoutKind, str] = {
    "central": "",
    "mirrored": ", a copy on each of {} GPUs",
    "sharded": "",
    "split": ", each used only on the GPU that has it",
    "own": ", each read by one tower alone",
}
_PART = re.compile(r"(.+)/part_\d+")  # the name of a partition, by tf.compat.v1.get_variable


class MirroredVariable(NamedTuple):
    """A mirrored variable: towers have copies, which are updated by the same sum of gradients.

    Attributes:
        copies: the names of the copies, by tower.
        diverging: the names of the variables that other towers have instead of a copy, by tower.
            These variables have the same shape and dtype as the copies, but their updates take
            other gradients, or no gradients.
    """

    copies: Mapping[TowerIndex, str]
    diverging: Mapping[TowerIndex, str]


class Layout:
    """The layout of each variable that the model reads; `variable_layout` computes it once.

    A program may mix layouts, so each variable has a separate layout:

    * *central*: several towers read it, or the host does.
    * *mirrored*: it is a copy, and its update takes the same sum of gradients as the copies of
      other towers.
    * *sharded*: it is a partition of a variable.
    * *split*: it belongs to a part of the model, and one GPU of the tower holds this part.
    * *own*: one tower alone reads it.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyze(placement)
        self._gradients = gradient_flow(placement)
        self._of_strategy = placement.strategy.first_copies if placement.strategy else {}

    @cached_property
    def readers(self) -> Mapping[str, TowerMask]:
        """The towers that read each variable, by its name."""
        readers: dict[str, int] = defaultdict(int)
        for number, tower in enumerate(self._analysis.towers):
            for variable in tower.reads:
                readers[variable] |= 1 << number
        return cast(dict[str, TowerMask], readers)

    def only_reader(self, variable: str) -> TowerIndex | None:
        """Return the only tower that reads a variable; None if no tower or several read it."""
        return single_tower(self.readers.get(variable, 0))

    @cached_property
    def mirrored(self) -> Sequence[MirroredVariable]:
        """The mirrored variables.

        Towers are built alike, so their variables of the same shape and dtype are matched in the
        order of creation. Matched variables are copies if their updates take the same gradients.
        If this holds for more than half of the matched variables, the other variables diverge.
        """
        groups = map(self._find_copies, self._candidates())
        return [group for group in groups if group]

    @cached_property
    def unproved(self) -> Sequence[MirroredVariable]:
        """The mirrored variables that the program made, and whose copies may drift apart.

        Their updates do not combine the gradients in the same terms.
        """
        changes, names = step_changes(self._placement), self._analysis.flow.names

        def taken(copy: str) -> Mapping[Form, int]:
            return changes.gradients_taken(
                changes.change(names[update.op]) for update in self._updates(copy)
            )

        return [
            group
            for group in self.mirrored
            if not self._of_strategy.keys() & group.copies.values()
            and any(
                taken(copy) != taken(min(group.copies.values())) for copy in group.copies.values()
            )
        ]

    @cached_property
    def copies(self) -> Mapping[str, MirroredVariable]:
        """The mirrored variable of each copy, by the name of the copy."""
        return {name: group for group in self.mirrored for name in group.copies.values()}

    @cached_property
    def diverging(self) -> Mapping[str, MirroredVariable]:
        """For each diverging variable, the mirrored variable that it should be a copy of."""
        return {name: group for group in self.mirrored for name in group.diverging.values()}

    @cached_property
    def strays(self) -> Mapping[str, TowerIndex]:
        """The trainable variables, except copies, that only one tower reads, each with the tower.

        Empty if no variable is mirrored.
        """
        return {
            name: tower
            for group in (self._candidates() if self.mirrored else ())
            for tower, name in group.items()
            if name not in self.copies and not self._is_frozen_copy(name)
        }

    @cached_property
    def tower_of(self) -> Mapping[str, TowerIndex]:
        """The tower of each variable that belongs to one tower.

        These are copies, strays, slots, averages, and variables that only one tower reads and no
        update trains, such as running statistics and frozen weights. Empty if no variable is
        mirrored.
        """
        towers = {name: tower for group in self.mirrored for tower, name in group.copies.items()}
        towers |= self.strays
        if towers:
            for name, tower in (*self._untrained(towers), *self._slots(towers)):
                towers.setdefault(name, tower)
        return towers

    @cached_property
    def gpu_of(self) -> Mapping[str, Device]:
        """The GPU of each variable, and of its slots, in a model that is split among GPUs.

        With one tower, these are the variables that only one GPU reads. In the forward pass, this
        GPU must exchange results with another GPU. If most variables are
        read by several GPUs, the GPUs are towers that use each other's results, and the model is
        not split.

        With several towers, these are variables that several towers use on the GPU that has the
        variable, such as experts, or the shards of a table. The result is empty unless such
        variables are on at least two GPUs, or on a GPU that no tower runs on.
        """
        parts = self._parts_of_one_tower() if len(self._analysis.towers) == 1 else self._experts()
        for name, gpu in (*self._colocated(parts), *self._slots(parts)):
            parts.setdefault(name, gpu)
        return parts

    def _experts(self) -> dict[str, Device]:
        """Return the variables that several towers use, each only on the GPU that has it."""
        reads, ops = self._analysis.reads_by_site, self._placement.by_number
        found: dict[str, Device] = {}
        for name, readers in self.readers.items():
            device = complete_device(self._placement.ops[name].requested)
            if readers.bit_count() > 1 and device.is_gpu:
                used_on = {
                    complete_device(ops[op].requested)
                    for op in reads.readers[name]
                    if not self._analysis.backward.ops[op] and reads.in_loss(op)
                }
                if used_on == {device}:
                    found[name] = device
        used = {device for tower in self._analysis.towers for device in tower.devices}
        holding = set(found.values())
        return found if len(holding) > 1 or not holding <= used else {}

    def _parts_of_one_tower(self) -> dict[str, Device]:
        """Return the variables that one GPU alone reads, in a model with one tower."""
        reads = self._analysis.reads_by_site
        gpus = reads.site_reads
        linked = {gpus[number].device for pair in reads.joined_forward for number in pair}
        readers = {
            name: [gpu.device for gpu in gpus if name in gpu.reads]
            for name in self.readers
            if self._kind_by_readers(name) in ("split", "own")
        }
        parts = {
            name: devices[0]
            for name, devices in readers.items()
            if len(devices) == 1 and devices[0] in linked
        }
        return parts if 2 * len(parts) > len(readers) else {}

    @cached_property
    def first_copies(self) -> Mapping[str, str]:
        """The first copy of each variable that towers have copies of, by the other copies."""
        names = dict(self._of_strategy)
        for mirrored in self.mirrored:
            first = mirrored.copies[min(mirrored.copies)]
            names |= dict.fromkeys(mirrored.copies.values(), first)
        return {copy: first for copy, first in names.items() if copy != first}

    def read_as(self, variable: str) -> Mapping[TowerIndex, str]:
        """Return the variable that each tower reads: ``variable``, or the tower's copy of it."""
        if variable in self.copies:
            return self.copies[variable].copies
        towers = self._analysis.towers_in(self.readers.get(variable, 0))
        return dict.fromkeys(towers, variable)

    def kind(self, variable: str) -> LayoutKind:
        """Return the layout of a variable."""
        if variable in self.copies or variable in self._of_strategy:
            return "mirrored"
        if variable in self.partitions:
            return "sharded"
        if variable in self.gpu_of:
            return "split"
        return self._kind_by_readers(variable)

    def _kind_by_readers(self, variable: str) -> LayoutKind:
        """Return the layout of a variable without copies, by the towers that read it."""
        tower = self.only_reader(variable)
        if tower is None:
            return "central"
        devices = self._analysis.towers[tower].devices
        parts = [gpu for gpu in self._analysis.reads_by_site.site_reads if gpu.device in devices]
        return "own" if all(variable in gpu.reads for gpu in parts) else "split"

    def __str__(self) -> str:
        """Count the variables of each layout, in words for a report."""
        not_copied = self.tower_of.keys() - self.copies.keys() - self.strays.keys()
        in_model = self._analysis.variables_read - not_copied - self._analysis.cached_inputs
        count = Counter(map(self.kind, in_model))
        most = max((len(group.copies) for group in self.mirrored), default=0)
        others = in_model & {
            first for name, first in self._of_strategy.items() if name not in self.copies
        }
        count["mirrored"] = len(self.mirrored) + len(others)
        if others and self._placement.strategy is not None:
            most = max(most, len(self._placement.strategy.replicas))
        texts = {**_SUFFIXES}
        if not self.unproved:
            texts["mirrored"] += ", and all copies take the same gradients"
        return "; ".join(
            f"{kind}: {plural(count[kind], 'variable')}{text.format(most)}"
            for kind, text in texts.items()
            if count[kind]
        )

    @cached_property
    def partitions(self) -> frozenset[str]:
        """The partitions of variables that `tf.compat.v1.get_variable` made."""
        names = [variable.name for variable in self._placement.variables]
        parts = [(match[1], name) for name in names if (match := _PART.fullmatch(name))]
        several = Counter(whole for whole, _ in parts)
        return frozenset(name for whole, name in parts if several[whole] > 1)

    def _candidates(self) -> Iterator[Mapping[TowerIndex, str]]:
        """Yield groups of variables that may be copies of each other, by tower."""
        forms: dict[object, dict[TowerIndex, list[str]]] = defaultdict(lambda: defaultdict(list))
        for variable in self._placement.variables:
            tower = self.only_reader(variable.name)
            if tower is not None and self._is_trainable(variable):
                forms[variable[1:]][tower].append(variable.name)
        for by_tower in forms.values():
            for group in zip_longest(*by_tower.values()):
                yield {tower: name for tower, name in zip(by_tower, group, strict=True) if name}

    def _is_trainable(self, variable: Variable) -> bool:
        name, trainable = variable.name, self._placement.collected.get(TRAINABLE)
        return trainable is None or name in trainable or name in self._gradients.trained

    def _is_frozen_copy(self, variable: str) -> bool:
        """Whether a strategy made a copy that no step trains, as in a frozen layer."""
        strategy = self._placement.strategy
        is_copy = strategy is not None and variable in strategy.copies
        return is_copy and variable not in self._gradients.trained

    def _find_copies(self, candidates: Mapping[TowerIndex, str]) -> MirroredVariable | None:
        """Return a mirrored variable, if over half of the candidates take the same gradients."""
        by_sources: dict[frozenset[OpId], dict[TowerIndex, str]] = defaultdict(dict)
        for tower, name in sorted(candidates.items()):
            by_sources[self._sources(name)][tower] = name
        sources, copies = max(by_sources.items(), key=lambda item: len(item[1]))
        if not sources or len(copies) < 2 or 2 * len(copies) <= len(candidates):
            return None
        diverging = {tower: name for tower, name in candidates.items() if tower not in copies}
        return MirroredVariable(copies, diverging)

    def _sources(self, variable: str) -> frozenset[OpId]:
        """Return the gradients that the updates of a variable take."""
        updates = self._updates(variable)
        return frozenset(op for update in updates for op in self._gradients.sources(update))

    def _updates(self, variable: str) -> list[Update]:
        """Return the updates of a variable, and of a variable whose new value it takes."""
        by_variable, names = self._analysis.updates.by_variable, self._analysis.flow.names
        changes = step_changes(self._placement)
        updates = [*by_variable.get(variable, ())]
        for update in tuple(updates):
            other, done = changes.assigned_state(changes.change(names[update.op])) or ("", ())
            taken = by_variable.get(other, ())
            updates += taken if all(names[each.op] in done for each in taken) else ()
        return updates

    def _untrained(self, copies: Mapping[str, TowerIndex]) -> Iterator[tuple[str, TowerIndex]]:
        """Yield variables that one tower reads and no update trains, with the tower.

        Also yield variables that are colocated with copies.
        """
        colocated = dict(self._colocated(copies))
        for variable in self._placement.variables:
            name, tower = variable.name, self.only_reader(variable.name)
            if name in colocated:
                yield name, colocated[name]
            elif tower is not None and (
                not self._is_trainable(variable) or self._is_frozen_copy(name)
            ):
                yield name, tower

    def _colocated(self, owners: Mapping[str, _T]) -> Iterator[tuple[str, _T]]:
        """Yield the variables that are colocated with a key of ``owners``, with its value."""
        for name, *_ in self._placement.variables:
            others = [other for other in self._placement.ops[name].colocated if other in owners]
            if others:
                yield name, owners[others[0]]

    def _slots(self, owners: Mapping[str, _T]) -> Iterator[tuple[str, _T]]:
        """Yield the slots of the keys of ``owners`` that no tower reads, each with its value.

        A slot may serve the copies of a variable on all GPUs. Then the copy on its device counts.
        """
        ops, found = self._placement.ops, find_slots(self._placement)
        owners_of: dict[str, list[str]] = defaultdict(list)
        for kind in (found.held, found.read, found.computed):
            for slot, names in kind.items():
                owners_of[slot] += [name for name in names if name in owners]
        for slot, names in owners_of.items():
            if names and slot not in self.readers:
                device = ops[slot].requested
                near = [name for name in names if ops[name].requested == device]
                yield slot, owners[(near or names)[0]]


def variable_layout(placement: Placement) -> Layout:
    """Return the layout of the variables of a placement, computed once."""
    return placement.cached(Layout)


def made_by_get_variable(placement: Placement) -> frozenset[str]:
    """Return the variables with an initializer scope, which `get_variable` creates."""
    parts = (name.partition("/Initializer/") for name in placement.ops)
    return frozenset(variable for variable, inside, _ in parts if inside)
