from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.replicas import Groups, replicas
from placement_checks.core.evidence import Evidence
from placement_checks.core.keras_parts import NORMALIZATION
from placement_checks.core.missing import NotApplicable
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import ADD_UP, Rule, matches_any, path_lines
from placement_checks.rules.collective_sums import sums_without_key, unmet_sums
from placement_checks.rules.keras_limits import KERAS, keras_limit_finding, shorten
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, plural


@dataclass(frozen=True)
class ReplicasInSync(Rule):
    """All copies of a variable that a strategy keeps take the same update.

    MirroredStrategy gives each replica a copy of every variable. The copies stay equal as long as
    each takes what all replicas have computed together. What a replica assigns to its own copy
    lets them drift apart, without an error: so does assign_sub of its own gradient, in a variable
    that is made without `aggregation`.

    Judged by data flow: the updates of all copies must be made of the same examples, and of the
    same random numbers, such as the noise that a generator makes pictures of. Where replicas meet
    in the model, as by moments that all share, of the same beside what is summed over all. Copies
    that are combined when they are read (VariableSynchronization.ON_READ) differ by design, and so
    may what only collects the gradients of each replica until they are added up. Copies that make
    different steps of the same examples show in their values, which weights-equal compares.
    Towers that are placed by hand are judged by variables-shared.

    Copies do not stay equal either where a sum waits for replicas that do not join it, as that
    of one worker which builds another model, or does for itself what all must do together.

    Nor does a program run at all whose first step makes variables beside such sums, as an
    optimizer of Keras 3 makes its slots in a loop of your own (keras-team/keras#23085).

    BatchNormalization of Keras 3 lets its moving averages drift under a strategy, unless it is
    made with synchronized=True.

    `allow` lists variables, or patterns such as */moving_mean, whose copies may differ.
    """

    name = "replicas-in-sync"
    kind = "requested"
    requires = frozenset({Need.REQUESTED, Need.VARIABLES})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        strategy = placement.strategy
        if strategy is None:
            return self.not_checked("no strategy keeps copies of the variables")
        if len(strategy.replicas) == 1:
            return self.without(
                NotApplicable(f"there is one replica, on {strategy.replicas[0].short}")
            )
        copies = replicas(placement).copies
        if not copies:
            return self.not_checked(f"{strategy.name} keeps no copies of the variables")
        unmet = [
            finding
            for finding in unmet_sums(placement, strategy)
            if not matches_any(finding.object, self.allow)
        ]
        if unmet:
            return self.verdict(unmet)  # and what comes of it
        drifting = {
            variable: groups
            for variable, groups in replicas(placement).drifting.items()
            if not matches_any(variable, self.allow)
        }
        of_keras = [variable for variable in drifting if _is_of_keras(placement, variable)]
        findings = [
            *sums_without_key(placement, strategy, self.allow),
            *_moving_averages(placement, strategy, of_keras),
            *(
                _finding(placement, strategy, variable, groups)
                for variable, groups in drifting.items()
                if variable not in of_keras
            ),
        ]
        return self.verdict(findings, f"copies of {plural(len(copies), 'variable')}")


def _is_of_keras(placement: Placement, variable: str) -> bool:
    """Whether it is a moving average of BatchNormalization, which its layer made and updates."""
    is_trained = variable in gradient_flow(placement).trained
    return not is_trained and NORMALIZATION in placement.details.parts_of_keras(variable)


def _moving_averages(
    placement: Placement, strategy: Strategy, variables: Sequence[str]
) -> Iterator[Finding]:
    """That BatchNormalization does not bring the averages of replicas together."""
    if not variables:
        return
    layers = shorten(variable.rpartition("/")[0] for variable in variables)
    yield keras_limit_finding(
        placement,
        variables,
        f"BatchNormalization of {KERAS} keeps the moving averages of each replica apart: {layers}",
        "they drift apart from the first step on, and evaluate, predict and a saved model have "
        f"those of the first replica, which sees one row in {len(strategy.replicas)}",
        "BatchNormalization(synchronized=True), which also normalises over the rows of all "
        "replicas. If each is meant to have its own: --set replicas-in-sync.allow=*/moving_*",
        expected="the same update of all copies",
        found="an update of each copy by what its own replica has computed",
    )


def _finding(placement: Placement, strategy: Strategy, variable: str, groups: Groups) -> Finding:
    analysis = analyse(placement)
    updates = analysis.updates.by_variable
    left_out = [copy for group in groups for copy in group if copy not in updates]
    updated = [copy for group in groups for copy in group if copy in updates]
    if left_out:
        found = f"an update of the copy on {_devices(strategy, updated)} alone"
        message = f"the step updates the copy of {variable} on {_devices(strategy, updated)}, and "
        message += f"not that on {_devices(strategy, left_out)}"
    elif all(len(group) == 1 for group in groups):
        found = "an update of each copy by what its own replica has computed"
        message = f"each replica updates its copy of {variable} by what it has computed itself"
    else:
        apart = min(groups, key=len)
        found = f"another update of the copy on {_devices(strategy, apart)}"
        message = f"the copy of {variable} on {_devices(strategy, apart)} is updated by other "
        message += "examples than the others"
    is_trained = variable in gradient_flow(placement).trained
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected="the same update of all copies",
        found=found,
        ops=tuple(analysis.flow.names[updates[copy][0].op] for copy in updated[:1]),
        path=tuple(
            f"{copy} <- {step}"
            for copy in updated
            for step in path_lines(placement, [updates[copy][0].op])
        ),
        message=message,
        consequence="the copies drift apart: each replica trains a model of its own, and that of "
        "the first is saved"
        if is_trained
        else "the copies drift apart, and that of the first replica is saved",
        fix=ADD_UP if is_trained else _AGGREGATE,
    )


def _devices(strategy: Strategy, copies: Sequence[str]) -> str:
    return join_and(device.short for copy in copies if (device := strategy.device_of(copy)))


_AGGREGATE = (
    "make it with aggregation=tf.VariableAggregation.MEAN or SUM; if each replica is meant to "
    "have its own, with synchronization=tf.VariableSynchronization.ON_READ"
)
