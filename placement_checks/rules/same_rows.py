"""Findings on towers that were given the same rows: fed twice, or by pipelines of workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from placement_checks.analysis.inputs import Use
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import CAST, PASSES_VALUE, RESHAPES
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding

_PASSES = PASSES_VALUE | RESHAPES | {CAST}  # all rows, in the order in which they come


def same_rows(evidence: Evidence, uses: Sequence[Use]) -> Iterator[Finding]:
    """A finding for each tower whose inputs all had the values of another tower's.

    Args:
        evidence: what is known of the program.
        uses: which inputs the towers read.
    """
    strategy = evidence.placement.strategy
    of_workers = strategy is not None and strategy.is_of_workers
    # The rows of one pipeline may repeat, as in a test with a few rows.
    if not evidence.program or (evidence.placement.step.traced and not of_workers):
        return
    given, unknown = _given(evidence.placement, evidence.program.fed, uses)
    towers = sorted(given if of_workers else given.keys() - unknown)
    for position, tower in enumerate(towers):
        for before in towers[:position]:
            if _are_equal(list(given[before].values()), list(given[tower].values())):
                yield _finding(evidence, before, next(iter(given[before])), tower, given[tower])
                break


def _given(
    placement: Placement, fed: Mapping[str, Any], uses: Sequence[Use]
) -> tuple[Mapping[int, Mapping[str, Any]], Collection[int]]:
    """The rows that each tower was fed, by the names of tensors.

    Returns:
        The rows by tower, and the towers that compute with rows besides, whose values are unknown.
    """
    given: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    unknown: set[int] = set()
    for use in uses:
        tensor = use.tensor
        while tensor not in fed and (op := placement.ops[producer_of(tensor)]).type in _PASSES:
            tensor = op.inputs[0] if ":" in op.inputs[0] else f"{op.inputs[0]}:0"
        array = fed.get(tensor)
        if array is None:
            unknown.add(use.tower)
        elif np.ndim(array):
            given[use.tower][tensor] = np.asarray(array)
    return given, unknown


def _are_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two towers were fed the same, and not only what is the same in all rows."""
    return (
        len(some) == len(others)
        and all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
        and any((array != array[:1]).any() for array in some)
    )


def _finding(
    evidence: Evidence, tower: int, tensor: str, again: int, given: Mapping[str, Any]
) -> Finding:
    placement = evidence.placement
    both = analyse(placement).names_of(1 << tower | 1 << again)
    original, name = producer_of(tensor), producer_of(next(iter(given)))
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected="different rows for each tower",
        found=f"the same rows for {both}",
        message=f"{both} were given the same rows, by {original} and {name}",
        consequence="they compute the same gradients: one of the two works for nothing",
        fix=_OF_TOWERS if placement.strategy is None else _OF_WORKERS,
        alike="rows",
    )


_OF_TOWERS = (
    "feed tower i its part of the batch: dict(zip(inputs, numpy.array_split(rows, num_gpus)))"
)
_OF_WORKERS = (
    "dataset.shard(context.num_input_pipelines, context.input_pipeline_id) in the function that "
    "makes the dataset, or experimental_distribute_dataset(dataset)"
)
