"""The stages of a gradient: the tensors that it passes on its way to an update.

A program may write out its optimizer, for example as ``w.assign_sub(rate * g)``, or as Adam with
variables for its moments. Then no op of the optimizer takes the gradient. `GradientStages` follows
the update back to the results of gradient calls. A *stage* is a tensor that all gradients of the
variable pass, and whose form is still a sum of gradients, times scalars. The first stage is
directly after the towers are combined.

The arithmetic of the optimizer begins with the first factor or summand that depends on variables,
such as a learning rate in a variable, or weight decay. If this comes before the towers are
combined, all stages contain it (`Stage.contains`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise
from math import isclose, prod
from typing import NamedTuple

from placement_checks.core.op_types import (
    GATHERERS,
    IDENTITY_N,
    LOOPS,
    REDUCTIONS,
    SCALES,
    SHAPE_ONLY,
    VARIABLE_READS,
    is_gradient_update,
    is_update,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.step.graph import training_runs
from placement_checks.step.kinds import AtomId, Form, Monomial
from placement_checks.step.op_types import op_type
from placement_checks.step.reader import StepReader
from placement_checks.step.terms import Terms
from placement_checks.step.weights import gradient_in
from placement_checks.util.walks import sources_first

NO_GRADIENT = "no update takes a gradient that can be followed"
COMBINES_WEIGHTS = "values of the variable are combined, not gradients"
_SLOT = "each tower changes its gradient with a slot before the gradients are combined"
_REARRANGES = frozenset(
    {"ConcatV2", "GatherV2", "Pack", "Slices", "StridedSliceOf", "UnsortedSegmentSum"}
)
_BOUNDS = frozenset({"Maximum", "Minimum", "Select", "SelectV2", "Conditional"})


class Content(Enum):
    """What a tensor contains in addition to gradients."""

    RATE = "a factor that depends on variables, such as a learning rate"
    DECAY = "a multiple of a variable, such as a weight decay"


class Stage(NamedTuple):
    """A tensor that all gradients of a variable pass on their way to an update.

    Attributes:
        tensor: the name of the tensor.
        contains: its contents that are no gradients.
        constants: the constant factors between the result of a gradient call and the tensor, on
            the path from one tower.
    """

    tensor: str
    contains: frozenset[Content]
    constants: Sequence[float]


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

    def last(self, contains: frozenset[Content]) -> Stage:
        """Return the last stage with only the given contents and the contents of all stages."""
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


class _Taken(NamedTuple):
    """A gradient that an update takes.

    Attributes:
        update: the update.
        value: the operand of the update that depends on gradients of the variable.
        bit: the bit of the variable.
    """

    update: str
    value: str
    bit: int


class GradientStages:
    """The stages of the gradients in one run of a step."""

    def __init__(self, reader: StepReader) -> None:
        self._reader, self._terms = reader, reader.terms
        self._masks: dict[str, int] = {}

    @cached_property
    def _leaves(self) -> Mapping[str, str]:
        """The variable that each result of a gradient call is the gradient of."""
        reader, found = self._reader, {}
        for call in reader.calls:
            for source, tensors in zip(call.sources, call.gradients, strict=True):
                variable = reader.variable_of(source)
                if variable and tensors:
                    found[tensors[0]] = reader.copies.get(variable, variable)
        return found

    @cached_property
    def _bits(self) -> Mapping[str, int]:
        return {name: 1 << number for number, name in enumerate(set(self._leaves.values()))}

    def _sources(self, tensor: str) -> Sequence[str]:
        """The tensors that a tensor is computed from, without the values of trained variables."""
        reader, name = self._reader, producer_of(tensor)
        op, output = reader.ops[name], int(tensor.partition(":")[2] or 0)
        if tensor in self._leaves or op.type in SHAPE_ONLY:
            return ()
        data = reader.data(name)
        holder = reader.holder.get(name) or (
            reader.holder.get(producer_of(data[0])) if data and self._holds(op.type) else None
        )
        if holder is not None:
            trained = reader.copies.get(holder, holder) in self._bits
            changes = () if trained else reader.updates.get(holder, ())
            return [each for update in changes for each in reader.data(update.op)[1:]]
        returned = {} if op.type in LOOPS else reader.placement.results.get(name, {})
        if returned:
            return [tensors[output] for tensors in returned.values() if output < len(tensors)]
        if op.type in REDUCTIONS | GATHERERS:
            members = map(reader.data, reader.graph.members_of_collective(name))
            return [source for inputs in members for source in inputs[:1]]
        return data[output : output + 1] if op.type == IDENTITY_N else data

    @staticmethod
    def _holds(kind: str) -> bool:
        """Whether ops of a type yield the value of the variable in their first input."""
        return kind in VARIABLE_READS or is_update(kind)

    def _mask(self, tensor: str) -> int:
        """The variables whose gradients a tensor depends on, as bits."""
        masks, ops = self._masks, self._reader.ops

        def sources(here: str) -> Sequence[str]:
            is_end = here in masks or producer_of(here) not in ops
            return () if is_end else self._sources(here)

        for here in sources_first([tensor], sources):
            if here not in masks:
                mask = self._bits[self._leaves[here]] if here in self._leaves else 0
                for each in sources(here):
                    mask |= masks.get(each, 0)
                masks[here] = mask
        return masks[tensor]

    def of_variable(self, variable: str) -> WrittenUpdate | str:
        """The stages of a trained variable's gradient, or the reason if it has none.

        Updates that later updates revert do not count, such as the step to the worst weights in
        the neighborhood that sharpness-aware minimization takes.
        """
        taken = self._taken_by(variable)
        if isinstance(taken, str):
            return taken
        if is_gradient_update(self._reader.ops[taken.update].type):
            return "an op of an optimizer updates the variable"
        return self._read(variable, taken)

    def sum_of_gradients(self, variable: str) -> Form | None:
        """The gradients that an optimizer takes, if its op or the program can be followed.

        The optimizer of a program's own begins with the first factor or summand that depends on
        variables, or that is not linear.
        """
        taken = self._taken_by(variable)
        if isinstance(taken, str):
            return None
        descent = self._reader.descent_of(variable)
        if descent is not None and not isinstance(self._contents(descent[1], variable), str):
            return descent[1]
        found: Form | None = None
        least = frozenset[Content]()
        for tensor in list(self._passed_by_all(taken.value, taken.bit))[::-1]:
            form = self._reader.value(tensor)
            contains = self._contents(form, variable)
            if not isinstance(contains, str) and (found is None or contains <= least):
                least = contains if found is None else least
                if found is None or self._is_plain(form):
                    found = form
            elif found is not None:
                break
        return found

    def _is_plain(self, form: Form) -> bool:
        """Whether a sum of gradients does not bound or rearrange them."""
        monomials = [each for each, _ in self._terms.summands(form)]
        return not any(
            self._terms[base].is_backward and gradient_in(self._terms, (base, factors)) is None
            for base, factors in monomials
        )

    def _taken_by(self, variable: str) -> _Taken | str:
        """The only update of a variable that takes gradients, or why there is none."""
        reader = self._reader
        bit = self._bits.get(self._first(variable), -1)
        found = [
            _Taken(name, value, bit)
            for name in self._lasting(variable)
            for value in reader.data(name)[1:]
            if producer_of(value) not in reader.holder and self._mask(value) & bit
        ]
        if not found:
            return NO_GRADIENT
        if len(found) > 1:
            return f"{len(found)} ops of one step apply gradients to the variable"
        return found[0]

    def _lasting(self, variable: str) -> Sequence[str]:
        """The updates of a variable that no later update reverts."""
        reader = self._reader
        updates = reader.updates.get(variable, ())
        if len(updates) == 1:
            return [updates[0].op]
        lasting: list[str] = []
        states = [reader.variable(variable)]
        for update in updates:
            lasting.append(update.op)
            states.append(reader.state_after(variable, update.op))
            first = states.index(states[-1])
            if set(lasting) <= {*reader.graph.awaited_by(update.op)}:
                del lasting[first:], states[first + 1 :]
        return lasting

    def _read(self, variable: str, taken: _Taken) -> WrittenUpdate | str:
        reader, terms = self._reader, self._terms
        name, value, bit = taken
        kind, data = reader.ops[name].type, reader.data(name)
        is_sparse = "Scatter" in kind
        chain = list(self._passed_by_all(value, bit))[::-1]
        path = self._path(chain[0], bit)
        results = terms.summands(reader.value(path[0]))
        leaf = self._gradient_atom_of(results[0][0]) if results else None
        constants = list(self._factors(path, leaf))
        stages: list[Stage] = []
        before = chain[0]
        for tensor in chain:
            contains = self._contents(reader.value(tensor), variable)
            if isinstance(contains, str):
                if stages:
                    break
                return contains
            constants += self._factors([before, tensor], leaf)
            before = tensor
            if self._is_comparable(tensor, variable, value if is_sparse else ""):
                stages.append(Stage(tensor, contains, tuple(constants)))
        if not stages:
            return f"the gradient of {name} ({kind}) is inside a branch, loop or function"
        written = WrittenUpdate(stages, data[1] if is_sparse else "", proportional=False)
        default = self._gradients_in(reader.value(written.default.tensor))
        is_proportional = self._gradients_in(reader.value(value)) <= default
        return replace(written, proportional=is_proportional)

    def _passed_by_all(self, value: str, bit: int) -> Iterator[str]:
        """The tensors that the gradients of a variable pass on all paths to a value.

        Gradients of other variables do not count, as they may contribute to a norm.
        """
        number = self._reader.number
        heap, seen = [(-number[producer_of(value)], value)], {value}
        while heap:  # all paths pass one of these tensors
            if len(heap) == 1:
                yield heap[0][1]
            _, tensor = heapq.heappop(heap)
            if tensor in self._leaves:
                return
            for source in self._sources(tensor):
                if source not in seen and self._mask(source) & bit:
                    seen.add(source)
                    heapq.heappush(heap, (-number[producer_of(source)], source))

    def _path(self, tensor: str, bit: int) -> Sequence[str]:
        """The tensors from a result of a gradient call to a tensor, or from a loop."""
        path = [tensor]
        while path[-1] not in self._leaves:
            sources = [each for each in self._sources(path[-1]) if self._mask(each) & bit]
            source = next((each for each in sources if each not in path), None)
            if source is None:
                break
            path.append(source)
        return path[::-1]

    # --- forms of gradients ---

    def _gradient_atom_of(self, monomial: Monomial) -> AtomId:
        found = gradient_in(self._terms, monomial)
        return monomial[0] if found is None else found

    def _first(self, variable: str) -> str:
        return self._reader.copies.get(variable, variable)

    def _factors(self, path: Sequence[str], leaf: AtomId | None) -> Iterator[float]:
        """The constants that the ops on a path multiply a gradient by; 1 is left out."""
        if leaf is None:  # the gradient is 0
            return
        numbers = [self._coefficient(self._reader.value(tensor), leaf) for tensor in path]
        for before, after in pairwise(number for number in numbers if number):
            if not isclose(abs(before), abs(after)):
                yield abs(after / before)

    def _coefficient(self, form: Form, leaf: AtomId) -> float | None:
        """The coefficient of a gradient in a form; None if the form does not contain it."""
        for monomial, number in self._terms.summands(form):
            if leaf in (monomial[0], gradient_in(self._terms, monomial)):
                return number
            for operand in self._operands(monomial):
                inner = self._coefficient(operand, leaf)
                if inner is not None:
                    return inner * number
        return None

    def _operands(self, monomial: Monomial) -> Sequence[Form]:
        """The operands of an op that rearranges, joins, scales or bounds gradients."""
        atom = self._terms[monomial[0]]
        backward = list(filter(self._has_gradient, atom.operands))
        if atom.op in _REARRANGES or atom.op in _BOUNDS:
            return backward
        if atom.op == "Reshape":  # the shape may be the shape of a gradient
            backward = list(filter(self._has_gradient, atom.operands[:1]))
        known = op_type(atom.op)
        if atom.op in SCALES:  # by one element, such as a norm
            return [each for each in backward if not self._has_one_element(each)] or backward[:1]
        return backward if known is not None and known.is_linear and len(backward) == 1 else ()

    def _has_gradient(self, form: Form) -> bool:
        is_taken = any(atom in self._results for atom in self._terms.atoms_in(form))
        return is_taken or self._terms.is_backward(form)

    def _has_one_element(self, form: Form) -> bool:
        shape = self._terms.shape(form)
        return shape is not None and all(extent == 1 for extent in shape)

    def _is_gradient(self, monomial: Monomial) -> bool:
        """Whether a monomial is a gradient times scalars."""
        if gradient_in(self._terms, monomial) is not None or monomial[0] in self._results:
            return True
        operands = self._operands(monomial)
        monomials = [each for form in operands for each, _ in self._terms.summands(form)]
        return bool(operands) and all(map(self._is_gradient, monomials))

    @cached_property
    def _results(self) -> Mapping[AtomId, tuple[float, Collection[AtomId]]]:
        """For each gradient its coefficient in the result of its call, and its factors there."""
        found = {}
        for leaf in self._leaves:
            if producer_of(leaf) in self._reader.reached:
                for monomial, number in self._terms.summands(self._reader.value(leaf)):
                    atom = gradient_in(self._terms, monomial)
                    factors = {each for each, _ in monomial[1]}
                    found[monomial[0] if atom is None else atom] = number, factors
        return found

    def _contents(self, form: Form, variable: str) -> frozenset[Content] | str:
        """What a sum of gradients contains in addition, or why a form is no such sum."""
        terms, found, sizes = self._terms, set[Content](), list[float]()
        others = []
        for monomial, number in terms.summands(form):
            atoms = [monomial[0], *(atom for atom, _ in monomial[1])]
            if self._is_gradient(monomial):
                taken, factors = self._results.get(self._gradient_atom_of(monomial), (1.0, ()))
                sizes.append(abs(number / taken))
                rest = [terms[atom] for atom, _ in monomial[1] if atom not in factors]
                if any(atom.varies and not atom.is_backward for atom in rest):
                    found.add(Content.RATE)
            else:
                others.append((number, [terms[atom] for atom in atoms]))
        own = self._first(variable)
        for number, rest in others:
            backward = next((atom for atom in rest if atom.is_backward), None)
            if backward is not None:
                name = backward.origin.op if backward.origin else ""
                return f"{name} ({backward.op}) computes neither a sum nor a multiple of gradients"
            holder = self._first(rest[0].attrs[0]) if rest[0].op == "Var" else ""
            if holder == own and abs(number) >= 1 and len(rest) == 1:  # a decay is smaller
                return COMBINES_WEIGHTS
            if holder and holder != own:  # a slot, or a sum of gradients of earlier runs
                if not any(isclose(abs(number), size) for size in sizes):
                    return _SLOT
            elif any(atom.varies for atom in rest):
                found.add(Content.DECAY)
        return frozenset(found)

    def _gradients_in(self, form: Form) -> set[frozenset[AtomId]]:
        """The gradients in a form, each with the factors that depend on gradients."""
        terms = self._terms
        return {
            frozenset(
                atom for atom in (base, *(each for each, _ in factors)) if terms[atom].is_backward
            )
            for (base, factors), _ in terms.summands(form)
            if terms.is_backward_monomial((base, factors))
        }

    def _is_comparable(self, tensor: str, variable: str, values: str) -> bool:
        """Whether a tensor has the elements of the variable or, with ``values``, of its rows."""
        reader, name = self._reader, producer_of(tensor)
        if reader.ops[name].caller or name in reader.holder:
            return False
        if values:
            gradients = self._gradients_in(reader.value(values))
            return self._gradients_in(reader.value(tensor)) == gradients
        shape = reader.shape(name, int(tensor.partition(":")[2] or 0))
        expected = reader.shape_of_variable(variable)
        if shape is None or expected is None:
            return True
        return len(shape) == len(expected) and all(
            one is None or other is None or one == other
            for one, other in zip(shape, expected, strict=True)
        )


def written_updates(placement: Placement) -> Callable[[str], WrittenUpdate | str]:
    """Return the reader of written-out updates of a program, by variable; created once.

    Towers are not combined into one batch there: the terms of each tower stay apart.
    """
    return placement.cached(_Runs).of_variable


class _Runs:
    """The stages of gradients in all training runs of a program."""

    def __init__(self, placement: Placement) -> None:
        self._runs = []
        for roots in training_runs(placement):
            reader = StepReader(Terms(op_type), placement, 0, roots, {})
            reader.batch.leaves.clear()
            reader.feeds = {name: name for name in reader.reached}
            self._runs.append(GradientStages(reader))

    def of_variable(self, variable: str) -> WrittenUpdate | str:
        """The stages of a trained variable's gradient, or the reason if it has none."""
        found: WrittenUpdate | str = NO_GRADIENT
        for run in self._runs:
            found = run.of_variable(variable)
            if found != NO_GRADIENT:
                return found
        return found
