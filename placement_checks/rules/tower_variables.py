"""What is said of variables that towers have of their own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.towers.discovery import GpuReads
from placement_checks.analysis.variables.layout import made_by_get_variable
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.results import Finding
from placement_checks.rules.base import REUSE
from placement_checks.rules.source_lines import LoopLines
from placement_checks.util.text import join_and, plural

_ANEW = (
    "use tf.compat.v1.get_variable in place of tf.Variable, and variable_scope in place of "
    f"name_scope, in the model, and build each tower under `{REUSE}`"
)
_ELSE = (
    "call one layer object once per tower, or use get_variable and build each tower under "
    f"`{REUSE}`"
)
_ONE_OPTIMIZER = (
    "create the optimiser once, before the loop over towers, and call apply_gradients once, "
    "after it"
)
_IN_BOTH = (
    "create it whatever the number of GPUs, or allow it: --set variables-shared.allow=PATTERN"
)
_TRAINED_APART = (
    "each tower learns from its own part of each batch alone; what is evaluated or exported is "
    "one tower's weights"
)
_NOT_UPDATED = (
    "no step updates it: the tower computes gradients of weights that stay as they were "
    "initialised"
)
_KEPT_APART = (
    "each tower keeps a value of its own, and evaluation reads one, which has seen that tower's "
    "examples alone"
)
_NUMBERED = re.compile(r"(.*?)[_:-]?(\d+)")


class Copy(NamedTuple):
    """A variable that a tower has instead of the one that another tower reads."""

    variable: str
    tower: GpuReads
    original: str
    of: GpuReads


class OwnVariables:
    """Findings on variables of one program that are not shared."""

    def __init__(self, placement: Placement, apart: Collection[str]) -> None:
        """
        Args:
            placement: the program.
            apart: the variables that towers have of their own.
        """
        self._placement = placement
        self._apart = apart

    def line(self, variable: str) -> str | None:
        """The line to edit: tf.Variable's own, as no scope makes that share; else the loop's."""
        if self.is_anew(variable):
            return self._placement.where(variable)
        return self._lines.line(variable)

    def is_anew(self, variable: str) -> bool:
        """Whether it was made by tf.Variable, or else was given a value to begin with."""
        return variable not in self._named

    @cached_property
    def _lines(self) -> LoopLines:
        """Where a function makes shared variables too, no scope around it is the cause."""
        return LoopLines(self._placement, self._shared())

    def _shared(self) -> Iterator[str]:
        towers = analyse(self._placement).towers
        for variable in self._placement.variables:
            readers = sum(variable.name in tower.reads for tower in towers)
            if readers > 1 and variable.name not in self._apart:
                yield variable.name

    @cached_property
    def _named(self) -> frozenset[str]:
        return made_by_get_variable(self._placement)

    def doubled(self, copy: Copy) -> Finding:
        placement = self._placement
        tower, of = copy.tower.device.short, copy.of.device.short
        trained = is_trained(placement, copy.variable)
        updated = trained and self._is_updated(copy.variable)
        apart = "trained separately" if updated else "separate variables"
        anew = self.is_anew(copy.variable)
        numbered = None if anew else self._numbered(copy)
        return Finding(
            object=copy.variable,
            op=placement.ops[copy.variable].type,
            evidence="requested",
            expected=f"{copy.original}, which the tower on {of} reads",
            found=f"a variable of its own for the tower on {tower}",
            path=(
                f"{copy.original} -> {copy.of.reads[copy.original]} ({of})",
                f"{copy.variable} -> {copy.tower.reads[copy.variable]} ({tower})",
            ),
            message=f"the tower on {tower} reads {copy.variable} where the tower on {of} reads "
            f"{copy.original}: they are {apart}",
            consequence=_TRAINED_APART if updated else _NOT_UPDATED if trained else _KEPT_APART,
            fix=_ANEW if anew else _without_number(numbered) if numbered else _ELSE,
            alike=("doubled", trained, anew, numbered),
            ops=(copy.variable, copy.original),
            at=self.line(copy.variable),
        )

    def _is_updated(self, variable: str) -> bool:
        """Whether a step updates it, or may do so."""
        updates = analyse(self._placement).updates
        return bool(updates.unknown) or variable in updates.by_variable

    def _numbered(self, copy: Copy) -> str | None:
        """The part of the original's name that has a tower's number: in the copy's the other's.

        Numbers that make names unique, as of dense_1 and dense_3, are others.
        """
        parts = zip_longest(copy.original.split("/"), copy.variable.split("/"), fillvalue="")
        different = [pair for pair in parts if pair[0] != pair[1]]
        if len(different) != 1:
            return None
        one, other = (_NUMBERED.fullmatch(part) for part in different[0])
        if one is None or other is None or one[1] != other[1]:
            return None
        gpus = [tower.device for tower in analyse(self._placement).reads_by_gpu.gpus]
        apart = gpus.index(copy.tower.device) - gpus.index(copy.of.device)
        return different[0][0] if int(other[2]) - int(one[2]) == apart else None

    def added(self, variable: str, *, slot: bool) -> Finding:
        placement = self._placement
        readers = [
            tower.device.short
            for tower in analyse(placement).reads_by_gpu.gpus
            if variable in tower.reads
        ]
        towers = "the tower" if len(readers) == 1 else "the towers"
        verb = "reads" if len(readers) == 1 else "read"
        by = f"; {towers} on {join_and(readers)} {verb} it" if readers else ""
        gpus = gpu_count(placement)
        return Finding(
            object=variable,
            op=placement.ops[variable].type,
            evidence="requested",
            expected="the variables of the program with one tower",
            found="an additional variable" + (f" with {plural(gpus, 'GPU')}" if gpus else ""),
            message=f"{variable} exists only when the program is built with more than one "
            f"tower{by}",
            consequence="each optimiser adapts its steps to the gradients of its own tower alone"
            if slot
            else "a checkpoint of this program does not fit the program for one GPU",
            fix=_ONE_OPTIMIZER if slot else _ELSE if len(readers) == 1 else _IN_BOTH,
            alike=("added", slot, tuple(readers)),
            at=self._lines.line(variable),
        )


def is_trained(placement: Placement, variable: str) -> bool:
    trainable = placement.collected.get(TRAINABLE)
    return trainable is None or variable in trainable


def gpu_count(placement: Placement) -> int:
    """For how many it was built, by its machine; 0 also for the log of one that has none."""
    return len(placement.machine.gpus) if placement.machine else 0


def not_checkpointed(placement: Placement, variable: str) -> Finding:
    return Finding(
        object=variable,
        op=placement.ops[variable].type if variable in placement.ops else "",
        evidence="requested",
        expected="in TRAINABLE_VARIABLES and in GLOBAL_VARIABLES",
        found="in TRAINABLE_VARIABLES only",
        message=f"{variable} is trained but not in GLOBAL_VARIABLES: "
        "global_variables_initializer() does not initialise it, and a Saver does not save it",
        fix="leave out `collections` where it is created, or name both there: "
        "collections=[tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, "
        "tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES]",
    )


def _without_number(part: str) -> str:
    return f"leave the tower's number out of the name {part}, and build each tower under `{REUSE}`"
