"""Which findings are told where not all can be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def dealt(costs: Sequence[Iterable[int]], lines: int, always: Collection[int] = ()) -> list[int]:
    """How many items of each section fit, dealt out in turns: the first of each comes first.

    Args:
        costs: for each section the lines that its items take, in their order.
        lines: how many there are for all of them.
        always: the sections, by number, whose first item is given even if it does not fit. They
            precede the others.
    """
    given = [0] * len(costs)
    open_sections = [(number, iter(items)) for number, items in enumerate(costs)]
    while open_sections:
        still_open = []
        for number, items in open_sections:
            cost = next(items, None)
            is_due = number in always and not given[number]
            if cost is not None and (cost <= lines or is_due):
                lines -= cost
                given[number] += 1
                still_open.append((number, items))
        open_sections = still_open
    return given
