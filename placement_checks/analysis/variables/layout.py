"""Layouts: how the variables of a program lie to its towers, found by data flow.

Unshared variables: towers have one each, as of a mirror that is broken.

Accumulators: variables in which each tower adds up what it computes, until that is used.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple, TypeVar

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.towers.discovery import requested_gpu
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.devices import Device
from placement_checks.core.op_types import (
    ADDITIONS,
    NOT_A_READ,
    OVERWRITES,
    RESTORES,
    VARIABLE_READS,
    is_update,
)
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.variables import Variable
from placement_checks.util.text import plural

_T = TypeVar("_T")
Kind = Literal["central", "mirrored", "sharded", "split", "own"]

_IN_WORDS: Mapping[Kind, str] = {
    "central": "",
    "mirrored": ", a copy on each of {} GPUs, each applies the same sum",
    "sharded": "",
    "split": ", each used only on the GPU that has it",
    "own": ", each read by one tower alone",
}
_PART = re.compile(r"(.+)/part_\d+")  # how tf.compat.v1.get_variable names what it cuts up


class Copies(NamedTuple):
    """A mirrored variable: every tower has a copy, and all of them are updated by the same sum.

    Attributes:
        of: the copies, by the numbers of their towers.
        apart: what other towers have in its place, by their numbers: variables of the same form
            that take other gradients, or none.
    """

    of: Mapping[int, str]
    apart: Mapping[int, str]


class Layout:
    """The layout of each variable that the model reads; `Placement.cached` keeps it.

    A program may mix them, so rules ask of each variable. It is *central* if several towers read
    it, or the host; *mirrored* if it is a copy that takes the same sum of gradients as those of
    the other towers; *sharded* if it is a part of a variable that was cut up; *split* if it is of
    that part of the model that one of its tower's GPUs holds; else it is the *own* of one tower.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyse(placement)
        self._gradients = gradient_flow(placement)

    @cached_property
    def readers(self) -> Mapping[str, int]:
        """The towers that read each variable, a bit each."""
        readers: dict[str, int] = defaultdict(int)
        for number, tower in enumerate(self._analysis.towers):
            for variable in tower.reads:
                readers[variable] |= 1 << number
        return readers

    @cached_property
    def mirrored(self) -> Sequence[Copies]:
        """The mirrored variables.

        Towers are built alike, so their variables of one form are paired in the order of creation.
        A copy takes the same sum if its updates take the very gradients that those of the others
        take. That more than half of the copies do tells them from those that do not.
        """
        groups = map(self._copies, self._candidates())
        return [group for group in groups if group]

    @cached_property
    def copies(self) -> Mapping[str, Copies]:
        """The mirrored variable that each copy is one of."""
        return {name: group for group in self.mirrored for name in group.of.values()}

    @cached_property
    def apart(self) -> Mapping[str, Copies]:
        """The mirrored variable, by the variables that other towers have in its place."""
        return {name: group for group in self.mirrored for name in group.apart.values()}

    @cached_property
    def strays(self) -> Mapping[str, int]:
        """What one tower of a mirrored program trains by itself, by the tower's number."""
        return {
            name: tower
            for group in (self._candidates() if self.mirrored else ())
            for tower, name in group.items()
            if name not in self.copies and not self._is_frozen_copy(name)
        }

    @cached_property
    def tower_of(self) -> Mapping[str, int]:
        """The tower of each copy, and of what a tower has of its own beside its copies.

        Strays, slots and averages, and what it alone reads and nobody trains: its statistics and
        frozen weights. Empty where nothing is mirrored.
        """
        towers = {name: tower for group in self.mirrored for tower, name in group.of.items()}
        towers |= self.strays
        if towers:
            beside = (*self._beside(towers), *self._slots(towers), *self._composed_slots())
            for name, tower in beside:
                towers.setdefault(name, tower)
        return towers

    @cached_property
    def gpu_of(self) -> Mapping[str, Device]:
        """The GPU of each part of a model that is split among GPUs, and of the slots of the part.

        With one tower, these are the variables that one GPU alone reads, if the GPU uses results
        of another in the forward pass, or the other way round. If the GPUs read more variables
        together than alone, they are towers, of which one uses what the other computes.

        With several towers, these are variables that all towers use on the GPU that has the
        variable, such as experts, or the shards of a table. At least two GPUs have some, or a GPU
        that no tower runs on.
        """
        parts = self._parts_of_one_tower() if len(self._analysis.towers) == 1 else self._experts()
        for name, gpu in (*self._bound(parts), *self._slots(parts)):
            parts.setdefault(name, gpu)
        return parts

    def _experts(self) -> dict[str, Device]:
        """The variables that several towers use, each only on the GPU that has it, by name."""
        reads, ops = self._analysis.reads_by_gpu, self._placement.by_number
        found: dict[str, Device] = {}
        for name, readers in self.readers.items():
            device = requested_gpu(self._placement.ops[name].requested)
            using = [
                op
                for op in reads.readers[name]
                if not self._analysis.backward.ops[op] and reads.in_loss(op)
            ]
            if (
                readers.bit_count() > 1
                and device.is_gpu
                and using
                and all(requested_gpu(ops[op].requested) == device for op in using)
            ):
                found[name] = device
        used = {device for tower in self._analysis.towers for device in tower.devices}
        holding = set(found.values())
        return found if len(holding) > 1 or not holding <= used else {}

    def _parts_of_one_tower(self) -> dict[str, Device]:
        """The parts of a model that is one tower."""
        reads = self._analysis.reads_by_gpu
        gpus = reads.gpus
        linked = {gpus[number].device for pair in reads.joined_forward for number in pair}
        readers = {
            name: [gpu.device for gpu in gpus if name in gpu.reads]
            for name in self.readers
            if self._kind_by_readers(name) in ("split", "own")
        }
        parts = {name: on[0] for name, on in readers.items() if len(on) == 1 and on[0] in linked}
        return parts if 2 * len(parts) > len(readers) else {}

    def read_as(self, variable: str) -> Mapping[int, str]:
        """What each tower reads of a variable, by the towers' numbers: itself, or its copy."""
        if variable in self.copies:
            return self.copies[variable].of
        towers = self._analysis.towers_in(self.readers.get(variable, 0))
        return dict.fromkeys(towers, variable)

    def kind(self, variable: str) -> Kind:
        """The layout of a variable."""
        if variable in self.copies or variable in self._copies_of_strategy:
            return "mirrored"
        if variable in self._parts:
            return "sharded"
        if variable in self.gpu_of:
            return "split"
        return self._kind_by_readers(variable)

    @cached_property
    def _copies_of_strategy(self) -> Mapping[str, str]:
        """The copies that a strategy keeps equal, with the variable that stands for all."""
        strategy = self._placement.strategy
        copies = {} if strategy is None else strategy.copies
        return {name: copy.of for name, copy in copies.items() if copy.in_sync}

    def _kind_by_readers(self, variable: str) -> Kind:
        """The layout of a variable that has no copies, by the towers that read it."""
        readers = self.readers.get(variable, 0)
        if readers.bit_count() != 1:
            return "central"
        tower = self._analysis.towers[readers.bit_length() - 1]
        gpus = self._analysis.reads_by_gpu.gpus
        parts = [gpu for gpu in gpus if gpu.device in tower.devices]
        return "own" if all(variable in gpu.reads for gpu in parts) else "split"

    def __str__(self) -> str:
        """The layouts of a program in words, as for a report."""
        count = Counter(map(self.kind, self._of_model()))
        most = max((len(group.of) for group in self.mirrored), default=0)
        others = {
            of for name, of in self._copies_of_strategy.items() if name not in self.copies
        } & set(self._of_model())
        count["mirrored"] = len(self.mirrored) + len(others)
        if others and self._placement.strategy is not None:
            most = max(most, len(self._placement.strategy.replicas))
        return "; ".join(
            f"{kind}: {plural(count[kind], 'variable')}{text.format(most)}"
            for kind, text in _IN_WORDS.items()
            if count[kind]
        )

    def _of_model(self) -> Collection[str]:
        """The variables of the model, but for examples and what goes with copies."""
        beside = self.tower_of.keys() - self.copies.keys() - self.strays.keys()
        return self._analysis.variables_read - beside - self._analysis.cached_inputs

    def is_partition(self, variable: str) -> bool:
        """Whether it is a part of a variable that was cut up."""
        return variable in self._parts

    @cached_property
    def _parts(self) -> frozenset[str]:
        """The variables that are parts of one that was cut up."""
        names = [variable.name for variable in self._placement.variables]
        parts = [(match[1], name) for name in names if (match := _PART.fullmatch(name))]
        several = Counter(whole for whole, _ in parts)
        return frozenset(name for whole, name in parts if several[whole] > 1)

    def _candidates(self) -> Iterator[Mapping[int, str]]:
        """Variables that one tower each reads and that may be copies, by their towers."""
        forms: dict[object, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for variable in self._placement.variables:
            readers = self.readers.get(variable.name, 0)
            if readers.bit_count() == 1 and self._is_trainable(variable):
                forms[variable[1:]][readers.bit_length() - 1].append(variable.name)
        for by_tower in forms.values():
            for group in zip_longest(*by_tower.values()):
                yield {tower: name for tower, name in zip(by_tower, group, strict=True) if name}

    def _is_trainable(self, variable: Variable) -> bool:
        trainable = self._placement.collected.get(TRAINABLE)
        return trainable is None or variable.name in trainable or self._is_trained(variable.name)

    def _is_frozen_copy(self, variable: str) -> bool:
        """Whether a strategy keeps it equal, and no step trains it, as in a frozen layer."""
        strategy = self._placement.strategy
        return (
            strategy is not None and variable in strategy.copies and not self._is_trained(variable)
        )

    def _is_trained(self, variable: str) -> bool:
        return variable in self._gradients.trained

    def _copies(self, candidates: Mapping[int, str]) -> Copies | None:
        """The copies among variables that stand for one another, those of more than half."""
        by_sources: dict[frozenset[int], dict[int, str]] = defaultdict(dict)
        for tower, name in sorted(candidates.items()):
            by_sources[self._sources(name)][tower] = name
        sources, copies = max(by_sources.items(), key=lambda item: len(item[1]))
        if not sources or len(copies) < 2 or 2 * len(copies) <= len(candidates):
            return None
        apart = {tower: name for tower, name in candidates.items() if tower not in copies}
        return Copies(copies, apart)

    def _sources(self, variable: str) -> frozenset[int]:
        """The gradients that the updates of a variable take."""
        updates = self._analysis.updates.by_variable.get(variable, ())
        return frozenset(op for update in updates for op in self._gradients.sources(update))

    def _beside(self, copies: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """What is bound to copies, or read by one tower and trained by none, with the tower."""
        bound = dict(self._bound(copies))
        for variable in self._placement.variables:
            name, readers = variable.name, self.readers.get(variable.name, 0)
            if name in bound:
                yield name, bound[name]
            elif readers.bit_count() == 1 and (
                not self._is_trainable(variable) or self._is_frozen_copy(name)
            ):
                yield name, readers.bit_length() - 1

    def _bound(self, places: Mapping[str, _T]) -> Iterator[tuple[str, _T]]:
        """The variables that are bound to some, with the place of what they are bound to."""
        for name, *_ in self._placement.variables:
            bound = [other for other in self._placement.ops[name].colocated if other in places]
            if bound:
                yield name, places[bound[0]]

    def _slots(self, places: Mapping[str, _T]) -> Iterator[tuple[str, _T]]:
        """What the updates of some variables keep between steps, with the place of each."""
        flow = self._analysis.flow
        for name, place in places.items():
            for update in self._analysis.updates.by_variable.get(name, ()):
                for value in update.values:
                    read = flow.inputs[value] if flow.types[value] in VARIABLE_READS else [value]
                    holder = flow.state_holder(read[0])
                    if holder is not None and flow.names[holder] not in self.readers:
                        yield flow.names[holder], place

    def _composed_slots(self) -> Iterator[tuple[str, int]]:
        """The slots of optimisers that are composed of simple ops, by the sums that they take."""
        sums = {self._sources(name) for name in self.copies}
        numbers = {
            device: number
            for number, tower in enumerate(self._analysis.towers)
            for device in tower.devices
        }
        for name in self._analysis.updates.by_variable:
            tower = numbers.get(requested_gpu(self._placement.ops[name].requested))
            unread = name not in self._analysis.variables_read
            if unread and tower is not None and self._sources(name) in sums:
                yield name, tower


def variable_layout(placement: Placement) -> Layout:
    """The layout of a placement, found once."""
    return placement.cached(Layout)


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


class Unshared:
    """The unshared variables of a placement; `Placement.cached` keeps it.

    Each is read by one tower alone, another tower has one of the same form, and no sum makes them
    copies of one another. Those that get_variable makes were given names of their own: it is meant
    that each tower has them, on its GPU. Others have them because tf.Variable shares nothing.

    Attributes:
        tower_of: the number of the tower that reads each of them, by its name.
    """

    def __init__(self, placement: Placement) -> None:
        self._towers = analyse(placement).towers
        variables = variable_layout(placement)
        apart = {*variables.copies, *analyse(placement).cached_inputs}
        apart |= accumulators(placement).tower_of.keys()
        named = made_by_get_variable(placement) - apart
        forms: dict[object, dict[str, int]] = defaultdict(dict)
        for variable in placement.variables:
            readers = variables.readers.get(variable.name, 0)
            if readers.bit_count() == 1 and variable.name in named:
                forms[variable[1:]][variable.name] = readers.bit_length() - 1
        self.tower_of: Mapping[str, int] = {
            name: tower
            for by_name in forms.values()
            for name, tower in by_name.items()
            if len(set(by_name.values())) > 1
        }

    def is_of(self, variable: str, device: Device | None) -> bool:
        """Whether a variable is unshared, and a device that of its tower."""
        tower = self.tower_of.get(variable)
        return (
            tower is not None
            and device is not None
            and any(device.matches(gpu) for gpu in self._towers[tower].devices)
        )


def made_by_get_variable(placement: Placement) -> frozenset[str]:
    """The variables that were given an initializer, as get_variable does, and no value."""
    parts = (name.partition("/Initializer/") for name in placement.ops)
    return frozenset(variable for variable, inside, _ in parts if inside)


def unshared(placement: Placement) -> Unshared:
    """The unshared variables of a placement, found once."""
    return placement.cached(Unshared)
