from __future__ import annotations

from dataclasses import dataclass

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import CAST, NO_COMPUTATION, SHAPES, VARIABLES
from placement_checks.core.placement import Op, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, asked_for, built_at, is_among
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class GradientsColocated(Rule):
    """Each backward op sits with its forward op.

    Gradients that are taken outside the towers' device scopes ask for no device, and the placer
    puts the backward pass of every tower on the first GPU, which computes most of the step and
    holds all activations. Nothing says so.

    TensorFlow notes for each backward op whose gradient it computes; in a saved graph without
    that, the name of the op tells, and the finding says so. A backward op on a GPU may have a
    forward op on the host, such as a lookup in a table that the host holds.

    `allow` lists op types, op names or patterns of names that may sit elsewhere.
    """

    name = "gradients-colocated"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        known = analyse(placement)
        judged = 0
        findings = []
        for number, (forward, by) in known.backward.forward.items():
            op, original = known.ops[number], known.ops[forward]
            if op.assigned is None or original.assigned is None:
                continue
            if op.type in NO_COMPUTATION or _is_shape_of_variable(placement, op):
                continue
            judged += 1
            if (
                op.assigned != original.assigned
                and original.assigned.is_gpu
                and not (op.fallback_reason and not op.fell_with_another)
                and not (is_among(op.name, self.allow) or op.type in self.allow)
            ):
                findings.append(_finding(placement, op, original, by))
        if not judged:
            return self.not_checked(_none(known.backward.ops))
        if findings and (mixed := Need.LOSSES_APART.missing(evidence)) is not None:
            return self.not_checked(mixed.reason)
        return self.verdict(findings, plural(judged, "backward op"))


def _is_shape_of_variable(placement: Placement, op: Op) -> bool:
    """Whether it is what `VariableShape` is to resource variables, of a ref variable.

    TensorFlow may cast it.
    """
    return (op.type in SHAPES or op.type == CAST) and any(
        placement.ops[each].type in VARIABLES for each in op.colocated if each in placement.ops
    )


def _none(backward: bytearray) -> str:
    if any(backward):
        return "whose gradients the backward ops compute is not known"
    return "the graph takes no gradients"


def _finding(placement: Placement, op: Op, forward: Op, by: str) -> Finding:
    assert op.assigned is not None
    assert forward.assigned is not None
    found, expected = op.assigned.short, forward.assigned.short
    named = ", which its name tells," if by == "name" else ""
    where = placement.where(forward.name)
    return Finding(
        object=op.name,
        op=op.type,
        evidence="assigned",
        expected=expected,
        found=found,
        where=placement.where(op.name),
        path=(
            f"{op.name} ({op.type}) on {found}",
            f"{forward.name} ({forward.type}) on {expected}{f' {where}' if where else ''}",
        ),
        message=f"{op.name} sits on {found}, and its forward op{named} on {expected}; "
        f"it asks for {asked_for(op)}{built_at(placement, op.name)}",
        fix="take the gradients inside the tower's tf.device scope, or with "
        "colocate_gradients_with_ops=True",
    )
