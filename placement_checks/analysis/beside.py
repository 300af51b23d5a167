"""What is beside the computation: texts, summaries, checks, and what only they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from placement_checks.core.op_types import (
    COLLECTIVE_GATHER,
    COLLECTIVE_REDUCE,
    CUT,
    FOR_PEOPLE,
    SAVERS,
    SWITCHES,
    VARIABLES,
)
from placement_checks.core.placement import Op, Placement, producer_of


def beside_computation(placement: Placement, ops: Mapping[str, Op]) -> frozenset[str]:
    """Those of some ops that nobody wants on a GPU.

    They yield text, write or test for people, save or restore, or only such ops take their
    values. So does the switch of a value that is on the host itself, such as a predicate. Nor the
    whole numbers that a strategy lets replicas tell each other, which have few kernels on GPUs: of
    the rows of a sparse gradient, which go from GPU to GPU themselves, and of the replicas that
    have a batch.

    Args:
        placement: the program.
        ops: the ops asked about, by name, in the order of building.
    """
    takers: dict[str, list[str]] = defaultdict(list)
    for op in placement.ops.values() if ops else ():
        for source in op.inputs:
            if source[0] != "^" and (name := producer_of(source)) in ops:
                takers[name].append(op.name)
    found: set[str] = set()
    for op in reversed(list(ops.values())):
        only_for_those = bool(takers[op.name]) and all(
            taker in found or _is_for_people(placement.ops[taker]) for taker in takers[op.name]
        )
        if (
            only_for_those
            or _is_for_people(op)
            or _is_text(placement, op)
            or _switches_on_host(placement, op)
            or _numbers_rows(placement, op, takers[op.name])
            or _is_of_a_count(placement, op)
        ):
            found.add(op.name)
    return frozenset(found)


def _is_for_people(op: Op) -> bool:
    return op.type in FOR_PEOPLE or op.type in SAVERS


def _is_text(placement: Placement, op: Op) -> bool:
    """Whether all that an op yields is text."""
    outputs = placement.details.outputs(op.name)
    return bool(outputs) and all(output.dtype == "string" for output in outputs)


def _numbers_rows(placement: Placement, op: Op, takers: Sequence[str]) -> bool:
    """Whether all that it yields are whole numbers, which are only joined with other replicas'."""
    return (
        bool(takers)
        and _is_whole_numbers(placement, op)
        and all(placement.ops[taker].type == COLLECTIVE_GATHER for taker in takers)
    )


def _is_of_a_count(placement: Placement, op: Op) -> bool:
    """Whether it cuts up whole numbers that a strategy has joined to add them up at once."""
    source = placement.ops.get(producer_of(op.inputs[0])) if op.type == CUT and op.inputs else None
    return (
        source is not None
        and source.type == COLLECTIVE_REDUCE
        and _is_whole_numbers(placement, op)
    )


def _is_whole_numbers(placement: Placement, op: Op) -> bool:
    outputs = placement.details.outputs(op.name)
    return bool(outputs) and all(output.dtype in ("int32", "int64") for output in outputs)


def _switches_on_host(placement: Placement, op: Op) -> bool:
    """Whether it is a switch of a value that was asked for on the host, not of a variable."""
    if op.type not in SWITCHES or not op.fell_with_another or not op.inputs:
        return False
    producer = placement.ops.get(producer_of(op.inputs[0]))
    return (
        producer is not None
        and producer.assigned == op.assigned
        and not producer.requested.is_gpu
        and producer.type not in VARIABLES
    )
