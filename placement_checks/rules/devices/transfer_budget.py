from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from placement_checks.analysis.step.transfers import (
    CopiedTensor,
    Transfer,
    copies,
    copies_text,
    network_transfers,
    transfers,
)
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import CONST
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural

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

    In a cluster the links between tasks count most: a variable on a parameter server goes to each
    GPU of a worker by itself, and a large constant travels in every step, though it could be made
    where it is read.

    `bytes` and `copies` are the budget of one step, `link_bytes` and `link_copies` that of what
    one task sends to another, `constant_bytes` the largest constant that may go from task to
    task. `rows` are the rows of the global batch, for tensors whose first dimension the graph
    leaves open. Without a budget nothing but constants is judged, and the transfers are shown all
    the same.
    """

    name = "transfer-budget"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED, Need.GPUS})

    bytes: int | None = None
    copies: int | None = None
    link_bytes: int | None = None
    link_copies: int | None = None
    constant_bytes: int = 1 << 20
    rows: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value < 0:
                raise ConfigError(field.name, f"{value} is below 0", "give 0 or more")

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        copied = copies(placement, self.rows)
        return replace(self._judged(placement, copied), figures=_figures(transfers(copied)))

    def _judged(self, placement: Placement, copied: list[CopiedTensor]) -> Verdict:
        links = network_transfers(copied)
        note = _note(links or transfers(copied))
        findings: dict[str, Finding] = {}
        for finding in (
            *self._over_all(placement, copied),
            *self._over_links(placement, copied, links),
            *self._constants(placement, copied),
        ):
            findings.setdefault(finding.object, finding)
        if findings:
            return self.verdict(list(findings.values()), note)
        budgets = (self.bytes, self.copies, self.link_bytes, self.link_copies)
        if all(budget is None for budget in budgets):
            return self.not_checked("no budget is set (--set transfer-budget.bytes=N)", note)
        if (self.bytes, self.copies) == (None, None) and _is_one_host(placement):
            return self.not_checked("the machine is one host, without links between tasks", note)
        if lost := _constants_of_unknown_size(placement, copied):
            return self.not_checked(
                f"the size of {plural(lost, 'constant')} that other tasks read is not known", note
            )
        judged = copied if self.bytes is not None else _over_the_network(copied)
        unknown = sum(copy.bytes is None for copy in judged)
        if (self.bytes is not None or self.link_bytes is not None) and unknown:
            return self.not_checked(
                f"the size of {unknown} tensors is not known; give the rows of the global batch: "
                "--set transfer-budget.rows=N",
                note,
            )
        return self.verdict([], note)

    def _over_all(self, placement: Placement, copied: list[CopiedTensor]) -> Iterator[Finding]:
        if excess := _over(copied, self.bytes, self.copies):
            first = producer_of(max(copied, key=_size).tensor)
            yield _finding(
                copied,
                excess,
                object=first,
                op=placement.ops[first].type,
                message=f"one step sends {excess[1]} between devices, over the budget of "
                f"{excess[0]}{_counted_all(placement)}; the largest is {first}",
            )

    def _over_links(
        self, placement: Placement, copied: list[CopiedTensor], links: list[Transfer]
    ) -> Iterator[Finding]:
        """A finding for each task that sends too much to some other."""
        busy: dict[Device, list[Transfer]] = defaultdict(list)
        for link in links:
            if _over_budget(link.bytes, link.copies, self.link_bytes, self.link_copies):
                busy[link.source].append(link)
        for task, over_budget in busy.items():
            worst = over_budget[0]
            sent = [
                copy
                for copy in copied
                if copy.source.task_device == task and copy.to.task_device == worst.to
            ]
            excess = _over(sent, self.link_bytes, self.link_copies)
            assert excess is not None
            others = plural(len(over_budget) - 1, "other link")
            more = (
                f"; {others} of that task {'is' if len(over_budget) == 2 else 'are'} over it too"
            )
            yield _finding(
                sent,
                excess,
                object=str(task),
                op="",
                message=f"one step sends {excess[1]} from {task} to {worst.to}, over the budget "
                f"of {excess[0]} per link{more if over_budget[1:] else ''}"
                f"{_counted_all(placement)}",
            )

    def _constants(self, placement: Placement, copied: list[CopiedTensor]) -> Iterator[Finding]:
        large: dict[str, list[CopiedTensor]] = defaultdict(list)
        for copy in _over_the_network(copied):
            if (copy.bytes or 0) > self.constant_bytes:
                large[producer_of(copy.tensor)].append(copy)
        for name, sent in large.items():
            if placement.ops[name].type == CONST:
                yield _finding(
                    sent,
                    (f"{self.constant_bytes:,} bytes", f"{sent[0].bytes:,} bytes"),
                    object=name,
                    op=CONST,
                    message=f"the constant {name}, {sent[0].bytes:,} bytes, is sent from "
                    f"{sent[0].source.task_device} to {plural(len(sent), 'device')} of other "
                    "tasks in every step",
                    alike="a constant",
                    fix="create it where it is read, or keep it in a variable there",
                )


def _note(sums: list[Transfer]) -> str:
    note = "; ".join(map(str, sums[:_PAIRS])) or "nothing is copied"
    if len(sums) > _PAIRS:
        note += f"; {len(sums) - _PAIRS} more, see place --transfers"
    return note


def _is_one_host(placement: Placement) -> bool:
    return placement.machine is not None and placement.machine.is_local


def _size(copy: CopiedTensor) -> int:
    return copy.bytes or 0


def _over_the_network(copied: list[CopiedTensor]) -> list[CopiedTensor]:
    return [copy for copy in copied if copy.source.task_device != copy.to.task_device]


def _constants_of_unknown_size(placement: Placement, copied: list[CopiedTensor]) -> int:
    sent = {producer_of(copy.tensor) for copy in _over_the_network(copied) if copy.bytes is None}
    return sum(placement.ops[name].type == CONST for name in sent)


def _over_budget(size: int, number: int, most: int | None, most_copies: int | None) -> bool:
    return (most is not None and size > most) or (most_copies is not None and number > most_copies)


def _over(
    copied: list[CopiedTensor], most: int | None, most_copies: int | None
) -> tuple[str, str] | None:
    """The budget that copies exceed, and what they need, as text."""
    size = sum(map(_size, copied))
    if most is not None and size > most:
        return f"{most:,} bytes", f"{size:,} bytes"
    if most_copies is not None and len(copied) > most_copies:
        return copies_text(most_copies), copies_text(len(copied))
    return None


def _counted_all(placement: Placement) -> str:
    unknown = analyse(placement).updates.unknown
    return f" (all ops were counted: {unknown})" if unknown else ""


def _figures(sums: list[Transfer]) -> list[Mapping[str, Any]]:
    return [
        {
            "from": transfer.source.short,
            "to": transfer.to.short,
            "copies": transfer.copies,
            "bytes": transfer.bytes,
            "unknown": transfer.unknown,
        }
        for transfer in sums
    ]


def _finding(
    copied: list[CopiedTensor],
    excess: tuple[str, str],
    *,
    object: str,
    op: str,
    message: str,
    alike: Hashable = None,
    fix: str = "keep large tensors where they are used, and feed each tower only its part",
) -> Finding:
    largest = sorted(copied, key=lambda copy: -_size(copy))[:_LARGEST]
    return Finding(
        object=object,
        op=op,
        evidence="assigned",
        expected=f"at most {excess[0]} per step",
        found=excess[1],
        ops=(producer_of(largest[0].tensor),),
        alike=alike,
        path=tuple(
            f"{copy.tensor} {copy.source.short} -> {copy.to.short}: "
            + ("unknown size" if copy.bytes is None else f"{copy.bytes:,} bytes")
            for copy in largest
        ),
        message=message,
        fix=fix,
    )
