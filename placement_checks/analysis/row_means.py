"""Whether a loss is a mean over the rows of a batch, seen in the graph."""

from __future__ import annotations

from typing import NamedTuple

from placement_checks.analysis.tower_analysis import TowerAnalysis
from placement_checks.core.op_types import (
    ADDS,
    CAST,
    DIVISIONS,
    IDENTITIES,
    JOINS,
    MEAN,
    NEGATION,
    PASSES_VALUE,
    PRODUCTS,
    RESHAPES,
    STACK,
    SUM,
)

_TERMS = ADDS | JOINS | RESHAPES | IDENTITIES | PASSES_VALUE | {CAST, NEGATION, STACK}


class Scales(NamedTuple):
    """The tensors by which sums over examples are divided in a loss, and what it is multiplied by.

    Where each divisor is a number of rows, and no factor is, the loss is a mean over them.
    """

    divisors: list[str]
    factors: list[str]


def scales_of(analysis: TowerAnalysis, loss: int) -> Scales | None:
    """How a loss is made of means and sums over examples.

    None if some part is a sum that nothing divides, or is computed in another way.
    """
    found = Scales([], [])
    todo = [(loss, "")]
    for op, divisor in todo:
        kind, inputs = analysis.flow.types[op], analysis.flow.inputs[op]
        if not analysis.examples[op]:
            continue
        if kind in PRODUCTS or kind in DIVISIONS:
            value, scale = (0, 1) if kind in DIVISIONS or analysis.examples[inputs[0]] else (1, 0)
            by = analysis.placement.by_number[op].inputs[scale]
            if kind in DIVISIONS and analysis.examples[inputs[value]]:
                divisor = by
            elif kind in PRODUCTS and not analysis.examples[inputs[scale]]:
                found.factors.append(by)
            else:
                return None
            todo.append((inputs[value], divisor))
        elif kind in _TERMS or (kind in (SUM, MEAN) and _is_of_terms(analysis, inputs[0])):
            todo += [(term, divisor) for term in inputs]
        elif kind == SUM and divisor:
            found.divisors.append(divisor)
        elif kind != MEAN:
            return None
    return found


def _is_of_terms(analysis: TowerAnalysis, op: int) -> bool:
    """Whether it is one number, or a list of several that are added up."""
    outputs = analysis.placement.details.outputs(analysis.flow.names[op])
    return analysis.flow.types[op] == STACK or [output.shape for output in outputs] == [()]
