"""Crowded towers: losses of copies of a model that are all computed on part of the GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.analysis.tower_by_loss import reaching
from placement_checks.analysis.towers import tower_device
from placement_checks.core.devices import Device
from placement_checks.core.op_types import NO_COMPUTATION
from placement_checks.core.placement import TRAINABLE, Placement, producer_of


def without_loss(
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
    own = [0] * len(flow.names)
    for variable in analysis.placement.variables:
        own[flow.number[variable.name]] = 1
    weighted = flow.masks(own)
    model = [op for op, examples in enumerate(analysis.examples) if examples and weighted[op]]
    reached = reaching(flow, [[loss] for loss in losses])
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
    behind = analysis.flow.ancestors(_losses(placement))
    computing = {
        op
        for readers in analysis.reads_by_gpu.readers.values()
        for op in readers
        if analysis.sites[op] is not None
    }
    computing |= {
        op
        for op, kind in enumerate(analysis.flow.types)
        if behind[op] and analysis.examples[op] and kind not in NO_COMPUTATION
    }
    return {
        placement.by_number[op].assigned
        for op in computing
        if (site := analysis.sites[op]) is None
        or site.device == tower_device(placement.by_number[op].requested)
    }
