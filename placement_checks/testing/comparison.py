"""Explains why two placements are not equal in an assertion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.core.errors import InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.report.commands.diff import group_by_route, label_ops
from placement_checks.util.text import join_and, plural, printable
from placement_checks.verification.diff import compare

_NAMED = 3  # ops that the message lists of a group


def explain(left: object, right: object, everything: bool) -> list[str] | None:
    """List the ops on different devices, for ``pytest_assertrepr_compare``.

    Args:
        left: the left side of the comparison.
        right: the right side.
        everything: whether to list all ops of a group instead of the first few.

    Returns:
        A summary and the lines below it; None if either side is not a placement or evidence.
    """
    if not isinstance(left, Evidence | Placement) or not isinstance(right, Evidence | Placement):
        return None
    placements = Evidence.wrap(left).placement, Evidence.wrap(right).placement
    return [printable(line) for line in _lines(*placements, everything)]


def _lines(left: Placement, right: Placement, everything: bool) -> Iterator[str]:
    try:
        difference = compare(right, left)
    except InputError as error:
        yield f"placements cannot be compared: {error}"
        return
    moved, counts = (
        len(difference.moved),
        ((len(difference.added), "only left"), (len(difference.removed), "only right")),
    )
    only = join_and(f"{count:,} {where}" for count, where in counts if count)
    are = f"{moved:,} {'is' if moved == 1 else 'are'}" if moved else "none is"
    both = f"of {plural(difference.ops, 'op')} in both, {are} on another device"
    yield f"placements differ: {both}{only and f'; {only}'}"
    yield from difference.unread
    for there, here, ops in group_by_route(difference):
        yield from _group(f"left on {here}, right on {there}", label_ops(ops), everything)
    for side, only_there in (("left", difference.added), ("right", difference.removed)):
        if only_there:
            yield from _group(f"only {side}", label_ops(only_there), everything)


def _group(title: str, ops: Sequence[str], everything: bool) -> Iterator[str]:
    shown = ops if everything else ops[:_NAMED]
    yield f"{title}: {plural(len(ops), 'op')}"
    yield from (f"  {op}" for op in shown)
    if more := len(ops) - len(shown):
        yield f"  and {more:,} more (pytest -vv)"
