from __future__ import annotations

from dataclasses import dataclass

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.analysis.updates import Update
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class EveryTowerCounts(Rule):
    """Each variable's update depends on every tower's loss.

    A tower whose gradients are not part of the update has computed for nothing: the last tower's
    gradients are applied alone, one tower's are taken twice, or one variable's gradient is lost
    behind a tf.stop_gradient.

    Judged for each variable by the towers that read it. Gradients that are summed up over steps,
    in variables or accumulators, count.

    `allow` lists variables, or patterns, that not all towers train, on purpose.
    """

    name = "every-tower-counts"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES_APART})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        gradients = gradient_flow(placement)
        if not gradients.trained:
            return self.not_checked(
                analysis.updates.unknown or "no variable that towers read is updated by a gradient"
            )
        findings = []
        for variable, updates in gradients.trained.items():
            taken = 0
            for update in updates:
                taken |= gradients.towers(update)
            missing = sum(
                1 << number
                for number, tower in enumerate(analysis.towers)
                if variable in tower.reads and not taken >> number & 1
            )
            if missing and not is_among(variable, self.allow):
                findings.append(_finding(placement, analysis, variable, updates, missing, taken))
        count = len(gradients.trained)
        return self.verdict(findings, plural(count, "variable"))


def _finding(
    placement: Placement,
    analysis: TowerAnalysis,
    variable: str,
    updates: list[Update],
    missing: int,
    taken: int,
) -> Finding:
    update = analysis.flow.names[updates[0].op]
    without = analysis.names_of(missing)
    verb = "reads" if missing.bit_count() == 1 else "read"
    towers = analysis.names_of(taken) if taken else "no tower"
    others = f", but only those of {towers}" if taken else ""
    line = placement.where(update)
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected="an update by the gradients of all towers that read it",
        found=f"an update by the gradients of {towers}",
        where=line or placement.where(variable),
        path=(
            *steps(placement, [updates[0].op]),
            *(
                f"the tower on {analysis.towers[number]} reads it: "
                f"{analysis.towers[number].reads[variable]}"
                for number in analysis.towers_in(missing)
            ),
        ),
        message=f"the update of {variable} takes no gradients of {without}, which {verb} it"
        f"{others}{built_at(placement, update)}",
        fix="average the gradients of all towers; look for a tf.stop_gradient or an index that "
        "leaves one out",
    )
