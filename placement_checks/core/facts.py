"""The facts that findings state, and the facts that cause them.

Two rules often see one mistake: towers that read the same rows also have a wrong gradient, and
weights that differ from the reference. A finding therefore names facts, such as "the gradient of
fc1/weights is wrong". `CAUSES` is the only place that says which facts follow from which others.
It follows the step from the rows of a tower over its loss and gradients to the new weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from functools import cache
from typing import NamedTuple


class FactKind(Enum):
    """What is wrong with the subject of a fact.

    Rules are in the order of these kinds, if nothing else decides their order in reports.

    Attributes:
        UNPLACEABLE: the placer refuses the op.
        FALLEN: the op is not on the device that it requests.
        VARIABLE_DEVICE: the variable is not on the declared device.
        STEP: the step does not compute the value of the variable as on one GPU.
        OUT_OF_SCOPE: the variable was created outside of the scope of its strategy.
        UNSHARED: towers read separate variables in place of this one.
        SLOT_DEVICE: the slot is not on the device of its variable.
        IDLE: the device computes nothing.
        MODEL: towers compute different functions.
        ROWS: towers compute with the same rows, or pair rows of different examples.
        MIXED_LOSS: the loss of a tower contains results of another tower.
        BACKWARD_DEVICE: the backward op is not on the device of its forward op.
        AVERAGE_DEVICE: the op that combines gradients is not on the declared device.
        INPUT_DEVICE: the input op requests a GPU.
        LOST: the update of the variable lacks the gradients of a tower.
        OBJECTIVE: loss terms in the update of the variable have wrong coefficients.
        SCALED: all loss terms in the update of the variable are multiplied by one factor.
        UNSYNCED: copies of the variable get different updates.
        CLIPPED: gradients of the variable are clipped before all of them are added up.
        REPEATED: a step updates the variable several times.
        NOISE: towers draw the same random numbers.
        UNTRAINED: no step updates the variable.
        NAME: a checkpoint of one GPU lacks the name of the variable.
        SKIPPED: the step does not update the statistics.
        GRADIENT: the gradient of the variable differs from the reference in a run.
        VALUE: the variable differs from the reference after some steps of a run.
        DIAGNOSED: a run shows which mistake changes the gradient or the value of the variable.
        BLOCKED: the op waits for other replicas that never arrive.
    """

    UNPLACEABLE = auto()
    FALLEN = auto()
    VARIABLE_DEVICE = auto()
    STEP = auto()
    OUT_OF_SCOPE = auto()
    UNSHARED = auto()
    SLOT_DEVICE = auto()
    IDLE = auto()
    MODEL = auto()
    ROWS = auto()
    MIXED_LOSS = auto()
    BACKWARD_DEVICE = auto()
    AVERAGE_DEVICE = auto()
    INPUT_DEVICE = auto()
    LOST = auto()
    OBJECTIVE = auto()
    SCALED = auto()
    UNSYNCED = auto()
    CLIPPED = auto()
    REPEATED = auto()
    NOISE = auto()
    UNTRAINED = auto()
    NAME = auto()
    SKIPPED = auto()
    GRADIENT = auto()
    VALUE = auto()
    DIAGNOSED = auto()
    BLOCKED = auto()


_K = FactKind

# The direct causes of facts on the same subject; the likeliest cause first.
CAUSES: Mapping[FactKind, tuple[FactKind, ...]] = {
    _K.FALLEN: (_K.UNPLACEABLE, _K.IDLE),
    _K.VARIABLE_DEVICE: (_K.UNPLACEABLE, _K.OUT_OF_SCOPE),
    _K.SLOT_DEVICE: (_K.OUT_OF_SCOPE,),
    _K.AVERAGE_DEVICE: (_K.FALLEN,),
    _K.BACKWARD_DEVICE: (_K.FALLEN,),
    _K.NAME: (_K.UNSHARED,),
    _K.REPEATED: (_K.OUT_OF_SCOPE,),
    _K.LOST: (_K.UNSHARED,),
    _K.UNSYNCED: (_K.OUT_OF_SCOPE,),
    _K.OBJECTIVE: (
        *(_K.LOST, _K.REPEATED, _K.UNSYNCED, _K.UNSHARED, _K.OUT_OF_SCOPE),
        *(_K.ROWS, _K.MODEL, _K.MIXED_LOSS),
    ),
    # Towers that read the same rows multiply what a row counts only in sums: see `may_follow`.
    _K.SCALED: (_K.REPEATED, _K.UNSYNCED, _K.UNSHARED, _K.OUT_OF_SCOPE),
    _K.GRADIENT: (_K.OBJECTIVE, _K.SCALED, _K.CLIPPED, _K.UNTRAINED),
    _K.VALUE: (_K.GRADIENT, _K.SKIPPED),
    _K.BLOCKED: (_K.MODEL,),
    _K.DIAGNOSED: (_K.OBJECTIVE, _K.SCALED),
    _K.STEP: (_K.OBJECTIVE, _K.SCALED, _K.UNTRAINED, _K.DIAGNOSED),
}
# Facts on a tower, which concern every variable.
_OF_TOWERS = frozenset({_K.ROWS, _K.MODEL, _K.NOISE, _K.MIXED_LOSS})


class Fact(NamedTuple):
    """A fact that a finding states or may follow from."""

    kind: FactKind  # what is wrong
    subject: str = ""  # the variable, op or device; `""` for any of them

    @property
    def is_general(self) -> bool:
        """Whether the fact concerns every variable."""
        return not self.subject or self.kind in _OF_TOWERS

    def causes(self) -> Iterator[Fact]:
        """Yields the facts on the same subject that may cause this one, the nearest first."""
        return (Fact(kind, self.subject) for kind in _all_causes(self.kind))


@cache
def _all_causes(kind: FactKind) -> tuple[FactKind, ...]:
    """The kinds of facts that may cause a kind, also through others, the nearest first."""
    found: dict[FactKind, None] = {}
    nearest = [kind]
    while nearest:
        nearest = [
            cause for each in nearest for cause in CAUSES.get(each, ()) if cause not in found
        ]
        found |= dict.fromkeys(nearest)
    return tuple(found)
