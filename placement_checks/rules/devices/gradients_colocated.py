from __future__ import annotations

from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.towers.discovery import requested_gpu
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import CAST, NO_COMPUTATION, SHAPES, VARIABLES
from placement_checks.core.placement import Op, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, is_allowed, requested_device
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class GradientsColocated(Rule):
    """Each backward op sits with its forward op.

    Gradients that are taken outside the towers' device scopes ask for no device, and the placer
    puts the backward pass of every tower on the first GPU, which computes most of the step and
    holds all activations, without any warning.

    TensorFlow records the forward op of each backward op; in a saved graph without
    that, the name of the op says it, and so does the finding. A backward op on a GPU may have a
    forward op on the host, such as a lookup in a table that the host holds. It may be on its own
    tower's GPU if the forward op is not: if that is bound to a variable on another GPU, uses an
    expert or a shard that another GPU has, or is made once for several towers.

    `allow` lists op types, op names or patterns of names that may sit elsewhere.
    """

    name = "gradients-colocated"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED, Need.GPUS})
    explained_by = ("no-fallback",)

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        judged = 0
        findings = []
        for number, (forward, known_by) in analysis.backward.forward.items():
            op, forward_op = placement.by_number[number], placement.by_number[forward]
            if op.assigned is None or forward_op.assigned is None:
                continue
            if op.type in NO_COMPUTATION or _is_shape_of_variable(placement, op):
                continue
            judged += 1
            if (
                op.assigned != forward_op.assigned
                and forward_op.assigned.is_gpu
                and not (op.fallback_reason and not op.fell_with_another)
                and not is_allowed(op, self.allow)
                and not _is_with_its_tower(placement, number, forward)
            ):
                findings.append(_finding(placement, op, forward_op, known_by))
        if not judged:
            return self.not_checked(_why_none_judged(analysis.backward.ops))
        if findings and (mixed := Need.LOSSES_APART.missing(evidence)) is not None:
            return self.not_checked(mixed.reason)
        return self.verdict(findings, plural(judged, "backward op"))


def _is_with_its_tower(placement: Placement, number: int, forward: int) -> bool:
    """Whether a backward op is on its own tower's GPU, and its forward op need not be there."""
    analysis, assigned = analyse(placement), placement.by_number[number].assigned
    tower, of = analysis.tower_of[number], placement.by_number[forward]
    if assigned is None or tower < 0:
        return False
    devices = analysis.towers[tower].devices
    is_elsewhere = (
        bool(of.colocated)
        or analysis.tower_of[forward] < 0
        or requested_gpu(of.requested) not in devices
    )
    return is_elsewhere and any(map(assigned.matches, devices))


def _is_shape_of_variable(placement: Placement, op: Op) -> bool:
    """Whether it is what `VariableShape` is to resource variables, of a ref variable.

    TensorFlow may cast it.
    """
    return (op.type in SHAPES or op.type == CAST) and any(
        placement.ops[name].type in VARIABLES for name in op.colocated if name in placement.ops
    )


def _why_none_judged(backward: bytearray) -> str:
    if any(backward):
        return "the forward ops of the backward ops are not known"
    return "the graph computes no gradients"


def _finding(placement: Placement, op: Op, forward: Op, known_by: str) -> Finding:
    assert op.assigned is not None
    assert forward.assigned is not None
    found, expected = op.assigned.short, forward.assigned.short
    named = ", as its name says," if known_by == "name" else ""
    where = placement.where(forward.name)
    return Finding(
        object=op.name,
        op=op.type,
        evidence="assigned",
        expected=expected,
        found=found,
        placed=op.name,
        alike=(op.assigned, op.requested),
        path=(
            f"{op.name} ({op.type}) on {found}",
            f"{forward.name} ({forward.type}) on {expected}{f' {where}' if where else ''}",
        ),
        message=f"{op.name} sits on {found}, and its forward op{named} on {expected}; "
        f"it asks for {requested_device(op)}",
        consequence=f"{found} computes the backward pass "
        + ("of other towers too" if op.assigned.is_gpu else "in the place of the GPUs")
        + ", and what it needs of the forward pass is copied there",
        fix=_INSIDE if placement.step.traced else f"{_INSIDE}, or pass {_COLOCATE}",
    )


_INSIDE = "take the gradients inside the tower's `with tf.device(...):`"
_COLOCATE = "colocate_gradients_with_ops=True"
