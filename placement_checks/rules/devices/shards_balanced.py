from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement, Tensor
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.core.variables import Variable
from placement_checks.rules.base import Fields, Rule, about, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, listed, plural

_PARAMETER_JOB = "ps"
_MOST_NAMED = 4  # servers in a note, and variables in the path of a finding


@dataclass(frozen=True)
class ShardsBalanced(Rule):
    """Variables are spread over the parameter servers as declared.

    Every worker fetches every variable in each step, so the server with the most bytes limits the
    speed. `replica_device_setter` assigns variables to the servers in turn, whatever their size:
    if a program alternates weights and biases and there are two servers, one server gets all
    weights.

    A variable that is colocated with another variable, such as a slot, follows this variable and
    is not counted.

    `by` is the intended distribution: "round-robin", where each variable is on the next server in
    the order of building, or "bytes", where no server has more than `most` times an even share. An
    even share is at least the size of the largest variable. By default either distribution is
    allowed, but no server may be empty while another server has several variables. `job` is the
    job of the servers; by default the job ps, or the job that holds variables and runs no tower.
    `allow` lists variables, or patterns such as table/part_*, that may be on any server.
    """

    name = "shards-balanced"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED, Need.CLUSTER})
    by_absence = True
    intended = "the parameter servers keep their present share of the variables"
    breaks_in_changes = True
    threads = (
        "tensorflow/tensorflow#24953: one of four servers has nearly all of the traffic",
        "tensorflow/tensorflow#45291: even numbers of variables, uneven traffic",
    )

    by: Literal["", "round-robin", "bytes"] = ""
    most: float = 1.5
    job: str = ""
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ConfigError(
                "most", f"{self.most} times an even share is impossible", "give 1 or more"
            )

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        assert placement.machine is not None
        jobs = placement.machine.jobs
        job = self.job or _server_job(placement)
        if not job:
            return self.not_checked(
                "the job of the parameter servers is not known",
                fix="name it: --set shards-balanced.job=J",
            )
        if job not in jobs:
            lacking = placement.machine.lacking(Device(job))
            return self.not_checked(
                f"shards-balanced.job is {job}, but {lacking}",
                fix=placement.machine.fix_for(Device(job)),
            )
        if len(jobs[job]) < 2:
            return self.not_checked(f"/job:{job} has only one task")
        names = {variable.name for variable in placement.variables}
        counted = []
        held: dict[int | None, list[Variable]] = {task: [] for task in jobs[job]}
        for variable in placement.variables:
            op = placement.ops[variable.name]
            if op.assigned and op.assigned.job == job and names.isdisjoint(op.colocated):
                counted.append(variable)
                if not matches_any(variable.name, self.allow):
                    held[op.assigned.task].append(variable)
        shards = [Shard(Device(job, task=task), variables) for task, variables in held.items()]
        judged = [variable for shard in shards for variable in shard.variables]
        if not judged:
            return self.not_checked(f"no variable is on /job:{job}")
        note = "; ".join(map(str, shards[:_MOST_NAMED]))
        if len(shards) > _MOST_NAMED:
            note += f"; and {len(shards) - _MOST_NAMED} more, see --format json"
        counts = [len(shard.variables) for shard in shards]
        unknown = [variable.name for variable in judged if _bytes(variable) is None]
        if unknown and self.by != "round-robin" and (self.by or max(counts) - min(counts) > 1):
            return self.not_checked(
                f"the shape or dtype of {listed(unknown)} is unknown, so bytes cannot be compared",
                note,
                fix="set static shapes, or compare the order of creation: "
                "--set shards-balanced.by=round-robin",
            )
        findings = (
            list(_round_robin_findings(placement, shards, counted))
            if self.by == "round-robin"
            else [_finding(shards, shard) for shard in self._heavy(shards)]
        )
        figures = [
            {"task": str(shard.task), "variables": len(shard.variables), "bytes": shard.bytes}
            for shard in shards
        ]
        return replace(self.verdict(findings, note), figures=figures)

    def intended_fields(self, _evidence: Evidence, verdict: Verdict) -> Iterator[Fields]:
        """Yield round-robin sharding, else the present imbalance in bytes."""
        yield {"by": "round-robin"}
        sizes = [figure["bytes"] for figure in verdict.figures]
        if sum(sizes):
            imbalance = max(sizes) * len(sizes) / sum(sizes)
            yield {"by": "bytes", "most": math.ceil(10 * imbalance) / 10}

    def _heavy(self, shards: Sequence[Shard]) -> Sequence[Shard]:
        counts = [len(shard.variables) for shard in shards]
        if not self.by and max(counts) - min(counts) <= 1:
            return ()
        heavy = [shard for shard in shards if shard.bytes > self.most * _even_share(shards)]
        if not heavy and min(counts) == 0 and max(counts) > 1:
            return [shards[counts.index(max(counts))]]
        return heavy


class Shard(NamedTuple):
    """The variables of one parameter server, in creation order."""

    task: Device
    variables: Sequence[Variable]

    @property
    def bytes(self) -> int:
        """The size of the variables with a known shape."""
        return sum(_bytes(variable) or 0 for variable in self.variables)

    def __str__(self) -> str:
        return f"{self.task} holds {plural(len(self.variables), 'variable')}, {self.bytes:,} bytes"


def _server_job(placement: Placement) -> str:
    """Return the job of the parameter servers; ``""`` if it is unknown."""
    assert placement.machine is not None
    if _PARAMETER_JOB in placement.machine.jobs:
        return _PARAMETER_JOB
    ops = (placement.ops[variable.name] for variable in placement.variables)
    holding = {op.assigned.job for op in ops if op.assigned and op.assigned.job}
    computing = {device.job for tower in analyze(placement).towers for device in tower.devices}
    servers = holding - computing
    return servers.pop() if len(servers) == 1 else ""


def _bytes(variable: Variable) -> int | None:
    return Tensor(variable.dtype, variable.shape).bytes


def _even_share(shards: Sequence[Shard]) -> float:
    """Return the bytes of an even share, at least the size of the largest variable."""
    sizes = [_bytes(variable) or 0 for shard in shards for variable in shard.variables]
    return max(sum(sizes) / len(shards), *sizes)


def _round_robin_findings(
    placement: Placement, shards: Sequence[Shard], counted: Sequence[Variable]
) -> Iterator[Finding]:
    numbers = {
        variable.name: number
        for number, shard in enumerate(shards)
        for variable in shard.variables
    }
    previous = ""
    for name in (variable.name for variable in counted):
        if name not in numbers:  # `allow` lists it: it may have taken a turn or not
            previous = ""
            continue
        turn = (numbers[previous] + 1) % len(shards) if previous else numbers[name]
        if numbers[name] != turn:
            expected, found = str(shards[turn].task), str(shards[numbers[name]].task)
            yield Finding(
                **about(placement.ops[name], "assigned"),
                placed=name,
                message=f"variable {name} is on {found}, out of turn: {previous}, created before "
                f"it, is on {shards[numbers[previous]].task}, so the next in turn is {expected}",
                fix="create all variables under one replica_device_setter, which assigns them in "
                "turn, and request no device for a single variable",
            )
        previous = name


def _finding(shards: Sequence[Shard], heavy: Shard) -> Finding:
    total = sum(shard.bytes for shard in shards)
    count = sum(len(shard.variables) for shard in shards)
    empty = [shard.task for shard in shards if not shard.variables]
    share = f", {heavy.bytes / total:.0%} of their bytes" if total else ""
    idle = f"; {join_and(empty)} {'holds' if len(empty) == 1 else 'hold'} none" if empty else ""
    summary = f"{heavy.task} holds {len(heavy.variables)} of {plural(count, 'variable')}{share}"
    largest = sorted(heavy.variables, key=lambda variable: -(_bytes(variable) or 0))
    return Finding(
        **about(str(heavy.task), "assigned"),
        ops=(largest[0].name,),
        placed=largest[0].name,
        path=tuple(
            PathStep(f"{variable.name}: {_bytes(variable):,} bytes", variable.name)
            for variable in largest[:_MOST_NAMED]
        ),
        message=f"{summary}{idle}",
        consequence=f"every worker fetches all these variables from {heavy.task} in each step, "
        "while the other servers wait",
        fix="pass replica_device_setter a ps_strategy that picks the server with the fewest "
        "bytes, or partition large variables (tf.compat.v1.fixed_size_partitioner)",
    )
