from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import Diagnosis
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, about, matches_any
from placement_checks.rules.gradient_mistakes import before_decay, decays, frozen_reads
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.step_equality import (
    compare_with_one_gpu,
    mistake_of,
    towers_left_out,
)
from placement_checks.step.comparison import ONE_GPU, TOWERS, State, StepEquality
from placement_checks.step.explanation import Difference, Obligation
from placement_checks.step.kinds import Origin

_OF_ANY_OBJECT = (Fact(FactKind.BLOCKED), Fact(FactKind.OBJECTIVE), Fact(FactKind.SCALED))
# Facts on other objects that explain a difference, by what has to be equal; the likeliest first.
# Equal noise explains only a difference of random numbers. A coefficient may belong to the update
# of another variable, if gradients are computed after it.
_CAUSES = {
    **dict.fromkeys(Obligation, (*_OF_ANY_OBJECT, Fact(FactKind.UNTRAINED))),
    Obligation.ROWS: (Fact(FactKind.NOISE), *_OF_ANY_OBJECT),
    Obligation.WEIGHTS: (
        *(Fact(FactKind.REPEATED), Fact(FactKind.UNSHARED), Fact(FactKind.OUT_OF_SCOPE)),
        *_OF_ANY_OBJECT,
    ),
}


@dataclass(frozen=True)
class EqualToOneGpu(Rule):
    """The step for several GPUs is the step for one GPU, for every batch.

    Data parallelism is meant to change how long a step takes, and nothing else. Whether it does
    can be proved, without running the program: both graphs, for several GPUs and for one GPU, are
    read into terms, and the value of each trained variable after the step must be the same term.
    Sums over the parts of a batch become the sum over the batch, so the mean of the towers'
    gradients is the gradient of the mean. The page "What is proved, and how" explains this.

    The rule compares with the reference if one is given, and otherwise with the program's own
    build for one GPU. A mistake that both builds make is not seen.

    If all values are equal, the rule is kept, and the note states what the proof takes for
    granted: each tower has equally many rows, for example, or batch statistics of a tower's rows
    replace the statistics of all rows. If a value differs, and all ops on the way are understood,
    the rule is broken. A finding states what is not equal, such as a part of the batch that does
    not count. If only learning rates or other settings of the optimizer differ, this is a doubt,
    because they may differ on purpose. So is a difference of other variables that the trained
    variables depend on in the next step, such as the centers of classes. It is also a doubt if
    each tower divides its loss by its own count, such as its number of tokens, because these
    counts may be equal. Otherwise the rule is not checked, and names the op that cannot be
    followed: an op of an unknown type, or a loss that combines the rows of a tower. It is not
    checked either if another part of the program may make up for the difference. Thus the divisor
    of a sum over rows breaks the rule only if both programs have the same fixed number of rows: a
    batch that grows with the number of GPUs needs another divisor.

    `allow` lists variables that may differ, or patterns such as bn/*.
    """

    name = "equal-to-one-gpu"
    kind = "requested"
    impact = Impact.TRAINING
    requires = frozenset({Need.REQUESTED, Need.VARIABLES})
    uses = frozenset({Need.SINGLE_GPU, Need.REFERENCE})
    states = FactKind.STEP

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        compared = compare_with_one_gpu(evidence)
        if isinstance(compared, Missing):
            return self.without(compared)
        one_gpu, found = compared
        if not found.trained:
            return self.not_checked("the step trains no variable that one GPU trains")
        placements = evidence.placement, one_gpu
        findings = list(self._findings(placements, found))
        is_build = one_gpu is evidence.single_gpu
        note = _note(found, "the build for one GPU" if is_build else "the reference")
        are_doubts = all(finding.is_doubt for finding in findings)
        if are_doubts and (missing := self._unknown(placements, found, findings)) is not None:
            return self.without(missing, note)
        return self.verdict(findings, note)

    def _findings(
        self, placements: tuple[Placement, Placement], found: StepEquality
    ) -> Iterator[Finding]:
        reported: set[str] = set()
        for name in sorted(found.variables, key=lambda each: (each not in found.trained, each)):
            difference = found.variables[name].difference
            if difference is None or self._allows(name):
                continue
            if difference.excuse is not None and not difference.excuse.may_be_intended:
                continue
            if name not in found.trained:
                if not reported and difference.excuse is None:
                    reported.add(name)
                    yield _of_state(_finding(placements, name, difference, None))
                continue
            name = found.copies[name][0]
            if difference.obligation is Obligation.ROWS and difference.origin:
                name = difference.origin.op
            if name not in reported:
                reported.add(name)
                yield _finding(placements, name, difference, _frozen(placements[0], found, name))

    def _allows(self, name: str) -> bool:
        return matches_any(name, self.allow)

    def _unknown(
        self,
        placements: tuple[Placement, Placement],
        found: StepEquality,
        doubts: Sequence[Finding],
    ) -> Missing | None:
        """Why the steps could not be proved equal; None if proofs and doubts are all answers.

        The values that a variable with a doubt depends on, such as its slots, may differ likewise.
        """
        unknown = [
            (name, difference)
            for name, answer in found.variables.items()
            if (difference := answer.difference) is not None
            and not self._allows(name)
            and not (doubts and (difference.excuse is None or difference.excuse.may_be_intended))
        ]
        if not unknown:
            return None
        trained = [pair for pair in unknown if pair[0] in found.trained]
        name, difference = (trained or unknown)[0]
        where = _where(placements, difference, found.copies[name][0])
        if not trained:
            return Missing(
                f"the values after one step are equal, but they depend on {name}, and {name} may "
                f"differ: {difference.text}{where}"
            )
        divides_by_counts = difference.mistake is mistakes.OWN_COUNTS
        return Missing(
            f"{len(trained)} of {len(found.trained)} trained variables could not be proved equal, "
            f"such as {name}: {difference.text}{where}",
            mistake_of(placements[0], difference).fix if divides_by_counts else "",
        )


def _where(placements: tuple[Placement, Placement], difference: Difference, variable: str) -> str:
    """The op and the line of a difference, for a reason.

    If parts of the batch are left out, it is the update of the variable.
    """
    origin = difference.origin
    if difference.mistake is mistakes.PART_LEFT_OUT:
        analysis = analyze(placements[TOWERS])
        for update in analysis.updates.by_variable.get(variable, ()):
            origin = Origin(TOWERS, analysis.flow.names[update.op], "")
    if origin is None:
        return ""
    line = placements[origin.program].where(origin.op)
    program = " of the program for one GPU" if origin.program == ONE_GPU else ""
    return f" ({origin.op}{program}{f', {line}' if line else ''})"


def _note(found: StepEquality, other: str) -> str:
    proved = [name for name in found.trained if found.variables[name].state is State.PROVED]
    note = (
        f"{len(proved)} of {len(found.trained)} trained variables proved equal to {other}, "
        "for every batch"
    )
    assumed = sorted(assumption.value for assumption in found.assumed)
    return f"{note}, if {'; '.join(assumed)}" if assumed and proved else note


def _frozen(placement: Placement, found: StepEquality, name: str) -> Diagnosis | None:
    """State that a variable is masked in towers whose gradients its update takes."""
    analysis, gradients = analyze(placement), gradient_flow(placement)
    left_out = towers_left_out(placement, found, name)
    mask = sum(1 << tower for tower in left_out)
    taken = union(map(gradients.towers, gradients.trained.get(name, ())))
    if not mask or mask & ~taken:
        return None
    towers = analysis.names_of(mask)
    ops = [analysis.flow.names[op] for op in frozen_reads(placement, name, left_out)]
    return mistakes.FROZEN.stated(
        tower_kind(placement),
        who=f"{towers} {'contributes' if len(left_out) == 1 else 'contribute'}",
        left_out=towers,
        ops=tuple(ops),
    )


def _of_state(finding: Finding) -> Finding:
    """The doubt about a variable that is not trained, which programs may update on purpose."""
    message = f"{finding.message}, and the next step of the trained variables depends on it"
    return replace(finding, message=message, is_doubt=True)


def _finding(
    placements: tuple[Placement, Placement],
    name: str,
    difference: Difference,
    frozen: Diagnosis | None,
) -> Finding:
    placement = placements[0]
    origin = difference.origin
    op = name if origin is None or origin.program == ONE_GPU else origin.op
    at_fault: tuple[str, ...] = (op,)
    right: tuple[str, ...] = ()
    subject = placement.ops.get(name, name)
    found = mistake_of(placement, difference)
    if difference.obligation is Obligation.WEIGHTS:
        names = analyze(placement).flow.names
        updates = analyze(placement).updates.by_variable.get(name, [])
        expected = analyze(placements[1]).updates.by_variable.get(name, [])
        if len(updates) > max(1, len(expected)):
            at_fault, right = (names[updates[-1].op],), (names[updates[0].op],)
            found = mistakes.SECOND_UPDATE.stated(
                tower_kind(placement), text=difference.text, count=len(updates)
            )
        elif frozen is not None:
            found, at_fault, right = frozen, frozen.ops or at_fault, ()
        elif difference.mistake is mistakes.DECAY and (added := decays(placement, name)):
            at_fault = tuple(names[each] for each in added)
            right = before_decay(placement, name)
        elif updates and any(op == each.name for each in placement.variables):
            at_fault = (names[updates[0].op],)
    message = found.what
    if difference.obligation is not Obligation.ROWS:
        message = f"{name} gets another value than on one GPU: {message}"
    return Finding(
        **about(subject),
        ops=at_fault,
        against=right,
        message=message,
        consequence=found.consequence,
        fix=found.fix,
        group_key=(difference.obligation, difference.text),
        may_follow=_CAUSES[difference.obligation],
        is_doubt=difference.excuse is not None,
    )
