"""Renders the comparison of programs with a git revision as text, and its JSON document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, Self

from msgspec import Meta

from placement_checks.core.results import State
from placement_checks.core.revisions import (
    ChangedVariable,
    Effect,
    ProgramChange,
    ProgramState,
    RuleChange,
    Since,
    TrainingChange,
    TrainingState,
)
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
from placement_checks.util.text import join_and, listed, plural, printable

EFFECTS: Mapping[Effect, str] = {
    "broken": "newly broken",
    "unchecked": "no longer checked",
    "kept": "newly kept",
}
_STATES = ("changed", "gone", "new", "same")
_TRAINING: Mapping[TrainingState, str] = {
    "different": "different",
    "not-checked": "not checked",
    "proved": "proved equal for every batch",
}
_REASONS = 3  # different texts of variables


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
    if program.training is not None and program.training.state == "different":
        counts.append("different training step")
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
    if program.training is not None:
        yield from (": ".join(each) for each in training_statements(program.training))
    if program.numbers is not None:
        yield f"numbers, {program.numbers.state.replace('-', ' ')}: {program.numbers.text}"
    if kept := program.with_effect("kept"):
        yield f"newly kept: {join_and(change.new.rule for change in kept)}"


def training_statements(training: TrainingChange) -> Iterator[tuple[str, str]]:
    """Yields what is stated on a training step, the worst first: a title and a sentence each."""
    if not training.variables:
        yield f"training step, {_TRAINING['not-checked']}", training.reason
    stated: set[str] = set()  # a slot differs from its variable in the state alone
    for state, words in _TRAINING.items():
        found = [
            each for each in training.variables if each.state == state and each.text not in stated
        ]
        stated |= {each.text for each in found}
        if found:
            text = _proved(training) if state == "proved" else _reasons(found)
            yield f"training step, {words}", text


def _proved(training: TrainingChange) -> str:
    """Returns the number of variables that are proved equal, and what the proofs assume."""
    proved = sum(each.state == "proved" for each in training.variables)
    of_all = plural(len(training.variables), "variable")
    number = of_all if proved == len(training.variables) else f"{proved} of {of_all}"
    return f"{number}, if {'; '.join(training.assumed)}" if training.assumed else number


def _reasons(variables: Sequence[ChangedVariable]) -> str:
    """Returns the first differences or reasons, each with its variables and its line."""
    names: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for each in variables:
        names[each.text, each.where].append(each.name)
    parts = [
        f"{listed(found)}: {text}{f'  ({where})' if where else ''}"
        for (text, where), found in names.items()
    ]
    left = [name for found in list(names.values())[_REASONS:] for name in found]
    more = [f"and {plural(len(left), 'variable')} more"] if left else []
    return "; ".join([*parts[:_REASONS], *more])


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


class ChangedVariableObject(JsonObject):
    variable: Annotated[
        str, Meta(description="Its name; its name at the revision, if that alone has it.")
    ]
    state: TrainingState
    text: Annotated[
        str | None, Meta(description="The difference, or the reason; null if it is proved.")
    ]
    where: Annotated[str | None, Meta(description="The line of the difference, file:line.")]


class TrainingObject(JsonObject):
    state: Annotated[
        TrainingState, Meta(description="proved only if it is proved for all variables.")
    ]
    reason: Annotated[str | None, Meta(description="Why no variable is compared.")]
    assumed: Annotated[list[str], Meta(description="What the proofs take for granted.")]
    variables: Annotated[
        list[ChangedVariableObject],
        Meta(description="Each variable that the step updates, now or at the revision."),
    ]

    @classmethod
    def from_training(cls, training: TrainingChange) -> Self:
        return cls(
            state=training.state,
            reason=training.reason or None,
            assumed=list(training.assumed),
            variables=[
                ChangedVariableObject(
                    variable=each.name,
                    state=each.state,
                    text=each.text or None,
                    where=each.where,
                )
                for each in training.variables
            ],
        )


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
    training: Annotated[
        TrainingObject | None,
        Meta(
            description="Whether the training step is proved equal, for every batch; null if only "
            "one side has the program."
        ),
    ]
    numbers: Annotated[
        NumbersObject | None,
        Meta(description="The comparison of runs; null without --numbers."),
    ]

    @classmethod
    def from_change(cls, program: ProgramChange) -> Self:
        difference, training, numbers = program.difference, program.training, program.numbers
        return cls(
            program=program.name,
            state=program.state,
            difference=None
            if difference is None
            else DifferenceObject.from_difference(difference),
            rules=list(map(RuleChangeObject.from_change, program.rules)),
            training=None if training is None else TrainingObject.from_training(training),
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
