"""How a placement differs from a baseline: for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.analysis.step.transfers import copies_text
from placement_checks.core.baseline import Change, Copies, Crossing, Difference
from placement_checks.core.versions import versions
from placement_checks.report.common.json import difference_document, to_json
from placement_checks.util.text import join_and, plural, printable

SCHEMA = 1
MOST_LISTED = 10  # of each kind


def render_text(difference: Difference, most: int = MOST_LISTED) -> str:
    """The first line is the count; then what is elsewhere, and what it costs."""
    return "\n".join(map(printable, _text(difference, most)))


def first_line(difference: Difference) -> str | None:
    """The user's line of the first change of which one is known."""
    changes = (*difference.moved, *difference.new_there, *difference.gone)
    return next((change.where for change in changes if change.where), None)


def headline(difference: Difference) -> str:
    """How much differs, in a line."""
    moved, new, gone = map(len, (difference.moved, difference.new_there, difference.gone))
    counts = f"{moved:,} moved, {new:,} new, {gone:,} gone" if difference else "nothing has moved"
    same = f"{plural(difference.same, 'op')} where {difference.old} says"
    return f"{counts}; {same}" if difference else f"{counts}: {same}"


def _text(difference: Difference, most: int) -> Iterator[str]:
    yield headline(difference)
    gone = ("gone", difference.gone)
    told = [("moved", difference.moved), ("new", difference.new_there)]
    # A tower that is gone is why its variables and copies are.
    told.insert(0 if any(each.kind == "tower" for each in difference.gone) else 2, gone)
    for title, changes in told:
        yield from _section(title, [change_text(change) for change in changes], most)
    yield from _section("crosses now, a step", list(map(_crossing, difference.crosses)), most)
    yield from _section("no difference of places", difference.notes, most)


def _section(title: str, lines: Sequence[str], most: int) -> Iterator[str]:
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines[:most])
        if len(lines) > most:
            yield f"  and {len(lines) - most:,} more"


def change_text(change: Change) -> str:
    """One change in a line."""
    text = change.what
    if change.old and change.new:
        text += f": {change.old} -> {change.new}"
    elif change.old:
        text += f", was on {change.old}"
    elif change.new:
        text += f" on {change.new}"
    notes = "; ".join(filter(None, (change.note, change.where)))
    text += f"  ({notes})" if notes else ""
    return text + (f" [breaks {join_and(change.rules)}]" if change.rules else "")


def _crossing(crossing: Crossing) -> str:
    source, to, old, new = crossing
    return f"{source} -> {to}: {_amount(new)}, before {_amount(old)}"


def _amount(copies: Copies) -> str:
    number, size, unknown = copies
    if not number:
        return "nothing"
    if unknown == number:
        return f"{copies_text(number)} of unknown size"
    more = f", {unknown:,} of unknown size" if unknown else ""
    return f"{size:,} bytes in {copies_text(number)}{more}"


def render_json(difference: Difference) -> str:
    """One JSON document, its form fixed by ``"schema": 1``."""
    return to_json({"schema": SCHEMA, "versions": versions(), **difference_document(difference)})
