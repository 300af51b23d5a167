from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement_checks.analysis.graph.value_numbering import EqualTensors
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.inputs import (
    Part,
    Use,
    input_uses,
    part_of,
    single_tower_pipelines,
)
from placement_checks.core.evidence import Evidence
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.impact import Impact
from placement_checks.core.keras_parts import TRAIN_ON_BATCH
from placement_checks.core.mistakes import WORDS, TowerKind
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
from placement_checks.rules.base import (
    KERAS,
    Rule,
    about,
    first_of_each,
    library_limit,
    matches_any,
    path_lines,
    repetitions,
    requested_device,
    shorten,
    unless_allowed,
)
from placement_checks.rules.ranks import ranks_of, tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_selection, built_once
from placement_checks.util.text import plural


@dataclass(frozen=True)
class InputsDistinct(Rule):
    """No two towers read the same slice of the batch; input ops are on the CPU and built once.

    Towers that read the same examples compute the same gradients: N GPUs do the work of one, and
    the effective batch is smaller than intended.

    The rule follows slices from placeholders, iterators and queues into the towers. Two slices are
    the same if they are cut from one tensor in the same way. Slices with constant indices may not
    have half of their rows in common. Scalars are not examples, not even if they are computed from
    the whole batch, such as the number of labeled rows. Vectors of a fixed length are examples
    only if they have an entry for each row. Workers in several processes each have their own
    pipeline: two pipelines are the same if their first batches are equal.

    Iterators, queues, readers and decoders belong on the CPU. Most of them have no kernel for a
    GPU, and batches of the others are copied twice. If they are built again for each tower, the
    same files are read N times. Ops that prefetch batches for a GPU from a pipeline on the CPU
    belong on that GPU.

    `allow` lists inputs, or patterns, that several towers read as a whole on purpose.
    """

    name = "inputs-distinct"
    kind = "requested"
    impact = Impact.TRAINING
    requires = frozenset({Need.TWO_TOWERS})
    uses = frozenset({Need.ROWS})
    intended = "all towers read these inputs, or each tower generates its own"
    threads = (
        "edvardHua/PoseEstimationForMobile#55: do all towers see the same examples?",
        "tensorflow/models#1538: a queue on each GPU: 1,700 images/s instead of 8,000",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyze(placement)
        uses = list(input_uses(analysis))
        findings = (
            *self._shared_slices(analysis, uses),
            *_overlapping_slices(analysis, uses),
            *_input_ops_on_gpus(placement),
            *(pipelines := list(_repeated_pipelines(analysis, uses))),
            *(_equal_rows(evidence, uses) if not (pipelines and ranks_of(placement)) else ()),
        )
        found = first_of_each(unless_allowed(findings, self.allow))
        if not uses and not found:
            return self.not_checked("no tower reads an example from a placeholder or pipeline")
        slices = len({(use.tower, use.tensor) for use in uses})
        return self.verdict(found, f"{plural(slices, 'input')} of {len(analysis.towers)} towers")

    def _shared_slices(self, analysis: TowerAnalysis, uses: list[Use]) -> Iterator[Finding]:
        """Yield a finding for each slice that several towers read.

        For ``train_on_batch`` of Keras, one finding has all slices.
        """
        placement = analysis.placement
        equal = EqualTensors(analysis)
        slices = [
            (equal.key(use.tensor), use.tower, use.tensor)
            for use in uses
            if not _is_statistic(analysis, use)
        ]
        keys: dict[int, set[object]] = defaultdict(set)
        for key, tower, _ in slices:
            keys[tower].add(key)
        of_keras = []
        for tower, tensor, later, copy in repetitions(slices):
            name = producer_of(copy)
            if TRAIN_ON_BATCH not in placement.details.parts_of_keras(name):
                own = keys[later] - keys[tower]
                others = [each for key, of, each in slices if of == later and key in own]
                yield _shared_slice(analysis, tower, tensor, later, copy, others)
            elif not matches_any(name, self.allow):
                of_keras.append(name)
        if of_keras:
            yield _train_on_batch(analysis, of_keras)


def _overlapping_slices(analysis: TowerAnalysis, uses: Sequence[Use]) -> Iterator[Finding]:
    """Yield a finding for each slice with rows of the corresponding slice of another tower.

    The slices of a tower are in the order of their rows: a model of sequences may take rows 0 to 7
    as its inputs and rows 1 to 8 as its labels.
    """
    equal = EqualTensors(analysis)
    slices: dict[object, dict[TowerIndex, dict[object, Part]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for use in uses:
        part = part_of(analysis, use.tensor)
        if part is not None and analysis.reads_by_site.in_loss(use.op):  # not in a summary
            slices[equal.key(part.tensor)][use.tower].setdefault(part.bounds, part)
    for of_tensor in slices.values():
        in_order = {
            tower: sorted(parts.values(), key=lambda part: part.bounds)
            for tower, parts in sorted(of_tensor.items())
        }
        for position in range(max(map(len, in_order.values()))):
            towers = [tower for tower, parts in in_order.items() if position < len(parts)]
            for later in towers:
                part = in_order[later][position]
                for tower in towers[: towers.index(later)]:
                    other = in_order[tower][position]
                    if part.overlaps(other):
                        yield _overlapping_slice(analysis, tower, other, later, part)
                        break


def _overlapping_slice(
    analysis: TowerAnalysis, tower: TowerIndex, part: Part, later: TowerIndex, other: Part
) -> Finding:
    placement, number = analysis.placement, analysis.flow.number
    mask = 1 << tower | 1 << later
    return Finding(
        **about(placement.ops[other.op]),
        path=path_lines(placement, [number[part.op], number[other.op]]),
        message=f"{analysis.names_of(mask)} compute with some of the same examples: {part.op} has "
        f"the {_rows(part)} of {part.tensor.removesuffix(':0')}, and {other.op} has the "
        f"{_rows(other)}",
        group_key="overlapping",
        consequence="common rows count in both towers, and other rows may be in no tower",
        fix=_OWN_ROWS,
        devices=analysis.devices_of(mask),
    )


def _rows(part: Part) -> str:
    first, end = part.bounds[0]
    return f"rows from {first}" if math.isinf(end) else f"rows {first} to {int(end) - 1}"


def _train_on_batch(analysis: TowerAnalysis, inputs: Sequence[str]) -> Finding:
    replicas = len(analysis.towers)
    first = inputs[0]
    pattern = f"{first}*" if all(name.startswith(first) for name in inputs) else "*"
    return library_limit(
        analysis.placement,
        list(dict.fromkeys(inputs)),
        f"model.train_on_batch of {KERAS} gives each of {replicas} replicas the whole batch: "
        f"{shorten(inputs)}",
        f"all compute the same gradients: {replicas} GPUs do the work of one",
        "model.fit, which gives each replica its part. If it is intended: "
        f"--set inputs-distinct.allow={pattern}",
    )


def _is_statistic(analysis: TowerAnalysis, use: Use) -> bool:
    """Whether a tower only computes scalars from a tensor, before variables are involved.

    An example is the number of labeled rows in the whole batch, by which all towers divide.
    """

    def is_scalar(op: OpId) -> bool:
        outputs = analysis.placement.details.outputs(analysis.flow.names[op])
        return bool(outputs) and all(output.shape == () for output in outputs)

    reached = analysis.flow.reachable(
        [use.op],
        analysis.flow.consumers,
        until=lambda op: is_scalar(op) or analysis.in_model[op] or analysis.backward.ops[op],
    )
    return any(map(is_scalar, reached)) and not any(
        analysis.in_model[op] or analysis.backward.ops[op] for op in reached if not is_scalar(op)
    )


def _shared_slice(
    analysis: TowerAnalysis,
    tower: int,
    tensor: str,
    later: int,
    copy: str,
    others: Sequence[str],
) -> Finding:
    """Return the finding on a slice that two towers read.

    ``others`` are the slices that the later tower reads and the first one does not.
    """
    flow, placement = analysis.flow, analysis.placement
    original, name = producer_of(tensor), producer_of(copy)
    kind = flow.types[flow.number[name]]
    mask = 1 << tower | 1 << later
    towers = analysis.names_of(mask)
    consumer = None
    if tensor == copy:
        reason = f"both read {copy.removesuffix(':0')}"
        if kind in CUTS or kind in PLACEHOLDERS:
            consumer = _first_consumer(analysis, later, copy)
        fix = _OWN_PART if consumer else _OWN_BATCH
    else:
        reason = f"{original} and {name} are the same slice of one tensor"
        fix = _OWN_ROWS
    own = ""
    if others:
        of_later = analysis.names_of(1 << later)
        own = f", although only {of_later} reads {others[0].removesuffix(':0')}"
    return Finding(
        **about(placement.ops[name]),
        path=path_lines(placement, [flow.number[original], flow.number[name]]),
        message=f"{towers} compute with the same examples: {reason}{own}",
        consequence=_OTHER_ROWS if others else _SAME_GRADIENTS,
        fix=fix if placement.strategy is None else _DISTRIBUTE,
        devices=analysis.devices_of(mask),
        ops=(consumer,) if consumer else (),
        frames=blame_selection(placement, (consumer,), built_once(placement)) if consumer else (),
    )


def _first_consumer(analysis: TowerAnalysis, tower: int, tensor: str) -> str | None:
    for op in analysis.flow.consumers[analysis.flow.op_of(tensor)]:
        inputs = analysis.placement.by_number[op].inputs
        takes = tensor in inputs or tensor.removesuffix(":0") in inputs
        if takes and analysis.tower_of[op] == tower and not analysis.backward.ops[op]:
            return analysis.flow.names[op]
    return None


def _input_ops_on_gpus(placement: Placement) -> Iterator[Finding]:
    kinds = placement.kinds
    if not any(kind.requested.is_gpu and _is_input_op(kind.type) for kind in kinds):
        return
    prefetched = {kind.requested for kind in kinds if kind.type == GENERATOR_DATASET}
    for op in placement.ops.values():
        is_prefetcher = op.requested in prefetched and op.type in PREFETCHERS
        if op.requested.is_gpu and _is_input_op(op.type) and not op.caller and not is_prefetcher:
            yield Finding(
                **about(op),
                message=f"{op.name} ({op.type}) is an input op and requests "
                f"{requested_device(op)}: input ops belong on the CPU",
                consequence="without a GPU kernel it fails or runs on the CPU; with a GPU "
                "kernel, each batch is copied to the GPU and back",
                fix="build the pipeline before the loop over towers, under "
                "`with tf.device('/cpu:0'):`",
                devices=(op.requested,),
                placed=op.name,
            )


def _is_input_op(kind: str) -> bool:
    return kind in PIPELINE_OPS or is_dataset(kind)


def _repeated_pipelines(analysis: TowerAnalysis, uses: list[Use]) -> Iterator[Finding]:
    equal = EqualTensors(analysis, by_kind=True)
    pipelines = (
        (equal.key(analysis.flow.names[holder]), tower, holder)
        for holder, tower in single_tower_pipelines(analysis, uses)
    )
    for each in repetitions(pipelines):
        # Each rank has a separate pipeline, which may read all rows in a different order.
        if not ranks_of(analysis.placement) or _shard_op(analysis, each[3]) is not None:
            yield _repeated_pipeline(analysis, *each)


def _repeated_pipeline(
    analysis: TowerAnalysis, tower: TowerIndex, holder: OpId, later: TowerIndex, copy: OpId
) -> Finding:
    flow, placement = analysis.flow, analysis.placement
    name, original = flow.names[copy], flow.names[holder]
    one, other = analysis.towers[tower], analysis.towers[later]
    shard = _shard_op(analysis, copy)
    if shard is not None:
        fault = "take the same shard of the data"
        consequence = "the other shards are never read, and the towers compute the same gradients"
        fix = "give each tower the loop's index: dataset.shard(num_gpus, i)"
        if ranks_of(placement):
            fix = "give each rank its own shard: dataset.shard(hvd.size(), hvd.rank())"
    else:
        fault = "each read all of the data"
        consequence = (
            "an epoch reads each example once per tower, and all towers may get the same rows"
        )
        fix = (
            "build the pipeline once, before the loop, and call get_next() once per tower, or "
            "give each tower its part: dataset.shard(num_gpus, i)"
        )
    return Finding(
        **about(placement.ops[name]),
        ops=() if shard is None else (flow.names[shard],),
        path=path_lines(placement, [holder, copy]),
        message=f"the towers on {one} and {other} {fault}: the first reads {original}, and the "
        f"second reads {name}, which is built in the same way",
        consequence=consequence,
        fix=fix,
        devices=(*one.devices, *other.devices),
        against=() if shard is not None else tuple(built_once(placement)),
    )


def _shard_op(analysis: TowerAnalysis, holder: OpId) -> OpId | None:
    """Return the op that takes a shard of the data for an iterator, if there is one."""
    flow = analysis.flow
    datasets = [value for _, values in flow.writers.get(holder, ()) for value in values]
    if flow.types[holder] == ONE_SHOT_ITERATOR:  # the iterator uses the last dataset before it
        datasets = [op for op in flow.having(is_dataset) if op < holder][-1:]
    behind = flow.reachable(datasets, until=lambda op: not is_dataset(flow.types[op]))
    return max((op for op in behind if flow.types[op] == SHARD_DATASET), default=None)


def _equal_rows(evidence: Evidence, uses: Sequence[Use]) -> Iterator[Finding]:
    placement = evidence.placement
    strategy = placement.strategy
    of_workers = strategy is not None and strategy.is_of_workers
    # A single pipeline may repeat rows, as in a test with few rows. Workers have separate
    # pipelines.
    if not evidence.program or (placement.step.traced and not of_workers):
        return
    rows, incomplete = _fed_rows(placement, evidence.program.fed, uses)
    towers = sorted(rows if of_workers else rows.keys() - incomplete)
    for position, later in enumerate(towers):
        equal = (each for each in towers[:position] if _are_equal(rows[each], rows[later]))
        if (first := next(equal, None)) is None:
            continue
        mask = 1 << first | 1 << later
        both = analyze(placement).names_of(mask)
        original, name = producer_of(next(iter(rows[first]))), producer_of(next(iter(rows[later])))
        yield Finding(
            **about(placement.ops[name]),
            message=f"{both} received the same rows, from {original} and {name}",
            consequence=_SAME_GRADIENTS,
            fix=_FED_ROWS[tower_kind(placement)],
            group_key="rows",
            devices=analyze(placement).devices_of(mask),
        )


_KEEPS_ROWS = PASSES_VALUE | RESHAPES | {CAST}  # ops that keep all rows in their order


def _fed_rows(
    placement: Placement, fed: Mapping[str, Any], uses: Sequence[Use]
) -> tuple[Mapping[int, Mapping[str, Any]], Collection[int]]:
    """Return the rows that each tower was fed, by the names of tensors.

    Returns:
        The rows by tower, and the towers that also read rows with unknown values.
    """
    import numpy as np

    rows: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    incomplete: set[int] = set()
    for use in uses:
        tensor = use.tensor
        while tensor not in fed and (op := placement.ops[producer_of(tensor)]).type in _KEEPS_ROWS:
            tensor = op.inputs[0] if ":" in op.inputs[0] else f"{op.inputs[0]}:0"
        array = fed.get(tensor)
        if array is None:
            incomplete.add(use.tower)
        elif np.ndim(array):
            rows[use.tower][tensor] = np.asarray(array)
    return rows, incomplete


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two towers were fed the same rows; false if all rows are equal, as in zeros."""
    import numpy as np

    return (
        len(one) == len(other)
        and all(map(np.array_equal, one.values(), other.values()))
        and any((array != array[:1]).any() for array in one.values())
    )


_SAME_GRADIENTS = "they compute the same gradients: the work of one of them is wasted"
_OTHER_ROWS = (
    "these rows count in both towers, and one of them may combine them with rows of other "
    "examples, such as labels with other images"
)
_OWN_ROWS = "give tower i its own rows: x[i * rows : (i + 1) * rows] or tf.split(x, num_gpus)[i]"
_OWN_PART = "give tower i its own part: tf.split(x, num_gpus)[i]"
_OWN_BATCH = (
    "call get_next() once per tower, in the loop, or take tf.split(batch, num_gpus)[i] in tower i"
)
_DISTRIBUTE = (
    "pass strategy.run the values that strategy.experimental_distribute_dataset(dataset) yields, "
    "so that each replica gets its part"
)
_FED_ROWS: Mapping[TowerKind, str] = {
    "tower": "feed tower i its part of the batch: "
    "dict(zip(inputs, numpy.array_split(rows, num_gpus)))",
    "replica": "call dataset.shard(context.num_input_pipelines, context.input_pipeline_id) in the "
    "function that makes the dataset, or use experimental_distribute_dataset(dataset) without "
    "AutoShardPolicy.OFF",
    "rank": WORDS["rank"].shard,
}
