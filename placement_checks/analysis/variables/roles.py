"""Roles: the purpose of each variable of a program.

Each variable has one role. The first of these that applies decides:

==============  ==============================================================================
role            the variable
==============  ==============================================================================
cached input    holds examples: it is neither trained nor saved, and it is not a scalar
accumulator     collects results of towers, until they are shown, or until they are applied and
                the variable is reset
mirrored        is a copy that a strategy keeps equal, or that takes the same sum of gradients
                as the copies of the other towers
counter         counts steps: the collection GLOBAL_STEP names it, or it is an integer scalar
                that the step changes
slot            belongs to an optimizer and another variable: updates of the other variable read
                it, or its name starts with the other name
average         is a moving average of another variable
statistic       is updated in the forward pass of a tower, and read in evaluation
weight          is a scalar that scales losses or gradients, and that the step does not change
partition       is a partition of a variable, made by `tf.compat.v1.get_variable`
split           is a part of a model that is split among GPUs: it is used only on its own GPU
own             is read by one tower alone
shared          is read by several towers, or by the host
local           is in no collection of variables, such as the total of a metric
unused          is read by no op that the loss depends on
==============  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Literal, NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.accumulators import accumulators
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.running_statistics import statistics
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.devices import Device
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.op_types import NOT_A_READ, SCALES, SHAPES
from placement_checks.core.placement import GLOBAL, TRAINABLE, Placement
from placement_checks.core.variables import Variable

RoleKind = Literal[
    "cached input", "accumulator", "mirrored", "counter", "slot", "average", "statistic", "weight",
    "partition", "split", "own", "shared", "local", "unused",
]  # fmt: skip


class Role(NamedTuple):
    """The role of a variable.

    Attributes:
        kind: the role itself.
        reason: why the variable has this role, such as "the towers on … read it".
        owner: the variable that it is a copy, slot or average of, or "".
        tower: the number of the tower, if only one uses it; otherwise None.
        devices: the GPUs that use it: it may be on them instead of on the host.
    """

    kind: RoleKind
    reason: str
    owner: str = ""
    tower: TowerIndex | None = None
    devices: tuple[Device, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} of {self.owner}" if self.owner else self.kind


class Roles(Mapping[str, Role]):
    """The role of each variable of a placement, by name; `roles` finds them once."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyze(placement)
        self._layout = variable_layout(placement)
        self._variables = {variable.name: variable for variable in placement.variables}
        self._roles: dict[str, Role] = {}

    def __getitem__(self, name: str) -> Role:
        if name not in self._roles:
            self._roles[name] = self._role(self._variables[name])
        return self._roles[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def stays_on_cpu(self, name: str) -> bool:
        """Whether a variable is an int32 counter.

        TensorFlow has no GPU kernels that update int32 variables, so it stays on the CPU.
        """
        variable = self._variables.get(name)
        return variable is not None and variable.dtype == "int32" and self[name].kind == "counter"

    def _role(self, variable: Variable) -> Role:
        name, layouts, analysis = variable.name, self._layout, self._analysis
        readers, tower = layouts.readers.get(name, 0), layouts.only_reader(name)
        if name in analysis.cached_inputs:
            return self._role_of_tower("cached input", "it is neither trained nor saved", tower)
        found = accumulators(self._placement)
        if name in found.tower_of:
            return self._role_of_tower(
                "accumulator", "a tower adds to it until it is used", found.tower_of[name]
            )
        if (copy := self._role_of_copy(name)) is not None:
            return copy
        if name in found.names:
            return Role("accumulator", "values are added to it, and no loss depends on it")
        if self._is_counter(variable):
            return Role("counter", "it counts steps")
        if name in find_slots(self._placement).owner_of:
            return self._role_of_slot(name)
        if name in self._statistics:
            return self._role_with_user(name, "statistic", "the forward pass updates it")
        if self._is_weight(variable):
            return Role("weight", "it scales losses or gradients, and the step does not change it")
        if name in layouts.partitions:
            return Role("partition", "it is a partition of a variable that get_variable created")
        if name in layouts.gpu_of:
            device = layouts.gpu_of[name]
            return Role("split", f"only {device.short} computes with it", devices=(device,))
        if name in layouts.tower_of:
            is_slot = name not in analysis.variables_read and name not in layouts.strays
            tower = layouts.tower_of[name]
            if is_slot:
                return self._role_of_tower("slot", "updates of a tower's copies use it", tower)
            reason = f"only the tower on {analysis.towers[tower]} reads it"
            return self._role_of_tower("own", reason, tower)
        if tower is not None and len(analysis.towers) > 1:
            reason = f"only the tower on {analysis.towers[tower]} reads it"
            return Role("own", reason, tower=tower)
        if not self._is_collected(name):
            return Role("local", "it is in no collection of variables")
        if readers:
            return Role("shared", f"{analysis.names_of(readers)} read it")
        if name in analysis.variables_read:
            return Role("shared", "the host reads it")
        return Role("unused", "no loss depends on it")

    def _role_of_tower(
        self, kind: RoleKind, reason: str, tower: TowerIndex | None, owner: str = ""
    ) -> Role:
        devices = () if tower is None else self._analysis.towers[tower].devices
        return Role(kind, reason, owner, tower, devices)

    def _role_of_copy(self, name: str) -> Role | None:
        """Return the role of a copy of a mirrored variable, even if the copy diverges."""
        strategy = self._placement.strategy
        if strategy is not None and (copy := strategy.copies.get(name)) is not None:
            kind: RoleKind = "mirrored" if copy.in_sync else "accumulator"
            reason = f"{strategy.name} keeps it for replica {copy.replica}"
            device = strategy.replicas[copy.replica]
            owner, tower = "" if copy.first == name else copy.first, TowerIndex(copy.replica)
            return Role(kind, reason, owner, tower, (device,))
        group = self._layout.copies.get(name) or self._layout.diverging.get(name)
        if group is None:
            return None
        towers = (*group.copies.items(), *group.diverging.items())
        tower = next(tower for tower, other in towers if other == name)
        first = group.copies[min(group.copies)]
        owner = "" if first == name else first
        return self._role_of_tower("mirrored", "each tower has a copy", tower, owner)

    def _role_of_slot(self, name: str) -> Role:
        owner = find_slots(self._placement).owner_of[name]
        if name in find_slots(self._placement).averages:
            return self._role_with_user(name, "average", f"its updates average {owner}", owner)
        return self._role_with_user(name, "slot", f"updates of {owner} use it", owner)

    def _role_with_user(self, name: str, kind: RoleKind, reason: str, owner: str = "") -> Role:
        """Make a role, with the tower or GPU that alone uses the variable, if there is one."""
        tower, device = self._layout.tower_of.get(name), self._layout.gpu_of.get(name)
        if tower is None and device is not None:
            return Role(kind, reason, owner, devices=(device,))
        return self._role_of_tower(kind, reason, tower, owner)

    @cached_property
    def _statistics(self) -> Collection[str]:
        flow, program_statistics = self._analysis.flow, statistics(self._placement)
        updated = (flow.inputs[op][0] for op in program_statistics.updates if flow.inputs[op])
        holders = map(flow.state_holder, updated)
        normalizing = {
            name
            for name, updates in self._analysis.updates.by_variable.items()
            if any(map(program_statistics.is_of_normalization, updates))
        }
        return normalizing.union(flow.names[holder] for holder in holders if holder is not None)

    def _is_counter(self, variable: Variable) -> bool:
        is_integer = variable.dtype.startswith(("int", "uint")) and variable.shape == ()
        is_moved = variable.name in self._analysis.updates.by_variable
        return variable.name in self._placement.step.counters or (is_integer and is_moved)

    def _is_weight(self, variable: Variable) -> bool:
        """Whether the step does not change a scalar, and scales losses or gradients by it.

        It may first be combined with other such scalars, as in shares that add up to 1.
        """
        analysis, name = self._analysis, variable.name
        is_scalar = variable.shape is not None and all(dim == 1 for dim in variable.shape)
        is_trained = name in self._placement.collected.get(TRAINABLE, ())
        if not is_scalar or is_trained or name in analysis.updates.by_variable:
            return False
        flow = analysis.flow

        def varies(op: OpId) -> bool:
            return bool(analysis.examples[op]) or analysis.has_gradient(op)

        reached = flow.reachable(
            [flow.number[name]],
            along=lambda op: [
                user for user in flow.consumers[op] if flow.types[user] not in NOT_A_READ | SHAPES
            ],
            until=varies,
        )
        scaled = [op for op in reached if varies(op)]
        return bool(scaled) and all(self._scales(op, reached) for op in scaled)

    def _scales(self, op: OpId, factors: Collection[OpId]) -> bool:
        """Whether an op multiplies a gradient, or a scalar such as a loss, by a factor."""
        analysis = self._analysis
        if analysis.flow.types[op] not in SCALES:
            return False
        inputs = self._placement.by_number[op].inputs
        for source, producer in zip(inputs, analysis.flow.inputs[op], strict=False):
            tensor = analysis.tensor(source)
            is_loss = tensor is not None and tensor.shape == ()
            if producer not in factors and not is_loss and not analysis.has_gradient(producer):
                return False
        return True

    def _is_collected(self, name: str) -> bool:
        collected = self._placement.collected
        return not any(collected.values()) or any(
            name in collected.get(key, ()) for key in (TRAINABLE, GLOBAL)
        )


def roles(placement: Placement) -> Roles:
    """Return the roles of the variables of a placement, found once."""
    return placement.cached(Roles)
