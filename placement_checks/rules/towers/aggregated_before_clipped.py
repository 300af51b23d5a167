from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.clipping import ClippedGradient, clipped_per_tower
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.evidence import Evidence
from placement_checks.core.keras_parts import CLIPPING
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.keras_limits import KERAS, keras_limit_finding, shorten
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class AggregatedBeforeClipped(Rule):
    """The gradients of all replicas are added up before they are clipped.

    Clipping by a norm or a bound is not linear: what each replica clips and then adds up is
    another gradient than the clipped sum, and depends on the number of GPUs. Code for one GPU
    that clips between tape.gradient and optimizer.apply_gradients does so under a strategy
    without a word, as apply_gradients adds up, and so does `clipnorm` of an optimiser of Keras 3.

    Towers that are placed by hand may clip each gradient on purpose: those are not findings. The
    rule is then not checked, and a reference tells whether it makes a difference.

    `allow` lists variables, or patterns such as *, whose gradients each replica clips on purpose.
    """

    name = "aggregated-before-clipped"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES_APART})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        trained = gradient_flow(placement).trained
        if not trained:
            return self.not_checked(
                analyse(placement).updates.unknown
                or "no variable that towers read is updated by a gradient"
            )
        clipped = [
            each
            for each in clipped_per_tower(placement)
            if not matches_any(each.variable, self.allow)
        ]
        if clipped and placement.strategy is None:
            return self.not_checked(_of_towers(clipped))
        copies = placement.strategy.copies if placement.strategy else {}
        firsts = [
            each
            for each in clipped
            if each.variable not in copies or copies[each.variable].of == each.variable
        ]
        of_keras = [each for each in firsts if _is_of_keras(placement, each)]
        findings = [
            *_by_optimizer(placement, of_keras),
            *(_finding(placement, each) for each in firsts if each not in of_keras),
        ]
        return self.verdict(findings, plural(len(trained), "variable"))


def _is_of_keras(placement: Placement, clipped: ClippedGradient) -> bool:
    """Whether an optimiser does it that was made with ``clipnorm`` and the like."""
    op = analyse(placement).flow.names[clipped.op]
    return CLIPPING in placement.details.parts_of_keras(op)


def _by_optimizer(placement: Placement, clipped: Sequence[ClippedGradient]) -> Iterator[Finding]:
    """That an optimiser clips in each replica."""
    if not clipped:
        return
    how = "clipnorm or global_clipnorm" if clipped[0].by_norm else "clipvalue"
    yield keras_limit_finding(
        placement,
        [each.variable for each in clipped],
        f"an optimizer of {KERAS} with {how} clips the gradients of each replica, and then adds "
        f"them up: those of {shorten(each.variable for each in clipped)}",
        _CONSEQUENCE,
        "in a train_step of your own: gradients = tf.distribute.get_replica_context().all_reduce("
        "'SUM', gradients), then clip, and divide by the number of replicas, as the optimizer "
        "adds up once more. If each is meant to be clipped: "
        "--set aggregated-before-clipped.allow=*",
        expected="the sum of all replicas' gradients, and then clipping",
        found="clipping in each replica, and then the sum",
    )


def _of_towers(clipped: list[ClippedGradient]) -> str:
    """Why nothing is known of towers that clip their own gradients."""
    more = f" and {len(clipped) - 1} more" if len(clipped) > 1 else ""
    return (
        f"each tower clips its own gradient of {clipped[0].variable}{more}, and nothing tells "
        "whether that is meant; give a reference, or declare it: "
        f"--set aggregated-before-clipped.allow={'*' if more else clipped[0].variable}"
    )


def _finding(placement: Placement, clipped: ClippedGradient) -> Finding:
    name = analyse(placement).flow.names[clipped.op]
    how = "scaled by a norm of its own" if clipped.by_norm else "cut off at a bound"
    return Finding(
        object=clipped.variable,
        op=placement.ops[clipped.variable].type,
        evidence="requested",
        expected="the sum of all replicas' gradients, and then clipping",
        found="clipping in each replica, and then the sum",
        ops=(name,),
        path=path_lines(placement, [clipped.op]),
        alike=clipped.by_norm,
        message=f"each replica's gradient of {clipped.variable} is {how}, before those of all "
        "replicas are added up",
        consequence=_CONSEQUENCE,
        fix="clip the sum: gradients = tf.distribute.get_replica_context().all_reduce('SUM', "
        "gradients), then clip, and update without another sum. If each is meant to be clipped: "
        "--set aggregated-before-clipped.allow=*",
    )


_CONSEQUENCE = "the update is another than one GPU would make, and changes with the number of GPUs"
