"""Slots: the variables that optimizers and moving averages keep for other variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from placement_checks.analysis.graph.data_flow import bits_of, union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import OVERWRITES, is_gradient_update
from placement_checks.core.placement import Placement


class Slots:
    """The slots of a placement, with the variables that own them; `find_slots` finds them once.

    Devices have no influence. A variable may have several owners.

    Attributes:
        held: slots that an update of the owner takes as a variable, as the fused update ops of
            TensorFlow's optimizers do.
        read: variables whose value an update of the owner takes unchanged, such as the powers of
            beta of Adam, which all updates take.
        computed: slots of optimizers that are composed of simple ops. The owner is trained, its
            update depends on the slot, and the step changes the slot. An owner that is set to the
            value of another variable is a copy of this variable, which is no slot.
        averages: moving averages; the owners are the trained variables that the update of the
            average depends on.

    Computed slots and averages have the dtype and shape of their owners, and the model does not
    read them.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis = analysis = analyze(placement)
        self._forms = {variable.name: variable[1:] for variable in placement.variables}
        flow, updates, types = analysis.flow, analysis.updates, analysis.flow.types
        self.held: Mapping[str, list[str]] = defaultdict(list)
        self.read: Mapping[str, list[str]] = defaultdict(list)
        for name in updates.by_variable:
            for value in dict.fromkeys(updates.values(name)):
                holder = analysis.layers.passed_on[value]
                if holder is not None:
                    kind = self.held if holder == value else self.read
                    kind[flow.names[holder]].append(name)
        composed = {
            name: [value for update in simple for value in update.values]
            for name, each in updates.by_variable.items()
            if (simple := [update for update in each if not is_gradient_update(types[update.op])])
        }
        trained, read = gradient_flow(placement).trained, analysis.variables_read
        self.computed: Mapping[str, list[str]] = defaultdict(list)
        self.averages: Mapping[str, list[str]] = defaultdict(list)
        unread = [name for name in updates.by_variable if name not in read]
        optimized = {name: values for name, values in composed.items() if name in trained}
        overwritten = {
            name
            for name, each in updates.by_variable.items()
            if all(types[update.op] in OVERWRITES for update in each)
        }
        for slot, owner in self._behind(optimized, unread, analysis.backward.ops):
            if owner not in overwritten or owner not in self.read.get(slot, ()):
                self.computed[slot].append(owner)
        others = {name: values for name, values in composed.items() if name not in read}
        for owner, average in self._behind(others, trained, self._of_model):
            self.averages[average].append(owner)

    def _behind(
        self,
        updated: Mapping[str, Sequence[OpId]],
        sources: Collection[str],
        keep: Sequence[object],
    ) -> Iterator[tuple[str, str]]:
        """Yield the sources that updates depend on, if they have the form of the variable.

        The form is the dtype and shape.

        Args:
            updated: the values that the updates of each variable take.
            sources: the variables to search for.
            keep: for each op whether the search ends there.

        Yields:
            A source, and the variable with an update that depends on it.
        """
        if not updated or not sources:
            return
        flow, forms = self._analysis.flow, self._forms
        in_order = sorted(sources, key=flow.number.__getitem__)
        masks = flow.propagate(flow.marks([flow.number[name]] for name in in_order), keep=keep)
        for name, values in updated.items():
            for bit in bits_of(union(masks[value] for value in values)):
                if in_order[bit] != name and forms[in_order[bit]] == forms[name]:
                    yield in_order[bit], name

    @cached_property
    def owner_of(self) -> Mapping[str, str]:
        """The variable that each slot belongs to, by the name of the slot.

        An update of the variable takes the slot, or the name of the slot begins with the name of
        the variable and a slash, or the slot is computed for this variable alone.
        """
        owners = {slot: names[0] for slot, names in self.held.items()}
        plain = self._forms.keys() - owners.keys()
        for name in sorted(plain):
            scopes = name.split("/")
            prefixes = ("/".join(scopes[:end]) for end in range(len(scopes) - 1, 0, -1))
            computed = self.averages.get(name) or self.computed.get(name) or ()
            owner = next((prefix for prefix in prefixes if prefix in plain), None)
            if owner is None and len(computed) == 1:
                owner = computed[0]
            if owner is not None:
                owners[name] = owner
        return {name: _last_owner(name, owners) for name in owners}

    @cached_property
    def _of_model(self) -> Sequence[bool]:
        """For each op whether it computes with examples or the loss depends on it.

        False for variables, and for ops that pass on their value.
        """
        analysis = self._analysis
        in_loss = analysis.flow.reachable(analysis.loss_ops)
        return [
            variable is None and (bool(example) or op in in_loss)
            for op, (variable, example) in enumerate(
                zip(analysis.layers.passed_on, analysis.examples, strict=True)
            )
        ]


def _last_owner(name: str, owners: Mapping[str, str]) -> str:
    """Return the last owner of a slot: the average of a slot belongs to the slot's variable."""
    seen = {name}
    while (owner := owners.get(name)) is not None and owner not in seen:
        seen.add(owner)
        name = owner
    return name


def find_slots(placement: Placement) -> Slots:
    """Return the slots of a placement, found once."""
    return placement.cached(Slots)
