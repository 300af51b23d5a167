from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.replicas import Groups, replicas
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.keras_parts import NORMALIZATION
from placement_checks.core.missing import NotApplicable
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, PathStep, Verdict
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
    each takes results that all replicas have computed together. If a replica assigns its own
    result to its own copy, the copies drift apart without an error. An example is assign_sub of a
    replica's own gradient, in a variable that is created without `aggregation`.

    Judged by data flow: the updates of all copies must depend on the same examples, and on the
    same random numbers. If replicas exchange values within the model, such as shared moments, they
    must depend on the same examples outside of the sums over all replicas. Copies that are
    combined when they are read (VariableSynchronization.ON_READ) differ by design, and so do
    variables that collect the gradients of each replica until they are added up. If copies take
    different steps from the same examples, their values differ, and weights-equal reports them.
    variables-shared judges towers that are placed by hand.

    Copies also drift apart if a sum waits for replicas that never join it. An example is a worker
    that builds another model, or that computes alone a sum that all workers must compute.

    A program does not run at all if its first step creates variables together with such sums. An
    optimizer of Keras 3 creates its slots this way in a custom loop (keras-team/keras#23085).

    The moving averages of Keras 3's BatchNormalization drift apart under a strategy, unless the
    layer is created with synchronized=True.

    `allow` lists variables, or patterns such as */moving_mean, with copies that may differ.
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
            return self.verdict(unmet)  # drifting copies would follow from these
        drifting = {
            variable: groups
            for variable, groups in replicas(placement).drifting.items()
            if not matches_any(variable, self.allow)
        }
        averages = [name for name in drifting if _is_moving_average(placement, name)]
        findings = [*sums_without_key(placement, strategy, self.allow)]
        if averages:
            findings.append(_drifting_averages(placement, strategy, averages))
        findings += [
            _drifting_copies(placement, strategy, variable, groups)
            for variable, groups in drifting.items()
            if variable not in averages
        ]
        return self.verdict(findings, f"copies of {plural(len(copies), 'variable')}")


def _is_moving_average(placement: Placement, variable: str) -> bool:
    """Whether a BatchNormalization of Keras made the variable and updates it."""
    is_trained = variable in gradient_flow(placement).trained
    return not is_trained and NORMALIZATION in placement.details.parts_of_keras(variable)


def _drifting_averages(
    placement: Placement, strategy: Strategy, variables: Sequence[str]
) -> Finding:
    layers = shorten(variable.rpartition("/")[0] for variable in variables)
    return keras_limit_finding(
        placement,
        variables,
        f"BatchNormalization of {KERAS} does not synchronize the moving averages of replicas: "
        f"{layers}",
        "they drift apart from the first step on; evaluate, predict and a saved model use the "
        f"first replica's averages, which come from one row in {len(strategy.replicas)}",
        "BatchNormalization(synchronized=True), which also normalizes over the rows of all "
        "replicas. If each replica is meant to have its own averages: "
        "--set replicas-in-sync.allow=*/moving_*",
        expected=_SAME_UPDATE,
        found=_OWN_RESULTS,
    )


def _drifting_copies(
    placement: Placement, strategy: Strategy, variable: str, groups: Groups
) -> Finding:
    def devices_of(copies: Sequence[str]) -> tuple[Device, ...]:
        return tuple(device for copy in copies if (device := strategy.device_of(copy)))

    def text(copies: Sequence[str]) -> str:
        return join_and(device.short for device in devices_of(copies))

    analysis = analyze(placement)
    updates = analysis.updates.by_variable
    copies = [copy for group in groups for copy in group]
    updated = [copy for copy in copies if copy in updates]
    odd: Sequence[str] = ()
    if len(updated) < len(copies):
        odd = [copy for copy in copies if copy not in updates]
        found = f"an update of the copy on {text(updated)} alone"
        message = (
            f"the step updates the copy of {variable} on {text(updated)}, but not the copy on "
            f"{text(odd)}"
        )
    elif all(len(group) == 1 for group in groups):
        found = _OWN_RESULTS
        message = f"each replica updates its copy of {variable} from its own results"
    else:
        odd = min(groups, key=len)
        found = f"a different update of the copy on {text(odd)}"
        message = (
            f"the update of the copy of {variable} on {text(odd)} depends on other examples than "
            "the updates of the other copies"
        )
    is_trained = variable in gradient_flow(placement).trained
    return Finding(
        object=variable,
        op=placement.ops[variable].type,
        evidence="requested",
        expected=_SAME_UPDATE,
        found=found,
        ops=tuple(analysis.flow.names[updates[copy][0].op] for copy in updated[:1]),
        path=tuple(
            PathStep(f"{copy} <- {step}", step.op)
            for copy in updated
            for step in path_lines(placement, [updates[copy][0].op])
        ),
        message=message,
        devices=devices_of(odd),
        consequence="the copies drift apart: each replica trains its own model, and the first "
        "replica's is saved"
        if is_trained
        else "the copies drift apart, and the first replica's copy is saved",
        fix=ADD_UP if is_trained else _AGGREGATE,
    )


_SAME_UPDATE = "the same update of all copies"
_OWN_RESULTS = "an update of each copy from its own replica's results"
_AGGREGATE = (
    "create it with aggregation=tf.VariableAggregation.MEAN or SUM; if each replica is meant to "
    "have its own value, with synchronization=tf.VariableSynchronization.ON_READ"
)
