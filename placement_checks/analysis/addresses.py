"""Addresses: the part of the step, the tower and the layer of each op.

An address does not depend on names, order or devices, so an op that a refactor renames or moves
keeps its address. Two placements of one program can thus be compared, and drawn in the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.by_loss import single_tower, towers_by_op
from placement_checks.core.ids import OpId
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
_ONE_FOR_ALL: frozenset[Part] = frozenset({"average", "update", "apply"})  # for all towers

_READS = VARIABLE_READS | INITIALIZATION_TESTS


class Addresses:
    """The address of each op of a placement; `addresses` computes it once.

    Attributes:
        parts: for each op its part of a step. If an input, forward, backward or evaluate op works
            for no tower or for several towers, its part begins with "shared". "apply" ops change a
            variable, "update" ops compute the new value, and "reads" ops only read a variable. No
            step, loss or variable needs "other" ops.
        towers: for each op the tower that it works for, or None.
        layers: for each op the variable of its layer, or None. An op that averages gradients or
            updates a variable has the layer of this variable.
        tower_count: the number of towers; 0 if the losses are unknown.
        depth: for each variable, the number of ops from the inputs to its first read.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        analysis = analyze(placement)
        self._flow, self._backward = analysis.flow, analysis.backward
        self._updates, self._types = analysis.updates, analysis.flow.types
        self._op_layers, self._examples = analysis.layers, analysis.examples
        self._behind_losses = self._flow.reachable(analysis.loss_ops)
        losses = analysis.copies.losses
        self._tower_masks = towers_by_op(analysis, losses)
        self.tower_count = len(losses)
        self.depth = self._op_layers.depth
        self.layers = list(self._op_layers.by_op)
        self.towers = [single_tower(mask) for mask in self._tower_masks]
        self._parts: list[Part | None] = [None] * len(self.layers)
        self._assign_parts()
        self._assign_remaining()
        self._follow_forward()
        self._follow_calls()
        self.parts: Sequence[Part] = list(map(self._final_part, self._flow.ops))

    @cached_property
    def _updated_variable(self) -> Mapping[OpId, OpId | None]:
        """For each op that updates depend on, the updated variable; None for several variables."""
        ends: dict[OpId, OpId | None] = dict(self._updated_by)
        ends |= {
            value: variable
            for op, variable in self._updated_by.items()
            for value in self._flow.inputs[op]
        }
        for op in reversed(self._flow.ops):
            if op in ends and op not in self._updated_by:
                for source in self._flow.inputs[op]:
                    if ends.setdefault(source, ends[op]) != ends[op]:
                        ends[source] = None
        return ends

    @cached_property
    def _updated_by(self) -> Mapping[OpId, OpId]:
        """The variable that each update changes."""
        return {
            update.op: self._flow.number[name]
            for name, updates in self._updates.by_variable.items()
            for update in updates
        }

    def _assign_parts(self) -> None:
        """Assign a part to each op, if its type, inputs or uses determine the part."""
        of_type = {kind: _part_of_type(kind) for kind in set(self._types)}
        passed_on = self._op_layers.passed_on
        for op, kind in zip(self._flow.ops, self._types, strict=True):
            sources = self._flow.inputs[op]
            part = of_type[kind]
            if passed_on[op] == op:
                self._parts[op] = "variable"
            elif part == "reads" or (passed_on[op] is not None and passed_on[op] in sources):
                self._parts[op] = "reads"
                self.layers[op] = passed_on[sources[0]] if sources else None
            elif op in self._updated_by:
                self._parts[op], self.layers[op] = "apply", self._updated_by[op]
            elif part == "apply":
                if sources and (not self._updates.in_step[op] or self._updates.unknown):
                    self._parts[op], self.layers[op] = "init", passed_on[sources[0]]
                else:
                    self._assign_by_flow(op)
            elif part in ("summaries", "save"):
                self._parts[op] = part
            elif self._backward.ops[op]:
                self._parts[op] = "backward"
            elif not self._op_layers.constant[op]:
                self._parts[op] = part
                if part is None:
                    self._assign_by_flow(op)

    def _assign_by_flow(self, op: OpId) -> None:
        """Assign a part by the losses, updates and towers that an op is connected to."""
        if op in self._behind_losses:
            self._parts[op] = "input" if self.layers[op] is None else "forward"
        elif op in self._updated_variable and (self._tower_masks[op] or self._updates.in_step[op]):
            is_average = self._tower_masks[op] and self.tower_count != 1
            self._parts[op] = "average" if is_average else "update"
            self.layers[op] = self._updated_variable[op]
        elif self._tower_masks[op]:
            self._parts[op] = "evaluate"

    def _assign_remaining(self) -> None:
        """Assign ops without a part, such as constants, to the part of an op that uses them.

        If the users of an op have different layers, the op gets no layer; the same holds for
        towers.
        """
        follows_user = bytearray(len(self.layers))
        for op in reversed(self._flow.ops):
            part = self._parts[op]
            if part is None:
                is_step = self._updates.in_step[op] and not self._updates.unknown
                part = "update" if self._types[op] == NO_OP and is_step else "other"
                self._parts[op] = part
            for source in self._flow.inputs[op]:
                if self._parts[source] is None and part != "other":
                    self._parts[source] = "update" if part == "apply" else part
                    self.layers[source], self.towers[source] = self.layers[op], self.towers[op]
                    follows_user[source] = 1
                elif follows_user[source]:
                    if self.layers[source] != self.layers[op]:
                        self.layers[source] = None
                    if self.towers[source] != self.towers[op]:
                        self.towers[source] = None
                elif self.towers[source] is None and part == self._parts[source] == "backward":
                    self.towers[source] = self.towers[op]

    def _follow_forward(self) -> None:
        """Assign backward ops to the tower of their forward op, and updates to no tower."""
        flow, forward_ops = self._flow, self._backward.forward
        for op, part in zip(flow.ops, self._parts, strict=True):
            if part in _ONE_FOR_ALL:
                self.towers[op] = None
            elif part == "backward":
                forward = forward_ops[op][0] if op in forward_ops else None
                if forward is not None and self._tower_masks[forward]:
                    self.towers[op] = self.towers[forward]
                elif self.towers[op] is None and not self._tower_masks[op]:
                    near = flow.all_inputs[op] if forward is None else [forward]
                    towers = [tower for other in near if (tower := self.towers[other]) is not None]
                    self.towers[op] = max(towers, default=None)

    def _follow_calls(self) -> None:
        """Assign the ops of a function body to the part, layer and tower of the call."""
        for op, caller in self._flow.callers.items():
            self._parts[op] = self._parts[caller]
            self.layers[op], self.towers[op] = self.layers[caller], self.towers[caller]

    def _final_part(self, op: OpId) -> Part:
        part = self._parts[op] or "other"
        is_shared = self.tower_count and self.towers[op] is None
        return _SHARED.get(part, part) if is_shared else part


def _part_of_type(kind: str) -> Part | None:
    """Return the part of an op type, if the type alone decides; "apply" may become "init"."""
    if kind in _READS:
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
    """Return the addresses of a placement, computed once."""
    return placement.cached(Addresses)
