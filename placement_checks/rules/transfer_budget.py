from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from placement_checks.errors import ConfigError
from placement_checks.placement import Placement, producer_of
from placement_checks.rules.base import Finding, Rule, Verdict
from placement_checks.wiring import wiring
from placement_checks.wiring.transfers import Copy, Transfer, copies, transfers

_PAIRS = 4  # that a report lists
_LARGEST = 8  # tensors in the path of a finding


@dataclass(frozen=True)
class TransferBudget(Rule):
    """Bytes and copies between devices per step stay under the budget.

    Weights that live on the host travel to every tower, and gradients back, in each step: that is
    the price of towers. What comes on top of it, an activation that changes devices or an input
    that is copied whole to every tower, makes N GPUs slower than one.

    Counted from the placed graph: shape times dtype of every tensor that an op of the step takes
    from another device; the same tensor to the same device once, loops as one turn.

    `bytes` and `copies` are the budget of one step, `rows` the rows of the global batch, for
    tensors whose first dimension the graph leaves open. Without a budget nothing is judged, and
    the transfers are shown all the same.
    """

    name = "transfer-budget"
    evidence = "assigned"

    bytes: int | None = None
    copies: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("bytes", "copies", "rows"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(name, f"{value} is below 0", "give a number from 0 on")

    def check(self, placement: Placement) -> Verdict:
        if unplaced := self.unplaced(placement):
            return unplaced
        if unasked := self.unasked(placement):
            return unasked
        if collapsed := self.collapsed(placement):
            return collapsed
        found = copies(placement, self.rows)
        return replace(self._judged(placement, found), figures=_figures(transfers(found)))

    def _judged(self, placement: Placement, found: list[Copy]) -> Verdict:
        sums = transfers(found)
        size = sum(each.bytes for each in sums)
        note = "; ".join(str(each) for each in sums[:_PAIRS]) or "nothing is copied"
        if len(sums) > _PAIRS:
            note += f"; {len(sums) - _PAIRS} more pairs, see place --transfers"
        if self.bytes is None and self.copies is None:
            return self.not_checked("no budget is set (--set transfer-budget.bytes=N)", note)
        if self.bytes is not None and size > self.bytes:
            budget, spent = f"{self.bytes:,} bytes", f"{size:,} bytes"
            return self.verdict([_finding(placement, found, budget, spent)], note)
        if self.copies is not None and len(found) > self.copies:
            budget, spent = f"{self.copies:,} copies", f"{len(found):,} copies"
            return self.verdict([_finding(placement, found, budget, spent)], note)
        unknown = sum(each.unknown for each in sums)
        if self.bytes is not None and unknown:
            return self.not_checked(
                f"the size of {unknown} tensors is not known; give the rows of the global batch: "
                "--set transfer-budget.rows=N",
                note,
            )
        return self.verdict([], note)


def _figures(sums: list[Transfer]) -> list[Mapping[str, Any]]:
    return [
        {
            "from": each.source.short,
            "to": each.to.short,
            "copies": each.copies,
            "bytes": each.bytes,
            "unknown": each.unknown,
        }
        for each in sums
    ]


def _finding(placement: Placement, found: list[Copy], budget: str, spent: str) -> Finding:
    largest = sorted(found, key=lambda each: -(each.bytes or 0))[:_LARGEST]
    first = producer_of(largest[0].tensor)
    of_all = wiring(placement).updates.unknown
    return Finding(
        object=first,
        op=placement.ops[first].type,
        evidence="assigned",
        expected=f"at most {budget} a step",
        found=spent,
        where=placement.where(first),
        path=tuple(
            f"{each.tensor} {each.source.short} -> {each.to.short}: "
            + ("unknown size" if each.bytes is None else f"{each.bytes:,} bytes")
            for each in largest
        ),
        message=f"one step copies {spent} between devices, over the budget of {budget}"
        f"{' (all ops were counted: ' + of_all + ')' if of_all else ''}; the largest is {first}",
        cure="keep what is large where it is computed with, and feed each tower its part alone",
    )
