"""Renders the comparison of programs with a git revision as text and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from placement_checks.core.revisions import Effect, ProgramChange, RuleChange, Since
from placement_checks.report.common import baseline
from placement_checks.report.common.findings import group_findings
from placement_checks.report.common.json import difference_document, error_document, versioned_json
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
    yield from (f"no longer checked: {line}" for line in unchecked_lines(program, since))
    if program.numbers is not None:
        yield f"numbers, {program.numbers.state.replace('-', ' ')}: {program.numbers.text}"
    if kept := program.with_effect("kept"):
        yield f"newly kept: {join_and(change.new.rule for change in kept)}"


def unchecked_lines(program: ProgramChange, since: Since) -> Iterator[str]:
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


def render_json(since: Since) -> str:
    """Returns the JSON document."""
    document = {
        "since": since.revision,
        "commit": since.commit,
        "programs": [_document(program) for program in since.programs],
        "notes": list(since.notes),
        "errors": [error_document(error) for error in since.errors],
    }
    return versioned_json(document, schema=1)


def _document(program: ProgramChange) -> dict[str, Any]:
    difference = program.difference
    return {
        "program": program.name,
        "state": program.state,
        "difference": None if difference is None else difference_document(difference),
        "rules": [_rule(change) for change in program.rules],
        "numbers": None if program.numbers is None else vars(program.numbers),
    }


def _rule(change: RuleChange) -> dict[str, Any]:
    findings: Sequence[dict[str, Any]] = [
        {
            "object": finding.object,
            "where": finding.where,
            "message": finding.message,
            "fix": finding.fix,
        }
        for finding in change.new.findings
    ]
    return {
        "rule": change.new.rule,
        "effect": change.effect,
        "old": change.old.state,
        "new": change.new.state,
        "reason": change.new.reason,
        "findings": findings,
    }
