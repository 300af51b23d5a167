"""Homes: the GPU that each op works for, which need not be the one that it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from placement_checks.analysis.data_flow import DataFlow
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.op_types import VARIABLES, is_update
from placement_checks.core.placement import Placement


@lru_cache(maxsize=65536)
def tower_device(requested: Device) -> Device:
    """The GPU that an op asks for; one without a job is the local host's."""
    return requested if requested.job else requested.over(LOCALHOST)


def homes(
    placement: Placement, flow: DataFlow, backward: Sequence[int], examples: Sequence[int]
) -> Sequence[Device | None]:
    """For each op the GPU that it works for; None if it is the host's or shared by several GPUs.

    That is the GPU that it asks for, unless it is bound to another op (``_class``), as a lookup is
    to its table, or depends on no examples, as a regularisation does, which the first tower makes
    for all. It then works for the one GPU whose ops take its value next; if none does, or several
    do, for the one whose values it takes; if that is not one either, it is shared.

    Which losses it reaches would be the wrong question: if the loss of a tower contains another's
    by mistake, all ops of that tower reach both.

    Args:
        placement: the program.
        flow: its edges.
        backward: for each op whether it is part of the backward pass.
        examples: for each op whether its value depends on examples.
    """
    requests = {op.requested for op in placement.by_number}
    gpus = {request: tower_device(request) for request in requests if request.is_gpu}
    asked = [gpus.get(op.requested) for op in placement.by_number]
    unsure = [
        number
        for number, op in enumerate(placement.by_number)
        if (op.colocated or not examples[number])
        and asked[number] is not None
        and not backward[number]
    ]
    devices = list(dict.fromkeys(gpus.values()))
    if not unsure or len(devices) < 2:
        return asked
    bits = {gpu: 1 << bit for bit, gpu in enumerate(devices)}
    sure = _sure(flow, [0 if gpu is None else bits[gpu] for gpu in asked], backward, unsure)
    before, after = flow.masks(sure, sure), _taken_next(flow, sure, backward)
    for op in unsure:
        if after[op] or before[op]:
            bit = next((bit for bit in (after[op], before[op]) if bit.bit_count() == 1), 0)
            asked[op] = devices[bit.bit_length() - 1] if bit else None
    return asked


def _sure(
    flow: DataFlow, asked: list[int], backward: Sequence[int], unsure: Iterable[int]
) -> list[int]:
    """For each op the bit of the GPU that it surely works for, 0 if that is to be found out.

    Where a variable is says nothing of who reads it.
    """
    for op in (*unsure, *flow.having(VARIABLES.__contains__)):
        asked[op] = 0
    return [0 if is_backward else bit for bit, is_backward in zip(asked, backward, strict=True)]


def _taken_next(flow: DataFlow, sure: Sequence[int], backward: Sequence[int]) -> list[int]:
    """For each op the bits of the GPUs whose ops take its value next, other ops between them.

    Not the backward pass, nor what only assigns the value.
    """
    takes = [not is_backward for is_backward in backward]
    for op in flow.having(is_update):
        takes[op] = False
    taken = list(sure)
    while True:  # a second time only where a loop leads backwards
        before = list(taken) if flow.looped else taken
        for op in range(len(taken) - 1, -1, -1):
            mask = taken[op]
            if mask and takes[op]:
                for source in flow.inputs[op]:
                    if not sure[source]:
                        taken[source] |= mask
        if taken == before:
            return taken
