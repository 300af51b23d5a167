"""Renders the difference between a baseline and a placement as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from placement_checks.analysis.step.transfers import copies_text
from placement_checks.core.baseline import Change, ChangedObject, Copies, Difference
from placement_checks.report.common.json import (
    VERSION,
    Count,
    JsonObject,
    UnknownSizes,
    Versions,
    to_json,
)
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


class CopiesObject(JsonObject):
    copies: Count
    bytes: Count
    unknown: UnknownSizes


class CrossingObject(JsonObject):
    source: str
    to: str
    old: CopiesObject
    new: CopiesObject


class ChangeObject(JsonObject):
    kind: ChangedObject
    what: Annotated[str, Meta(description="A description, such as forward of tower 0, layer fc1.")]
    old: Annotated[
        str | None,
        Meta(
            description="The old place or objective; null if it is new, or if the change "
            "describes several places."
        ),
    ]
    new: Annotated[
        str | None,
        Meta(
            description="The new place or objective; null if it is gone, or if the change "
            "describes several places."
        ),
    ]
    names: Annotated[list[str], Meta(description="The changed ops or variables.")]
    note: str | None
    where: Annotated[
        str | None,
        Meta(description="The user's line that built the first of the changed ops or variables."),
    ]
    rules: Annotated[list[str], Meta(description="The rules that the change breaks.")]

    @classmethod
    def from_change(cls, change: Change) -> ChangeObject:
        return cls(
            kind=change.kind,
            what=change.what,
            old=change.old or None,
            new=change.new or None,
            names=list(change.ops),
            note=change.note or None,
            where=change.where,
            rules=list(change.rules),
        )


class DifferenceObject(JsonObject):
    """The difference of a placement from a baseline, or from another placement."""

    baseline: Annotated[
        str,
        Meta(
            description="The file of the baseline, the git revision, or the program or log that "
            "was compared."
        ),
    ]
    program: Annotated[str, Meta(description="The program that was compared with it.")]
    same: Annotated[
        int, Meta(ge=0, description="The number of ops on the devices that the baseline states.")
    ]
    moved: list[ChangeObject]
    new: list[ChangeObject]
    gone: list[ChangeObject]
    crosses: Annotated[
        list[CrossingObject],
        Meta(description="The pairs of devices between which a step copies more than before."),
    ]
    notes: Annotated[list[str], Meta(description="Changes that are no change of device.")]

    @classmethod
    def from_difference(cls, difference: Difference, **more: Any) -> Self:
        """Returns the object; ``more`` are the fields of a subclass."""
        return cls(
            baseline=difference.old,
            program=difference.new,
            same=difference.same,
            moved=list(map(ChangeObject.from_change, difference.moved)),
            new=list(map(ChangeObject.from_change, difference.new_there)),
            gone=list(map(ChangeObject.from_change, difference.gone)),
            crosses=[
                CrossingObject(
                    source=each.source,
                    to=each.to,
                    old=CopiesObject(**each.old._asdict()),
                    new=CopiesObject(**each.new._asdict()),
                )
                for each in difference.crosses
            ],
            notes=list(difference.notes),
            **more,
        )


class DiffDocument(DifferenceObject):
    """The difference of a placement from a baseline, or from another placement."""

    schema: Annotated[Literal[1], VERSION]
    versions: Versions


def render_json(difference: Difference) -> str:
    """Returns the JSON document."""
    return to_json(
        DiffDocument.from_difference(difference, schema=1, versions=Versions.installed())
    )
