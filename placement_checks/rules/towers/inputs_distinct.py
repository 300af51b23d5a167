from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placement_checks.analysis.graph.value_numbering import EqualTensors
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.towers.inputs import Use, input_uses, single_tower_pipelines
from placement_checks.core.evidence import Evidence
from placement_checks.core.keras_parts import TRAIN_ON_BATCH
from placement_checks.core.op_types import (
    CAST,
    CUTS,
    GENERATOR_DATASET,
    ONE_SHOT_ITERATOR,
    PASSES_VALUE,
    PIPELINE_OPS,
    PLACEHOLDERS,
    PREFETCHERS,
    RESHAPES,
    SHARD_DATASET,
    is_dataset,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines, requested_device
from placement_checks.rules.keras_limits import KERAS, keras_limit_finding, shorten
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import LoopLines
from placement_checks.util.text import plural

_PASSES = PASSES_VALUE | RESHAPES | {CAST}  # all rows, in the order in which they come


def same_rows(evidence: Evidence, uses: Sequence[Use]) -> Iterator[Finding]:
    """A finding for each tower whose inputs all had the values of another tower's.

    Args:
        evidence: what is known of the program.
        uses: which inputs the towers read.
    """
    strategy = evidence.placement.strategy
    of_workers = strategy is not None and strategy.is_of_workers
    # The rows of one pipeline may repeat, as in a test with a few rows.
    if not evidence.program or (evidence.placement.step.traced and not of_workers):
        return
    given, unknown = _given(evidence.placement, evidence.program.fed, uses)
    towers = sorted(given if of_workers else given.keys() - unknown)
    for position, tower in enumerate(towers):
        for before in towers[:position]:
            if _are_equal(list(given[before].values()), list(given[tower].values())):
                yield _finding(evidence, before, next(iter(given[before])), tower, given[tower])
                break


def _given(
    placement: Placement, fed: Mapping[str, Any], uses: Sequence[Use]
) -> tuple[Mapping[int, Mapping[str, Any]], Collection[int]]:
    """The rows that each tower was fed, by the names of tensors.

    Returns:
        The rows by tower, and the towers that compute with rows besides, whose values are unknown.
    """
    given: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    unknown: set[int] = set()
    for use in uses:
        tensor = use.tensor
        while tensor not in fed and (op := placement.ops[producer_of(tensor)]).type in _PASSES:
            tensor = op.inputs[0] if ":" in op.inputs[0] else f"{op.inputs[0]}:0"
        array = fed.get(tensor)
        if array is None:
            unknown.add(use.tower)
        elif np.ndim(array):
            given[use.tower][tensor] = np.asarray(array)
    return given, unknown


def _are_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two towers were fed the same, and not only what is the same in all rows."""
    return (
        len(some) == len(others)
        and all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
        and any((array != array[:1]).any() for array in some)
    )


def _finding(
    evidence: Evidence, tower: int, tensor: str, again: int, given: Mapping[str, Any]
) -> Finding:
    placement = evidence.placement
    both = analyse(placement).names_of(1 << tower | 1 << again)
    original, name = producer_of(tensor), producer_of(next(iter(given)))
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected="different rows for each tower",
        found=f"the same rows for {both}",
        message=f"{both} were given the same rows, by {original} and {name}",
        consequence="they compute the same gradients: one of the two works for nothing",
        fix=_OF_TOWERS if placement.strategy is None else _OF_WORKERS,
        alike="rows",
    )


_OF_TOWERS = (
    "feed tower i its part of the batch: dict(zip(inputs, numpy.array_split(rows, num_gpus)))"
)
_OF_WORKERS = (
    "dataset.shard(context.num_input_pipelines, context.input_pipeline_id) in the function that "
    "makes the dataset, or experimental_distribute_dataset(dataset)"
)


@dataclass(frozen=True)
class InputsDistinct(Rule):
    """No two towers read the same slice; input ops are on the CPU and built once.

    Towers that read the same examples compute the same gradients: N GPUs do the work of one, and
    the batch is a part of what it should be. A slice is followed from placeholders, iterators and
    queues into the towers; two are the same if they are cut from one tensor in the same way.
    Scalars, and vectors of fixed length, are not examples. Workers of several processes each have
    a pipeline of their own: two are the same if their first batches are.

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
            *_told_once(placement, analysis, _same_slices(placement, analysis, uses), self.allow),
            *_on_gpus(placement),
            *_built_again(placement, analysis, uses),
            *same_rows(evidence, uses),
        ):
            if not matches_any(finding.object, self.allow):
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
        readers[equal.key(use.tensor)].setdefault(use.tower, use.tensor)
    for by_tower in readers.values():
        first, *others = sorted(by_tower)
        for tower in others:
            yield _same_slice(analysis, first, by_tower[first], tower, by_tower[tower])


def _told_once(
    placement: Placement,
    analysis: TowerAnalysis,
    findings: Iterator[Finding],
    allow: Sequence[str],
) -> Iterator[Finding]:
    """The findings, and of what train_on_batch of Keras gives to all replicas one."""
    whole = []
    for finding in findings:
        if TRAIN_ON_BATCH not in placement.details.parts_of_keras(finding.object):
            yield finding
        elif not matches_any(finding.object, allow):
            whole.append(finding.object)
    if whole:
        replicas = len(analysis.towers)
        pattern = f"{whole[0]}*" if all(name.startswith(whole[0]) for name in whole) else "*"
        yield keras_limit_finding(
            placement,
            list(dict.fromkeys(whole)),
            f"model.train_on_batch of {KERAS} gives each of {replicas} replicas the whole batch: "
            f"{shorten(whole)}",
            f"all compute the same gradients: {replicas} GPUs do the work of one",
            "model.fit, which gives each replica its part. If it is meant: "
            f"--set inputs-distinct.allow={pattern}",
            expected="a slice of its own for each tower",
            found="one slice for all",
        )


def _same_slice(
    analysis: TowerAnalysis, tower: int, tensor: str, again: int, copy: str
) -> Finding:
    """The finding on two towers that compute with one tensor, or with two equal ones."""
    flow, placement = analysis.flow, analysis.placement
    original, name = producer_of(tensor), producer_of(copy)
    kind = flow.types[flow.number[name]]
    same = (
        f"both read {copy.removesuffix(':0')}"
        if tensor == copy
        else f"{original} and {name} are the same slice of one tensor"
    )
    both = analysis.names_of(1 << tower | 1 << again)
    taken = None
    if tensor == copy and (kind in CUTS or kind in PLACEHOLDERS):
        taken = _taken(analysis, again, copy)
    return Finding(
        object=name,
        op=kind,
        evidence="requested",
        expected="a slice of its own for each tower",
        found=f"one slice for {both}",
        path=path_lines(placement, [flow.number[original], flow.number[name]]),
        message=f"{both} compute with the same examples: {same}",
        consequence="they compute the same gradients: one of the two works for nothing",
        fix=_DISTRIBUTED
        if placement.strategy is not None
        else _OWN_ROWS
        if tensor != copy
        else _OWN_PART
        if taken
        else _OWN_BATCH,
        alike="slice",
        ops=(taken,) if taken else (),
        at=placement.cached(LoopLines).line(taken) if taken else None,
    )


def _taken(analysis: TowerAnalysis, tower: int, tensor: str) -> str | None:
    """The first op of a tower that takes a tensor."""
    for op in analysis.flow.consumers[analysis.flow.number[producer_of(tensor)]]:
        inputs = analysis.placement.by_number[op].inputs
        takes = tensor in inputs or tensor.removesuffix(":0") in inputs
        if takes and analysis.tower_of[op] == tower and not analysis.backward.ops[op]:
            return analysis.flow.names[op]
    return None


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
                found=requested_device(op),
                message=f"{op.name} ({op.type}) is an input op and requests "
                f"{requested_device(op)}: input ops belong on the CPU",
                consequence="it has no kernel there and fails, or each batch is copied to the "
                "GPU and back",
                fix="build the pipeline before the loop over towers, under "
                "`with tf.device('/cpu:0'):`",
                alike="on a GPU",
                placed=op.name,
            )


def _reads_input(kind: str) -> bool:
    return kind in PIPELINE_OPS or is_dataset(kind)


def _built_again(
    placement: Placement, analysis: TowerAnalysis, uses: list[Use]
) -> Iterator[Finding]:
    alike = EqualTensors(placement, analysis.flow, by_kind=True)
    made: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for holder, tower in single_tower_pipelines(analysis, uses):
        made[alike.key(analysis.flow.names[holder])].setdefault(tower, holder)
    for by_tower in made.values():
        first, *others = sorted(by_tower)
        for tower in others:
            yield _again(analysis, first, by_tower[first], tower, by_tower[tower])


def _again(analysis: TowerAnalysis, tower: int, holder: int, again: int, copy: int) -> Finding:
    """The finding on the pipeline of a tower that is built like that of another."""
    flow, placement = analysis.flow, analysis.placement
    name, original = flow.names[copy], flow.names[holder]
    one, other = analysis.towers[tower], analysis.towers[again]
    like = f"{original} for the one, {name} for the other, which is built like it"
    both = f"the towers on {one} and {other}"
    shard = _shard(analysis, copy)
    return Finding(
        object=name,
        op=flow.types[copy],
        evidence="requested",
        expected="one input pipeline for all towers",
        found=f"one only for the tower on {other}",
        ops=() if shard is None else (flow.names[shard],),
        path=path_lines(placement, [holder, copy]),
        message=f"{both} take the same shard of the data: {like}"
        if shard is not None
        else f"{both} each read all of the data: {like}",
        consequence="the other shards are never read, and the towers compute the same gradients"
        if shard is not None
        else "an epoch reads each example once per tower, and rows may be the same in all of them",
        fix="give each tower the loop's index: dataset.shard(num_gpus, i)"
        if shard is not None
        else "build it once, before the loop, and call get_next() once per tower, or give each "
        "tower its part: dataset.shard(num_gpus, i)",
        alike=("built again", shard is not None),
        at=None if shard is not None else placement.cached(LoopLines).line(name),
    )


def _shard(analysis: TowerAnalysis, holder: int) -> int | None:
    """The op that takes a shard of the data for an iterator, if there is one."""
    flow = analysis.flow
    datasets = [value for _, values in flow.writers.get(holder, ()) for value in values]
    if flow.types[holder] == ONE_SHOT_ITERATOR:  # it has a copy of the one built before it
        datasets = [op for op in flow.having(is_dataset) if op < holder][-1:]
    behind = flow.reachable(datasets, until=lambda op: not is_dataset(flow.types[op]))
    return max((op for op in behind if flow.types[op] == SHARD_DATASET), default=None)


_OWN_ROWS = "take rows i in tower i: x[i * rows : (i + 1) * rows] or tf.split(x, num_gpus)[i]"
_OWN_PART = "take part i in tower i: tf.split(x, num_gpus)[i]"
_OWN_BATCH = "one get_next() per tower, in the loop, or tf.split(batch, num_gpus)[i] in tower i"
_DISTRIBUTED = (
    "give strategy.run what strategy.experimental_distribute_dataset(dataset) yields, of which "
    "each replica gets its part"
)
