"""Slots: the variables that are kept for another one, such as its momentum or its average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from placement_checks.analysis.data_flow import DataFlow
from placement_checks.analysis.layers import NONE, Layers
from placement_checks.analysis.updates import Update
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
