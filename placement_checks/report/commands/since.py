"""Renders the comparison of programs with a git revision as text, and its JSON document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from msgspec import Meta

from placement_checks.core.results import State
from placement_checks.core.revisions import Effect, ProgramChange, ProgramState, RuleChange, Since
from placement_checks.report.common import baseline
from placement_checks.report.common.baseline import DifferenceObject
from placement_checks.report.common.findings import group_findings
from placement_checks.report.common.json import (
    VERSION,
    ErrorObject,
    JsonObject,
    Versions,
)
from placement_checks.report.text.findings import finding_lines
from placement_checks.util.text import join_and, plural, printable

EFFECTS: Mapping[Effect, str] = {
    "broken": "newly broken",
    "unchecked": "no longer checked",
    "kept": "newly kept",
}
_STATES = ("changed", "gone", "new", "same")


def render_text(since: Since) -> str:
    """Returns the changes of each program, and the number of programs in the last line."""
    lines = [line for program in since.programs for line in _program(program, since)]
    return "\n".join(map(printable, [*lines, *since.notes, summary(since)]))


def summary(since: Since) -> str:
    """Returns the number of programs in each state, in one line."""
    counts = {state: sum(each.state == state for each in since.programs) for state in _STATES}
    states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    compared = f"{plural(len(since.programs), 'program')} compared with {at_commit(since)}"
    return f"{compared}: {states}." if states else f"{compared}."


def at_commit(since: Since) -> str:
    """Returns the revision with its commit, unless the revision is the hash of the commit."""
    if since.commit.startswith(since.revision):
        return since.revision
    return f"{since.revision} ({since.commit[:10]})"


def headline(program: ProgramChange, since: Since) -> str:
    """Returns the number of changes of a program, in one line."""
    if program.state == "gone":
        return f"not listed in pyproject.toml any more, and checked at {since.revision}"
    if program.difference is None:
        found = plural(len(program.with_effect("broken")), "broken rule")
        return f"new, not in {since.revision}; {found}"
    counts = [
        f"{plural(number, 'rule')} {words}"
        for effect, words in EFFECTS.items()
        if (number := len(program.with_effect(effect)))
    ]
    if program.numbers is not None and program.numbers.state == "different":
        counts.append("different numbers")
    return "; ".join([baseline.headline(program.difference), *counts])


def _rule_lines(program: ProgramChange, since: Since) -> Iterator[str]:
    """Yields the rules with changed verdicts, and the findings of newly broken rules."""
    for change in program.with_effect("broken"):
        yield f"newly broken: {_broken_rule(change, since)}"
        groups = group_findings(change.new.findings)
        yield from (line.text for line in finding_lines(groups))
    yield from (f"no longer checked: {line}" for line in _unchecked_lines(program, since))
    if program.numbers is not None:
        yield f"numbers, {program.numbers.state.replace('-', ' ')}: {program.numbers.text}"
    if kept := program.with_effect("kept"):
        yield f"newly kept: {join_and(change.new.rule for change in kept)}"


def _unchecked_lines(program: ProgramChange, since: Since) -> Iterator[str]:
    """Yields the rules that are no longer checked, by their old states and reasons."""
    rules: dict[str, list[str]] = defaultdict(list)
    for change in program.with_effect("unchecked"):
        state = f"{change.old.state} at {since.revision}"
        rules[f"({state}): {change.new.reason}"].append(change.new.rule)
    for reason, names in rules.items():
        yield f"{join_and(names)} {reason}"


def _broken_rule(change: RuleChange, since: Since) -> str:
    """Returns a broken rule with its verdict at the revision."""
    old, new = change.old, change.new
    if old.state == "broken":
        found = plural(len(new.findings), "finding")
        return f"{new.rule} ({found}, {len(old.findings)} at {since.revision})"
    return f"{new.rule} ({old.state.replace('-', ' ')} at {since.revision})"


def _program(program: ProgramChange, since: Since) -> Iterator[str]:
    yield f"{program.name}: {headline(program, since)}"
    if program.difference is not None:
        yield from baseline.render_text(program.difference).split("\n")[1:]
    yield from _rule_lines(program, since)
    yield ""


class NumbersObject(JsonObject):
    state: Literal["equal", "different", "not-checked"]
    text: Annotated[
        str, Meta(description="The compared variables, the differences, or the reason.")
    ]


class ChangedFindingObject(JsonObject):
    object: Annotated[str, Meta(description="The op, variable or device.")]
    where: Annotated[str | None, Meta(description="The line to edit, file:line.")]
    message: str
    fix: str


class RuleChangeObject(JsonObject):
    rule: str
    effect: Annotated[
        Effect,
        Meta(
            description="broken: newly broken, or more findings than before; unchecked: not "
            "checked any more; kept: newly kept."
        ),
    ]
    old: State
    new: State
    reason: Annotated[str | None, Meta(description="Why the rule is not checked.")]
    findings: list[ChangedFindingObject]

    @classmethod
    def from_change(cls, change: RuleChange) -> Self:
        return cls(
            rule=change.new.rule,
            effect=change.effect,
            old=change.old.state,
            new=change.new.state,
            reason=change.new.reason,
            findings=[
                ChangedFindingObject(
                    object=each.object, where=each.where, message=each.message, fix=each.fix
                )
                for each in change.new.findings
            ],
        )


class ProgramChangeObject(JsonObject):
    program: str
    state: Annotated[
        ProgramState,
        Meta(
            description="new: the revision lacks the program; gone: only pyproject.toml at the "
            "revision lists it."
        ),
    ]
    difference: Annotated[
        DifferenceObject | None,
        Meta(description="What moved; null if only one side has the program."),
    ]
    rules: Annotated[
        list[RuleChangeObject],
        Meta(description="The rules with another verdict than at the revision."),
    ]
    numbers: Annotated[
        NumbersObject | None,
        Meta(description="The comparison of runs; null without --numbers."),
    ]

    @classmethod
    def from_change(cls, program: ProgramChange) -> Self:
        difference, numbers = program.difference, program.numbers
        return cls(
            program=program.name,
            state=program.state,
            difference=None
            if difference is None
            else DifferenceObject.from_difference(difference),
            rules=list(map(RuleChangeObject.from_change, program.rules)),
            numbers=None
            if numbers is None
            else NumbersObject(state=numbers.state, text=numbers.text),
        )


class SinceDocument(JsonObject):
    """How programs differ from themselves at a git revision."""

    schema: Annotated[Literal[1], VERSION]
    versions: Versions
    since: Annotated[str, Meta(description="The revision, as the user names it.")]
    commit: Annotated[str, Meta(description="The hash of its commit.")]
    programs: list[ProgramChangeObject]
    notes: Annotated[list[str], Meta(description="Remarks on the revision.")]
    errors: Annotated[
        list[ErrorObject], Meta(description="The programs that could not be compared.")
    ]

    @classmethod
    def from_since(cls, since: Since) -> Self:
        return cls(
            schema=1,
            versions=Versions.installed(),
            since=since.revision,
            commit=since.commit,
            programs=list(map(ProgramChangeObject.from_change, since.programs)),
            notes=list(since.notes),
            errors=list(map(ErrorObject.from_error, since.errors)),
        )
