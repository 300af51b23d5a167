"""The graph of a training step: its ops, their order, and which updates each op waits for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

from placement_checks.core import mistakes
from placement_checks.core.op_types import (
    ADDS,
    BRANCHES,
    CONST,
    DIVISIONS,
    ENTERS,
    EXITS,
    IDENTITIES,
    LOOPS,
    MEAN,
    MERGES,
    NEXT_ITERATIONS,
    OPTIONAL_VALUE,
    PASSES_HANDLE,
    PIPELINE_OUTPUTS,
    PLACEHOLDERS,
    PRODUCTS,
    RANDOM,
    REF_VARIABLES,
    STACK,
    SUM,
    SWITCHES,
    VARIABLES,
    is_update,
)
from placement_checks.core.placement import (
    UNKNOWN_TENSOR,
    GradientCall,
    Op,
    Placement,
    producer_of,
)
from placement_checks.step.kinds import Form, Origin, Shape
from placement_checks.step.parts import Part
from placement_checks.step.terms import Assumption, Terms
from placement_checks.util.walks import sources_first, walk

# Why the gradient of a `tf.custom_gradient` of the program is unknown.
OWN_BACKWARD = "has a backward pass that the program defines, which is not read"
# How many of the first inputs an optimizer's op changes; 1 for types that are not here.
_CHANGED_INPUTS = {
    **dict.fromkeys(["Momentum", "KerasMomentum", "Adagrad", "AdagradV2", "AddSign"], 2),
    **dict.fromkeys(["PowerSign", "ProximalAdagrad"], 2),
    **dict.fromkeys(["Adam", "AdaMax", "RMSProp", "Adadelta", "Ftrl", "FtrlV2", "AdagradDA"], 3),
    **dict.fromkeys(["CenteredRMSProp", "AdamWithAmsgrad"], 4),
}


class Update(NamedTuple):
    """One change of a variable.

    Attributes:
        op: the op that changes it.
        slot: 0 for the variable that the op updates, and the number of the slot for a slot.
    """

    op: str
    slot: int


class Mistake(NamedTuple):
    """A mistake that no difference of terms shows.

    Attributes:
        text: the mistake.
        op: the op that makes it.
        is_certain: whether it is certain.
        entry: the mistake of the catalog; None for rows or random numbers that towers share.
    """

    text: str
    op: str
    is_certain: bool = True
    entry: mistakes.Mistake | None = None


class Race(NamedTuple):
    """A read of a variable, and an update of it, that do not wait for each other."""

    read: str
    update: str


class Draw(NamedTuple):
    """Random numbers with a seed, drawn for a tower.

    Attributes:
        key: the type of the op, and its number among the tower's ops of this type.
        seed: the seed: numbers, or the form of a tensor.
        part: the tower's part of the batch.
        op: the op.
    """

    key: tuple[str, int | str]
    seed: Any
    part: Part
    op: str


class Frame(NamedTuple):
    """A loop of TensorFlow 1.

    Attributes:
        merges: the ``Merge`` op of each loop variable.
        enters: the op with its value before the loop.
        captured: the ops with tensors from outside that the loop does not change.
        returned: the tensor with its next value.
        exits: for each op that yields a value after the loop, the number of the loop variable.
            Empty if the loop cannot be followed.
        condition: the tensor that decides whether the loop goes on; empty if it is not known.
        inside: the ops that depend on loop variables.
    """

    merges: Sequence[str]
    enters: Sequence[str]
    captured: Sequence[str]
    returned: Sequence[str]
    exits: Mapping[str, int]
    condition: str
    inside: Collection[str]


class StepGraph:
    """The graph of one training run of a program: its ops, their order, and its updates.

    Args:
        placement: the program.
        roots: the ops that the run executes.

    Attributes:
        placement: the program.
        outputs, attributes, value, custom_gradient: as those of `Details`, looked up once.
        ops: its ops.
        number: the number of each op, in the order of building.
        calls: the gradients that the program takes.
        inputs: for each op, the tensors that it reads.
        edges: for each op, the ops that it waits for.
        reached: the ops that the run executes.
        holder: the variable for each op that holds a variable, or passes its handle on.
        updates: the updates of each variable, in order.
        is_computed: whether an op computes a tensor, and does not hold a variable; looked up once.
        update_ops: the ops of all updates, in order.
        bits: the bit of each update.
        awaited: for each op, the updates that it waits for, as bits; its own bit for an update.
        read_bits: the bit of each op that reads an updated variable.
        reads_before: for each update, these reads that it waits for, as bits.
    """

    def __init__(self, placement: Placement, roots: Iterable[str]) -> None:
        self.placement, details = placement, placement.details
        self.outputs, self.attributes = cache(details.outputs), cache(details.attributes)
        self.value, self.custom_gradient = cache(details.value), cache(details.custom_gradient)
        self.ops: Mapping[str, Op] = placement.ops
        self.number = {name: number for number, name in enumerate(self.ops)}
        self.calls = [_with_short_names(call) for call in placement.step.gradient_calls]
        self.inputs = {
            name: [source for source in op.inputs if source[:1] != "^"]
            for name, op in self.ops.items()
        }
        self._random_ops: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        self._own: dict[int, dict[str, str]] = {}
        self._shapes_of_variables = {each.name: each.shape for each in placement.variables}
        self.edges = self._find_edges()
        self.reached = cone(roots, self.edges)
        self.holder = self._find_holders()
        self.is_computed = cache(self._is_computed)
        self.updates: dict[str, list[Update]] = {}
        self.update_ops: list[str] = []
        self.bits: dict[str, int] = {}
        self.awaited: Mapping[str, int] = {}
        self.read_bits: dict[str, int] = {}
        self.reads_before: Mapping[str, int] = {}
        self._order_updates()

    @staticmethod
    def of_run(placement: Placement, roots: Iterable[str]) -> StepGraph:
        """The graph of a run, which all readers of runs of the same ops share."""
        known, ops = placement.cached(_graphs), frozenset(map(producer_of, roots))
        for graph in [] if ops in known else set(known.values()):
            if graph.reached == cone(ops, graph.edges):
                known[ops] = graph
        if ops not in known:
            known[ops] = StepGraph(placement, ops)
        return known[ops]

    def _find_edges(self) -> dict[str, list[str]]:
        """For each op, the ops that it waits for; a call waits for the ops of its body."""
        ops = self.ops
        edges = {name: [*self._producers(op.inputs)] for name, op in ops.items()}
        for name, op in ops.items():
            call = ops.get(op.caller)
            if call is not None:
                edges[call.name].append(name)
                condition = call.inputs[0] if call.type in BRANCHES and call.inputs else ""
                edges[name] += [
                    producer_of(source)
                    for source in call.inputs
                    if (source.startswith("^") or source == condition)
                    and producer_of(source) in ops
                ]
        return edges

    def _producers(self, inputs: Iterable[str]) -> Iterator[str]:
        """The ops that inputs name, as far as they are known. Most inputs are names of ops."""
        ops = self.ops
        return (
            producer
            for source in inputs
            if (producer := source if source in ops else producer_of(source)) in ops
        )

    def _find_holders(self) -> dict[str, str]:
        """The variable for each op that holds a variable, or passes its handle on."""
        holders: dict[str, str] = {}
        for name, op in self.ops.items():
            if op.type in VARIABLES:
                holders[name] = name
            elif op.type in PASSES_HANDLE and op.inputs:
                holder = holders.get(producer_of(op.inputs[0]))
                if holder is None:
                    continue
                is_reference = self.ops[holder].type in REF_VARIABLES
                if is_reference or self.dtype(name) == "resource":
                    holders[name] = holder
        return holders

    def _is_computed(self, tensor: str) -> bool:
        name = producer_of(tensor)
        return name in self.ops and name not in self.holder

    def _order_updates(self) -> None:
        """Find the updates of each variable, and for each op the updates that it waits for."""
        roots = sorted(self.reached, key=self.number.__getitem__)
        order = list(sources_first(roots, self.edges.__getitem__))
        for name in order:
            kind = self.ops[name].type
            if not is_update(kind):
                continue
            self.bits[name] = 1 << len(self.update_ops)
            self.update_ops.append(name)
            for index, holder in enumerate(self.changed_by(name)):
                if holder is not None:
                    self.updates.setdefault(holder, []).append(Update(name, index))
        self.awaited = self._masks(order, self.bits)
        self._order_reads(order)

    def _order_reads(self, order: Sequence[str]) -> None:
        """Find the reads of updated variables that each update waits for."""
        updated = {name for name, holder in self.holder.items() if holder in self.updates}
        for name in order:
            if name in self.bits or updated.isdisjoint(self.edges[name]):
                continue
            if not updated.isdisjoint(map(producer_of, self.inputs[name])):
                self.read_bits[name] = 1 << len(self.read_bits)
        before = self._masks(order, self.read_bits)
        self.reads_before = {name: before[name] for name in self.update_ops}

    def _masks(self, order: Sequence[str], bits: Mapping[str, int]) -> dict[str, int]:
        """For each op its own bit, and the bits of the ops that it waits for."""
        masks: dict[str, int] = {}
        for name in order:
            mask = bits.get(name, 0)
            for source in self.edges[name]:
                mask |= masks.get(source, 0)
            masks[name] = mask
        return masks

    def changed_by(self, update: str) -> list[str | None]:
        """The variables that an update changes: an optimizer also changes the slots."""
        changed = _CHANGED_INPUTS.get(self.ops[update].type.rpartition("Apply")[2], 1)
        return [self.holder.get(producer_of(each)) for each in self.inputs[update][:changed]]

    def awaited_by(self, op: str) -> Sequence[str]:
        """The updates that an op waits for, and the op itself if it is one, in order."""
        bits = reversed(f"{self.awaited.get(op, 0):b}")
        return [name for name, bit in zip(self.update_ops, bits, strict=False) if bit == "1"]

    @property
    def all_updates(self) -> int:
        """The mask of all updates of the step."""
        return (1 << len(self.update_ops)) - 1

    def shape_of_variable(self, name: str) -> Shape:
        """The static shape of a variable; None if its rank is unknown."""
        return self._shapes_of_variables.get(name)

    def shape(self, op: str, output: int = 0) -> Shape:
        """The static shape of an output; None if its rank is unknown."""
        outputs = self.outputs(op)
        return outputs[output].shape if output < len(outputs) else None

    def dtype(self, op: str, output: int = 0) -> str:
        """The dtype of an output; empty if it is unknown."""
        outputs = self.outputs(op)
        return outputs[output].dtype if output < len(outputs) else ""

    @cached_property
    def towers(self) -> Mapping[str, Collection[str]]:
        """For each objective of a gradient call, the ops that it is computed from."""
        objectives = dict.fromkeys(each for call in self.calls for each in call.objectives)
        return {
            each: cone([producer_of(each)], self._sources)
            for each in objectives
            if each != UNKNOWN_TENSOR
        }

    @cached_property
    def _sources(self) -> Mapping[str, Sequence[str]]:
        """For each op, the ops that its values are computed from."""
        data = {name: [*self._producers(inputs)] for name, inputs in self.inputs.items()}
        for name, returned in self.placement.results.items():
            data[name] = data[name] + [
                producer_of(each) for tensors in returned.values() for each in tensors
            ]
        return data

    @cached_property
    def sources_of_rows(self) -> Sequence[str]:
        """The ops that are fed or drawn, outside of functions."""
        types = PLACEHOLDERS | PIPELINE_OUTPUTS | {OPTIONAL_VALUE}
        return [name for name, op in self.ops.items() if op.type in types and not op.caller]

    def is_in_loop(self, name: str) -> bool:
        """Whether an op is in the body of a loop, whose variables may not be known yet."""
        return any(name in frame.inside for frame in self.frames) or bool(self.loop_around(name))

    def loop_around(self, name: str) -> str:
        """The innermost loop of TensorFlow 2 whose body contains an op; empty if there is none."""
        while (call := self.ops[name].caller) in self.ops:
            if self.ops[call].type in LOOPS:
                return call
            name = call
        return ""

    @cached_property
    def frames(self) -> Sequence[Frame]:
        """The loops of TensorFlow 1."""
        ops = self.ops
        loops: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
        entered: defaultdict[str, list[str]] = defaultdict(list)

        def frame_of(enter: str) -> str:
            return str(self.placement.details.attributes(enter).get("frame_name"))

        for name, op in ops.items():
            if op.type in ENTERS:
                entered[frame_of(name)].append(name)
            if op.type not in MERGES:
                continue
            sources = list(map(producer_of, self.inputs[name]))
            types = [ops[each].type for each in sources if each in ops]
            if len(types) == 2 and types[0] in ENTERS and types[1] in NEXT_ITERATIONS:
                loops[frame_of(sources[0])].append((name, sources[0], self.inputs[sources[1]][0]))
        frames = []
        waiting = self.waiting if loops else {}
        for frame, variables in loops.items():
            merges, enters, returned = zip(*variables, strict=True)
            exits: dict[str, int] = {}
            conditions = set()
            for number, merge in enumerate(merges):
                for switch in [each for each in waiting[merge] if ops[each].type in SWITCHES]:
                    value, condition = self.inputs[switch]
                    if producer_of(value) == merge:
                        conditions.add(condition)
                        exits |= {
                            each: number for each in waiting[switch] if ops[each].type in EXITS
                        }
            inside = cone(merges, waiting, exits)
            captured = [each for each in entered[frame] if each not in enters]
            condition = conditions.pop() if len(conditions) == 1 else ""
            exits = exits if condition else {}  # a loop that TensorFlow builds in another way
            frames.append(Frame(merges, enters, captured, returned, exits, condition, inside))
        return frames

    def depth(self, name: str) -> int:
        """The number of calls and of loops of TensorFlow 1 around an op."""
        found = sum(name in frame.inside for frame in self.frames)
        while (call := self.ops[name].caller) in self.ops:
            name, found = call, found + 1 + sum(call in frame.inside for frame in self.frames)
        return found

    @cached_property
    def waiting(self) -> Mapping[str, Sequence[str]]:
        """For each op, the ops that wait for it."""
        waiting: dict[str, list[str]] = {name: [] for name in self.edges}
        for name, sources in self.edges.items():
            for source in sources:
                waiting[source].append(name)
        return waiting

    @cached_property
    def losses(self) -> Mapping[str, Collection[str]]:
        """The towers; each objective that is a sum or mean of losses is replaced by the losses."""
        found: dict[str, Collection[str]] = {}
        for objective, ops in self.towers.items():
            summands = dict.fromkeys(self._summands(objective))
            if len(summands) < 2:
                found[objective] = ops
            else:
                found |= {each: cone([producer_of(each)], self._sources) for each in summands}
        return found

    def _summands(self, objective: str) -> Iterator[str]:
        """The scalars that a scalar is the sum or mean of, each with any constant factor.

        A divisor counts, too: it has the rows of the sum that it divides.
        """
        todo, seen = [objective], {objective}
        while todo:
            name = todo.pop()
            op = self.ops[producer_of(name)]
            data = self.inputs[op.name]
            if op.type in PRODUCTS:
                data = [each for each in data if self.ops[producer_of(each)].type != CONST]
                data = data if len(data) == 1 else []
            elif op.type in DIVISIONS:
                others = [each for each in data[1:] if self.ops[producer_of(each)].type != CONST]
                data = [*data[:1], *others]
            elif op.type in (MEAN, SUM) and self.ops[producer_of(data[0])].type == STACK:
                data = self.inputs[producer_of(data[0])]
            elif op.type not in ADDS and op.type not in IDENTITIES:
                data = []
            data = [each for each in data if producer_of(each) in self.ops]
            if not data or any(self.shape(producer_of(each)) != () for each in data):
                yield name
            else:
                todo += [each for each in data if each not in seen]
                seen.update(data)

    def alike_at_random(self, name: str, owners: Sequence[str]) -> list[str]:
        """The ops of the type of a random op in its towers, or in no tower, in their order."""
        kind = self.ops[name].type
        key = kind, tuple(owners)
        if key not in self._random_ops:
            alike = [each for each, op in self.ops.items() if op.type == kind]
            inside = [self.losses[owner] for owner in owners] or list(self.towers.values())
            used = set(alike).intersection(set().union(*inside))
            if not owners:
                used = self.reached.intersection(alike) - used
            self._random_ops[key] = [each for each in alike if each in used]
        return self._random_ops[key]

    def own_backward(self, number: int) -> Mapping[str, str]:
        """For the ops of a gradient call that depend on a backward pass of the program: its op.

        TensorFlow builds backward ops in the line that asks for gradients. The backward pass of a
        custom gradient has lines of its own, which this line calls. A strategy builds collectives
        elsewhere, where it runs the replicas. Lines are only read if the objective has a custom
        gradient.
        """
        found = self._own.get(number)
        if found is not None:
            return found
        call = self.calls[number]
        found = self._own[number] = {}
        objectives = [producer_of(each) for each in call.objectives]
        if not any(map(self.custom_gradient, cone(objectives, self.edges))):
            return found
        frames = self.placement.details.frames
        built = sorted(call.ops, key=lambda name: self.number.get(name, 0))
        lines = {name: tuple(frames(name)) for name in built if name in self.ops}
        asking = next((stack[-1] for stack in lines.values() if stack), None)
        for name, stack in lines.items():
            if asking in stack[:-1] and stack[-1] != asking:
                found[name] = name
                continue
            own = next((found[source] for source in self.edges[name] if source in found), None)
            if own is not None:
                found[name] = own
        return found

    @cached_property
    def read_by(self) -> Mapping[str, set[str]]:
        """For each tensor, the ops that read it."""
        read_by: defaultdict[str, set[str]] = defaultdict(set)
        for name, inputs in self.inputs.items():
            for source in inputs:
                read_by[source].add(name)
        return read_by

    @cached_property
    def behind_random(self) -> Collection[str]:
        """The ops that depend on random numbers."""
        found: set[str] = set()
        for name, op in self.ops.items():
            if op.type in RANDOM or not found.isdisjoint(self.edges[name]):
                found.add(name)
        return found

    def members_of_collective(self, name: str) -> Sequence[str]:
        """The ops of the group of a collective, with this one."""
        return self._collectives[name]

    @cached_property
    def _collectives(self) -> Mapping[str, Sequence[str]]:
        return {name: members for members in self.placement.collectives for name in members}


class TensorReader(ABC):
    """Reads the tensors of one training step of a program.

    Args:
        terms: the terms of both programs that are compared.
        placement: the program.
        program: the number of the program, for the origins of terms.
        roots: the ops that the step runs.

    Attributes:
        graph: the graph of the step, whose attributes are also attributes of the reader.
        mistakes: the mistakes that were found while reading.
        draws: the random numbers with a seed that are drawn for towers.
        extents: the extents of outputs with forms that may be broadcast (`step.tensor_ops`).
        repeats_elements: whether ops on whole tensors read operands with all elements. Otherwise
            operands may be single elements that are broadcast, and their number is not counted.
    """

    repeats_elements = True

    def __init__(
        self, terms: Terms, placement: Placement, program: int, roots: Sequence[str]
    ) -> None:
        self.terms, self.placement, self.program = terms, placement, program
        self.graph = graph = StepGraph.of_run(placement, roots)
        self.ops, self.number, self.calls = graph.ops, graph.number, graph.calls
        self.data, self.edges = graph.inputs.__getitem__, graph.edges
        self.reached, self.holder = graph.reached, graph.holder
        self.updates, self.update_ops = graph.updates, graph.update_ops
        self.outputs, self.shape, self.dtype = graph.outputs, graph.shape, graph.dtype
        self.shape_of_variable, self.all_updates = graph.shape_of_variable, graph.all_updates
        self._bits, self._awaited = graph.bits, graph.awaited
        self._read_bits, self._reads_before = graph.read_bits, graph.reads_before
        self.mistakes: list[Mistake] = []
        self.draws: list[Draw] = []
        self.extents: dict[tuple[str, int, Form], list[Form] | None] = {}
        self._origins: dict[str, Origin] = {}

    @abstractmethod
    def value(self, source: str, reader: str = "") -> Form:
        """The form of a tensor, as an op reads it."""

    @abstractmethod
    def is_being_evaluated(self, source: str) -> bool:
        """Whether the value of a tensor waits for a value that is being evaluated."""

    @abstractmethod
    def operand(self, op: str, number: int) -> Form:
        """The form of a tensor that an op reads: a loop variable, or an input of the op."""

    @abstractmethod
    def state_seen_by(self, name: str, handle: str) -> Form | None:
        """The value of a resource variable that an op reads through a handle."""

    @abstractmethod
    def assume_loop_variable(self, loop: str, name: str, form: Form) -> None:
        """Let the body of a loop read a form as a loop variable."""

    @abstractmethod
    def read_in_loop(self, loop: str, tensor: str) -> Form:
        """The form of a tensor that the body of a loop returns."""

    @abstractmethod
    def part_of_tower(self, objectives: Collection[str]) -> Part | None:
        """The part of the batch that objectives are computed from; None if it is not one part."""

    @abstractmethod
    def first_row(self, part: Part) -> Form:
        """The number of the first row of a part within the whole batch."""

    def origin(self, op: str) -> Origin:
        """The origin of terms that an op makes."""
        found = self._origins.get(op)
        if found is None:
            kind = self.ops[op].type if op in self.ops else ""
            found = self._origins[op] = Origin(self.program, op, kind)
        return found

    def report(
        self,
        text: str,
        op: str,
        *,
        is_certain: bool = True,
        entry: mistakes.Mistake | None = None,
    ) -> None:
        """Note a mistake that no difference of terms shows."""
        self.mistakes.append(Mistake(text, op, is_certain, entry))

    def assume(self, assumption: Assumption) -> None:
        """Take something for granted."""
        self.terms.assumed.add(assumption)

    def note_draw(
        self,
        kind: str,
        order: int | str,
        seed: Any,
        part: Part | None,
        name: str,
        owners: Sequence[str],
        *,
        is_for_rows: bool,
    ) -> None:
        """Note that random numbers are drawn, to find numbers that several towers share.

        Towers share numbers for rows of one tower. They may divide a permutation, or numbers of
        an unknown shape.
        """
        if part and owners and seed is not None:
            self.draws.append(Draw((kind, order), seed, part, name))
        if part is None and len(owners) > 1:
            parts = {self.part_of_tower([owner]) for owner in owners} - {None}
            if len(parts) > 1:
                text = f"{name} draws random numbers for {len(owners)} losses"
                self.report(text, name, is_certain=is_for_rows)


def _graphs(_: Placement) -> dict[frozenset[str], StepGraph]:
    """The graphs of a program's runs, as far as they were read, by the roots of the runs."""
    return {}


def _with_short_names(call: GradientCall) -> GradientCall:
    """A call with the names of tensors as in a GraphDef, where ``op`` is ``op:0``."""

    def short(names: Iterable[str]) -> list[str]:
        return [name.removesuffix(":0") for name in names]

    return call._replace(
        objectives=short(call.objectives),
        weights=short(call.weights),
        sources=short(call.sources),
        gradients=[short(tensors) for tensors in call.gradients],
    )


def training_runs(placement: Placement) -> Sequence[Sequence[str]]:
    """The ops that each training run of a program runs; empty if they are not known."""
    step = placement.step
    roots = step.train_op or step.train_ops
    return step.runs or ([roots] if roots else [])


def cone(
    starts: Iterable[str], edges: Mapping[str, Sequence[str]], without: Collection[str] = ()
) -> set[str]:
    """The ops that some ops depend on, with these ops; not through the ops in ``without``."""
    known = [start for start in starts if start in edges]
    if not without:
        return set(walk(known, edges.__getitem__))
    return set(walk(known, lambda name: (each for each in edges[name] if each not in without)))
