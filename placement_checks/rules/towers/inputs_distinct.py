from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any, NamedTuple

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.towers.inputs import Use, input_uses, single_tower_pipelines
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.impact import Impact
from placement_checks.core.keras_parts import TRAIN_ON_BATCH
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import (
    CUTS,
    GENERATOR_DATASET,
    ONE_SHOT_ITERATOR,
    PIPELINE_OPS,
    PLACEHOLDERS,
    PREFETCHERS,
    SHARD_DATASET,
    is_dataset,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    KERAS,
    Rule,
    first_of_each,
    library_limit,
    matches_any,
    repetitions,
    requested_device,
    shorten,
    unless_allowed,
)
from placement_checks.rules.catalog import state_mistake
from placement_checks.rules.ranks import ranks_of, tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_rows, blame_selection, built_once
from placement_checks.rules.step_equality import compare_with_one_gpu
from placement_checks.step.comparison import State
from placement_checks.step.parts import describe
from placement_checks.step.row_sets import RowSet, RowSets, are_exchanged, overlapping
from placement_checks.util.text import plural


@dataclass(frozen=True)
class InputsDistinct(Rule):
    """No two towers read the same slice of the batch; input ops are on the CPU and built once.

    Towers that read the same examples compute the same gradients: N GPUs do the work of one, and
    the effective batch is smaller than intended.

    The rule reads the inputs of the towers as terms, like equal-to-one-gpu. Each tower has sets of
    rows: the placeholder, the batch of a pipeline or the element of a queue, and the part of it.
    No two towers may have equal sets, or parts with half of their rows in common, however the
    parts are cut. Parts between constant indices are compared, too, and lookups by constant
    indices. If towers choose from the same rows in another way, such as by computed indices, the
    rule is not checked. Tensors without rows are not examples, not even if they are computed from
    the whole batch, such as the number of labeled rows. Vectors of a fixed length are examples
    only if they have an entry for each row.

    A tower must not pair rows of two inputs that belong to different examples, such as features
    that are cut into blocks with labels that are cut by x[i::num_gpus]. This is the case if all
    towers together have the same rows of both inputs, and this tower has other rows of each. Nor
    may a tower take features and labels from two elements of one pipeline. If several towers draw
    features and labels from two pipelines in any order, this is a doubt, because the examples may
    be independent.

    Rows that a tower gets from all towers, such as labels that a collective gathers, may be shared
    by towers with rows of their own. Other rows, such as a support set, may be shared if the step
    is proved to be equal to the step of one GPU, and each tower has rows of its own.

    Two pipelines are the same if they read the same data. Workers in several processes each have
    their own pipeline: these are the same if their first batches are equal.

    Iterators, queues, readers and decoders belong on the CPU. Most of them have no kernel for a
    GPU, and batches of the others are copied twice. If they are built again for each tower, the
    same files are read N times. Ops that prefetch batches for a GPU from a pipeline on the CPU
    belong on that GPU.

    `allow` lists inputs, or patterns, that several towers read as a whole on purpose.
    """

    name = "inputs-distinct"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.ROWS
    requires = frozenset({Need.TWO_TOWERS})
    uses = frozenset({Need.ROWS, Need.SINGLE_GPU, Need.REFERENCE})
    intended = "all towers read these inputs, or each tower generates its own"
    threads = (
        "edvardHua/PoseEstimationForMobile#55: do all towers see the same examples?",
        "tensorflow/models#1538: a queue on each GPU: 1,700 images/s instead of 8,000",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyze(placement)
        rows = placement.cached(RowSets)
        uses = list(input_uses(analysis, rows))
        findings = (
            *self._shared_rows(evidence, rows, uses),
            *_exchanged_rows(evidence, rows, uses),
            *_draws_apart(placement, rows),
            *_input_ops_on_gpus(placement),
            *(pipelines := list(_repeated_pipelines(analysis, rows, uses))),
            *(
                _equal_rows(evidence, rows, uses)
                if not (pipelines and ranks_of(placement))
                else ()
            ),
        )
        found = first_of_each(unless_allowed(findings, self.allow))
        if not uses and not found:
            return self.not_checked("no tower reads an example from a placeholder or pipeline")
        inputs = len({(use.tower, use.tensor) for use in uses})
        unknown = "" if found else _unknown_choice(analysis, rows, uses)
        if unknown:
            line = placement.where(unknown)
            return self.not_checked(
                f"{unknown}{f' ({line})' if line else ''} may choose rows that another tower has"
            )
        return self.verdict(found, f"{plural(inputs, 'input')} of {len(analysis.towers)} towers")

    def _shared_rows(
        self, evidence: Evidence, rows: RowSets, uses: Sequence[Use]
    ) -> Iterator[Finding]:
        """Yield findings for rows that several towers read.

        For ``train_on_batch`` of Keras, one finding has all inputs.
        """
        placement = evidence.placement
        analysis = analyze(placement)
        by_tower = _rows_by_tower(analysis, rows, uses)
        items = [(each, tower, use) for tower, of in by_tower.items() for each, use in of.items()]
        of_keras = []
        sharing = set()
        for tower, use, later, copy in repetitions(items):
            sharing.add((tower, later))
            name = producer_of(copy.tensor)
            if TRAIN_ON_BATCH not in placement.details.parts_of_keras(name):
                others = [
                    other.tensor
                    for row_set, other in by_tower[later].items()
                    if row_set not in by_tower[tower]
                ]
                if not others or not _is_proved(evidence):
                    yield _shared_slice(analysis, tower, use.tensor, later, copy.tensor, others)
            elif not matches_any(name, self.allow):
                of_keras.append(name)
        if of_keras:
            yield _train_on_batch(analysis, of_keras)
        for later in sorted(by_tower):
            for tower in sorted(by_tower)[: sorted(by_tower).index(later)]:
                pair = overlapping(by_tower[tower], by_tower[later])
                if pair and (tower, later) not in sharing:
                    one, other = (
                        _Slice(_maker(placement, rows, by_tower[each][row_set]), row_set)
                        for each, row_set in zip((tower, later), pair, strict=True)
                    )
                    yield _overlapping_slice(analysis, rows, tower, one, later, other)
                    break


def _rows_by_tower(
    analysis: TowerAnalysis, rows: RowSets, uses: Sequence[Use]
) -> Mapping[TowerIndex, Mapping[RowSet, Use]]:
    """Return the rows that each tower computes its losses from, with their first use.

    A tower with rows of its own may compare them with the rows of all towers, such as labels that
    were gathered for a contrastive loss. These are left out.
    """
    by_tower: dict[TowerIndex, dict[RowSet, Use]] = defaultdict(dict)
    for use in uses:
        is_shown = not analysis.reads_by_site.in_loss(use.op)  # such as by a summary
        if not is_shown and not _is_statistic(analysis, rows, use):
            for row_set in rows.of(use.tensor):
                by_tower[use.tower].setdefault(row_set, use)
    return {
        tower: {row_set: use for row_set, use in of.items() if not row_set.is_joined} or of
        for tower, of in by_tower.items()
    }


def _is_proved(evidence: Evidence) -> bool:
    """Whether the step is proved equal to the step of one GPU.

    If towers read some rows of their own, all towers read the other rows on purpose. If towers
    only read the same rows, the mean of their gradients is the gradient of one GPU, too.
    """
    found = compare_with_one_gpu(evidence)
    if isinstance(found, Missing):
        return False
    answers = found[1].variables
    return bool(answers) and all(each.state is State.PROVED for each in answers.values())


class _Slice(NamedTuple):
    """The op that makes rows of a tower, and the rows."""

    op: str
    rows: RowSet


def _maker(placement: Placement, rows: RowSets, use: Use) -> str:
    """The first op with the rows of a tensor, such as a slice, but not the input."""
    name, own = producer_of(use.tensor), rows.of(use.tensor)
    while (source := _source(placement, rows, name)) and rows.of(source) == own:
        if not _source(placement, rows, producer_of(source)):
            break
        name = producer_of(source)
    return name


def _source(placement: Placement, rows: RowSets, name: str) -> str:
    """The first tensor with rows that an op reads; empty if there is none."""
    inputs = (each for each in placement.ops[name].inputs if not each.startswith("^"))
    return next((each for each in inputs if rows.of(each)), "")


def _overlapping_slice(
    analysis: TowerAnalysis,
    rows: RowSets,
    tower: TowerIndex,
    one: _Slice,
    later: TowerIndex,
    other: _Slice,
) -> Finding:
    placement, number = analysis.placement, analysis.flow.number
    mask = 1 << tower | 1 << later
    source = _source(placement, rows, one.op).removesuffix(":0")
    of_source = f" of {source}" if source else ""
    return state_mistake(
        placement,
        other.op,
        mistakes.OVERLAPPING_ROWS,
        {
            "towers": analysis.names_of(mask, tower_kind(placement)),
            "one": f"{one.op} has {_described(one.rows)}{of_source}",
            "other": f"{other.op} has {_described(other.rows)}",
        },
        [number[one.op], number[other.op]],
        group_key="overlapping",
        devices=analysis.devices_of(mask),
    )


def _unknown_choice(analysis: TowerAnalysis, rows: RowSets, uses: Sequence[Use]) -> str:
    """The op whose choice of rows for a tower is unknown; empty if there is none."""
    by_tower = _rows_by_tower(analysis, rows, uses)
    pairs = (product(by_tower[one], by_tower[other]) for one, other in combinations(by_tower, 2))
    return next((op for pair in chain(*pairs) if (op := rows.choice(*pair))), "")


def _exchanged_rows(evidence: Evidence, rows: RowSets, uses: Sequence[Use]) -> Iterator[Finding]:
    """Yield findings for towers that pair rows of two inputs, such as labels of another tower."""
    placement = evidence.placement
    analysis = analyze(placement)
    names, number = analysis.flow.names, analysis.flow.number
    by_tower = {
        tower: {row_set._replace(columns=()): use for row_set, use in [*of.items()][::-1]}
        for tower, of in _rows_by_tower(analysis, rows, uses).items()
    }
    makers = {
        (tower, row_set): _maker(placement, rows, use)
        for tower, of in by_tower.items()
        for row_set, use in of.items()
    }
    for tower, losses in analysis.losses.items():
        own = by_tower.get(tower, {})
        pairs = [
            sorted(pair, key=lambda each: number[makers[tower, each]])
            for pair in frozenset().union(*[rows.mismatched(names[loss]) for loss in losses])
            if own.keys() >= {*pair} and are_exchanged(pair, own, by_tower.values())
        ]
        if not pairs or _is_proved(evidence):
            continue
        one, other = min(pairs, key=lambda pair: [number[makers[tower, each]] for each in pair])
        inputs = [
            f"{_described(each)} of {each.tensor.removesuffix(':0')}" for each in (one, other)
        ]
        cut, consumer = makers[tower, other], names[own[other].op]
        reader = analysis.names_of(1 << tower, tower_kind(placement))
        # The cut is right if one of its outputs has the rows of the other input.
        is_chosen = other._replace(part=one.part) in {
            row_set for (_, row_set), maker in makers.items() if maker == cut
        }
        yield state_mistake(
            placement,
            cut,
            mistakes.PARTS_PAIRED,
            {"text": f"{reader} combines {' with '.join(inputs)}"},
            [number[makers[tower, each]] for each in (one, other)],
            group_key="exchanged",
            devices=analysis.devices_of(1 << tower),
            ops=(consumer,) if is_chosen else (),
            frames=blame_selection(placement, (consumer,), built_once(placement))
            if is_chosen
            else (),
        )


def _draws_apart(placement: Placement, rows: RowSets) -> Iterator[Finding]:
    """Yield findings for draws whose rows are paired, but may be of different examples."""
    number = analyze(placement).flow.number
    for one, other, is_certain in rows.draws_apart():
        why = (
            "they are two elements of one pipeline"
            if is_certain
            else "all towers draw from both pipelines, in any order"
        )
        yield state_mistake(
            placement,
            other,
            mistakes.DRAWN_APART,
            {"one": one, "other": other, "why": why},
            [number[one], number[other]],
            group_key="drawn apart",
            is_doubt=not is_certain,
        )


def _described(rows: RowSet) -> str:
    text = describe(rows.part) if rows.part else "all rows"
    return f"the {text}" if text.startswith("rows") else text


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


def _is_statistic(analysis: TowerAnalysis, rows: RowSets, use: Use) -> bool:
    """Whether a tower only computes tensors without rows, before variables are involved.

    An example is the number of labeled rows in the whole batch, by which all towers divide.
    """

    def is_without_rows(op: OpId) -> bool:
        outputs = analysis.placement.details.outputs(name := analysis.flow.names[op])
        return bool(outputs) and not any(rows.of(f"{name}:{i}") for i in range(len(outputs)))

    reached = analysis.flow.reachable(
        [use.op],
        analysis.flow.consumers,
        until=lambda op: analysis.in_model[op] or analysis.backward.ops[op] or is_without_rows(op),
    )
    last = [op for op in reached if analysis.in_model[op] or analysis.backward.ops[op]]
    return any(map(is_without_rows, reached)) and all(map(is_without_rows, last))


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
    consumer = None
    mistake, how = mistakes.EQUAL_ROWS, f"{original} and {name} are the same slice of one tensor"
    if tensor == copy:
        how = f"both read {copy.removesuffix(':0')}"
        # The arguments of strategy.run are wrong at its call, and not where a replica uses them.
        if placement.strategy is None and (kind in CUTS or kind in PLACEHOLDERS):
            consumer = _first_consumer(analysis, later, copy)
        if consumer is None:
            mistake = mistakes.EQUAL_BATCH
    if others:
        mistake = mistakes.SHARED_ROWS
    noun = tower_kind(placement)
    facts = {"towers": analysis.names_of(mask, noun), "how": how}
    if others:
        facts |= {
            "later": analysis.names_of(1 << later, noun),
            "own": others[0].removesuffix(":0"),
            "declared": f"if all {noun}s compare their rows with these: "
            f"--set inputs-distinct.allow={name}",
        }
    return state_mistake(
        placement,
        name,
        mistake,
        facts,
        [flow.number[original], flow.number[name]],
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
            yield state_mistake(
                placement,
                op.name,
                mistakes.INPUT_ON_GPU,
                {"op": op.name, "type": op.type, "device": requested_device(op)},
                devices=(op.requested,),
                placed=op.name,
                facts=(Fact(FactKind.INPUT_DEVICE, op.name),),
            )


def _is_input_op(kind: str) -> bool:
    return kind in PIPELINE_OPS or is_dataset(kind)


def _repeated_pipelines(
    analysis: TowerAnalysis, rows: RowSets, uses: list[Use]
) -> Iterator[Finding]:
    pipelines = (
        (rows.data_of_pipeline(analysis.flow.names[holder]), tower, holder)
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
    mistake = mistakes.SAME_DATA if shard is None else mistakes.SAME_SHARD
    return state_mistake(
        placement,
        name,
        mistake,
        {"tower": one, "later": other, "one": original, "other": name},
        [holder, copy],
        ops=() if shard is None else (flow.names[shard],),
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


def _equal_rows(evidence: Evidence, rows: RowSets, uses: Sequence[Use]) -> Iterator[Finding]:
    placement = evidence.placement
    strategy = placement.strategy
    of_workers = strategy is not None and strategy.is_of_workers
    # A single pipeline may repeat rows, as in a test with few rows. Workers have separate
    # pipelines.
    if not evidence.program or (placement.step.traced and not of_workers):
        return
    fed, incomplete = _fed_rows(rows, evidence.program.fed, uses)
    towers = sorted(fed if of_workers else fed.keys() - incomplete)
    for position, later in enumerate(towers):
        equal = (each for each in towers[:position] if _are_equal(fed[each], fed[later]))
        if (first := next(equal, None)) is None:
            continue
        mask = 1 << first | 1 << later
        original, name = producer_of(next(iter(fed[first]))), producer_of(next(iter(fed[later])))
        towers_text = analyze(placement).names_of(mask, tower_kind(placement))
        yield state_mistake(
            placement,
            name,
            mistakes.FED_ALIKE,
            {"towers": towers_text, "one": original, "other": name},
            group_key="rows",
            frames=blame_rows(placement, name),
            devices=analyze(placement).devices_of(mask),
        )


def _fed_rows(
    rows: RowSets, fed: Mapping[str, Any], uses: Sequence[Use]
) -> tuple[Mapping[int, Mapping[str, Any]], Collection[int]]:
    """Return the rows that each tower was fed, by the names of tensors.

    Returns:
        The rows by tower, and the towers that also read rows with unknown values.
    """
    import numpy as np

    found: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    incomplete: set[int] = set()
    for use in uses:
        for row_set in rows.of(use.tensor):
            is_whole = not row_set.part and not row_set.columns
            array = fed.get(row_set.tensor) if is_whole else None
            if array is None:
                incomplete.add(use.tower)
            elif np.ndim(array):
                found[use.tower][row_set.tensor] = np.asarray(array)
    return found, incomplete


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two towers were fed the same rows; false if all rows are equal, as in zeros."""
    import numpy as np

    return (
        len(one) == len(other)
        and all(map(np.array_equal, one.values(), other.values()))
        and any((array != array[:1]).any() for array in one.values())
    )
