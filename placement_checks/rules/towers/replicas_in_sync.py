from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.replicas import Groups, replicas
from placement_checks.core import mistakes
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.keras_parts import FIT, NORMALIZATION
from placement_checks.core.op_types import COLLECTIVE_GATHER, COLLECTIVE_REDUCE, VARIABLES
from placement_checks.core.placement import Placement, Tensor, producer_of
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import (
    BEFORE_STEP,
    KERAS,
    Rule,
    about,
    library_limit,
    matches_any,
    path_lines,
    requested_device,
    shorten,
    unless_allowed,
)
from placement_checks.rules.ranks import (
    different_starts,
    tower_kind,
    unmet_before_step,
    unmet_collectives,
)
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_creation
from placement_checks.rules.towers.towers_alike import TowersAlike
from placement_checks.util.text import join_and, plural


@dataclass(frozen=True)
class ReplicasInSync(Rule):
    """The copies of a variable on all replicas start equal and take the same update.

    MirroredStrategy gives each replica a copy of every variable, and each rank of Horovod has its
    own. The copies stay equal as long as each copy is updated with results that all replicas have
    computed together. If a replica assigns its own result to its own copy, the copies drift apart
    without an error. An example is assign_sub of a replica's own gradient, in a variable that is
    created without `aggregation`.

    The rule follows the data flow: the updates of all copies must depend on the same examples, and
    on the same random numbers. If replicas exchange values within the model, such as shared
    moments, each update depends on the examples of all replicas. The rule then ignores the sums
    over all replicas: without these sums, the updates must still depend on the same examples.
    Copies that are combined when they are read (VariableSynchronization.ON_READ) differ by design,
    and so do variables that collect the gradients of each replica until these gradients are added
    up. If copies take different steps from the same examples, their values differ, and
    weights-equal reports them. variables-shared judges towers that are placed by hand.

    Each rank of a Horovod program initializes its variables on its own. The rule compares the
    initial values: a trained variable with different values needs a broadcast, and so does another
    part of the model, such as a target network. Variables with values of each rank's examples,
    such as moving averages, may differ and are not judged.

    Copies also drift apart if a sum waits for replicas that never join it. Examples are a worker
    that builds another model, and a sum over all workers that only one worker computes.

    A program does not run at all if its first step creates variables together with such sums. An
    optimizer of Keras 3 creates its slots this way in a custom loop (keras-team/keras#23085).

    The moving averages of Keras 3's BatchNormalization drift apart under a strategy, unless the
    layer is created with synchronized=True.

    `allow` lists variables, or patterns such as */moving_mean, with copies that may differ.
    """

    name = "replicas-in-sync"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.UNSYNCED
    requires = frozenset({Need.REQUESTED, Need.VARIABLES, Need.REPLICAS})
    intended = "the copies of these variables may differ, and the first copy is saved"
    threads = (
        "tensorflow/tensorflow#23792: assigning under MirroredStrategy needs an aggregation",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        strategy = placement.strategy
        assert strategy
        copies = replicas(placement).copies
        if not copies:
            return self.not_checked(f"{strategy.name} keeps no copies of the variables")
        if unmet := unless_allowed(_unmet(placement, strategy), self.allow):
            # Drifting copies would follow from these.
            found = _of_different_models(evidence, unmet)
            return self.verdict([_blocking(finding) for finding in found])
        averages = []  # of a BatchNormalization of Keras
        drifting = list(unless_allowed(different_starts(placement, strategy), self.allow))
        for variable, groups in replicas(placement).drifting.items():
            if matches_any(variable, self.allow):
                continue
            is_trained = variable in gradient_flow(placement).trained
            if strategy.ranks and not is_trained:
                continue
            if not is_trained and NORMALIZATION in placement.details.parts_of_keras(variable):
                averages.append(variable)
            else:
                drifting.append(_drifting_copies(placement, strategy, variable, groups))
        findings = [
            _blocking(finding) for finding in _sums_without_key(placement, strategy, self.allow)
        ]
        if averages:
            findings.append(_drifting_averages(placement, strategy, averages))
        return self.verdict([*findings, *drifting], f"copies of {plural(len(copies), 'variable')}")


def _blocking(finding: Finding) -> Finding:
    """Set the fact, and the impact of a finding on a step that fails or never ends."""
    blocked = Fact(FactKind.BLOCKED, finding.object)
    return replace(finding, impact=Impact.EXECUTION, facts=(blocked,))


def _of_different_models(evidence: Evidence, unmet: Sequence[Finding]) -> Sequence[Finding]:
    """Add the line and the fix of a difference between the models, from which the sums differ."""
    found = TowersAlike().judge(evidence).findings
    for cause in sorted(found, key=lambda each: each.op not in VARIABLES)[:1]:
        return [replace(each, frames=cause.frames, fix=cause.fix) for each in unmet]
    return unmet


def _drifting_averages(
    placement: Placement, strategy: Strategy, variables: Sequence[str]
) -> Finding:
    layers = shorten(variable.rpartition("/")[0] for variable in variables)
    part = "half" if len(strategy.replicas) == 2 else f"1/{len(strategy.replicas)}"
    return library_limit(
        placement,
        variables,
        f"BatchNormalization of {KERAS} does not synchronize the moving averages of replicas: "
        f"{layers}",
        "they drift apart from the first step on; evaluate, predict and a saved model use the "
        f"first replica's averages, which come from {part} of the rows",
        "BatchNormalization(synchronized=True), which also normalizes over the rows of all "
        "replicas. If each replica is meant to have its own averages: "
        "--set replicas-in-sync.allow=*/moving_*",
    )


def _drifting_copies(
    placement: Placement, strategy: Strategy, variable: str, groups: Groups
) -> Finding:
    def devices_of(copies: Sequence[str]) -> tuple[Device, ...]:
        return tuple(device for copy in copies if (device := strategy.device_of(copy)))

    def text(copies: Sequence[str]) -> str:
        return join_and(device.short for device in devices_of(copies))

    analysis = analyze(placement)
    noun = tower_kind(placement)
    updates = analysis.updates.by_variable
    copies = [copy for group in groups for copy in group]
    updated = [copy for copy in copies if copy in updates]
    is_trained = variable in gradient_flow(placement).trained
    found = mistakes.DRIFTING.stated(noun, variable=variable)
    if _takes_sum(placement, copies[0]):
        found = found._replace(
            fix=f"the gradients of all {noun}s are added up: compute the other values of the "
            f"update, such as its learning rate, from the results of all {noun}s, too"
        )
    known = replicas(placement)
    for mistake, sources in (
        (mistakes.OWN_NOISE, known.random_ops),
        (mistakes.OWN_NUMBER, strategy.fed_scalars),
    ):
        if is_trained and (own := known.own_sources(variable, sources)):
            found = mistake.stated(noun, variable=variable, op=own[0], ops=(own[0],))
    odd: Sequence[str] = ()
    if len(updated) < len(copies):
        odd = [copy for copy in copies if copy not in updates]
        found = found._replace(
            what=f"the step updates the copy of {variable} on {text(updated)}, but not the copy "
            f"on {text(odd)}"
        )
    elif any(len(group) > 1 for group in groups):
        odd = min(groups, key=len)
        found = found._replace(
            what=f"the update of the copy of {variable} on {text(odd)} depends on other examples "
            "than the updates of the other copies"
        )
    if not is_trained:
        consequence = f"the copies drift apart, and the first {noun}'s copy is saved"
        found = found._replace(consequence=consequence, fix=_AGGREGATE)
    steps = tuple(analysis.flow.names[updates[copy][0].op] for copy in updated[:1])
    return Finding(
        **about(placement.ops[variable]),
        **found.texts,
        ops=found.ops if found.mistake == mistakes.OWN_NOISE.key else steps,
        path=tuple(
            PathStep(f"{copy} <- {step}", step.op)
            for copy in updated
            for step in path_lines(placement, [updates[copy][0].op])
        ),
        devices=devices_of(odd),
    )


def _takes_sum(placement: Placement, variable: str) -> bool:
    """Whether the updates of a variable take a sum of gradients over all replicas."""
    analysis, gradients = analyze(placement), gradient_flow(placement)
    return any(
        analysis.flow.types[op] == COLLECTIVE_REDUCE and not analysis.backward.ops[op]
        for update in gradients.trained.get(variable, ())
        for op in gradients.ancestors(update)
    )


_AGGREGATE = (
    "create it with aggregation=tf.VariableAggregation.MEAN or SUM; if each replica is meant to "
    "have its own value, with synchronization=tf.VariableSynchronization.ON_READ"
)


_COLLECTIVES = frozenset({COLLECTIVE_REDUCE, COLLECTIVE_GATHER})
_BY_HIERARCHY = "tf.distribute.{}(cross_device_ops=tf.distribute.HierarchicalCopyAllReduce())"
_NO_KEY_CONSEQUENCE = (
    "the first step fails with InvalidArgumentError: You must feed a value for placeholder tensor"
)


def _sums_without_key(
    placement: Placement, strategy: Strategy, allow: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding if sums over replicas have no key, in the first step or in all steps.

    In a function the instance key is a placeholder, which a call of the function feeds. A call in
    a branch of another function does not feed it (cross_device_utils.py, ``_next_instance_key``).
    """
    created = [
        name
        for name in strategy.made_in_step
        if not strategy.is_later_copy(name) and not matches_any(name, allow)
    ]
    if created and any(analyze(placement).flow.having(_COLLECTIVES.__contains__)):
        yield _in_first_call(placement, strategy, created)
        return
    sums = [name for name in replicas(placement).sums_without_key if not matches_any(name, allow)]
    if sums:
        yield _in_loop(placement, strategy, sums)


def _in_first_call(placement: Placement, strategy: Strategy, created: Sequence[str]) -> Finding:
    """Report variables that the step creates.

    TensorFlow creates them in one branch, and runs the step in the other branch.
    """
    by_hierarchy = (
        "" if strategy.is_of_workers else f", or use {_BY_HIERARCHY.format(strategy.name)}"
    )
    return library_limit(
        placement,
        created,
        f"the first step creates {shorten(created)}, so TensorFlow runs the step in a branch of "
        "tf.cond, where the sums over replicas cannot run",
        _NO_KEY_CONSEQUENCE,
        f"create them {BEFORE_STEP}{by_hierarchy}",
        library="TensorFlow",
        frames=blame_creation(placement, created[0]),
    )


def _in_loop(placement: Placement, strategy: Strategy, sums: Sequence[str]) -> Finding:
    in_fit = FIT in placement.details.parts_of_keras(sums[0])
    caller = f"fit of {KERAS}" if in_fit else "the program"
    single_steps = ", or steps_per_execution=1" if in_fit else ""
    return library_limit(
        placement,
        sums,
        f"{caller} runs several steps in one call, in a loop where the sums over replicas cannot "
        f"run: {shorten(sums)}",
        _NO_KEY_CONSEQUENCE,
        f"use {_BY_HIERARCHY.format(strategy.name)}{single_steps}",
        library=KERAS if in_fit else "TensorFlow",
    )


def collective_groups(placement: Placement) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the groups of collectives that wait for each other, because their keys are equal.

    Collectives of unknown size or keys are left out.

    Yields:
        The number of members that the group needs to run, and its members in creation order.
    """
    value = placement.details.value
    for members in placement.collectives:
        first = placement.ops[members[0]]
        if first.type in _COLLECTIVES:
            # The inputs after the value are the group size, the group key and the instance key.
            size, *keys = [value(producer_of(source)) for source in first.inputs[1:4]]
            if size is not None and None not in keys:
                yield size[-1], members


def _unmet(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """Yield findings on collectives that wait forever."""
    if not strategy.ranks:
        yield from _unmet_sums(placement, strategy)
        return
    tensor = analyze(placement).tensor
    groups = list(collective_groups(placement))
    incomplete = [members for size, members in groups if len(members) < size]
    yield from unmet_collectives(placement, strategy, incomplete)
    if not incomplete:
        yield from unmet_before_step(strategy)
    for size, members in groups:
        values = [tensor(placement.ops[name].inputs[0]) for name in members]
        if placement.ops[members[0]].type == COLLECTIVE_GATHER:  # rows may differ in number
            values = [
                value and value._replace(shape=value.shape and value.shape[1:]) for value in values
            ]
        if len(members) == size and len(set(values)) > 1:
            yield _unequal(placement, members, values)


def _unmet_sums(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """Yield findings on collectives that replicas do not join, or join with different shapes.

    The graph of a single worker of a cluster has no such findings, because other workers join its
    collectives.
    """
    tensor = analyze(placement).tensor
    for size, members in collective_groups(placement) if strategy.is_whole else ():
        values = [tensor(placement.ops[name].inputs[0]) for name in members]
        if len(members) < size:
            yield _incomplete(placement, strategy, size, members)
        elif len(members) > size or len(set(values)) > 1:
            yield _unequal(placement, members, values)


def _incomplete(
    placement: Placement, strategy: Strategy, size: int, members: Sequence[str]
) -> Finding:
    name = members[0]
    devices = [placement.ops[member].requested for member in members]
    absent = [
        replica
        for replica in strategy.replicas
        if not any(replica.matches(device) for device in devices)
    ]
    joining = join_and(dict.fromkeys(device.short for device in devices))
    return Finding(
        **about(placement.ops[name]),
        ops=tuple(members),
        message=f"{_noun(placement, name)} {name} waits for {plural(size, 'replica')}, "
        f"but only {joining} {'joins' if len(members) == 1 else 'join'} it"
        + (f", not {join_and(replica.short for replica in absent)}" if absent else ""),
        devices=(*devices, *absent),
        consequence="the step never ends",
        fix="run the same step in every worker; let only the chief process the result of the step",
        group_key=tuple(devices),
    )


def _unequal(
    placement: Placement, members: Sequence[str], values: Sequence[Tensor | None]
) -> Finding:
    name = members[0]
    inputs = join_and(
        f"{_shape_text(value)} from {requested_device(placement.ops[member])}"
        for member, value in zip(members, values, strict=True)
    )
    return Finding(
        **about(placement.ops[name]),
        ops=tuple(members),
        message=f"{_noun(placement, name)} {name} needs values of one dtype and shape "
        f"from all replicas, but gets {inputs}",
        consequence="the step fails, or never ends",
        fix="build the same model in every process",
        devices=tuple(placement.ops[member].requested for member in members),
    )


def _noun(placement: Placement, name: str) -> str:
    return "the sum" if placement.ops[name].type == COLLECTIVE_REDUCE else "the gather"


def _shape_text(value: Tensor | None) -> str:
    if value is None or value.shape is None:
        return "values of unknown shape"
    shape = ", ".join("?" if size is None else str(size) for size in value.shape)
    return f"{value.dtype} [{shape}]"
