"""Renders the difference between a baseline and a placement as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.analysis.step.transfers import copies_text
from placement_checks.core.baseline import Change, Copies, Difference
from placement_checks.report.common.json import difference_document, versioned_json
from placement_checks.util.text import join_and, plural, printable

_MOST_LISTED = 10  # changes of each kind


def render_text(difference: Difference, most: int = _MOST_LISTED) -> str:
    """Returns the number of changes in the first line, then the changes and the copies."""
    return "\n".join(map(printable, _text(difference, most)))


def first_line(difference: Difference) -> str | None:
    """Returns the first known line of the user's code that built something changed."""
    changes = (*difference.moved, *difference.new_there, *difference.gone)
    return next((change.where for change in changes if change.where), None)


def headline(difference: Difference) -> str:
    """Returns the number of changes, in one line."""
    moved, new, gone = map(len, (difference.moved, difference.new_there, difference.gone))
    objectives = sum(change.kind == "objective" for change in difference.moved)
    counts = f"{moved - objectives:,} moved, {new:,} new, {gone:,} gone"
    if objectives:
        counts += f", {plural(objectives, 'objective')} changed"
    if not difference:
        counts = (
            "nothing that was read has moved" if difference.is_partial else "nothing has moved"
        )
    same = f"{plural(difference.same, 'op')} placed as in {difference.old}"
    return f"{counts}; {same}" if difference else f"{counts}: {same}"


def _text(difference: Difference, most: int) -> Iterator[str]:
    yield headline(difference)
    gone = ("gone", difference.gone)
    moved = [change for change in difference.moved if change.kind != "objective"]
    sections = [("moved", moved), ("new", difference.new_there)]
    # A missing tower explains other changes.
    sections.insert(0 if any(each.kind == "tower" for each in difference.gone) else 2, gone)
    for title, changes in sections:
        yield from _section(title, [change_text(change) for change in changes], most)
    objectives = [change_text(each) for each in difference.moved if each.kind == "objective"]
    yield from _section("objectives that changed", objectives, most)
    crosses = [
        f"{source} -> {to}: {_amount(new)} (was {_amount(old)})"
        for source, to, old, new in difference.crosses
    ]
    yield from _section("more data copied in each step", crosses, most)
    yield from _section("other changes, on the same devices", difference.notes, most)


def _section(title: str, lines: Sequence[str], most: int) -> Iterator[str]:
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines[:most])
        if len(lines) > most:
            yield f"  and {len(lines) - most:,} more"


def change_text(change: Change) -> str:
    """Returns one change in one line."""
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


def _amount(copies: Copies) -> str:
    number, size, unknown = copies
    if not number:
        return "none"
    if unknown == number:
        return f"{copies_text(number)} of unknown size"
    more = f", {unknown:,} of unknown size" if unknown else ""
    return f"{size:,} bytes in {copies_text(number)}{more}"


def render_json(difference: Difference) -> str:
    """Returns the JSON document."""
    return versioned_json(difference_document(difference), schema=1)
