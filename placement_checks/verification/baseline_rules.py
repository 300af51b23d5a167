"""Which rules are broken by what a placement has elsewhere than its baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from placement_checks.core.baseline import Change, Difference, device_text
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Verdict
from placement_checks.verification.judging import verify
from placement_checks.verification.policy import Policy

# They judge where ops and variables are.
ON_DEVICES: Final = (
    *("no-fallback", "variables-on-host", "slots-with-variables", "no-idle-device"),
    *("gradients-colocated", "averaging-on-host", "shards-balanced"),
)


def with_rules(
    difference: Difference, evidence: Evidence | Placement, policies: Sequence[Policy] = ()
) -> Difference:
    """The difference, with the rules that each change breaks."""
    if not difference:
        return difference
    return with_verdicts(difference, verify(evidence, policies, only=ON_DEVICES).verdicts)


def with_verdicts(difference: Difference, verdicts: Sequence[Verdict]) -> Difference:
    """The difference, with those of the broken rules that find what has changed."""
    broken = _by_object(verdicts)

    def told(changes: Sequence[Change]) -> list[Change]:
        return [replace(change, rules=_rules(change, broken)) for change in changes]

    return replace(
        difference,
        moved=told(difference.moved),
        new_there=told(difference.new_there),
        gone=told(difference.gone),
    )


def _by_object(verdicts: Sequence[Verdict]) -> Mapping[str, list[str]]:
    """The broken rules, by the ops, variables and devices that they find."""
    rules: dict[str, list[str]] = defaultdict(list)
    for verdict in verdicts:
        for finding in verdict.findings:
            for each in {finding.object, *finding.ops, _as_place(finding.object)}:
                rules[each].append(verdict.rule)
    return rules


def _as_place(name: str) -> str:
    """A device as baselines write it; what is none as it is."""
    if not name.startswith("/"):
        return name
    try:
        return device_text(Device.parse(name))
    except InputError:
        return name


def _rules(change: Change, broken: Mapping[str, list[str]]) -> list[str]:
    names = [*change.ops]
    if change.kind == "tower":  # which may have left a GPU idle
        names.append(change.old)
    if change.kind == "slots":  # which is told of their variables
        names += [each for each in broken if each.rpartition("/")[0] in change.ops]
    found = {rule for name in names for rule in broken.get(name, ())}
    return [rule for rule in ON_DEVICES if rule in found]
