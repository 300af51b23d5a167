"""The statements of a report, for formats that list them.

`items` yields each statement once, program by program. Formats that show only the first statements
sort them with `ranked`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from placement_checks.core.impact import Impact
from placement_checks.core.results import Report, worst_impact
from placement_checks.core.revisions import Since
from placement_checks.report.commands import since as since_text
from placement_checks.report.common.baseline import first_line, render_text
from placement_checks.report.common.findings import Group, Section, Sections
from placement_checks.report.outcome import Outcome
from placement_checks.report.text.findings import finding_sentences, one_line
from placement_checks.report.text.writer import program_title
from placement_checks.util.text import join_and, listed, plural

Kind = Literal[
    "error",  # a program could not be judged or compared
    "cause",  # findings of a rule that are a root cause
    "difference",  # everything that moved in a program
    "gone",  # a program that only the revision has
    "unchecked",  # rules that are not checked
    "training",  # the comparison of training steps with a revision
    "numbers",  # the comparison of runs with a revision
    "consequence",  # findings of a rule that follow from another rule
    "doubt",  # findings of a rule that may be intended
    "note",  # a remark
]
Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Item:
    """A statement of a report.

    Attributes:
        kind: the kind.
        level: error if it fails the program.
        title: the rule with the number of findings, or the name of the kind.
        lines: its sentences, without the programs.
        rules: the rules. ``baseline``, ``moved``, ``training`` and ``numbers`` count as rules
            too.
        where: the line of the user's code; None if it is unknown.
        reports: the programs.
        groups: the findings in the first of the programs.
        turn: the number of groups of root causes that the rule has before this one.
        sections: for root causes, all root causes of the rule in each of the programs.
    """

    kind: Kind
    level: Level
    title: str
    lines: Sequence[str]
    rules: Sequence[str] = ()
    where: str | None = None
    reports: Sequence[Report] = ()
    groups: Sequence[Group] = ()
    turn: int = 0
    sections: Sequence[Section] = ()

    @property
    def impact(self) -> Impact:
        """The worst impact of the findings."""
        return worst_impact(finding for group in self.groups for finding in group.findings)

    def programs(self, most: int) -> str:
        """The programs, of which at most ``most`` are named."""
        return listed([one_line(program_title(each)) for each in self.reports], most)


def items(outcome: Outcome) -> Iterator[Item]:
    """Yields all statements of a report, program by program."""
    for error in outcome.errors:
        yield Item("error", "error", "error", [one_line(str(error))])
    for report in outcome.reports:
        yield from _report_items(report, outcome)
    if outcome.since is not None:
        yield from _changes(outcome.since)


def _report_items(report: Report, outcome: Outcome) -> Iterator[Item]:
    own = [report]
    if report.baseline:
        name, lines = outcome.difference_name, render_text(report.baseline).split("\n")
        where = first_line(report.baseline)
        yield Item("difference", "error", name, lines, [name], where, own)
    sections = Sections(report.verdicts)
    for section in sections.causes:
        for turn, group in enumerate(section.groups):
            number, rule, lines = len(group.findings), section.rule, [*finding_sentences(group)]
            title = rule if number == 1 else f"{rule} ({plural(number, 'finding')})"
            found = [group], turn, [section]
            yield Item("cause", "error", title, lines, [rule], group.where, own, *found)
    for section in sections.consequences:
        where, rule = section.groups[0].where, section.rule
        lines = [section.title]
        yield Item("consequence", "warning", rule, lines, [rule], where, own, section.groups)
    for section in sections.doubts:
        for group in section.groups:
            rule, lines = section.rule, [*finding_sentences(group)]
            title = f"{rule}, a doubt"
            yield Item("doubt", "note", title, lines, [rule], group.where, own, [group])
    for verdict in report.verdicts:
        if verdict.state == "not-checked":
            level: Level = "warning" if outcome.must_be_checked(verdict) else "note"
            reason = one_line(verdict.reason or "")
            yield Item("unchecked", level, "not checked", [reason], [verdict.rule], reports=own)


def _changes(since: Since) -> Iterator[Item]:
    """Yields what only a comparison with a revision states."""
    for program in since.programs:
        if program.newly_broken is None:
            line = one_line(f"{program.name}: {since_text.headline(program, since)}")
            yield Item("gone", "error", "gone", [line])
            continue
        own = [program.newly_broken]
        for change in program.with_effect("unchecked"):
            reason = one_line(f"{change.new.reason} ({change.old.state} at {since.revision})")
            title, rule = since_text.EFFECTS["unchecked"], change.new.rule
            yield Item("unchecked", "error", title, [reason], [rule], reports=own)
        if training := program.training:
            level: Level = "error" if training.state == "different" else "note"
            (title, text), *_ = since_text.training_statements(training)
            where = next((each.where for each in training.variables if each.where), None)
            yield Item("training", level, title, [one_line(text)], ["training"], where, own)
        if numbers := program.numbers:
            level = "error" if numbers.state == "different" else "note"
            title = f"numbers, {numbers.state.replace('-', ' ')}"
            lines = [one_line(numbers.text)]
            yield Item("numbers", level, title, lines, ["numbers"], reports=own)
    for note in since.notes:
        yield Item("note", "note", "", [one_line(note)])


def ranked(found: Iterable[Item]) -> list[Item]:
    """Returns statements by kind, with statements that several programs share only once.

    Root causes are in the order of their impact. Among groups of the same impact, the first groups
    of all rules come before the second groups of all rules, and so on. Among these, rules from
    which more findings follow come first, and then groups that more programs share. The order of
    the root causes of one program is the order of its report. If rules of a program are not
    checked for the same reason, they become one statement.
    """
    by_kind: dict[Kind, list[Item]] = defaultdict(list)
    for item in found:
        by_kind[item.kind].append(item)
    causes = _merged(by_kind["cause"], _cause_key)
    causes.sort(key=_cause_order)
    of_programs = _merged(by_kind["unchecked"], lambda item: (*_reason(item), id(item.reports[0])))
    unchecked = _merged(of_programs, lambda item: (*_reason(item), *item.rules))
    by_kind |= {"cause": causes, "unchecked": list(map(_with_rules, unchecked))}
    return [item for kind in get_args(Kind) for item in by_kind[kind]]


def _cause_order(item: Item) -> tuple[int, ...]:
    following = sum(section.number - len(section.findings) for section in item.sections)
    return item.impact, item.turn, -following, -len(item.reports)


def _cause_key(item: Item) -> Hashable:
    first = item.groups[0].first
    return (*item.rules, item.where, first.message, first.fix)


def _reason(item: Item) -> tuple[str, ...]:
    return (item.title, item.level, *item.lines)


def _with_rules(item: Item) -> Item:
    """The statement on unchecked rules with their names."""
    return replace(item, lines=[f"{join_and(item.rules)}: {item.lines[0]}"])


def _merged(found: Iterable[Item], key: Callable[[Item], Hashable]) -> list[Item]:
    """Statements with the same key become one, with the rules and programs of all."""
    merged: dict[Hashable, Item] = {}
    for item in found:
        known = merged.get(key(item), item)
        rules = list(dict.fromkeys((*known.rules, *item.rules)))
        reports = {id(each): each for each in (*known.reports, *item.reports)}
        sections = {id(each): each for each in (*known.sections, *item.sections)}
        merged[key(item)] = replace(
            known,
            rules=rules,
            reports=list(reports.values()),
            sections=list(sections.values()),
        )
    return list(merged.values())
