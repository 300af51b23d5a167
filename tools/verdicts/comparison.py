"""Compares two records, and groups equal kinds of differences."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Result = Mapping[str, Any]  # the record of a program, as `recording.judge` returns it
_SHOWN = 3  # differences of a kind
_ABSENT = "absent"
# Two findings with equal values are the same finding, possibly with another message.
_IDENTITY = ("object", "op", "where")


class Difference(NamedTuple):
    """A difference between two records.

    Attributes:
        kind: the rule, if it is about a rule, and what changed.
        program: the name of the program.
        text: the old and the new value.
    """

    kind: str
    program: str
    text: str


def read(folder: Path) -> dict[str, Result]:
    """The records of the programs in a directory, by name."""
    results = (json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json"))
    return {result["name"]: result for result in results}


def summary(results: Mapping[str, Result]) -> str:
    """The number of programs in a record, and of verdicts in each state."""
    documents = [result.get("document", {}) for result in results.values()]
    states = Counter(
        rule["state"]
        for document in documents
        for program in document.get("programs", [])
        for rule in program["rules"]
    )
    without = sum(not document.get("programs") for document in documents)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"{len(results)} programs, {without} without verdicts; verdicts: {counts or 'none'}"


def differences(old: Mapping[str, Result], new: Mapping[str, Result]) -> list[Difference]:
    """All differences between two records, by kind and program."""
    found = []
    for name in {*old, *new}:
        if name not in new:
            found.append(Difference("program gone", name, ""))
        elif name not in old:
            found.append(Difference("program new", name, ""))
        else:
            found += [
                Difference(kind, name, text) for kind, text in _of_program(old[name], new[name])
            ]
    return sorted(found)


def report(found: Sequence[Difference], *, everything: bool = False) -> str:
    """The differences as text: a heading for each kind, and some programs of the kind."""
    if not found:
        return "no differences"
    kinds: dict[str, list[Difference]] = defaultdict(list)
    for difference in found:
        kinds[difference.kind].append(difference)
    lines = []
    for kind, group in kinds.items():
        programs = len({difference.program for difference in group})
        lines.append(f"{kind}: {len(group)} in {programs} programs")
        shown = group if everything else group[:_SHOWN]
        for difference in shown:
            lines.append(f"  {difference.program}")
            lines += [f"    {line}" for line in difference.text.splitlines()]
        if len(shown) < len(group):
            lines.append(f"  and {len(group) - len(shown)} more of the same kind")
    programs = len({difference.program for difference in found})
    lines.append(f"{len(found)} differences in {programs} programs")
    return "\n".join(lines)


def _of_program(old: Result, new: Result) -> Iterator[tuple[str, str]]:
    documents = [each.get("document", {}) for each in (old, new)]
    yield from _changed("exit status", old["status"], new["status"])
    yield from _changed("output without a document", old.get("output"), new.get("output"))
    keys = {key for document in documents for key in document} - {"programs"}
    for key in sorted(keys):
        yield from _changed(f"{key} of the document", *(each.get(key) for each in documents))
    before, after = (document.get("programs", []) for document in documents)
    # Only a configuration with several programs yields several, in its order.
    yield from _changed("number of programs", len(before), len(after))
    for first, second in zip(before, after, strict=False):
        yield from _of_report(first, second)


def _of_report(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in sorted({*old, *new} - {"rules"}):
        yield from _changed(f"{key} of the program", old.get(key), new.get(key))
    before, after = ({rule["rule"]: rule for rule in each["rules"]} for each in (old, new))
    for name in sorted({*before, *after}):
        yield from _of_rule(name, before.get(name), after.get(name))


def _of_rule(
    name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    states = [_ABSENT if each is None else each["state"] for each in (old, new)]
    if states[0] != states[1]:
        reasons = [each and (each.get("reason") or each.get("note")) for each in (old, new)]
        yield f"{name}: {states[0]} -> {states[1]}", _from_to(*reasons) if any(reasons) else ""
    if old is None or new is None:
        return
    if states[0] == states[1]:
        for key in sorted({*old, *new} - {"rule", "state", "findings"}):
            yield from _changed(f"{name}: {key}", old.get(key), new.get(key))
    yield from _of_findings(name, old["findings"], new["findings"])


def _of_findings(
    name: str, old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    before, after = (_by_identity(findings) for findings in (old, new))
    for identity in sorted({*before, *after}):
        first, second = before.get(identity, []), after.get(identity, [])
        for finding in first[len(second) :]:
            yield f"{name}: finding gone", _described(finding)
        for finding in second[len(first) :]:
            yield f"{name}: finding new", _described(finding)
        for one, other in zip(first, second, strict=False):
            for key in sorted({*one, *other}):
                for kind, text in _changed(f"{name}: {key}", one.get(key), other.get(key)):
                    yield kind, f"{one['object']}\n{text}"
    order = [[_identity(finding) for finding in findings] for findings in (old, new)]
    if order[0] != order[1] and Counter(order[0]) == Counter(order[1]):
        yield f"{name}: order of the findings", _from_to(*order)


def _by_identity(
    findings: Sequence[Mapping[str, Any]],
) -> Mapping[tuple[str, ...], list[Mapping[str, Any]]]:
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for finding in findings:
        found[_identity(finding)].append(finding)
    return found


def _identity(finding: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(finding.get(key)) for key in _IDENTITY)


def _described(finding: Mapping[str, Any]) -> str:
    return f"{finding['object']} ({finding.get('where')}): {finding['message']}"


def _changed(kind: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    if old != new:
        yield kind, _from_to(old, new)


def _from_to(old: Any, new: Any) -> str:
    return "\n".join(
        f"{sign} {each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)}"
        for sign, each in (("-", old), ("+", new))
    )
