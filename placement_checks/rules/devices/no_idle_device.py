from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.by_loss import reachability_masks
from placement_checks.analysis.towers.discovery import complete_device
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import NO_COMPUTATION
from placement_checks.core.placement import TRAINABLE, Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import ONE_DEVICE, Strategy
from placement_checks.rules.base import Rule, about, path_lines
from placement_checks.rules.ranks import shared_gpus
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import device_line
from placement_checks.util.text import join_and, plural

_MOST_NAMED = 4  # GPUs that a note names one by one


@dataclass(frozen=True)
class NoIdleDevice(Rule):
    """Every GPU of the machine computes.

    A GPU that has only constants, placeholders, variables and copies does nothing in a step: all
    towers were built for another GPU, or no op was pinned and all ops went to GPU 0.

    A GPU that only holds variables, and averages and applies their gradients, is idle too if the
    model is built once for each GPU, because the copies of the model then share the other GPUs.
    The rule counts the copies by comparison with the program for one GPU, or by the losses that
    share only examples and variables. A program that reserves a GPU for variables has fewer
    copies.

    A GPU that computes a copy of the model that no loss depends on is idle too, if the model is
    built once for each GPU: the program trains with the loss of another tower alone, such as the
    loss that is left after a loop over the towers.

    With between-graph replication each worker builds its own graph. If variables are on another
    job, such as ps, and the ops on GPUs name one task of their job, the GPUs of the other tasks of
    the job belong to other graphs and are not judged. If the ops do not name a task, they all go
    to the first task, which is a finding.

    A GPU is idle too if a setting of the program hides it from TensorFlow: `device_count` or
    `gpu_options.visible_device_list` of the session, CUDA_VISIBLE_DEVICES in `os.environ`, or
    `tf.config.set_visible_devices`.

    The ranks of a Horovod program each see all GPUs of their host. If several ranks select the
    same GPU, or no rank selects a GPU, the ranks compute on one GPU in turn, and other GPUs are
    idle.

    `allow` lists the GPUs that may do nothing, or only hold variables; a partial name such as
    /job:evaluator matches any device of the job.
    """

    name = "no-idle-device"
    kind = "assigned"
    states = FactKind.IDLE
    requires = frozenset({Need.ASSIGNED})
    uses = frozenset({Need.SINGLE_GPU})
    by_absence = True
    intended = "these GPUs do not compute in a step"
    breaks_in_changes = True
    threads = (
        "tensorflow/tensor2tensor#17: all GPUs except the first are at 0 %, with full memory",
        "tensorflow/tensorflow#42764: ops for GPU 1 run on GPU 0",
    )

    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.allow:
            Device.parse(name)

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        allowed = [Device.parse(name) for name in self.allow]
        existing = placement.machine.gpus if placement.machine else ()
        hiding = placement.machine.hidden_gpus if placement.machine else ()
        required, hidden = (
            [gpu for gpu in gpus if not any(map(gpu.matches, allowed))]
            for gpus in (existing, hiding)
        )
        if not required and not hidden:
            return self.not_checked(
                "all GPUs of the machine are listed in no-idle-device.allow"
                if existing or hiding
                else "the machine has no GPU"
            )
        work = Counter[Device | None]()
        for kind, ops in placement.kinds.items():
            if kind.type not in NO_COMPUTATION:
                work[kind.assigned] += ops
        own = _own_tasks(placement, required)
        gpus = [gpu for gpu in required if gpu.task_device in own.get(gpu.job, [gpu.task_device])]
        idle = [gpu for gpu in gpus if not work[gpu]]
        own_gpus = set(gpus)
        computing = [gpu for gpu in existing if gpu in own_gpus or work[gpu]]  # allowed GPUs too
        findings = list(_findings(placement, idle, computing, work))
        findings += _hidden_gpu_findings(placement, hidden, busy=len(computing) - len(idle))
        if placement.strategy is not None:
            findings += shared_gpus(placement, placement.strategy)
        if not findings and placement.requested:
            serving = gpus_without_loss(placement, evidence.single_gpu or None, gpus)
            findings = list(_findings(placement, serving, gpus, work, are_serving=True))
        if not findings and placement.requested and evidence.single_gpu:
            unused = _unused_copies(placement, evidence.single_gpu, gpus)
            findings = [_unused_copy(placement, gpu, ops) for gpu, ops in unused.items()]
        if not placement.all_devices and not findings:
            return self.without(placement.all_devices)
        note = _note(gpus, work)
        if others := len(required) - len(gpus):
            note += f"; other tasks have {plural(others, 'GPU')} for their own graphs"
        return self.verdict(findings, note)

    def headline(self, findings: Sequence[Finding]) -> str:
        """Name the GPUs."""
        names = [finding.object for finding in findings]
        if len(names) > _MOST_NAMED:
            return f"{len(names)} GPUs compute nothing: {names[0]} … {names[-1]}"
        return f"{join_and(names)} {'computes' if len(names) == 1 else 'compute'} nothing"


def _findings(
    placement: Placement,
    idle: Sequence[Device],
    gpus: Sequence[Device],
    work: Counter[Device | None],
    *,
    are_serving: bool = False,
) -> Iterator[Finding]:
    """Yield a finding for each idle GPU; all have the same cause.

    ``are_serving`` is whether the idle GPUs hold variables or combine results of other GPUs.
    """
    if not idle:
        return
    idle_gpus = set(idle)
    busy = [gpu for gpu in gpus if gpu not in idle_gpus]
    variables = Counter(placement.ops[each.name].assigned for each in placement.variables)
    pinned = _pinned_ops(placement, busy[0]) if len(busy) == 1 else ()
    others = _describe_busy(placement, busy, work, is_pinned=bool(pinned))
    for gpu in idle:
        if are_serving:
            held = variables[gpu]
            task = (
                f"holds {plural(held, 'variable')}" if held else "combines results of other GPUs"
            )
            fault = f"computes no part of a loss, and only {task}"
            consequence = (
                f"the model is built {len(gpus)} times, and "
                f"{join_and(each.short for each in busy)} "
                f"{'computes' if len(busy) == 1 else 'compute'} one copy after the other"
            )
            more = (
                "; to reserve a GPU for variables, declare it: "
                f"--set no-idle-device.allow=/gpu:{gpu.index}"
            )
        else:
            fault = "computes nothing"
            consequence = _consequence(len(idle), len(busy))
            more = ", or set --gpus to the number of GPUs that the program is for"
        yield Finding(
            **about(gpu.short, "assigned"),
            ops=pinned,
            placed=pinned[0] if pinned else None,
            group_key=are_serving,
            message=f"{gpu.short} {fault}; {others}",
            consequence=consequence,
            fix=f"{_fix(gpu, placement.strategy)}{more}",
        )


def _unused_copy(placement: Placement, gpu: Device, ops: Sequence[str]) -> Finding:
    """Return a finding at the line that takes gradients of other towers' losses alone."""
    step = placement.step
    loss, count = Counter(step.objectives).most_common(1)[0]
    taken = step.gradients.get(loss, ())
    takes = "the step takes" if count == 1 else f"{count} calls take"
    return Finding(
        **about(gpu.short, "assigned"),
        ops=(*taken[:1], producer_of(loss))[:1],
        path=path_lines(placement, analyze(placement).flow.known_ops([producer_of(loss), ops[0]])),
        message=f"{gpu.short} computes a copy of the model, such as {ops[0]}, for nothing: "
        f"{takes} the gradient of {producer_of(loss)}, which does not depend on it",
        consequence="the step does not train the model with the examples of this tower",
        facts=(Fact(FactKind.IDLE, gpu.short), Fact(FactKind.LOST)),
        fix="append the loss of each tower to a list in the loop, and minimize "
        "tf.add_n(losses) / num_gpus"
        if count == 1
        else "take the gradient of the tower's own loss in each tower, such as losses[i] in "
        "tower i",
    )


def _hidden_gpu_findings(
    placement: Placement, hidden: Sequence[Device], *, busy: int
) -> Iterator[Finding]:
    """Yield a finding for each GPU that a setting of the program hides from TensorFlow."""
    for gpu in hidden:
        assert placement.machine is not None
        setting = placement.machine.hidden_by
        yield Finding(
            **about(gpu.short, "assigned"),
            message=f"{gpu.short} computes nothing; {setting} hides it from the program",
            consequence=_consequence(len(hidden), busy),
            fix=f"remove {setting}, or set --gpus to the number of GPUs that it leaves",
        )


def _fix(gpu: Device, strategy: Strategy | None) -> str:
    if strategy is not None and not strategy.ranks:
        if any(map(gpu.matches, strategy.replicas)):
            return "run the training step on all replicas: strategy.run(step, args=…)"
        if strategy.name == ONE_DEVICE:
            return "use tf.distribute.MirroredStrategy(), which trains on all GPUs"
        if strategy.name in ("MirroredStrategy", "CentralStorageStrategy"):
            return f"name all GPUs in the list of devices of {strategy.name}, or omit the list"
    is_local = gpu.short == f"/device:GPU:{gpu.index}"
    task = "" if is_local else f"/job:{gpu.job}/task:{{task}}"
    return f"build tower i under `with tf.device(f'{task}/gpu:{{i}}'):`"


def _pinned_ops(placement: Placement, gpu: Device) -> tuple[str, ...]:
    """Return the computing ops that request a GPU and got it.

    First comes an op of a tower, from the device scope in which most of these ops are built. The
    scope of other ops, such as updates, may be around the loop over towers.
    """
    pinned = [
        op.name
        for op in placement.assigned_to(gpu)
        if op.requested.is_gpu and gpu.matches(op.requested) and op.type not in NO_COMPUTATION
    ]
    analysis = analyze(placement)
    number = analysis.flow.number
    of_towers = [
        name
        for name in pinned
        if analysis.in_model[op := number[name]]
        and analysis.updates.in_step[op]
        and analysis.tower_of[op] is not None
    ]
    for names in (of_towers, pinned):
        lines = {name: device_line(placement, name) for name in names}
        if known := Counter(line for line in lines.values() if line is not None):
            most = known.most_common(1)[0][0]
            first = next(name for name, line in lines.items() if line == most)
            return (first, *(op for op in pinned if op != first))
    return tuple(pinned)


def _describe_busy(
    placement: Placement, busy: Sequence[Device], work: Counter[Device | None], *, is_pinned: bool
) -> str:
    if not busy:
        return "no GPU computes anything"
    busiest = max(busy, key=lambda gpu: work[gpu])
    ops = f"{busiest.short} computes with {plural(work[busiest], 'op')}"
    if len(busy) > 1:
        return ops
    losses = [producer_of(name) for name in placement.step.objectives]
    wanted = [placement.ops[name].requested for name in losses if name in placement.ops]
    if len(wanted) > 1 and all(device.is_gpu and busiest.matches(device) for device in wanted):
        every = "both" if len(wanted) == 2 else f"all {len(wanted)}"
        return f"{every} losses request {busiest.short}, which {ops.partition(' ')[2]}"
    if not is_pinned and placement.requested:
        return f"no op requests a GPU, so the placer uses the first one: {ops}"
    return ops


def _consequence(idle: int, busy: int) -> str:
    if not busy:
        return "the CPU computes the whole step"
    if busy == 1:
        others = "the other does" if idle == 1 else f"the other {idle:,} do"
        return f"the step is no faster than on one GPU, as {others} nothing"
    adds = "adds" if idle == 1 else "add"
    return f"{idle:,} of {plural(idle + busy, 'GPU')} {adds} nothing to the step"


def _own_tasks(placement: Placement, gpus: Sequence[Device]) -> dict[str | None, set[Device]]:
    """Return, by job, the task that builds this graph, if other tasks build their own graphs."""
    wanted = set(gpus)
    master = placement.machine.stated_master if placement.machine else None
    tasks: dict[str | None, set[Device]] = defaultdict(set)
    unnamed = set()
    for kind, requested, assigned in placement.kinds:
        if kind not in NO_COMPUTATION and assigned in wanted:
            tasks[assigned.job].add(assigned.task_device)
            # Ops that name no task go to the master. If the master is stated, it runs this
            # program.
            if requested.task is None and (assigned.job, assigned.task) != master:
                unnamed.add(assigned.job)
    variables = (placement.ops[variable.name].assigned for variable in placement.variables)
    serving = {device.job for device in variables if device}
    return {
        job: own
        for job, own in tasks.items()
        if len(own) == 1 and job not in unnamed and serving - {job}
    }


def _note(gpus: Sequence[Device], work: Counter[Device | None]) -> str:
    if len(gpus) <= _MOST_NAMED:
        return ", ".join(f"{gpu.short} computes with {plural(work[gpu], 'op')}" for gpu in gpus)
    numbers = sorted(work[gpu] for gpu in gpus)
    ops = plural(numbers[-1], "op")
    if numbers[0] != numbers[-1]:
        ops = f"{numbers[0]:,} to {ops}"
    return f"{len(gpus):,} GPUs compute, with {ops} each"


def gpus_without_loss(
    placement: Placement, single: Placement | None, gpus: Sequence[Device]
) -> list[Device]:
    """Return the GPUs that compute no part of a loss, if the model is built once for each GPU.

    ``single`` is the program for one GPU; None if it is unknown.
    """
    if len(gpus) < 2 or not _is_built_for_each(placement, single, len(gpus)):
        return []
    computing = _computing_devices(placement)
    idle = [gpu for gpu in gpus if gpu not in computing]
    return idle if len(idle) < len(gpus) else []


def _is_built_for_each(placement: Placement, single: Placement | None, gpus: int) -> bool:
    """Return whether the model is built once for each GPU.

    If the program for one GPU is unknown, there must be one loss for each GPU, and the losses may
    share only examples and variables. The losses of two networks that are trained in turns share
    more, as do the losses of one network for two tasks.
    """
    losses = _loss_ops(placement)
    if single is None:
        return len(losses) >= gpus and _are_separate(analyze(placement), losses)
    single_losses = len(_loss_ops(single))
    return 0 < single_losses * gpus <= len(losses) or _multiplies_reads(placement, single, gpus)


def _loss_ops(placement: Placement) -> list[OpId]:
    return list(dict.fromkeys(analyze(placement).flow.known_ops(placement.step.objectives)))


def _are_separate(analysis: TowerAnalysis, losses: Collection[OpId]) -> bool:
    """Return whether no two losses depend on one op that computes with examples and variables."""
    flow = analysis.flow
    variables = [flow.number[variable.name] for variable in analysis.placement.variables]
    weighted = flow.propagate(flow.marks([variables]))
    model = [op for op, examples in enumerate(analysis.examples) if examples and weighted[op]]
    reached = reachability_masks(flow, [[loss] for loss in losses])
    return all(reached[op].bit_count() < 2 for op in model)


def _multiplies_reads(placement: Placement, single: Placement, gpus: int) -> bool:
    """Return whether each trainable variable has ``gpus`` times as many readers as for one GPU."""
    reads, single_reads = _count_forward_reads(placement), _count_forward_reads(single)
    names = reads.keys() & single_reads.keys()
    return bool(names) and all(reads[name] >= gpus * single_reads[name] for name in names)


def _count_forward_reads(placement: Placement) -> Mapping[str, int]:
    """Return the number of forward ops of a loss that read each trainable variable, if any."""
    reads, backward = analyze(placement).reads_by_site, analyze(placement).backward.ops
    trainable = placement.collected.get(TRAINABLE, ())
    forward = {
        name: sum(not backward[op] and reads.in_loss(op) for op in reads.readers.get(name, ()))
        for name in trainable
    }
    return {name: number for name, number in forward.items() if number}


def _unused_copies(
    placement: Placement, single: Placement, gpus: Sequence[Device]
) -> Mapping[Device, Sequence[str]]:
    """Return the GPUs with a copy of the model that no loss depends on, each with ops of the copy.

    The result is empty unless the model is built once for each GPU. A copy that is also part of
    ``single``, the program for one GPU, only evaluates.
    """
    copies, single_copies = _model_reads(placement), _model_reads(single)
    names = copies.keys() & single_copies.keys()
    if len(gpus) < 2 or not names:
        return {}
    if any(len(copies[name]) < len(gpus) * len(single_copies[name]) for name in names):
        return {}
    in_losses = analyze(placement).flow.reachable(_loss_ops(placement))
    trained: set[Device | None] = set()
    unused: dict[Device | None, list[str]] = defaultdict(list)
    for op in sorted({op for ops in copies.values() for op in ops}):
        device = placement.by_number[op].assigned
        if op in in_losses:
            trained.add(device)
        else:
            unused[device].append(placement.by_number[op].name)
    return {gpu: unused[gpu] for gpu in gpus if trained and gpu in unused and gpu not in trained}


def _model_reads(placement: Placement) -> Mapping[str, Sequence[OpId]]:
    """Return the forward ops that apply each trainable variable to examples, if there are any."""
    analysis = analyze(placement)
    found = {
        name: [
            op
            for op in analysis.reads_by_site.readers.get(name, ())
            if analysis.examples[op] and not analysis.backward.ops[op]
        ]
        for name in placement.collected.get(TRAINABLE, ())
    }
    return {name: ops for name, ops in found.items() if ops}


def _computing_devices(placement: Placement) -> set[Device | None]:
    """Return the devices that compute with variables, or with examples on the way to a loss.

    Ops that work for another GPU than they request do not count.
    """
    analysis = analyze(placement)
    behind = analysis.flow.reachable(_loss_ops(placement))
    readers = (op for ops in analysis.reads_by_site.readers.values() for op in ops)
    computing = {op for op in readers if analysis.sites[op] is not None}
    computing |= {
        op
        for op, kind in zip(analysis.flow.ops, analysis.flow.types, strict=True)
        if op in behind and analysis.examples[op] and kind not in NO_COMPUTATION
    }
    return {
        placement.by_number[op].assigned
        for op in computing
        if (site := analysis.sites[op]) is None
        or site.device == complete_device(placement.by_number[op].requested)
    }
