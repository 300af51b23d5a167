"""Addresses: what each op does in a step, for which tower and in which layer.

No name, no order and no device decides, so that an op which a refactor renames or moves keeps its
address: two placements of one program can be compared, and drawn in the same rows.

Slots: the variables that are kept for another one, such as its momentum or its average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.analysis.graph.layers import NONE, Layers
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.towers.by_loss import single_tower, towers_by_op
from placement_checks.core.op_types import (
    INITIALIZATION_TESTS,
    MERGE_SUMMARY,
    NO_OP,
    PIPELINE_OPS,
    PIPELINE_OUTPUTS,
    SAVERS,
    SUMMARIES,
    VARIABLE_READS,
    is_dataset,
    is_update,
)
from placement_checks.core.placement import Placement
from placement_checks.core.variables import Variables

_MOST_OF_AVERAGE: Final = 100  # ops that compute one


@dataclass
class Slots:
    """Finds slots.

    Attributes:
        variables: all of them.
        flow: what depends on what.
        layers: which op passes on which variable.
        behind_losses: for each op whether a loss takes its value.
    """

    variables: Variables
    flow: DataFlow
    layers: Layers
    behind_losses: Sequence[int]

    def of(self, updates: Mapping[str, Sequence[Update]]) -> Mapping[str, str]:
        """The variable that each slot is kept for, by names.

        Its update takes both, or its name goes on where that of the variable ends, or it is an
        average of the variable.

        Args:
            updates: those of a step, by the variable.
        """
        names, passed_on = self.flow.names, self.layers.passed_on
        found: dict[str, str] = {}
        for name, of_variable in updates.items():
            for update in of_variable:
                for value in update.values:
                    if passed_on[value] == value:
                        found.setdefault(names[value], name)
        plain = {variable.name for variable in self.variables} - found.keys()
        for name in sorted(plain):
            scopes = name.split("/")
            owners = ("/".join(scopes[:end]) for end in range(len(scopes) - 1, 0, -1))
            owner = next((owner for owner in owners if owner in plain), None)
            owner = owner or self._averaged(name, updates.get(name, ()))
            if owner is not None:
                found[name] = owner
        return {name: _kept_for(name, found) for name in found}

    def _averaged(self, name: str, updates: Sequence[Update]) -> str | None:
        """The variable that another is an average of: all that its updates take of its own form.

        Beside that they take itself, constants and variables of other forms, such as the number of
        the step; no examples, and so no gradients. What a loss takes is part of the model, as the
        network that another one follows.
        """
        itself = self.flow.number[name]
        if self.behind_losses[itself]:
            return None
        todo = [value for update in updates for value in update.values]
        seen: set[int] = set()
        taken: set[int] = set()
        while todo:
            op = todo.pop()
            if op in seen or self.layers.constant[op]:
                continue
            seen.add(op)
            variable, sources = self.layers.passed_on[op], self.flow.inputs[op]
            if variable != NONE:
                taken.add(variable)
            elif not sources or len(seen) > _MOST_OF_AVERAGE:
                return None
            else:
                todo += sources
        forms = self._forms
        alike = [each for each in taken - {itself} if forms[each] == forms[itself]]
        return self.flow.names[alike[0]] if len(alike) == 1 else None

    @cached_property
    def _forms(self) -> Mapping[int, tuple[str, tuple[int | None, ...] | None]]:
        number = self.flow.number
        return {number[each.name]: (each.dtype, each.shape) for each in self.variables}


def _kept_for(name: str, slots: Mapping[str, str]) -> str:
    """The variable at the end, as a slot's moving average is kept for the variable too."""
    seen = {name}
    while (owner := slots.get(name)) is not None and owner not in seen:
        seen.add(owner)
        name = owner
    return name


Part = Literal[
    "variable", "input", "shared input", "forward", "shared forward", "backward",
    "shared backward", "average", "apply", "update", "evaluate", "shared evaluate", "summaries",
    "reads", "init", "save", "other",
]  # fmt: skip
_SHARED: Mapping[Part, Part] = {
    "input": "shared input",
    "forward": "shared forward",
    "backward": "shared backward",
    "evaluate": "shared evaluate",
}
_ONE_FOR_ALL: frozenset[Part] = frozenset({"average", "update", "apply"})
_ONLY_FOLLOWS = VARIABLE_READS | INITIALIZATION_TESTS


class Addresses:
    """The address of each op of a placement, by its number: `Placement.by_number` has the ops.

    Attributes:
        parts: what it does in a step. What is no part of one tower, of several, is shared; "apply"
            changes a variable, "update" is what else a step does for that, "reads" only follows a
            variable, and "other" is what no step, loss or variable leads to.
        towers: the number of the tower that it works for, or -1.
        layers: the op of the variable of its layer, or -1; what is averaged or updated is of the
            layer of the variable that it ends in.
        tower_count: how many towers there are; 0 where no loss is known.
        depth: how far from the inputs a variable is read first, by its op.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        analysis = analyse(placement)
        self._flow, self._backward = analysis.flow, analysis.backward
        self._updates, self._types = analysis.updates, analysis.flow.types
        self._found = analysis.layers
        self._behind_losses = self._flow.ancestors(analysis.loss_ops)
        by_tower = analysis.copies.losses
        self._served = towers_by_op(self._flow, self._found, by_tower)
        self.tower_count = len(by_tower)
        self.depth = self._found.depth
        self.layers = list(self._found.of)
        self.towers = [single_tower(mask) for mask in self._served]
        self._given: list[Part | None] = [None] * len(self.layers)
        self._give_parts()
        self._give_to_takers()
        self._follow_forward()
        self._follow_calls()
        self.parts: Sequence[Part] = list(map(self._part, range(len(self.layers))))

    @cached_property
    def slot_of(self) -> Mapping[str, str]:
        """The variable that each slot is kept for, by names."""
        variables = self._placement.variables
        slots = Slots(variables, self._flow, self._found, self._behind_losses)
        return slots.of(self._updates.by_variable)

    @cached_property
    def _ends_in(self) -> Mapping[int, int]:
        """The variable whose update takes an op's value, or -1 if several do."""
        ends: dict[int, int] = {}
        for name, updates in self._updates.by_variable.items():
            for update in updates:
                for op in (update.op, *self._flow.inputs[update.op]):
                    ends[op] = self._flow.number[name]
        updated = {update.op for each in self._updates.by_variable.values() for update in each}
        for op in range(len(self.layers) - 1, -1, -1):
            if op in ends and op not in updated:
                for source in self._flow.inputs[op]:
                    if ends.setdefault(source, ends[op]) != ends[op]:
                        ends[source] = NONE
        return ends

    def _give_parts(self) -> None:
        """The part of each op that has one by itself."""
        updates = {
            update.op: self._flow.number[name]
            for name, each in self._updates.by_variable.items()
            for update in each
        }
        of_type = {kind: _part_of_type(kind) for kind in set(self._types)}
        passed_on = self._found.passed_on
        for op, kind in enumerate(self._types):
            sources = self._flow.inputs[op]
            given = of_type[kind]
            if passed_on[op] == op:
                self._given[op] = "variable"
            elif given == "reads" or (passed_on[op] != NONE and passed_on[op] in sources):
                self._given[op] = "reads"
                self.layers[op] = passed_on[sources[0]] if sources else NONE
            elif op in updates:
                self._given[op], self.layers[op] = "apply", updates[op]
            elif given == "apply":
                if sources and (not self._updates.steps[op] or self._updates.unknown):
                    self._given[op], self.layers[op] = "init", passed_on[sources[0]]
                else:
                    self._give_flow(op)
            elif given in ("summaries", "save"):
                self._given[op] = given
            elif self._backward.ops[op]:
                self._given[op] = "backward"
            elif not self._found.constant[op]:
                self._given[op] = given
                if given is None:
                    self._give_flow(op)

    def _give_flow(self, op: int) -> None:
        """The part of an op by where its value comes from, and where it goes."""
        ends_in = self._ends_in.get(op)
        if self._behind_losses[op]:
            self._given[op] = "input" if self.layers[op] == NONE else "forward"
        elif self._served[op]:
            if ends_in is None:
                self._given[op] = "evaluate"
            else:
                self._given[op] = "update" if self.tower_count == 1 else "average"
                self.layers[op] = ends_in
        elif ends_in is not None and self._updates.steps[op]:
            self._given[op], self.layers[op] = "update", ends_in

    def _give_to_takers(self) -> None:
        """Let what is left, as constants are, go with who takes it; with none where several do."""
        lent = bytearray(len(self.layers))
        for op in range(len(self.layers) - 1, -1, -1):
            given = self._given[op]
            if given is None:
                is_step = self._updates.steps[op] and not self._updates.unknown
                given = "update" if self._types[op] == NO_OP and is_step else "other"
                self._given[op] = given
            for source in self._flow.inputs[op]:
                if self._given[source] is None and given != "other":
                    self._given[source] = "update" if given == "apply" else given
                    self.layers[source], self.towers[source] = self.layers[op], self.towers[op]
                    lent[source] = 1
                elif lent[source]:
                    if self.layers[source] != self.layers[op]:
                        self.layers[source] = NONE
                    if self.towers[source] != self.towers[op]:
                        self.towers[source] = NONE
                elif self.towers[source] == NONE and given == self._given[source] == "backward":
                    self.towers[source] = self.towers[op]

    def _follow_forward(self) -> None:
        """Let backward ops go with their forward op; what is one for all is of no tower."""
        flow, forward = self._flow, self._backward.forward
        for op, given in enumerate(self._given):
            if given in _ONE_FOR_ALL:
                self.towers[op] = NONE
            elif given == "backward":
                of = forward[op][0] if op in forward else NONE
                if of != NONE and self._served[of]:
                    self.towers[op] = self.towers[of]
                elif self.towers[op] == NONE and not self._served[op]:
                    near = [of] if of != NONE else flow.all_inputs[op]
                    self.towers[op] = max((self.towers[other] for other in near), default=NONE)

    def _follow_calls(self) -> None:
        """Let the ops of a function's body go with the op that calls it."""
        for op, caller in self._flow.callers.items():
            self._given[op] = self._given[caller]
            self.layers[op], self.towers[op] = self.layers[caller], self.towers[caller]

    def _part(self, op: int) -> Part:
        given = self._given[op] or "other"
        is_shared = self.tower_count and self.towers[op] == NONE
        return _SHARED.get(given, given) if is_shared else given


def _part_of_type(kind: str) -> Part | None:
    """The part of all ops of a type, if their type alone decides; "apply" may be "init"."""
    if kind in _ONLY_FOLLOWS:
        return "reads"
    if kind in SUMMARIES or kind == MERGE_SUMMARY:
        return "summaries"
    if kind in SAVERS:
        return "save"
    if is_update(kind):
        return "apply"
    if kind in PIPELINE_OPS or kind in PIPELINE_OUTPUTS or is_dataset(kind):
        return "input"
    return None


def addresses(placement: Placement) -> Addresses:
    """The addresses of a placement, found once."""
    return placement.cached(Addresses)
