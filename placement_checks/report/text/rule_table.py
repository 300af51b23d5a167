"""The states of all rules: a line each, or their names alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from rich.text import Text

from placement_checks.core.results import Verdict, by_impact
from placement_checks.report.text.wrapping import columns, wrapped

STATES = {
    "kept": ("KEPT", "green"),
    "broken": ("BROKEN", "bold red"),
    "not-checked": ("NOT CHECKED", "yellow"),
}
_FIRST_TO_LAST = ("broken", "kept", "not-checked")
_STATE_WIDTH = 15  # with what stands before and after it
_SHARED = 2  # more spaces before the lines that continue a shared row


def rule_table(
    verdicts: Sequence[Verdict], causes: Mapping[str, str], *, is_brief: bool
) -> Iterator[Text]:
    """The table; rules that are not checked for the same reason share a line.

    Args:
        verdicts: of all rules.
        causes: what the findings of a rule follow from, by its name.
        is_brief: whether each is told in two lines at most.
    """
    width = 2 + max((len(verdict.rule) for verdict in verdicts), default=0)
    for alike in _rows(verdicts):
        first = alike[0]
        details = "; ".join(filter(None, (first.reason, first.note, causes.get(first.rule))))
        most = 2
        if len(alike) == 1:
            rule, hanging = f"{first.rule:<{width}}", width
        else:
            rule, hanging = f"{', '.join(verdict.rule for verdict in alike)}: ", _SHARED
            most = 2 + len(rule) // (columns() - _STATE_WIDTH - hanging)
        yield from _row(first, rule, hanging, details, most if is_brief else None)


def names_by_state(verdicts: Sequence[Verdict]) -> Iterator[Text]:
    """A row for each state, with the names of its rules."""
    for state in _FIRST_TO_LAST:
        alike = by_impact(verdict for verdict in verdicts if verdict.state == state)
        if alike:
            names = ", ".join(verdict.rule for verdict in alike)
            more = " (--all says why)" if state == "not-checked" else ""
            yield from _row(alike[0], names, 0, more, None)


def _rows(verdicts: Sequence[Verdict]) -> Iterable[Sequence[Verdict]]:
    """The verdicts that share a row, in the order of the first of each."""
    rows: dict[Hashable, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        is_open = verdict.state == "not-checked"
        rows[(verdict.reason, verdict.note) if is_open else verdict.rule].append(verdict)
    return rows.values()


def _row(
    verdict: Verdict, rule: str, hanging: int, detail: str, most: int | None
) -> Iterator[Text]:
    label, style = STATES[verdict.state]
    line = f"{rule}{detail}".rstrip()
    first, *rest = wrapped(line, indent=_STATE_WIDTH, hanging=_STATE_WIDTH + hanging, most=most)
    text = Text.assemble("  ", (f"{label:<13}", style), first[_STATE_WIDTH:])
    text.stylize("dim", _STATE_WIDTH + len(rule))
    yield text
    yield from (Text(each, "dim") for each in rest)
