"""How the towers of a placement are wired: what depends on what, read from the graph alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.placement import Op, Placement
from placement_checks.wiring.backward import Backward
from placement_checks.wiring.flow import Flow
from placement_checks.wiring.objectives import Losses, losses_of
from placement_checks.wiring.towers import Part, Parts, Tower, tower_device
from placement_checks.wiring.updates import Update, Updates

_SOURCES = ("Placeholder", "PlaceholderWithDefault", "IteratorGetNext")
# How TensorFlow adds up the gradients of one variable (python/ops/gradients_util.py).
_SUMS = frozenset({"AddN", "Add", "AddV2", "AccumulateNV2", "ConcatV2"})
_SCALED = frozenset({"Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan"})


class Blended(NamedTuple):
    """A tower's loss and the way back from it to an op of another tower."""

    tower: int
    path: Sequence[int]


class Wiring:
    """The wiring of one placement; `Placement.derived` keeps it, so that rules share it.

    Attributes:
        flow: the edges of the graph.
        parts: the GPUs that compute with variables.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.flow = Flow(placement)
        self.ops: Sequence[Op] = list(placement.ops.values())
        self._behind: dict[int, Sequence[int]] = {}

    @cached_property
    def parts(self) -> Parts:
        return Parts(self.placement, self.flow, self.backward, self.updates)

    @cached_property
    def towers(self) -> Sequence[Tower]:
        """The copies of the model."""
        return self.parts.towers()

    @cached_property
    def backward(self) -> Backward:
        return Backward(self.placement, self.flow)

    @cached_property
    def updates(self) -> Updates:
        return Updates(self.placement, self.flow)

    @cached_property
    def losses(self) -> Losses:
        return losses_of(self.placement, self.flow, self.at, self.masks, len(self.towers))

    @cached_property
    def every(self) -> int:
        """The bits of all towers."""
        return (1 << len(self.towers)) - 1

    @cached_property
    def gradient(self) -> int:
        """The bit of a value that depends on a backward op."""
        return 1 << len(self.towers)

    @cached_property
    def at(self) -> Sequence[int]:
        """For each op the number of the tower on whose GPU it is asked to be, or -1.

        An op that asks for no device goes with what it is bound to, a backward op with its
        forward op: that is the tower it works for, wherever it was put.
        """
        numbers = {
            device: number for number, tower in enumerate(self.towers) for device in tower.devices
        }
        known: dict[int, int] = {}  # requests are few objects that many ops share
        found: list[int] = []
        for op in self.ops:
            request = id(op.requested)
            if request not in known:
                gpu = op.requested.is_gpu
                known[request] = numbers.get(tower_device(op), -1) if gpu else -1
            at = known[request]
            if at < 0 and op.colocated and op.requested.type is None:
                at = next(
                    (
                        found[number]
                        for number in map(self.flow.number.get, op.colocated)
                        if number is not None and number < len(found)
                    ),
                    -1,
                )
            found.append(at)
        for number, (forward, _) in self.backward.forward.items():
            if found[forward] >= 0:
                found[number] = found[forward]
        return found

    @cached_property
    def own(self) -> Sequence[int]:
        """For each op the tower it computes for, as a bit; 0 for those that may join towers.

        Where an op is asked to be is not enough: towers may be averaged on the GPU of one. Ops
        that read variables, backward ops and inputs on a tower's GPU are that tower's.
        """
        own = [0] * len(self.ops)
        for readers in self.parts.readers.values():
            for op in readers:
                if self.at[op] >= 0:
                    own[op] = 1 << self.at[op]
        for op, kind in enumerate(self.flow.types):
            if self.at[op] < 0:
                own[op] = self.gradient if self.backward.ops[op] else 0
            elif self.backward.ops[op]:
                own[op] = 1 << self.at[op] | self.gradient
            elif kind in _SOURCES or "Dequeue" in kind:
                own[op] = 1 << self.at[op]
        return own

    @cached_property
    def masks(self) -> Sequence[int]:
        """For each op the towers that its value depends on, a bit each, and `gradient`."""
        return self.flow.masks(self.own)

    @cached_property
    def blended(self) -> Sequence[Blended]:
        """The losses of towers that contain what another tower computes.

        That is, what it computes with a variable that both read: a layer that one GPU computes for
        all towers is no part of another tower.
        """
        found = []
        for number, losses in enumerate(self.losses.of):
            for loss in losses:
                strangers = self.masks[loss] & self.every & ~(1 << number)
                theirs = {
                    op
                    for variable in (self.towers[number].reads if strangers else ())
                    for op in self.parts.readers[variable]
                    if self.at[op] >= 0
                    and strangers >> self.at[op] & 1
                    and not self.backward.ops[op]
                }
                path = self.flow.path(loss, theirs.__contains__) if theirs else []
                if path:
                    found.append(Blended(number, path))
        return found

    @cached_property
    def near(self) -> Sequence[int]:
        """For each op the towers whose ops it is next to, a bit each, and `gradient`.

        Unlike `masks` it does not look through the ops of a tower: gradients of one loss of all
        towers depend on every tower, and yet each is computed by one.
        """
        own = [
            bits & self.gradient if adds else bits
            for bits, adds in zip(self.own, self._adds_up, strict=True)
        ]
        return self.flow.masks(own, self._of_tower)

    @cached_property
    def _adds_up(self) -> Sequence[bool]:
        """For each op whether it adds up gradients in the backward pass."""
        return [
            bool(backward) and kind in _SUMS
            for backward, kind in zip(self.backward.ops, self.flow.types, strict=True)
        ]

    @cached_property
    def _of_tower(self) -> Sequence[bool]:
        return [
            bool(bits & self.every) and not adds
            for bits, adds in zip(self.own, self._adds_up, strict=True)
        ]

    def towers_in(self, mask: int) -> Iterator[int]:
        """The numbers of the towers whose bits are set."""
        return (number for number in range(len(self.towers)) if mask >> number & 1)

    @cached_property
    def read(self) -> frozenset[str]:
        """The variables that towers compute with."""
        return frozenset(variable for tower in self.towers for variable in tower.reads)

    @cached_property
    def trained(self) -> dict[str, list[Update]]:
        """The updates by gradients, of every variable that towers read."""
        found = {}
        for variable, updates in self.updates.by_variable.items():
            if variable in self.read:
                mine = [update for update in updates if self._by_gradient(update)]
                if mine:
                    found[variable] = mine
        return found

    def _by_gradient(self, update: Update) -> bool:
        return "Apply" in self.flow.types[update.op] or any(
            self.masks[op] & self.gradient for op in self.behind(update)
        )

    def contributions(self, update: Update) -> int:
        """The towers whose gradients an update takes, a bit each."""
        found = 0
        for op in self.behind(update):
            if self._of_tower[op]:
                found |= self.near[op]
        return found & self.every

    def behind(self, update: Update) -> Sequence[int]:
        """The ops between an update and the towers, the first ops of the towers among them.

        Followed back through ops that belong to no tower or add up gradients, through variables
        and accumulators that hold gradients from one step to the next. A scalar that scales a
        tensor, such as a norm, is left out.
        """
        if update.op not in self._behind:
            self._behind[update.op] = self._found_behind(update)
        return self._behind[update.op]

    def _found_behind(self, update: Update) -> list[int]:
        flow = self.flow
        seen = {update.op}
        todo = list(update.values)
        found = []
        while todo:
            op = todo.pop()
            if op in seen:
                continue
            seen.add(op)
            found.append(op)
            if self._of_tower[op]:
                continue
            if flow.holder(op) == op:
                if flow.names[op] not in self.read:
                    for writer, written in flow.writers.get(op, ()):
                        if writer != update.op:
                            todo += written
            elif flow.types[op] in _SCALED:
                todo += self._scaled(op)
            else:
                todo += flow.values[op]
        return found

    def _scaled(self, op: int) -> Sequence[int]:
        """What a product is made of, scalars left out unless it is one itself."""
        inputs = self.flow.values[op]
        scalars = [self._is_scalar(source) for source in self.ops[op].inputs[:2]]
        if sorted(scalars) == [False, True]:
            return [each for each, scalar in zip(inputs, scalars, strict=False) if not scalar]
        return inputs

    def _is_scalar(self, source: str) -> bool:
        """Whether a tensor is known to be a scalar."""
        name, _, output = source.partition(":")
        outputs = self.placement.details.outputs(name)
        number = int(output or 0)
        return number < len(outputs) and outputs[number].shape == ()


def wiring(placement: Placement) -> Wiring:
    """The wiring of a placement, worked out once."""
    return placement.derived(Wiring)


__all__ = ["Losses", "Part", "Parts", "Tower", "Update", "Wiring", "wiring"]
