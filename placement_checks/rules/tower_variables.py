"""Findings on variables that a tower does not share with the other towers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.discovery import GpuReads
from placement_checks.analysis.variables.layout import made_by_get_variable
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.results import Finding, PathStep
from placement_checks.rules.base import REUSE
from placement_checks.rules.source_lines import LoopLines
from placement_checks.util.text import join_and, plural

_USE_GET_VARIABLE = (
    "in the model use tf.compat.v1.get_variable instead of tf.Variable, and variable_scope "
    f"instead of name_scope, and build each tower under `{REUSE}`"
)
_SHARE = (
    "call one layer object once per tower, or use get_variable and build each tower under "
    f"`{REUSE}`"
)
_ONE_OPTIMIZER = (
    "create the optimizer once, before the loop over towers, and call apply_gradients once, "
    "after the loop"
)
_CREATE_ALWAYS = (
    "create it for any number of GPUs, or allow it: --set variables-shared.allow=PATTERN"
)
_TRAINED_APART = (
    "each tower learns only from its own part of each batch; evaluation and export use the "
    "weights of one tower"
)
_NOT_UPDATED = (
    "no step updates it: the tower computes gradients of weights that keep their initial values"
)
_SEPARATE_STATE = (
    "each tower has its own value, and evaluation reads one of them, which has seen only the "
    "examples of that tower"
)
_NUMBERED = re.compile(r"(.*?)[_:-]?(\d+)")


class Copy(NamedTuple):
    """A variable that one tower reads where another tower reads the original."""

    variable: str
    tower: GpuReads
    original: str
    original_tower: GpuReads


class OwnVariables:
    """Makes findings on the variables of a program that towers do not share."""

    def __init__(self, placement: Placement, apart: Collection[str]) -> None:
        """
        Args:
            placement: the program.
            apart: the variables that towers do not share.
        """
        self._placement = placement
        self._apart = apart

    def line(self, variable: str) -> str | None:
        """Return the line to edit; None if it is unknown.

        If `tf.Variable` created the variable, this is its call, because no scope makes such a
        variable shared. Otherwise it is the line in the loop over towers.
        """
        if self.uses_tf_variable(variable):
            return self._placement.where(variable)
        return self._loop_lines.line(variable)

    def uses_tf_variable(self, variable: str) -> bool:
        """Return whether the variable was created by tf.Variable instead of get_variable."""
        return variable not in self._by_get_variable

    @cached_property
    def _loop_lines(self) -> LoopLines:
        # A function that also creates shared variables is not the cause: the scopes around it are
        # right.
        return LoopLines(self._placement, self._shared())

    def _shared(self) -> Iterator[str]:
        towers = analyze(self._placement).towers
        for variable in self._placement.variables:
            readers = sum(variable.name in tower.reads for tower in towers)
            if readers > 1 and variable.name not in self._apart:
                yield variable.name

    @cached_property
    def _by_get_variable(self) -> frozenset[str]:
        return made_by_get_variable(self._placement)

    def duplicate_finding(self, copy: Copy) -> Finding:
        """Return the finding on a variable that a tower reads instead of the original."""
        placement = self._placement
        tower, other = copy.tower.device.short, copy.original_tower.device.short
        trained = is_trained(placement, copy.variable)
        updated = trained and self._is_updated(copy.variable)
        if updated:
            kind, consequence = "trained separately", _TRAINED_APART
        else:
            kind = "separate variables"
            consequence = _NOT_UPDATED if trained else _SEPARATE_STATE
        by_tf_variable = self.uses_tf_variable(copy.variable)
        numbered = None if by_tf_variable else self._tower_number(copy)
        if numbered:
            fix = (
                f"remove the tower's number from the name {numbered}, and build each tower under "
                f"`{REUSE}`"
            )
        else:
            fix = _USE_GET_VARIABLE if by_tf_variable else _SHARE
        return Finding(
            object=copy.variable,
            op=placement.ops[copy.variable].type,
            evidence="requested",
            expected=f"{copy.original}, which the tower on {other} reads",
            found=f"another variable in the tower on {tower}",
            path=(
                PathStep(
                    f"{copy.original} -> {copy.original_tower.reads[copy.original]} ({other})",
                    copy.original,
                ),
                PathStep(
                    f"{copy.variable} -> {copy.tower.reads[copy.variable]} ({tower})",
                    copy.variable,
                ),
            ),
            message=f"the tower on {tower} reads {copy.variable}, but the tower on {other} reads "
            f"{copy.original}: they are {kind}",
            consequence=consequence,
            fix=fix,
            alike=("doubled", trained, by_tf_variable, numbered),
            devices=(copy.tower.device, copy.original_tower.device),
            ops=(copy.variable, copy.original),
            at=self.line(copy.variable),
        )

    def _is_updated(self, variable: str) -> bool:
        """Return whether a step updates a variable, or may update it."""
        updates = analyze(self._placement).updates
        return bool(updates.unknown) or variable in updates.by_variable

    def _tower_number(self, copy: Copy) -> str | None:
        """Return the part of the original's name that contains the number of its tower.

        The result is None if the two names differ by more than the numbers of their towers. A
        number that only makes a name unique, as in dense_1 and dense_3, is not a tower number.
        """
        parts = zip_longest(copy.original.split("/"), copy.variable.split("/"), fillvalue="")
        different = [pair for pair in parts if pair[0] != pair[1]]
        if len(different) != 1:
            return None
        original, duplicate = (_NUMBERED.fullmatch(part) for part in different[0])
        if original is None or duplicate is None or original[1] != duplicate[1]:
            return None
        gpus = [tower.device for tower in analyze(self._placement).reads_by_gpu.gpus]
        distance = gpus.index(copy.tower.device) - gpus.index(copy.original_tower.device)
        return different[0][0] if int(duplicate[2]) - int(original[2]) == distance else None

    def additional_finding(self, variable: str, *, slot: bool) -> Finding:
        """Return the finding on a variable that the program for one GPU does not have."""
        placement = self._placement
        readers = [
            tower.device
            for tower in analyze(placement).reads_by_gpu.gpus
            if variable in tower.reads
        ]
        towers = "the tower" if len(readers) == 1 else "the towers"
        verb = "reads" if len(readers) == 1 else "read"
        names = [device.short for device in readers]
        by = f"; {towers} on {join_and(names)} {verb} it" if names else ""
        summary = f"{variable} exists only when the program is built with more than one tower"
        gpus = gpu_count(placement)
        return Finding(
            object=variable,
            op=placement.ops[variable].type,
            evidence="requested",
            expected="the variables of the program with one tower",
            found="an additional variable" + (f" with {plural(gpus, 'GPU')}" if gpus else ""),
            message=f"{summary}{by}",
            summary=summary,
            consequence="each optimizer adapts its steps only to the gradients of its own tower"
            if slot
            else "a checkpoint of this program does not fit the program for one GPU",
            fix=_ONE_OPTIMIZER if slot else _SHARE if len(readers) == 1 else _CREATE_ALWAYS,
            alike=("added", slot, tuple(names)),
            devices=tuple(readers),
            at=self._loop_lines.line(variable),
        )


def is_trained(placement: Placement, variable: str) -> bool:
    """Return whether a variable is trainable; True if the program lacks the collection."""
    trainable = placement.collected.get(TRAINABLE)
    return trainable is None or variable in trainable


def gpu_count(placement: Placement) -> int:
    """Return the number of GPUs of the program's machine; 0 if the machine is unknown."""
    return len(placement.machine.gpus) if placement.machine else 0


def not_checkpointed(placement: Placement, variable: str) -> Finding:
    """Return the finding on a trainable variable that is not in GLOBAL_VARIABLES."""
    return Finding(
        object=variable,
        op=placement.ops[variable].type if variable in placement.ops else "",
        evidence="requested",
        expected="in TRAINABLE_VARIABLES and in GLOBAL_VARIABLES",
        found="in TRAINABLE_VARIABLES only",
        message=f"{variable} is trained but not in GLOBAL_VARIABLES: "
        "global_variables_initializer() does not initialize it, and a Saver does not save it",
        fix="create it without `collections`, or with both: "
        "collections=[tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, "
        "tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES]",
    )
