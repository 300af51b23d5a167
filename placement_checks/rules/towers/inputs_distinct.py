from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.equivalence import EqualTensors
from placement_checks.analysis.inputs import Use, input_uses, pipelines_of_one
from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import (
    GENERATOR_DATASET,
    PIPELINE_OPS,
    PREFETCHERS,
    is_dataset,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among, request_of, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class InputsDistinct(Rule):
    """No two towers read the same slice; input ops are on the CPU and built once.

    Towers that read the same examples compute the same gradients: N GPUs do the work of one, and
    the batch is a part of what it should be. A slice is followed from placeholders, iterators and
    queues into the towers; two are the same if they are cut from one tensor in the same way.
    Scalars, and vectors of fixed length, are not examples.

    Iterators, queues, readers and decoders under a tower's GPU have no kernel there, or copy each
    batch twice; built again in the loop over towers, they read the same files N times. Ops that
    prefetch batches for a GPU from a pipeline on the CPU belong on that GPU.

    `allow` lists inputs, or patterns, that all towers read whole on purpose.
    """

    name = "inputs-distinct"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        uses = list(input_uses(analysis))
        findings: dict[str, Finding] = {}
        for finding in (
            *_same_slices(placement, analysis, uses),
            *_on_gpus(placement),
            *_built_again(placement, analysis, uses),
        ):
            if not is_among(finding.object, self.allow):
                findings.setdefault(finding.object, finding)
        if not uses and not findings:
            return self.not_checked("no tower reads an example from a placeholder or pipeline")
        slices = len({(use.tower, use.tensor) for use in uses})
        return self.verdict(
            list(findings.values()), f"{plural(slices, 'input')} of {len(analysis.towers)} towers"
        )


def _same_slices(
    placement: Placement, analysis: TowerAnalysis, uses: list[Use]
) -> Iterator[Finding]:
    equal = EqualTensors(placement, analysis.flow)
    readers: dict[tuple[int, str], dict[int, str]] = defaultdict(dict)
    for use in uses:
        readers[equal.of(use.tensor)].setdefault(use.tower, use.tensor)
    for by_tower in readers.values():
        towers = sorted(by_tower)
        for tower in towers[1:]:
            first, again = by_tower[towers[0]], by_tower[tower]
            name = producer_of(again)
            op = analysis.flow.number[name]
            same = (
                f"both read {name}"
                if first == again
                else f"{producer_of(first)} and {name} are the same slice of one tensor"
            )
            both = analysis.names_of(1 << towers[0] | 1 << tower)
            yield Finding(
                object=name,
                op=analysis.flow.types[op],
                evidence="requested",
                expected="a slice of its own for each tower",
                found=f"one slice for {both}",
                where=placement.where(name),
                path=steps(placement, [analysis.flow.number[producer_of(first)], op]),
                message=f"{both} compute with the same examples: {same}"
                f"{built_at(placement, name)}",
                fix="give each tower its own part: tf.split(batch, num_gpus)[i], a placeholder, "
                "or a get_next() of its own",
            )


def _on_gpus(placement: Placement) -> Iterator[Finding]:
    kinds = placement.kinds
    if not any(kind.requested.is_gpu and _reads_input(kind.type) for kind in kinds):
        return
    fetching = {kind.requested for kind in kinds if kind.type == GENERATOR_DATASET}
    for op in placement.ops.values():
        if op.requested in fetching and op.type in PREFETCHERS:
            continue
        if op.requested.is_gpu and _reads_input(op.type) and not op.caller:
            yield Finding(
                object=op.name,
                op=op.type,
                evidence="requested",
                expected="/device:CPU:0",
                found=request_of(op),
                where=placement.where(op.name),
                message=f"{op.name} ({op.type}) is an input op and requests {request_of(op)}: "
                f"input ops belong on the CPU{built_at(placement, op.name)}",
                fix="build the input pipeline under tf.device('/cpu:0'), before the towers",
            )


def _reads_input(kind: str) -> bool:
    return kind in PIPELINE_OPS or is_dataset(kind)


def _built_again(
    placement: Placement, analysis: TowerAnalysis, uses: list[Use]
) -> Iterator[Finding]:
    alike = EqualTensors(placement, analysis.flow, by_kind=True)
    made: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for holder, tower in pipelines_of_one(analysis, uses):
        made[alike.of(analysis.flow.names[holder])].setdefault(tower, holder)
    for by_tower in made.values():
        first, *others = sorted(by_tower)
        for tower in others:
            name = analysis.flow.names[by_tower[tower]]
            original = analysis.flow.names[by_tower[first]]
            yield Finding(
                object=name,
                op=analysis.flow.types[by_tower[tower]],
                evidence="requested",
                expected="one input pipeline for all towers",
                found=f"one only for the tower on {analysis.towers[tower]}",
                where=placement.where(name),
                path=steps(placement, [by_tower[first], by_tower[tower]]),
                message=f"{name} feeds only the tower on {analysis.towers[tower]} and is built "
                f"like {original}, which feeds the tower on {analysis.towers[first]}: each of the "
                f"two towers reads all of the data{built_at(placement, name)}",
                fix="build it once, before the towers, and take one batch per tower from it, or "
                "give each tower its part: dataset.shard(num_gpus, i)",
            )
