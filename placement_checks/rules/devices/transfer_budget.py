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
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import CONST
from placement_checks.core.placement import Op, Placement, producer_of
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.rules.base import Fields, Rule, about, first_of_each
from placement_checks.rules.requirements import Need
from placement_checks.util.text import listed, plural

_MOST_PAIRS = 4  # pairs of devices in a note
_MOST_TENSORS = 8  # tensors in the path of a finding


@dataclass(frozen=True)
class TransferBudget(Rule):
    """Bytes and copies between devices per step stay under the budget that you declare.

    Weights on the host travel to every tower in each step, and gradients travel back: this is the
    price of towers. Additional transfers, such as an activation that changes devices or a whole
    batch that is copied to every tower, make N GPUs slower than one.

    The rule counts, in the placed graph, the bytes (shape times size of dtype) of every tensor
    that an op of the step reads from another device. A tensor counts once for each device that it
    is copied to, and a loop counts as one iteration.

    In a cluster the links between tasks matter most. A variable on a parameter server is copied to
    each GPU of a worker separately. A large constant is sent in every step, although the task that
    reads the constant could create it.

    `bytes` and `copies` are the budget of one step; `link_bytes` and `link_copies` are the budget
    from one task to another; `constant_bytes` is the size of the largest constant that one task
    may send to another. `rows` is the number of rows of the global batch, for tensors with an
    unknown first dimension. Without a budget, only a constant that is too large is a finding;
    otherwise the rule is not checked, and shows the transfers.
    """

    name = "transfer-budget"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED, Need.GPUS})
    intended = "a step may copy as much as it does now"
    threads = (
        "tensorflow/tensorflow#1397: two GPUs take 28 s, one GPU takes 19 s",
        "tensorflow/tensorflow#4881: a step is slower because ops moved to the CPU",
        "tensorflow/models#2018: slim is slower on several GPUs than on one",
    )

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
                raise ConfigError(field.name, f"{value} is below 0", "give a number of 0 or more")

    def check(self, evidence: Evidence) -> Verdict:
        copied = copies(evidence.placement, self.rows)
        sums = transfers(copied)
        figures = [
            {
                "from": transfer.source.short,
                "to": transfer.to.short,
                "copies": transfer.copies,
                "bytes": transfer.bytes,
                "unknown": transfer.unknown,
            }
            for transfer in sums
        ]
        links = network_transfers(copied)
        shown = links or sums
        note = "; ".join(map(str, shown[:_MOST_PAIRS])) or "nothing is copied"
        if len(shown) > _MOST_PAIRS:
            note += f"; {len(shown) - _MOST_PAIRS} more, see place --transfers"
        verdict = self._judge_budgets(evidence.placement, copied, links, note)
        return replace(verdict, figures=figures)

    def intended_fields(self, _evidence: Evidence, verdict: Verdict) -> Iterator[Fields]:
        """Yield the present bytes or copies of one step, for each budget of the rule."""
        links: dict[tuple[Device, Device], list[Mapping[str, Any]]] = defaultdict(list)
        for figure in verdict.figures:
            source, target = (Device.parse(figure[end]).task_device for end in ("from", "to"))
            if source != target:
                links[source, target].append(figure)
        present = {}
        for unit in ("bytes", "copies"):
            present[unit] = sum(figure[unit] for figure in verdict.figures)
            present[f"link_{unit}"] = max(
                (sum(figure[unit] for figure in link) for link in links.values()), default=0
            )
        budgets = {name: getattr(self, name) for name in present}
        yield {
            name: max(present[name], budget)
            for name, budget in budgets.items()
            if budget is not None
        }

    def _judge_budgets(
        self,
        placement: Placement,
        copied: list[CopiedTensor],
        links: list[Transfer],
        note: str,
    ) -> Verdict:
        findings = (
            *self._step_findings(placement, copied),
            *self._link_findings(copied, links),
            *self._constant_findings(placement, copied),
        )
        if findings:
            return self.verdict(first_of_each(findings), note + _whole_graph_note(placement))
        budgets = (self.bytes, self.copies, self.link_bytes, self.link_copies)
        if all(budget is None for budget in budgets):
            return self.not_checked("no budget is set (--set transfer-budget.bytes=N)", note)
        is_local = placement.machine is not None and placement.machine.is_local
        if (self.bytes, self.copies) == (None, None) and is_local:
            return self.not_checked(
                "link_bytes and link_copies apply to clusters, and the machine is a single host",
                note,
                fix="set transfer-budget.bytes or transfer-budget.copies instead",
            )
        of_unknown_size = [copy for copy in _network_copies(copied) if copy.bytes is None]
        sources = {producer_of(copy.tensor) for copy in of_unknown_size}
        if lost := sorted(name for name in sources if placement.ops[name].type == CONST):
            are = "a constant" if len(lost) == 1 else "constants"
            return self.not_checked(
                f"other tasks read {are} of unknown size: {listed(lost)}",
                note,
                fix="create such constants on the task that reads them",
            )
        judged = copied if self.bytes is not None else _network_copies(copied)
        unknown = sum(copy.bytes is None for copy in judged)
        if (self.bytes is not None or self.link_bytes is not None) and unknown:
            return self.not_checked(
                f"the size of {plural(unknown, 'tensor')} is not known",
                note,
                fix="set the number of rows of the global batch: --set transfer-budget.rows=N",
            )
        return self.verdict([], note)

    def _step_findings(
        self, placement: Placement, copied: list[CopiedTensor]
    ) -> Iterator[Finding]:
        size = sum(map(_size, copied))
        if excess := _find_excess(size, len(copied), self.bytes, self.copies):
            budget, amount = excess
            largest = max(copied, key=_size).tensor
            yield _finding(
                placement.ops[producer_of(largest)],
                copied,
                message=f"one step sends {amount} between devices, over the budget of {budget}; "
                f"the largest tensor is {largest}",
            )

    def _link_findings(
        self, copied: list[CopiedTensor], links: list[Transfer]
    ) -> Iterator[Finding]:
        over_budget: dict[Device, list[tuple[Device, str, str]]] = defaultdict(list)
        for link in links:
            excess = _find_excess(link.bytes, link.copies, self.link_bytes, self.link_copies)
            if excess is not None:
                over_budget[link.source].append((link.to, *excess))
        for task, ((to, budget, amount), *others) in over_budget.items():
            more = ""
            if others:
                are = "is" if len(others) == 1 else "are"
                more = f"; {plural(len(others), 'other link')} of that task {are} also over budget"
            yield _finding(
                str(task),
                [
                    copy
                    for copy in copied
                    if copy.source.task_device == task and copy.to.task_device == to
                ],
                message=f"one step sends {amount} from {task} to {to}, over the budget of "
                f"{budget} per link{more}",
                group_key=(task, amount),
            )

    def _constant_findings(
        self, placement: Placement, copied: list[CopiedTensor]
    ) -> Iterator[Finding]:
        large: dict[str, list[CopiedTensor]] = defaultdict(list)
        for copy in _network_copies(copied):
            if (copy.bytes or 0) > self.constant_bytes:
                large[producer_of(copy.tensor)].append(copy)
        for name, sent in large.items():
            if placement.ops[name].type == CONST:
                yield _finding(
                    placement.ops[name],
                    sent,
                    message=f"the constant {name}, {sent[0].bytes:,} bytes, is sent from "
                    f"{sent[0].source.task_device} to {plural(len(sent), 'device')} of other "
                    "tasks in every step",
                    fix="create it on the task that reads it, or store it in a variable there",
                )


def _size(copy: CopiedTensor) -> int:
    return copy.bytes or 0


def _network_copies(copied: list[CopiedTensor]) -> list[CopiedTensor]:
    return [copy for copy in copied if copy.source.task_device != copy.to.task_device]


def _find_excess(
    size: int, number: int, most: int | None, most_copies: int | None
) -> tuple[str, str] | None:
    """Return the budget that copies exceed, and their amount; None if they do not."""
    if most is not None and size > most:
        return f"{most:,} bytes", f"{size:,} bytes"
    if most_copies is not None and number > most_copies:
        return copies_text(most_copies), copies_text(number)
    return None


def _whole_graph_note(placement: Placement) -> str:
    missing = analyze(placement).updates.missing
    return "" if missing is None else f"; all ops of the graph were counted: {missing}"


def _finding(
    subject: Op | str,
    copied: list[CopiedTensor],
    *,
    message: str,
    group_key: Hashable = None,
    fix: str = "keep large tensors on the devices that use them; feed each tower only its part",
) -> Finding:
    largest = sorted(copied, key=lambda copy: -_size(copy))[:_MOST_TENSORS]
    return Finding(
        **about(subject, "assigned"),
        ops=(producer_of(largest[0].tensor),),
        group_key=group_key,
        path=tuple(
            PathStep(
                f"{copy.tensor} {copy.source.short} -> {copy.to.short}: "
                + ("unknown size" if copy.bytes is None else f"{copy.bytes:,} bytes"),
                producer_of(copy.tensor),
            )
            for copy in largest
        ),
        message=message,
        fix=fix,
    )
