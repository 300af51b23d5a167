"""The main job: judge one placement by the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from placement_checks.core.errors import PlacementError, as_error
from placement_checks.core.placement import Placement
from placement_checks.rules import Rule, Verdict
from placement_checks.util.garbage import left_alone
from placement_checks.util.text import listed
from placement_checks.verification.policy import Policy, policy_errors, rules_for


@dataclass(frozen=True)
class Report:
    """What the rules said of one program."""

    placement: Placement
    verdicts: Sequence[Verdict]

    def count(self, state: str) -> int:
        return sum(verdict.state == state for verdict in self.verdicts)

    @property
    def errors(self) -> Sequence[PlacementError]:
        """What ended rules before they had an answer: once, with all the rules that it ended."""
        ended: dict[str, list[Verdict]] = defaultdict(list)
        for verdict in self.verdicts:
            if verdict.error is not None:
                ended[str(verdict.error)].append(verdict)
        return [_ending(alike) for alike in ended.values()]

    def status(self, *, asked: Collection[str] = (), require_all: bool = False) -> int:
        """The exit status: 0 for sound, 1 for a broken rule, 2 where nothing could be checked.

        It is 2 also where a rule was ended by an error: the worst counts.

        Args:
            asked: rules that were asked for by name, and so must be checked.
            require_all: whether a rule that could not be checked is as bad as a broken one.
        """
        if self.errors:
            return 2
        unchecked = [each.rule for each in self.verdicts if each.state == "not-checked"]
        if self.count("broken"):
            return 1
        if not self.count("kept") or any(rule in asked for rule in unchecked):
            return 2
        return 1 if require_all and unchecked else 0


def verify(
    placement: Placement,
    policies: Sequence[Policy] = (),
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Report:
    """Judge a placement.

    Args:
        placement: what `place` made, or one built by hand.
        policies: parameters of rules, the policy that counts most first; the program's own comes
            last and is added here.
        only: names of rules; empty for all.
        without: names of rules to leave out.

    Raises:
        UsageError: there is no such rule.
        ConfigError: a policy names a rule or field that does not exist, or a value is unfit.
    """
    rules = rules_of(placement, policies, only, without)
    with left_alone():
        return Report(placement, [_judged(rule, placement) for rule in rules])


def _ending(verdicts: Sequence[Verdict]) -> PlacementError:
    """The error that ended some rules, with their names."""
    error = verdicts[0].error
    assert error is not None
    rules = listed(verdict.rule for verdict in verdicts)
    message = f"{rules} could not be checked: {error.message}"
    ending = type(error)(error.object, message, error.cure, details=error.details)
    ending.__cause__ = error.__cause__
    return ending


def _judged(rule: Rule, placement: Placement) -> Verdict:
    """The verdict of a rule; what was read in part keeps none, nor breaks one by what it lacks."""
    verdict = _verdict(rule, placement)
    unproved = ("kept", "broken") if rule.by_absence else ("kept",)
    if placement.unread and verdict.state in unproved:
        return rule.not_checked(placement.unread, verdict.note)
    return verdict


def _verdict(rule: Rule, placement: Placement) -> Verdict:
    """What a rule says; one that fails has checked nothing, and the others are judged."""
    try:
        return rule.check(placement)
    except Exception as fault:
        error = as_error(placement.program, fault)
        reason = f"{error.message}; {error.cure}"
        return Verdict(rule.name, "not-checked", None, reason, error=error)


def rules_of(
    placement: Placement,
    policies: Sequence[Policy] = (),
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> list[Rule]:
    """The rules by which a placement is judged, each with its parameters; as for `verify`."""
    __tracebackhide__ = True
    for policy in policies:
        for wrong in policy_errors(policy):
            raise wrong
    for wrong in policy_errors(placement.policy, f"policy of {placement.program}: "):
        raise wrong
    return rules_for([*policies, placement.policy], only=only, without=without)
