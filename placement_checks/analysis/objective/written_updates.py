"""Written-out updates: the gradient that an update takes if the optimizer has no op of its own.

Such an update assigns a value that the program computes from gradients, for example
``w.assign_sub(rate * g)``, or Adam with variables for its moments. `WrittenUpdates.read` follows
the value back to the backward pass and lists the *stages* of the gradient: the tensors that all
gradients pass on their way to the update, and that are still gradients.

A tensor is still a gradient as long as it is computed from results of the backward pass with

* sums, means, collectives and changes of shape,
* scalars that do not depend on variables, such as a number of towers or a constant rate,
* clipping: bounds on elements, and scalars computed from gradients, such as a norm.

The arithmetic of the optimizer begins at the first op that takes the value of a variable or slot
(a learning rate, a momentum, a decay), or that is not linear. If such an op comes before the
towers are combined, all stages contain its result, and `Stage.contains` lists it. Stages of two
programs are comparable only if they contain the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isclose, prod
from typing import NamedTuple

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.objective.gradient_tensors import GradientTensors
from placement_checks.analysis.objective.scalars import Scalars
from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    ADDITIONS,
    ADDS,
    ASSIGNS,
    BOUNDS,
    CAST,
    CHECKS_VALUE,
    DIVISIONS,
    GATHERERS,
    IDENTITIES,
    LINEAR,
    LOOPS,
    NEGATION,
    NEXT_ITERATIONS,
    OVERWRITES,
    PASSES_READ,
    PASSES_VALUE,
    REDUCTIONS,
    RESHAPES,
    SCALES,
    SELECTS,
    SUBTRACTION,
    SUBTRACTIONS,
    SWITCHES,
    VARIABLE_READS,
    VARIABLES,
    is_gradient_update,
)
from placement_checks.core.placement import producer_of

_PASSES = (PASSES_VALUE - SWITCHES) | IDENTITIES | CHECKS_VALUE | VARIABLE_READS | {CAST}
# Ops with one result for each row of a sparse gradient, in the same order.
_KEEPS_ROWS = _PASSES | SCALES | BOUNDS | {NEGATION}


class Part(Enum):
    """What a tensor contains in addition to gradients."""

    RATE = "a factor that depends on variables, such as a learning rate"
    DECAY = "a multiple of a variable, such as a weight decay"
    WEIGHTS = "the value of a variable"
    SLOT = "the value of a slot"


class Stage(NamedTuple):
    """A tensor that all gradients pass on their way to an update.

    Attributes:
        tensor: the name of the tensor.
        contains: its parts that are no gradients.
        constants: the constant factors between the backward pass and the tensor, on the path from
            one tower.
    """

    tensor: str
    contains: frozenset[Part]
    constants: Sequence[float]


COMBINES_WEIGHTS = "values of the variable are combined, not gradients"
_GIVEN = Stage("", frozenset(), ())  # a gradient that an optimizer receives


@dataclass(frozen=True)
class WrittenUpdate:
    """The gradient of an update by a written-out optimizer.

    Attributes:
        stages: the stages of the gradient, the first one directly after all towers are combined.
        indices: the rows of a sparse gradient; ``""`` for a dense gradient.
        proportional: whether the update is proportional to the gradient, as with momentum.
    """

    stages: Sequence[Stage]
    indices: str
    proportional: bool

    @property
    def default(self) -> Stage:
        """The last stage before the arithmetic of the optimizer."""
        return self.last(self.stages[0].contains)

    def last(self, contains: frozenset[Part]) -> Stage:
        """Return the last stage with only the given parts and the parts of all stages."""
        allowed = contains | self.stages[0].contains
        return [stage for stage in self.stages if stage.contains <= allowed][-1]


def comparable_stages(
    written: WrittenUpdate | None, reference: WrittenUpdate | None, ratio: float
) -> tuple[Stage, Stage] | None:
    """Choose the stages of two programs that should be equal.

    A constant rate is part of both stages. But if the constants show that the programs have
    different rates, the stages before the rate are chosen. If the rates are ``ratio`` to 1, the
    program may have divided the rate by the number of towers instead of the gradients, and the
    stages contain the rates.

    Args:
        written: the update of a program; None if its gradient is declared, or the input of an
            optimizer.
        reference: the same of the reference.
        ratio: the number of towers of the reference, divided by the program's.

    Returns:
        A stage of each program. None if a stage of one program contains what no stage of the other
        program contains, or if rates cannot be distinguished from averages.
    """
    stages = [each.stages if each else [_GIVEN] for each in (written, reference)]
    contains = stages[0][0].contains | stages[1][0].contains
    own, others = ([stage for stage in each if stage.contains <= contains] for each in stages)
    if not own or not others or {own[-1].contains, others[-1].contains} != {contains}:
        return None
    inner = len(own[0].constants)
    if _same_rate(own[-1], others[-1], inner, ratio):
        return own[-1], others[-1]
    for one in reversed(own[:-1] if written else own):
        for other in reversed(others[:-1] if reference else others):
            given = written is None or reference is None
            has_rate = [
                bool(_not_neutral(last.constants[len(stage.constants) :], ratio))
                for last, stage in ((own[-1], one), (others[-1], other))
            ]
            if (
                one.contains == other.contains
                and (given or all(has_rate))
                and _same_rate(one, other, inner, ratio)
            ):
                return one, other
    return None


def unequal_rates(
    written: WrittenUpdate, reference: WrittenUpdate, ratio: float
) -> tuple[float, float] | None:
    """Return the constant learning rates of two programs, if they differ, but not by averages.

    The parameters are described in `comparable_stages`.
    """
    stages = comparable_stages(written, reference, ratio)
    if stages is None:
        return None
    rates = [
        _not_neutral(update.last(stage.contains).constants[len(stage.constants) :], ratio)
        for update, stage in zip((written, reference), stages, strict=True)
    ]
    return (prod(rates[0]), prod(rates[1])) if all(rates) else None


def _not_neutral(constants: Iterable[float], ratio: float) -> Sequence[float]:
    """Return the constants that are no average or sum over towers."""
    neutral = (1.0, ratio, 1 / ratio)
    return [each for each in constants if not any(isclose(each, value) for value in neutral)]


def _same_rate(stage: Stage, other: Stage, inner: int, ratio: float) -> bool:
    """Whether constants of two stages differ only by averages, or by weights of towers.

    The first ``inner`` constants of ``stage`` apply to the gradients of one tower.
    """
    left = list(enumerate(stage.constants))
    missing = []
    for constant in other.constants:
        equal = next((each for each in left if isclose(each[1], constant, rel_tol=1e-6)), None)
        if equal is not None:
            left.remove(equal)
        elif not isclose(constant, 1):
            missing.append(constant)
    left = [each for each in left if _not_neutral(each[1:], ratio)]
    if not missing:
        return all(position < inner for position, _ in left)
    if len(left) != 1 or len(missing) != 1:
        return False
    return isclose(left[0][1] / missing[0], ratio, rel_tol=1e-5)


class _Op(NamedTuple):
    """How an op computes a tensor from gradients.

    Attributes:
        gradients: the inputs that the tensor is a sum or a multiple of.
        contains: the values that the op adds.
        constants: the constant factors.
        clips: whether the tensor is no linear function of the gradients.
    """

    gradients: Sequence[str]
    contains: frozenset[Part] = frozenset()
    constants: Sequence[float] = ()
    clips: bool = False


class _Region(NamedTuple):
    """The ops between two tensors, in the same terms as `_Op`."""

    contains: frozenset[Part]
    constants: Sequence[float]
    clips: bool
    keeps_rows: bool


class WrittenUpdates:
    """Reads updates by written-out optimizers. Each update is read once."""

    def __init__(
        self, analysis: TowerAnalysis, scalars: Scalars, tensors: GradientTensors
    ) -> None:
        self._analysis = analysis
        self._scalars = scalars
        self._tensors = tensors
        self._read: dict[OpId, WrittenUpdate | str] = {}
        self._of_state: dict[str, bool] = {}
        self._sizes: dict[str, tuple[bool, int]] = {}

    def read(self, update: Update) -> WrittenUpdate | str:
        """Return the stages of an update's gradient, or the reason if it has none."""
        if update.op not in self._read:
            self._read[update.op] = self._stages(update)
        return self._read[update.op]

    def of_variable(self, variable: str) -> WrittenUpdate | str:
        """Return the stages of a trained variable's gradient, or the reason if it has none.

        An update that another update reverts does not count, such as the step to the worst
        weights in the neighborhood that sharpness-aware minimization takes.
        """
        updates = self._lasting(
            self._analysis.updates.select_for_one_step(
                self._analysis.updates.by_variable.get(variable, ())
            )
        )
        taking = [
            update
            for update in updates
            if any(map(self._tensors.is_gradient, self._scalars.inputs(update.op)[1:]))
        ]
        if any(is_gradient_update(self._analysis.flow.types[update.op]) for update in taking):
            return "an op of an optimizer updates the variable"
        if len(taking) == 1:
            return self.read(taking[0])
        if not taking:
            return "no update takes a gradient that can be followed"
        return f"{len(taking)} ops of one step apply gradients to the variable"

    def _lasting(self, updates: Sequence[Update]) -> Sequence[Update]:
        """Return the updates that no later update reverts or overwrites."""
        types = self._analysis.flow.types
        lasting: list[Update] = []
        for update in updates:
            kind, values = types[update.op], self._scalars.inputs(update.op)[1:]
            reverts = {
                **dict.fromkeys(ADDITIONS, SUBTRACTIONS),
                **dict.fromkeys(SUBTRACTIONS, ADDITIONS),
            }
            reverted = [
                each
                for each in lasting
                if types[each.op] in reverts.get(kind, ())
                and self._scalars.inputs(each.op)[1:] == values
            ]
            if reverted:
                lasting.remove(reverted[-1])
                continue
            if kind in OVERWRITES & ASSIGNS and not any(map(self._tensors.is_gradient, values)):
                lasting.clear()
            lasting.append(update)
        return lasting

    def _stages(self, update: Update) -> WrittenUpdate | str:
        inputs = self._scalars.inputs(update.op)[1:]
        values = list(filter(self._tensors.is_gradient, inputs))
        name = self._analysis.flow.names[update.op]
        kind = self._analysis.flow.types[update.op]
        if len(values) != 1:
            return f"{name} ({kind}) takes {len(values) or 'no'} gradients"
        chain = self._passed_by_all(values[0], update.variable)
        if not chain:
            return f"{name} ({kind}) takes no gradient that can be followed"
        first = self._between(chain[-1], None)
        if isinstance(first, str):
            return first
        if Part.WEIGHTS in first.contains:
            return COMBINES_WEIGHTS
        if Part.SLOT in first.contains:
            return "each tower changes its gradient with a slot before the gradients are combined"
        regions: list[_Region | str] = [
            self._between(tensor, source)
            for tensor, source in zip(chain[-2::-1], chain[:0:-1], strict=True)
        ]
        sparse = kind not in ASSIGNS
        stages = []
        contains, constants = first.contains, list(first.constants)
        rest: Sequence[_Region | str] = regions
        for number, tensor in enumerate(chain[::-1]):
            if number:
                region = regions[number - 1]
                if isinstance(region, str) or region.contains & {Part.SLOT, Part.WEIGHTS}:
                    break
                contains |= region.contains
                constants += region.constants
            after = regions[number:]
            if self._is_comparable(tensor, update, after if sparse else None):
                stages.append(Stage(tensor, contains, tuple(constants)))
                if contains == stages[0].contains:
                    rest = after
        if not stages:
            return f"the gradient of {name} ({kind}) is inside a branch, loop or function"
        indices = inputs[0] if sparse else ""
        proportional = not any(isinstance(each, str) or each.clips for each in rest)
        return WrittenUpdate(stages, indices, proportional)

    def _is_comparable(
        self, tensor: str, update: Update, after: Sequence[_Region | str] | None
    ) -> bool:
        """Whether a tensor has the elements of the variable or, with ``after``, of its rows."""
        flow = self._analysis.flow
        op = flow.op_of(tensor)
        if op in flow.callers or flow.state_holder(op) is not None:
            return False
        if update.op in flow.callers and self._scalars.outputs(tensor) > 1:
            return False  # an argument of a body does not name the output that it is
        if after is not None:
            return all(isinstance(each, _Region) and each.keeps_rows for each in after)
        shape, expected = self._scalars.shape(tensor), self._analysis.shapes[update.variable]
        if shape is None or expected is None:
            return True
        return len(shape) == len(expected) and all(
            one is None or other is None or one == other
            for one, other in zip(shape, expected, strict=True)
        )

    def _passed_by_all(self, value: str, variable: str) -> Sequence[str]:
        """Return the tensors that the gradients of a variable pass on all paths to a value.

        Gradients of other variables do not count, as they may contribute to a norm.

        Returns:
            The tensors, the value first. Empty if no path leads to a gradient of the variable, or
            if there is a loop on the way.
        """
        flow = self._analysis.flow
        own = self._tensors.own_leaves(variable)
        path = self._path(value, own.__contains__)
        is_own = bool(path)
        path = path or self._path(value, self._tensors.is_leaf)
        index = {tensor: number for number, tensor in enumerate(path)}
        found: list[str] = []
        seen = {value}
        furthest = 0  # along the path, from the tensors before
        for number, tensor in enumerate(path):
            if number == furthest:
                found.append(tensor)
            todo = [tensor]
            while todo:
                each = todo.pop()
                op = flow.op_of(each)
                if flow.types[op] in LOOPS | NEXT_ITERATIONS:
                    return []
                if op in own if is_own else self._tensors.is_leaf(op):
                    furthest = len(path)
                for source in self._tensors.sources(each):
                    if source in index:
                        furthest = max(furthest, index[source])
                    elif source not in seen:
                        seen.add(source)
                        if not is_own or self._tensors.may_depend_on(source, variable):
                            todo.append(source)
        return found

    def _path(self, value: str, is_end: Callable[[OpId], bool]) -> Sequence[str]:
        """Return a shortest path from a value back to one of the ends; empty without one."""
        before = {value: ""}
        todo = [value]
        for tensor in todo:
            if is_end(self._analysis.flow.op_of(tensor)):
                path = [tensor]
                while before[path[-1]]:
                    path.append(before[path[-1]])
                return path[::-1]
            for source in self._tensors.sources(tensor):
                if source not in before:
                    before[source] = tensor
                    todo.append(source)
        return []

    def _is_leaf(self, tensor: str) -> bool:
        return self._tensors.is_leaf(self._analysis.flow.op_of(tensor))

    def _between(self, tensor: str, source: str | None) -> _Region | str:
        """Read how a tensor is computed from a source, or from the backward pass.

        Returns:
            The region, or the reason if the tensor is no gradient.
        """
        contains: frozenset[Part] = frozenset()
        constants: Mapping[str, Sequence[float]] = {tensor: ()}
        found: dict[str, Sequence[float]] = dict(constants)
        of_path: Sequence[float] | None = None
        clips, keeps_rows = False, True
        todo = [tensor]
        for each in todo:
            if each == source or self._is_leaf(each):
                of_path = found[each] if of_path is None else of_path
                continue
            op = self._analysis.flow.op_of(each)
            read = self._op(each, op)
            if read is None:
                name, kind = self._analysis.flow.names[op], self._analysis.flow.types[op]
                return f"{name} ({kind}) computes neither a sum nor a multiple of gradients"
            if Part.SLOT in read.contains and source is None and self._accumulates(op):
                read = read._replace(contains=read.contains - {Part.SLOT})
            contains |= read.contains
            clips |= read.clips
            keeps_rows &= self._analysis.flow.types[op] in _KEEPS_ROWS
            for before in read.gradients:
                if before not in found:
                    found[before] = [*found[each], *read.constants]
                    todo.append(before)
        return _Region(contains, of_path or (), clips, keeps_rows)

    def _op(self, tensor: str, op: OpId) -> _Op | None:
        """Read one op; None if its result is no gradient."""
        flow = self._analysis.flow
        kind, inputs = flow.types[op], self._scalars.inputs(op)
        sources = self._tensors.sources(tensor)
        if op in flow.calls:  # the ops of the body are sources, too
            return _Op(sources)
        if flow.state_holder(op) is not None or kind in ASSIGNS:
            return _Op(sources, frozenset({Part.SLOT}))
        if kind in SCALES:
            return self._product(kind, inputs)
        if kind in BOUNDS | SELECTS:
            values = [each for each in sources if each in inputs[kind in SELECTS :]]
            others = [each for each in inputs if each not in values]
            if kind in BOUNDS and len(values) != 1:
                return None
            rates = {Part.RATE} if any(map(self._depends_on_state, others)) else set()
            return _Op(values, frozenset(rates), clips=True)
        if kind in ADDS or kind == SUBTRACTION:
            summands = (self._summand(each) for each in inputs if each not in sources)
            return _Op(sources, frozenset(part for part in summands if part is not None))
        if kind in LINEAR | _PASSES | RESHAPES | REDUCTIONS | GATHERERS or kind == NEGATION:
            return _Op(sources)
        return None

    def _product(self, kind: str, inputs: Sequence[str]) -> _Op | None:
        is_gradient = list(map(self._tensors.is_gradient, inputs))
        if kind in DIVISIONS:
            if not is_gradient[0]:
                return None
            value, factor = inputs
        elif all(is_gradient):
            value, factor = sorted(inputs, key=self._size_of_factor, reverse=True)
        else:
            value, factor = inputs if is_gradient[0] else inputs[::-1]
        is_scalar = self._scalars.is_scalar(factor)
        clips = self._tensors.is_gradient(factor)
        if clips and not is_scalar:
            return None
        if self._depends_on_state(factor):
            return _Op([value], frozenset({Part.RATE}), clips=clips)
        if clips or not is_scalar:
            return _Op([value], clips=clips)
        weight = self._scalars.weight(factor)
        constant = weight.coefficient
        if kind in DIVISIONS:
            constant = 1 / constant if constant else 1.0
        return _Op([value], constants=() if constant == 1 and weight.factors else (constant,))

    def _size_of_factor(self, tensor: str) -> tuple[bool, int]:
        """Order the factors of a product: a scalar that is computed from the other comes first."""
        if tensor not in self._sizes:
            flow = self._analysis.flow
            behind = flow.reachable([flow.op_of(tensor)], until=self._tensors.is_leaf)
            self._sizes[tensor] = not self._scalars.is_scalar(tensor), -len(behind)
        return self._sizes[tensor]

    def _summand(self, tensor: str) -> Part | None:
        """Return the value of a summand without gradients; None if it depends on no variable."""
        if not self._depends_on_state(tensor):
            return None
        flow = self._analysis.flow
        op = flow.op_of(tensor)
        while flow.types[op] in PASSES_READ:
            op = flow.inputs[op][0]
        return Part.WEIGHTS if flow.types[op] in VARIABLES else Part.DECAY

    def _depends_on_state(self, tensor: str) -> bool:
        """Whether a tensor depends on a variable, not only through results of backward ops."""
        if tensor not in self._of_state:
            flow = self._analysis.flow
            start = flow.number.get(producer_of(tensor))
            reached = () if start is None else flow.reachable([start], until=self._tensors.is_leaf)
            self._of_state[tensor] = any(flow.types[each] in VARIABLES for each in reached)
        return self._of_state[tensor]

    def _accumulates(self, op: OpId) -> bool:
        """Whether a variable holds a sum of gradients: all writers add gradients to it."""
        flow = self._analysis.flow
        holder = flow.state_holder(op)
        if holder is None:
            holder = flow.first_holder(op)
        return holder is not None and all(
            flow.types[writer] in ADDITIONS | SUBTRACTIONS or holder in self._plain_summands(value)
            for writer, value in self._tensors.written(holder)
        )

    def _plain_summands(self, tensor: str) -> Iterator[OpId]:
        """Yield the variables that are summands of a tensor."""
        flow = self._analysis.flow
        todo = [flow.op_of(tensor)]
        for op in todo:
            if flow.types[op] in VARIABLES:
                yield op
            elif flow.types[op] in ADDS | PASSES_READ:
                todo += flow.inputs[op]
