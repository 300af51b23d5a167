from __future__ import annotations

from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.discovery import complete_device
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.op_types import CAST, NO_COMPUTATION, SHAPES, VARIABLES
from placement_checks.core.placement import Op, Placement, producer_of
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.rules.base import Rule, about, is_allowed, requested_device
from placement_checks.rules.requirements import Need, no_gradients
from placement_checks.util.text import plural


@dataclass(frozen=True)
class GradientsColocated(Rule):
    """Each backward op sits on the device of its forward op.

    If a program computes gradients outside the towers' device scopes, the backward ops request no
    device. Without any warning, the placer puts the backward pass of every tower on the first GPU,
    which then computes most of the step and holds all activations.

    TensorFlow records the forward op of each backward op. In a saved graph without this record the
    name of the backward op identifies its forward op, and the finding states this.

    Not findings: an op that reads only the shape of its input, and that the placer keeps next to
    this input; a backward op on a GPU for a forward op on the host, such as a lookup in a table
    on the host; and a backward op on its own tower's GPU for a forward op on another GPU, if the
    forward op is bound to a variable there, uses an expert or a shard there, or serves several
    towers.

    `allow` lists op types, op names or patterns of names that may sit elsewhere.
    """

    name = "gradients-colocated"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED, Need.GPUS})
    states = FactKind.BACKWARD_DEVICE
    intended = "these backward ops are on other devices than their forward ops"
    breaks_in_changes = True
    threads = (
        "tensorflow/tensorflow#16328: gradients are computed on GPU 0 by default",
        "keras-team/keras#3620: all gradient matrices on GPU 0, and how Keras changed that",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyze(placement)
        judged = 0
        findings = []
        for number, (forward, known_by) in analysis.backward.forward.items():
            op, forward_op = placement.by_number[number], placement.by_number[forward]
            if op.assigned is None or forward_op.assigned is None or op.type in NO_COMPUTATION:
                continue
            # These ops read only the shape of a ref variable, as VariableShape does for resource
            # variables.
            if (op.type in SHAPES or op.type == CAST) and any(
                placement.ops[name].type in VARIABLES
                for name in op.colocated
                if name in placement.ops
            ):
                continue
            judged += 1
            if _is_left_to_placer(placement, op.requested) or _is_with_its_input(placement, op):
                continue
            if (
                op.assigned != forward_op.assigned
                and forward_op.assigned.is_gpu
                and not (op.fallback_reason and not op.fell_with_another)
                and not is_allowed(op, self.allow)
                and not _is_on_own_tower(placement, number, forward)
            ):
                findings.append(_finding(placement, op, forward_op, known_by))
        if not judged:
            if not any(analysis.backward.ops):
                return self.without(no_gradients(evidence))
            if analysis.backward.forward:
                return self.not_checked(
                    "no backward op that computes has a known forward op and a device"
                )
            return self.not_checked(
                "the forward op of each backward op is not recorded, and the names of the ops do "
                "not show it",
                fix="if this is a saved graph, check the program that builds it",
            )
        if findings and (mixed := Need.LOSSES_APART.missing(evidence)) is not None:
            return self.without(mixed)
        return self.verdict(findings, plural(judged, "backward op"))


def _is_left_to_placer(placement: Placement, requested: Device) -> bool:
    """Whether an op of a rank requests no device.

    The placer then keeps small ops next to their inputs, as in a program for one GPU.
    """
    strategy = placement.strategy
    return strategy is not None and strategy.default_gpu(requested) is not None


def _is_with_its_input(placement: Placement, op: Op) -> bool:
    """Whether an op that reads only a shape requests no device, and the placer put it there.

    The placer keeps such an op next to its input, such as the labels from an iterator on the host
    (core/common_runtime/placer.cc, IsMetadata).
    """
    return (
        op.type in SHAPES
        and op.requested.type is None
        and all(
            source in placement.ops and placement.ops[source].assigned == op.assigned
            for source in map(producer_of, op.inputs)
        )
    )


def _is_on_own_tower(placement: Placement, number: int, forward: int) -> bool:
    """Return whether a backward op is on its own tower's GPU and may stay there."""
    analysis, assigned = analyze(placement), placement.by_number[number].assigned
    tower, forward_op = analysis.tower_of[number], placement.by_number[forward]
    if assigned is None or tower is None:
        return False
    devices = analysis.towers[tower].devices
    is_elsewhere = (
        bool(forward_op.colocated)
        or analysis.tower_of[forward] is None
        or complete_device(forward_op.requested) not in devices
    )
    return is_elsewhere and any(map(assigned.matches, devices))


def _finding(placement: Placement, op: Op, forward: Op, known_by: str) -> Finding:
    assert op.assigned is not None
    assert forward.assigned is not None
    found, expected = op.assigned.short, forward.assigned.short
    named = " (found by name)" if known_by == "name" else ""
    where = placement.where(forward.name)
    has_towers = len(analyze(placement).towers) > 1
    traced = placement.step.traced
    if not op.assigned.is_gpu:
        computes = "instead of the GPUs"
    else:
        computes = "of other towers too" if has_towers else f"of ops on {expected}"
    fixes = ["compute the gradients inside the tower's `with tf.device(...):`"]
    fixes = fixes if has_towers or traced else []
    fixes += [] if traced else ["pass colocate_gradients_with_ops=True"]
    summary = (
        f"backward op {op.name} is on {found}, but its forward op {forward.name}{named} is on "
        f"{expected}"
    )
    return Finding(
        **about(op, "assigned"),
        placed=op.name,
        group_key=(op.assigned, op.requested),
        path=(
            PathStep(f"{op.name} ({op.type}) on {found}", op.name),
            PathStep(
                f"{forward.name} ({forward.type}) on {expected}{f' {where}' if where else ''}",
                forward.name,
            ),
        ),
        message=f"{summary}; the backward op requests {requested_device(op)}",
        devices=(op.assigned, forward.assigned),
        consequence=f"{found} computes the backward pass {computes}, and the values that it needs "
        "from the forward pass are copied there",
        fix=", or ".join(fixes),
    )
