from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.towers.by_loss import reachability_masks
from placement_checks.analysis.towers.discovery import requested_gpu
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import NO_COMPUTATION
from placement_checks.core.placement import TRAINABLE, Kind, Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, plural


def gpus_without_loss(
    placement: Placement, single: Placement | None, gpus: Sequence[Device]
) -> list[Device]:
    """The GPUs that compute no part of a loss, though the model is built once for each of them.

    They may hold variables, and average and apply gradients. A program that keeps a GPU for that
    builds its model less often than there are GPUs.

    Args:
        placement: the program.
        single: the same for one GPU; None where that is not known.
        gpus: those that are to compute.
    """
    if len(gpus) < 2 or not _is_built_for_each(placement, single, len(gpus)):
        return []
    computing = _computing(placement)
    idle = [gpu for gpu in gpus if gpu not in computing]
    return idle if len(idle) < len(gpus) else []


def _is_built_for_each(placement: Placement, single: Placement | None, gpus: int) -> bool:
    """Whether the model is built as many times as there are GPUs, for each one as for one.

    Where that for one is not known, there must be as many losses that have no more in common than
    examples and variables: those of two networks that are trained in turn do, and so do those of
    one network for two tasks.
    """
    losses = _losses(placement)
    if single is None:
        return len(losses) >= gpus and _have_nothing_in_common(analyse(placement), losses)
    of_one = len(_losses(single))
    return 0 < of_one * gpus <= len(losses) or _is_read_more_often(placement, single, gpus)


def _losses(placement: Placement) -> list[int]:
    number = analyse(placement).flow.number
    names = dict.fromkeys(map(producer_of, placement.step.objectives))
    return [number[name] for name in names if name in number]


def _have_nothing_in_common(analysis: TowerAnalysis, losses: Collection[int]) -> bool:
    """Whether no op that computes with examples and variables is behind two losses."""
    flow = analysis.flow
    variables = [flow.number[variable.name] for variable in analysis.placement.variables]
    weighted = flow.propagate(flow.marks([variables]))
    model = [op for op, examples in enumerate(analysis.examples) if examples and weighted[op]]
    reached = reachability_masks(flow, [[loss] for loss in losses])
    return all(reached[op].bit_count() < 2 for op in model)


def _is_read_more_often(placement: Placement, single: Placement, gpus: int) -> bool:
    """Whether every trainable variable is read so many times as often as in that for one GPU."""
    ours, theirs = dict(_reads(placement)), dict(_reads(single))
    both = ours.keys() & theirs.keys()
    return bool(both) and all(ours[name] >= gpus * theirs[name] for name in both)


def _reads(placement: Placement) -> Iterator[tuple[str, int]]:
    """How many ops of a forward pass compute with each trainable variable of a loss."""
    analysis = analyse(placement)
    for name in placement.collected.get(TRAINABLE, ()):
        readers = analysis.reads_by_gpu.readers.get(name, ())
        forward = [
            op
            for op in readers
            if not analysis.backward.ops[op] and analysis.reads_by_gpu.in_loss(op)
        ]
        if forward:
            yield name, len(forward)


def _computing(placement: Placement) -> set[Device | None]:
    """The devices of what computes with variables, or with examples on the way to a loss.

    Ops that work for another GPU than they ask for are left out: others there take their values.
    """
    analysis = analyse(placement)
    behind = analysis.flow.reachable(_losses(placement))
    computing = {
        op
        for readers in analysis.reads_by_gpu.readers.values()
        for op in readers
        if analysis.sites[op] is not None
    }
    computing |= {
        op
        for op, kind in enumerate(analysis.flow.types)
        if op in behind and analysis.examples[op] and kind not in NO_COMPUTATION
    }
    return {
        placement.by_number[op].assigned
        for op in computing
        if (site := analysis.sites[op]) is None
        or site.device == requested_gpu(placement.by_number[op].requested)
    }


_SHOWN = 4  # GPUs that a note names one by one


@dataclass(frozen=True)
class NoIdleDevice(Rule):
    """Every GPU of the machine computes.

    A GPU on which only constants, placeholders, variables and copies sit does nothing in a step:
    the towers were all built for another one, or nothing was pinned and everything went to GPU 0.

    A GPU that only holds variables, and averages and applies their gradients, is idle too if the
    model is built as many times as there are GPUs: the copies take turns on the others. That
    shows against the program for one GPU, or by as many losses that have nothing in common but
    examples and variables. A program that keeps a GPU for variables has fewer copies.

    Where workers train between graphs, each builds a graph for itself: if variables are on another
    job, such as ps, and the ops on GPUs name one task of their job, the GPUs of its other tasks
    are left to the graphs of those. Ops that leave the task open all go to the first one, and that
    is a finding.

    `allow` lists the GPUs that may do nothing, or only hold variables; a partial name such as
    /job:evaluator matches any of its devices.
    """

    name = "no-idle-device"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED})
    by_absence = True

    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.allow:
            Device.parse(name)

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        gpus = placement.machine.gpus if placement.machine else ()
        allowed = [Device.parse(name) for name in self.allow]
        gpus = tuple(gpu for gpu in gpus if not any(gpu.matches(device) for device in allowed))
        if not gpus:
            return self.not_checked("the machine has no GPU that must compute")
        computing = {
            kind: ops for kind, ops in placement.kinds.items() if kind.type not in NO_COMPUTATION
        }
        work = Counter[Device | None]()
        for kind, ops in computing.items():
            work[kind.assigned] += ops
        own = _own_tasks(placement, computing, gpus)
        of_all_tasks = len(gpus)
        gpus = tuple(gpu for gpu in gpus if gpu.task_device in own.get(gpu.job, [gpu.task_device]))
        of_others = of_all_tasks - len(gpus)
        idle = [gpu for gpu in gpus if not work[gpu]]
        findings = _findings(placement, idle, [gpu for gpu in gpus if work[gpu]], work)
        if not findings and placement.requested:
            serving = gpus_without_loss(placement, evidence.single_gpu or None, gpus)
            findings = [_serving(placement, gpu, serving, gpus, work) for gpu in serving]
        if not placement.all_devices and not findings:
            return self.not_checked(placement.all_devices.reason)
        note = _note(gpus, work)
        if of_others:
            note += f"; other tasks have {plural(of_others, 'GPU')} for graphs of their own"
        return self.verdict(findings, note)


def _findings(
    placement: Placement,
    idle: Sequence[Device],
    busy: Sequence[Device],
    work: Counter[Device | None],
) -> list[Finding]:
    """One for each GPU without work; all have one cause, which is where the others have theirs."""
    if not idle:
        return []
    asking = _asking(placement, busy[0]) if len(busy) == 1 else ()
    others = _others(placement, busy, work, asks=bool(asking))
    return [
        Finding(
            object=gpu.short,
            op="",
            evidence="assigned",
            expected="ops that compute",
            found="none",
            ops=asking,
            placed=asking[0] if asking else None,
            alike=others,
            message=f"{gpu.short} computes nothing; {others}",
            consequence=_consequence(len(idle), len(busy)),
            fix=f"{_fix(gpu)}, or say how many GPUs the program is meant for (--gpus)",
        )
        for gpu in idle
    ]


def _serving(
    placement: Placement,
    gpu: Device,
    serving: Sequence[Device],
    gpus: Sequence[Device],
    work: Counter[Device | None],
) -> Finding:
    """A finding on a GPU that works for those that compute the losses, and computes none."""
    busy = [each for each in gpus if each not in serving]
    asking = _asking(placement, busy[0]) if len(busy) == 1 else ()
    others = _others(placement, busy, work, asks=bool(asking))
    held = sum(placement.ops[variable.name].assigned == gpu for variable in placement.variables)
    holds = f"holds {plural(held, 'variable')}" if held else "combines what others compute"
    computes = "computes" if len(busy) == 1 else "compute"
    return Finding(
        object=gpu.short,
        op="",
        evidence="assigned",
        expected="a part of a loss",
        found=f"it only {holds}",
        ops=asking,
        placed=asking[0] if asking else None,
        alike=("serving", others),
        message=f"{gpu.short} computes no part of a loss, and only {holds}; {others}",
        consequence=f"the model is built {len(gpus)} times, and "
        f"{join_and(each.short for each in busy)} {computes} one copy after the other",
        fix=f"{_fix(gpu)}; a GPU that is kept for variables is declared: "
        f"--set no-idle-device.allow=/gpu:{gpu.index}",
    )


def _fix(gpu: Device) -> str:
    return f"build tower i under `with tf.device(f'{_task_of(gpu)}/gpu:{{i}}'):`"


def _task_of(gpu: Device) -> str:
    """What the name of a device begins with, as code; nothing on a single host."""
    return "" if gpu.short == f"/device:GPU:{gpu.index}" else f"/job:{gpu.job}/task:{{task}}"


def _asking(placement: Placement, gpu: Device) -> tuple[str, ...]:
    """The ops that compute on a GPU and were put there by the program."""
    asking = [
        op.name
        for op in placement.assigned_to(gpu)
        if op.requested.is_gpu and op.type not in NO_COMPUTATION
    ]
    known = next((name for name in asking if placement.details.device_line(name)), None)
    return tuple(asking) if known is None else (known, *(op for op in asking if op != known))


def _others(
    placement: Placement, busy: Sequence[Device], work: Counter[Device | None], *, asks: bool
) -> str:
    """What the other GPUs do, as text."""
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
        return f"{every} losses ask for {busiest.short}, which {ops.partition(' ')[2]}"
    if not asks and placement.requested:
        return f"no op asks for a GPU, and the placer takes the first: {ops}"
    return ops


def _consequence(idle: int, busy: int) -> str:
    if not busy:
        return "the CPU computes the whole step"
    if busy == 1:
        others = "the other does" if idle == 1 else f"the other {idle:,} do"
        return f"the step is no faster than on one GPU, as {others} nothing"
    adds = "adds" if idle == 1 else "add"
    return f"{idle:,} of {plural(idle + busy, 'GPU')} {adds} nothing to the step"


def _own_tasks(
    placement: Placement, computing: Iterable[Kind], gpus: Sequence[Device]
) -> dict[str | None, set[Device]]:
    """The task that a graph is built for, by job, where other tasks build graphs of their own."""
    wanted = set(gpus)
    master = placement.machine.stated_master if placement.machine else None
    tasks: dict[str | None, set[Device]] = defaultdict(set)
    unnamed = set()
    for _, requested, assigned in computing:
        if assigned in wanted:
            tasks[assigned.job].add(assigned.task_device)
            # What names no task follows the master, whose program it is where that is known.
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
    if len(gpus) <= _SHOWN:
        return ", ".join(f"{gpu.short} computes with {plural(work[gpu], 'op')}" for gpu in gpus)
    numbers = sorted(work[gpu] for gpu in gpus)
    ops = plural(numbers[-1], "op")
    if numbers[0] != numbers[-1]:
        ops = f"{numbers[0]:,} to {ops}"
    return f"{len(gpus):,} GPUs compute, with {ops} each"
