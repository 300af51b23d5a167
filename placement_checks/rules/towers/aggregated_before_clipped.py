from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.step_changes import step_changes, towers_of_clip
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.keras_parts import CLIPPING
from placement_checks.core.mistakes import WORDS
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    KERAS,
    Rule,
    about,
    library_limit,
    matches_any,
    not_compared,
    path_lines,
    shorten,
)
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.step.graph import OWN_BACKWARD
from placement_checks.step.kinds import Cause
from placement_checks.step.wording import cause_in_words
from placement_checks.util.text import plural


@dataclass(frozen=True)
class AggregatedBeforeClipped(Rule):
    """The gradients of all replicas are added up before they are clipped.

    Clipping by a norm or a bound is not linear: a sum of clipped gradients differs from the
    clipped sum, and depends on the number of GPUs. Code for one GPU that clips between
    tape.gradient and optimizer.apply_gradients runs under a strategy without an error, but
    apply_gradients then adds up clipped gradients. An optimizer of Keras 3 with `clipnorm` also
    adds up clipped gradients.

    A gradient is clipped if its elements are bounded, or if it is multiplied by a value that
    depends on gradients, such as its norm. It may be flat, packed with others, or sparse. If
    replicas multiply their gradients by the norm of the sum, or clip the gradients of single rows
    before they add up the rows, the rule is kept. Gradients that pass a `tf.custom_gradient` of
    the program are not checked, because its backward pass may clip them.

    Towers that are placed by hand may clip their own gradients on purpose. This is a doubt; a
    comparison with a reference shows whether clipping makes a difference.

    `allow` lists variables, or patterns such as *, if each replica clips their gradients on
    purpose.
    """

    name = "aggregated-before-clipped"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.CLIPPED
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES_APART, Need.TRAINED})
    intended = "each replica clips its own gradients of these variables"
    threads = (
        "tensorflow/tensorflow#33929: why clipping was disabled under strategies",
        "LeelaChessZero/lczero-training#162: each GPU clipped to its own norm, and the fix",
        "horovod/horovod#1346: clipping before or after the sum, by framework",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        trained = gradient_flow(placement).trained
        clipped = [
            each
            for each in _clipped_per_tower(placement)
            if not matches_any(each.variable, self.allow)
        ]
        is_by_hand = placement.strategy is None
        copies = placement.strategy.copies if placement.strategy else {}
        by_keras, findings = [], []
        for each in clipped:
            if each.variable in copies and copies[each.variable].first != each.variable:
                continue
            if CLIPPING in placement.details.parts_of_keras(each.op):
                by_keras.append(each)
            else:
                findings.append(replace(_finding(placement, each), is_doubt=is_by_hand))
        if by_keras:
            findings.insert(0, _keras_finding(placement, by_keras))
        found = {each.variable for each in clipped}
        unread = dict.fromkeys(
            [each for each in _passing_own_backward(placement) if each not in found],
            cause_in_words(Cause("CustomGradient", OWN_BACKWARD)),
        )
        notes = not_compared(unread)
        if unread and len(unread) == len(trained):
            return self.not_checked(*notes)
        read = plural(len(trained) - len(unread), "variable")
        return self.verdict(findings, "; ".join([read, *notes]))


class _ClippedGradient(NamedTuple):
    """The gradient of a variable that each tower clips before gradients are added up.

    Attributes:
        variable: the name of the variable.
        op: the last op that clips the gradient on the first tower that clips it.
        by_norm: whether the gradient is scaled by its own norm, instead of bounded elementwise.
    """

    variable: str
    op: str
    by_norm: bool


def _clipped_per_tower(placement: Placement) -> Iterator[_ClippedGradient]:
    """Yield the gradients that each tower clips before gradients are added up.

    Clipping the gradients of single rows does not count.
    """
    gradients, changes = gradient_flow(placement), step_changes(placement)
    analysis = analyze(placement)
    for variable, updates in gradients.trained.items():
        found = [
            (towers, -analysis.flow.number[clip.op], clip)
            for update in updates
            if gradients.towers(update).bit_count() > 1
            for clip in changes.clips(changes.change(analysis.flow.names[update.op]).term)
            if clip.kind != "other"
            and (clip.shape == analysis.shapes[variable] or not clip.is_added_up)
            and (towers := towers_of_clip(placement, clip)).bit_count() == 1
        ]
        if found:
            *_, clip = min(found, key=lambda each: each[:2])
            yield _ClippedGradient(variable, clip.op, clip.kind == "scale")


def _passing_own_backward(placement: Placement) -> Iterator[str]:
    """Yield the trained variables whose gradients a backward pass of the program computes."""
    changes, names = step_changes(placement), analyze(placement).flow.names
    own = {op for call in range(len(changes.calls)) for op in changes.graph.own_backward(call)}
    for variable, updates in gradient_flow(placement).trained.items() if own else ():
        taken = changes.gradients_in(changes.change(names[each.op]).term for each in updates)
        if not own.isdisjoint(map(producer_of, taken)):
            yield variable


def _keras_finding(placement: Placement, clipped: Sequence[_ClippedGradient]) -> Finding:
    how = "clipnorm or global_clipnorm" if clipped[0].by_norm else "clipvalue"
    return library_limit(
        placement,
        [each.variable for each in clipped],
        f"an optimizer of {KERAS} with {how} clips the gradients of each replica before it adds "
        f"them up: the gradients of {shorten(each.variable for each in clipped)}",
        _CONSEQUENCE,
        "in your own train_step: gradients = tf.distribute.get_replica_context().all_reduce("
        "'SUM', gradients), then clip, and divide by the number of replicas, since the optimizer "
        f"adds up once more{_IF_INTENDED.format('replica')}",
    )


def _finding(placement: Placement, clipped: _ClippedGradient) -> Finding:
    how = "scaled by its own norm" if clipped.by_norm else "clipped by value"
    kind = tower_kind(placement)
    return Finding(
        **about(placement.ops[clipped.variable]),
        ops=(clipped.op,),
        path=path_lines(placement, [analyze(placement).flow.number[clipped.op]]),
        group_key=clipped.by_norm,
        message=f"each {kind}'s gradient of {clipped.variable} is {how} before the gradients "
        f"of all {kind}s are added up",
        consequence=_CONSEQUENCE,
        fix=f"{WORDS[kind].clip}{_IF_INTENDED.format(kind)}",
    )


_CONSEQUENCE = "the update differs from the update on one GPU, and changes with the number of GPUs"
_IF_INTENDED = (
    ". If each {} is meant to clip its gradients: --set aggregated-before-clipped.allow=*"
)
