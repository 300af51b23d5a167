"""Names the rules that a difference from a baseline breaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from placement_checks.core.baseline import Change, Difference, device_text
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.results import Verdict
from placement_checks.rules.registry import RULES


def change_rules() -> list[str]:
    """The rules that a change of a baseline may break."""
    return [name for name, rule in RULES.items() if rule.breaks_in_changes]


def with_rules(difference: Difference, verdicts: Sequence[Verdict]) -> Difference:
    """Add to each change the rules that it breaks, according to the verdicts on the program."""
    if not difference:
        return difference
    broken: dict[str, list[str]] = defaultdict(list)  # by op, variable and device of a finding
    for verdict in verdicts:
        for finding in verdict.findings:
            if finding.is_doubt:
                continue
            for name in {finding.object, *finding.ops, _baseline_name(finding.object)}:
                broken[name].append(verdict.rule)

    def with_broken(changes: Sequence[Change]) -> list[Change]:
        return [replace(change, rules=_broken_rules(change, broken)) for change in changes]

    return replace(
        difference,
        moved=with_broken(difference.moved),
        new_there=with_broken(difference.new_there),
        gone=with_broken(difference.gone),
    )


def _baseline_name(name: str) -> str:
    """The text of a device in baselines; any other name is unchanged."""
    if not name.startswith("/"):
        return name
    try:
        return device_text(Device.parse(name))
    except InputError:
        return name


def _broken_rules(change: Change, broken: Mapping[str, list[str]]) -> list[str]:
    names = [*change.ops]
    if change.kind == "tower":
        names.append(change.old)  # the tower may have left this GPU idle
    if change.kind == "slots":
        # The change names the variables, the findings name their slots.
        names += [name for name in broken if name.rpartition("/")[0] in change.ops]
    found = {rule for name in names for rule in broken.get(name, ())}
    return sorted(found)
