"""Find the ops of a reference that combine the rows of a batch otherwise than by a sum.

If the loss is a mean or sum over rows, the gradient of a batch is the mean or sum of the gradients
of its parts. Batch statistics are an exception that programs accept on purpose: batch
normalization combines rows within the model. Any other op that combines rows, such as the division
by a number of tokens, makes the loss of a batch differ from the losses of its parts.

Ops are not read but observed: the reference runs on two batches, and on the same rows in other
batches (see `numerics.row_exchange`). So ops of any type are classified.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from placement_checks.analysis.graph.data_flow import connected_groups
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.errors import InputError
from placement_checks.core.ids import OpId
from placement_checks.core.measurement import Arrays, RowMixing
from placement_checks.core.op_types import BATCH_NORMS, MEAN, ROOTS, STOPS_GRADIENT, SUM
from placement_checks.core.placement import producer_of
from placement_checks.numerics.row_exchange import (
    Exchange,
    Kind,
    Layout,
    classify,
    exchange_rows,
)
from placement_checks.run.compare.sessions import PairedSessions
from placement_checks.run.session import ProgramSession
from placement_checks.util.walks import walk

# Errors above which a value combines rows, tried in this order: a small error may be rounding.
_ERRORS = (1e-3, 1e-4, 1e-5)
_MAX_BYTES = 1 << 28  # of the tensors that are fetched at once, with known shapes
_MAX_SORTED = 4  # inputs that rows are sorted by: each takes two runs
_FEW_ROWS = 5  # if the reference takes any number: enough to exchange, and no power of two


class _Tensor(NamedTuple):
    """How a tensor combines rows.

    Attributes:
        kind, error: the result of `classify`.
        is_long: whether the first axis is long enough for all rows.
    """

    kind: Kind
    error: float
    is_long: bool

    @property
    def has_rows(self) -> bool:
        """Whether the tensor has a part for each row; the shape decides if no kind fits."""
        return self.is_long and (self.kind == "rows" or self.error > _ERRORS[0])


def find_row_mixing(sessions: PairedSessions, batch: Arrays) -> RowMixing | None:
    """Find the ops of the reference that combine rows; None if it does not accept such runs.

    Args:
        sessions: the sessions of a program and its reference.
        batch: a batch of as many rows as the program was fed.
    """
    found = None
    fed: Sequence[str] = ()
    for rows, size, is_fallback in _windows(sessions):
        if found and (found.op or is_fallback):
            break
        runs = _exchanged_runs(sessions, batch, rows, size)
        if runs is None or (found and runs.adds_up(fed)):
            continue
        more, fed = runs.mixing()
        if found and not more.op:  # an op that was not found makes the loss no sum
            more = more._replace(op=runs.described(runs.objectives[0]))
        found = more
    return found


def _windows(sessions: PairedSessions) -> Iterator[tuple[Sequence[int], int, bool]]:
    """Yield rows, the size of batches of them, and whether they are only a fallback.

    Few rows come first, because these runs are fast. But few rows may be equal in an important
    property, such as the number of their tokens, so all pairs of neighboring parts follow.
    """
    feeding = sessions.feeding
    everything, parts = range(feeding.rows), sessions.split(feeding.rows)
    yield everything, _FEW_ROWS, False
    for part, following in pairwise(parts):
        sizes = range(len(part), len(part) + 3)  # of these, one does not divide a larger batch
        size = next((each for each in sizes if feeding.repetitions(each) == 1), len(part))
        yield [*part, *following], size, False
    yield everything, feeding.rows, True
    yield everything, feeding.rows * feeding.repetitions(feeding.rows), True


def _exchanged_runs(
    sessions: PairedSessions, batch: Arrays, rows: Sequence[int], size: int
) -> _ExchangedRuns | None:
    """Prepare runs on batches of some rows; None if the reference does not accept them."""
    session, feeding = sessions.reference, sessions.feeding
    objectives = session.program.placement.step.objectives
    if not objectives or size < 2 or feeding.repetitions(size) != 1:
        return None
    exchange = Exchange.of_size(size)
    first, second, *_ = exchange.batches(rows)
    arrays = (values for values in batch.values() if np.shape(values)[:1] == (feeding.rows,))
    numeric = [values[first + second] for values in arrays if values.dtype.kind in "biuf"]
    exchange = exchange.sorted_by(numeric[:_MAX_SORTED])
    with contextlib.suppress(InputError):
        feeds = [feeding.to_reference(batch, order) for order in exchange.batches(rows)]
        session.evaluate(objectives, objectives, feeds[0])
        return _ExchangedRuns(session, feeds, exchange)
    return None


class _ExchangedRuns:
    """Runs of a program on two batches, and on other batches of the same rows.

    Variables keep their values.
    """

    def __init__(
        self, session: ProgramSession, feeds: Sequence[Arrays], exchange: Exchange
    ) -> None:
        self._session = session
        self._feeds = feeds
        self._exchange = exchange
        self.objectives = [producer_of(name) for name in session.program.placement.step.objectives]

    def adds_up(self, statistics: Sequence[str]) -> bool:
        """Whether the losses are sums over rows, if the rows of some tensors are normalized."""
        tensors = [name for op in self.objectives for name in self._tensors.get(op, ())]
        kinds = self._kinds(self._exchanged(statistics), only=tensors)
        return all(tensor.error <= _ERRORS[-1] for tensor in kinds.values())

    def mixing(self) -> tuple[RowMixing, Sequence[str]]:
        """Return the ops that combine rows otherwise than by a sum, and the normalized rows."""
        kinds = self._kinds({})
        if self._first_mixed(kinds, ()) is None:
            return RowMixing(), ()
        statistics = _Statistics(self._session, kinds, self._feeds[0])
        if statistics.first:
            kinds = self._kinds(self._exchanged(statistics.fed))
        other = self._first_mixed(kinds, statistics.inside)
        found = RowMixing(
            statistic=self.described(statistics.first) if statistics.first else "",
            op=self.described(other) if other else "",
            op_type=self._session.program.placement.ops[other].type if other else "",
        )
        return found, statistics.fed

    def described(self, op: str) -> str:
        """Return the type, the name and the source line of an op."""
        placement = self._session.program.placement
        where = placement.where(op)
        return f"{placement.ops[op].type} {op}{f', {where}' if where else ''}"

    def _first_mixed(self, kinds: Mapping[str, _Tensor], accepted: Collection[str]) -> str | None:
        """Return the first op, in building order, that combines rows."""
        errors = {
            op: max((kinds[name].error for name in tensors if name in kinds), default=0.0)
            for op, tensors in self._tensors.items()
            if op not in accepted
        }
        return next(
            (op for largest in _ERRORS for op, error in errors.items() if error > largest), None
        )

    @cached_property
    def _tensors(self) -> Mapping[str, list[str]]:
        """The numeric outputs of the ops that the losses depend on, in building order."""
        program = self._session.program
        ops = program.ancestors(program.placement.step.objectives, self._feeds[0])
        return {
            op: [
                output.name
                for output in program.graph.get_operation_by_name(op).outputs
                if (output.dtype.is_floating or output.dtype.is_integer or output.dtype.is_bool)
                and output.dtype == output.dtype.base_dtype
            ]
            for op in ops
            if not program.placement.ops[op].caller and program.graph.is_fetchable(op)
        }

    def _kinds(
        self, more: Mapping[str, Sequence[Any]], only: Sequence[str] | None = None
    ) -> dict[str, _Tensor]:
        """Classify tensors, with some of them fed; by default all."""
        feeds = [
            {**each, **{name: values[at] for name, values in more.items()}}
            for at, each in enumerate(self._feeds)
        ]
        found = {}
        for names in self._parts() if only is None else [only]:
            names = [name for name in names if name not in more]
            fetched = [self._session.fetch(names, each) for each in feeds] if names else []
            for name, *values in zip(names, *fetched, strict=True):
                if all(value is not None for value in values):
                    kind, error = classify(values, self._exchange)
                    shape = np.shape(values[0])
                    is_long = bool(shape and shape[0] and shape[0] % self._exchange.size == 0)
                    found[name] = _Tensor(kind, error, is_long)
        return found

    def _parts(self) -> Iterator[list[str]]:
        """Yield the tensors in parts that fit into memory."""
        graph, size = self._session.program.graph, 0
        part: list[str] = []
        for name in (name for names in self._tensors.values() for name in names):
            tensor = graph.get_tensor_by_name(name)
            shape = tensor.shape.as_list() if tensor.shape.rank is not None else []
            bytes_of = tensor.dtype.size * math.prod(n or self._exchange.size for n in shape)
            if part and size + bytes_of > _MAX_BYTES:
                yield part
                part, size = [], 0
            part.append(name)
            size += bytes_of
        yield part

    def _exchanged(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Return values of tensors, with exchanged rows on the exchanged batches."""
        both = (self._session.fetch(names, feeds) for feeds in self._feeds[:2])
        found = {}
        for name, first, second in zip(names, *both, strict=True):
            exchanged = exchange_rows(first, second, self._exchange, Layout())
            if exchanged:
                found[name] = [first, second, *exchanged]
        return found


class _Statistics:
    """The batch statistics of a model, found by their form.

    A statistic is computed by an op that normalizes batches, or is a standard deviation over rows:
    the root of means over the first axis. It is used to compute rows again, and these rows are
    then combined with weights, such as the scale of the normalization or the weights of the next
    layer. So errors, rewards and embeddings that a loss standardizes have no batch statistics.

    Attributes:
        fed: the tensors with normalized rows, which are all that the model gets from statistics.
        inside: the ops that compute and use statistics, without the model around them.
        first: the first of these ops; None without any.
    """

    def __init__(
        self, session: ProgramSession, kinds: Mapping[str, _Tensor], feeds: Arrays
    ) -> None:
        self._placement = session.program.placement
        self._graph = session.program.graph
        self._flow = analyze(self._placement).flow
        number = self._flow.number
        forward = {producer_of(name) for name in kinds}
        self._forward = sorted(forward, key=number.__getitem__)
        fed = {producer_of(name) for name, value in feeds.items() if np.ndim(value)}
        self._varying = fed | {
            producer_of(name) for name, tensor in kinds.items() if tensor.kind != "constant"
        }
        fused = [op for op in self._forward if self._is_fused(op)]
        over_rows = self._over_rows()
        with_rows = {producer_of(name) for name, tensor in kinds.items() if tensor.has_rows} | fed
        users = [
            op
            for op in self._forward
            if op not in over_rows
            and not over_rows.isdisjoint(self._inputs(op))
            and not with_rows.isdisjoint(self._inputs(op))
        ]
        used = list(walk(users, lambda op: over_rows.intersection(self._inputs(op))))
        pairs = [(op, mean) for op in used for mean in over_rows.intersection(self._inputs(op))]
        groups = connected_groups(used, pairs)
        weights = self._weights()
        of_model = {
            op
            for group in groups
            if any(not weights.isdisjoint(self._sources(op)) for op in self._computed_from(group))
            for op in group
        }
        self.fed = [f"{op}:0" for op in (*fused, *of_model.intersection(users))]
        self.inside = {*fused, *of_model}
        self.first = min(self.inside, key=number.__getitem__, default=None)

    def _is_fused(self, op: str) -> bool:
        if self._placement.ops[op].type not in BATCH_NORMS:
            return False
        return bool(self._graph.get_operation_by_name(op).get_attr("is_training"))

    def _weights(self) -> set[str]:
        """Return the ops that compute values from variables alone, except for scalars.

        Values without a gradient do not count.
        """
        flow, outputs = self._flow, self._placement.details.outputs

        def ends(op: OpId) -> bool:
            return flow.names[op] in self._varying or flow.types[op] in STOPS_GRADIENT

        computed = flow.reachable(flow.variables, along=flow.consumers, until=ends)
        names = (flow.names[op] for op in computed if not ends(op))
        return {name for name in names if any(each.shape != () for each in outputs(name))}

    def _sources(self, op: str) -> list[str]:
        return [producer_of(name) for name in self._placement.ops[op].inputs]

    def _computed_from(self, ops: Collection[str]) -> set[str]:
        """Return ops, and all ops that depend on no other rows or sums over rows."""
        found = set(ops)
        for op in self._forward:
            inputs = self._inputs(op)
            if inputs and found.issuperset(inputs):
                found.add(op)
        return found

    def _inputs(self, op: str) -> list[str]:
        """The ops whose values an op uses, if they depend on rows."""
        return [name for name in self._sources(op) if name in self._varying]

    def _over_rows(self) -> set[str]:
        """Return the means over rows that lead to a root, and all that is computed from them.

        A mean of the same rows may be computed twice.
        """
        roots = [op for op in self._forward if self._placement.ops[op].type in ROOTS]
        reduced = {op: self._sources(op)[0] for op in self._forward if self._reduces_rows(op)}
        of_roots = {reduced[op] for op in walk(roots, self._behind_root) if op in reduced}
        return self._computed_from({op for op, rows in reduced.items() if rows in of_roots})

    def _behind_root(self, op: str) -> Iterator[str]:
        """Yield the inputs of an op between a root and the rows that a statistic is taken of.

        A mean of squared differences from a mean leads to this other mean.
        """
        inputs = self._inputs(op)
        if not self._reduces_rows(op):
            yield from inputs
            return
        while len(inputs) == 1:  # such as a square
            inputs = self._inputs(inputs[0])
        yield from filter(self._is_moved_mean, inputs)

    def _is_moved_mean(self, op: str) -> bool:
        """Whether an op passes on a mean over rows, such as `StopGradient` or `Squeeze`."""
        inputs = [op]
        while len(inputs) == 1 and not self._reduces_rows(inputs[0]):
            inputs = self._inputs(inputs[0])
        return len(inputs) == 1

    def _reduces_rows(self, op: str) -> bool:
        """Whether an op is a mean or sum over the first axis."""
        if self._placement.ops[op].type not in (MEAN, SUM):
            return False
        source, axes = self._graph.get_operation_by_name(op).inputs
        _, _, *given = self._placement.details.value(axes.op.name) or ((), ())
        rank = source.shape.rank
        return any(axis == 0 or (rank and axis == -rank) for axis in given)
