"""Read a training step of a placement into terms.

The ops of the step are evaluated when they are asked for, in the order of their data flow. A read
of a variable is the variable's value after the updates that the read waits for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from placement_checks.core.mistakes import UPDATES_IN_ANY_ORDER
from placement_checks.core.op_types import (
    ADDITIONS,
    ADDS,
    BRANCHES,
    FUNCTION_CALLS,
    IDENTITIES,
    IDENTITY_N,
    LOOPS,
    PLACEHOLDERS,
    REF_VARIABLES,
    SUBTRACTIONS,
    SWITCHES,
    VARIABLES,
    is_update,
)
from placement_checks.core.placement import (
    UNKNOWN_TENSOR,
    GradientCall,
    Placement,
    producer_of,
)
from placement_checks.step.batch import Batch
from placement_checks.step.gradients import Names, with_names
from placement_checks.step.graph import OWN_BACKWARD, Frame, Race, TensorReader, Update, cone
from placement_checks.step.kinds import (
    ONE,
    ROWS,
    Cause,
    Form,
    Kind,
    Origin,
    Shape,
    Status,
)
from placement_checks.step.loops import Loop, is_loop
from placement_checks.step.parts import WHOLE, Part, finest
from placement_checks.step.tensor_ops import TENSOR_OPS, Node, attributes_of, with_shape
from placement_checks.step.terms import Assumption, Terms
from placement_checks.util.text import words
from placement_checks.util.walks import walk

# Updates by the sum of the old value and a multiple of another tensor.
_SUMS = {**dict.fromkeys(ADDITIONS, 1.0), **dict.fromkeys(SUBTRACTIONS, -1.0)}
_SMALL = 1e-2
_ASSIGNS = frozenset({"Assign", "AssignVariableOp"})
_SCATTERS = {
    **dict.fromkeys(["ScatterAdd", "ResourceScatterAdd"], 1.0),
    **dict.fromkeys(["ScatterSub", "ResourceScatterSub"], -1.0),
}
# Their attributes do not show which functions they call.
_UNREAD = frozenset({"Case", "StatelessCase", "PyFunc", "PyFuncStateless", "EagerPyFunc"})
_DESCENTS = frozenset({"ApplyGradientDescent", "ResourceApplyGradientDescent"})
# Optimizers that add a change to the variable's value, on which it does not depend otherwise.
_ADD_A_CHANGE = frozenset(
    words(
        """
        Momentum KerasMomentum Adam RMSProp CenteredRMSProp Adagrad AdagradV2 Adadelta
        """
    )
)


class StepReader(TensorReader):
    """The terms of one training step of a program.

    Args:
        terms: the terms of both programs that are compared.
        placement: the program.
        program: the number of the program, for the origins of terms.
        roots: the ops that the step runs.
        copies: the variable of each copy, by name.

    Attributes:
        in_sync: the copies of variables that a strategy keeps equal, and the first copy of each.
        copies: as given, with the copies of a strategy.
        backward: the ops that were built while gradients were computed.
        batch: the parts of the batch that inputs have.
        races: for variables that are read before or after an update, one such read.
        feeds: other keys of inputs without rows than their names; empty keys match nothing.
        constants: the values of variables that no step changes, where both programs differ; None
            for a value that may be random.
    """

    def __init__(
        self,
        terms: Terms,
        placement: Placement,
        program: int,
        roots: Sequence[str],
        copies: Mapping[str, str],
    ) -> None:
        super().__init__(terms, placement, program, roots)
        self._values: dict[Any, Form] = {}
        self._busy: set[str] = set()
        self._loop_variables: dict[str, Form] = {}
        self.races: dict[str, Race] = {}
        self.feeds: Mapping[str, str] = {}
        self.constants: dict[str, float | None] = {}
        strategy = placement.strategy
        self.in_sync = strategy.first_copies if strategy else {}
        self.copies = {**self.in_sync, **copies}
        self._gradients: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
        for number, call in enumerate(self.calls):
            for source, tensors in enumerate(call.gradients):
                for tensor in tensors[:1]:
                    self._gradients[tensor].append((number, source, len(tensors) > 1))
        self.used_calls: set[int] = set()
        self.backward = frozenset().union(*[call.ops for call in self.calls])
        self.batch = Batch(self)

    # --- values of tensors ---

    def _state_read(self, holder: str, name: str) -> Form:
        """The value of a variable that an op reads.

        If the op and an update do not wait for each other, the read comes first, and is noted.
        """
        done = self._awaited.get(name, 0) & ~self._bits.get(name, 0)
        read = self._read_bits.get(name, 0)
        for update, _ in self.updates.get(holder, ()):
            is_ordered = done & self._bits[update] or self._reads_before[update] & read
            if read and not is_ordered:
                self.races.setdefault(holder, Race(name, update))
        return self.state(holder, done)

    def value(self, source: str, reader: str = "") -> Form:
        """The form of a tensor, as an op reads it."""
        found = self._values.get(source)  # never of a variable, whose value changes
        if found is not None:
            return found
        name = producer_of(source)
        holder = self.holder.get(name)
        if holder is not None and self.ops[holder].type in REF_VARIABLES:
            op = reader if self.ops[name].type in VARIABLES else name
            return self._state_read(holder, op)
        if source in self._busy:
            return self._cyclic(name)
        self._evaluate_with_inputs(source)
        return self._values[source]

    def is_being_evaluated(self, source: str) -> bool:
        """Whether the value of a tensor waits for a value that is being evaluated."""

        def needed(tensor: str) -> Sequence[str]:
            is_known = tensor in self._values or producer_of(tensor) not in self.ops
            return () if is_known else self._needed(tensor)

        return any(tensor in self._busy for tensor in walk([source], needed))

    def operand(self, op: str, number: int) -> Form:
        """The form of a tensor that an op reads: a loop variable, or an input of the op."""
        variables = self.placement.loop_variables.get(op)
        if variables and number in variables:
            return self._loop_variables[variables[number]]
        source = self.data(op)[number]
        if self.ops[op].type in LOOPS:
            holder = self.holder.get(producer_of(source))
            if holder is not None:  # the body reads the variable
                return self.state(holder, self._awaited.get(op, 0))
        return self.value(source, op)

    def assume_loop_variable(self, loop: str, name: str, form: Form) -> None:
        """Let the body of a loop read a form as a loop variable."""
        if self._loop_variables.get(name) == form:
            return
        self._loop_variables[name] = form
        frame = self._frames_of_merges.get(name)
        within = f"{loop}/"
        read = [
            key
            for key in self._values
            if isinstance(key, str)
            and (key.startswith(within) if frame is None else producer_of(key) in frame.inside)
        ]
        for key in read:
            del self._values[key]

    def read_in_loop(self, loop: str, tensor: str) -> Form:
        """The form of a tensor that the body of a loop returns."""
        if producer_of(tensor) == loop:  # a loop variable as it is
            return self._loop_variables[tensor]
        return self.value(tensor, loop)

    @cached_property
    def _frames_of_merges(self) -> Mapping[str, Frame]:
        """The loop of TensorFlow 1 of each loop variable, by the op that merges its values."""
        return {merge: frame for frame in self.graph.frames for merge in frame.merges}

    @cached_property
    def _frames_of_exits(self) -> Mapping[str, Frame]:
        """The loop of TensorFlow 1 of each op that yields a value after the loop."""
        return {name: frame for frame in self.graph.frames for name in frame.exits}

    def _cyclic(self, op: str) -> Form:
        cause = Cause(self.ops[op].type, "is part of a loop", self.origin(op))
        return self.terms.unknown(cause, self.shape(op), self.program, op)

    def _evaluate_with_inputs(self, source: str) -> None:
        """Evaluate a tensor after the tensors that it is computed from, without recursion."""
        stack, values, busy = [source], self._values, self._busy
        while stack:
            tensor = stack[-1]
            if tensor in values:
                stack.pop()
                continue
            if tensor not in busy:
                busy.add(tensor)
                waiting = [
                    each
                    for each in self._needed(tensor)
                    if each not in values and each not in busy and self.graph.is_computed(each)
                ]
                if waiting:
                    stack += waiting
                    continue
            name, _, output = tensor.partition(":")
            values[tensor] = self._evaluate(name, int(output or 0))
            busy.discard(tensor)
            stack.pop()

    def _needed(self, tensor: str) -> Sequence[str]:
        """The tensors that a tensor's value needs."""
        name = producer_of(tensor)
        if name in self.batch.leaves or name not in self.ops:
            return []
        op = self.ops[name]
        gradient = self._gradients.get(tensor)
        if gradient:
            call = self.calls[gradient[0][0]]
            needed = [*call.objectives, *filter(None, call.weights)]
            return [] if UNKNOWN_TENSOR in needed else needed
        if name in self._frames_of_merges:
            return []
        frame = self._frames_of_exits.get(name)
        if frame is not None:
            return [*frame.enters, *frame.captured]
        returned = {} if op.type in LOOPS else self.placement.results.get(name, {})
        if not returned and op.type != "ReadVariableOp":
            return self.data(name)
        needed = [*self.data(name), *(each for tensors in returned.values() for each in tensors)]
        if op.type == "ReadVariableOp":
            holder = self.holder.get(producer_of(op.inputs[0]))
            mask = self._awaited.get(name, 0)
            for update in self.updates.get(holder or "", ()):
                if mask & self._bits[update.op]:
                    needed += self.data(update.op)
        return needed

    def _evaluate(self, name: str, output: int) -> Form:
        form = self._computed(name, output)
        if self.terms.is_alone and self._has_unknown_rows(name, form):
            self.batch.leaves[name] = (name,), WHOLE
            return self._leaf(Node(self, name, output))
        override = name in self.ops and self.graph.custom_gradient(name)
        if not override or self.ops[name].type == IDENTITY_N or self.terms.is_backward(form):
            return form
        self.assume(Assumption.LIBRARY_GRADIENTS)
        node = Node(self, name, output)
        return node.build("CustomGradient", (override,), (form,))

    def _has_unknown_rows(self, name: str, form: Form) -> bool:
        """Whether a form is unknown, but computed from rows."""
        atom = self.terms.single(form)
        return atom is not None and atom.op == "Unknown" and name in self.batch.with_rows

    def _computed(self, name: str, output: int) -> Form:
        op = self.ops.get(name)
        if op is None:
            cause = Cause("", "is not in the graph", self.origin(name))
            return self.terms.unknown(cause, None, self.program, name, output)
        node = Node(self, name, output)
        gradient = self._gradients.get(f"{name}:{output}" if output else name)
        if gradient:
            return self._gradient(node, *gradient[0])
        if name in self.batch.leaves:
            return self._leaf(node)
        if name in self.batch.unmatched:
            text = "is an input that only one of the two programs has"
            cause = Cause(op.type, text, node.origin)
            return self.terms.unknown(cause, node.shape, self.program, name, output)
        if op.type in VARIABLES:
            return self.variable(name)
        if op.type in PLACEHOLDERS:
            return self._fed(node)
        made = self._in_frame(node) or self._returned(node)
        if made is not None:
            return made
        handler = TENSOR_OPS.get(op.type)
        if handler is not None:
            made = handler(node)
            if made is not None:
                return made
        if op.type in ADDS:
            return self.terms.add(*((operand, 1.0) for operand in node.operands))
        if is_update(op.type):
            return self._updated_value(node)
        if not self.data(name):
            cause = Cause(op.type, "yields values that cannot be followed", node.origin)
            return self.terms.unknown(cause, node.shape, self.program, name, output)
        if op.type in _UNREAD:
            cause = Cause(op.type, "calls a function that is not read", node.origin)
            return self.terms.unknown(cause, node.shape, self.program, name, output)
        attrs: tuple[Any, ...] = attributes_of(node)
        if output or len(self.outputs(name)) > 1:
            attrs = (*attrs, output)
        return node.build(op.type, attrs, node.operands)

    def _leaf(self, node: Node) -> Form:
        """An input with rows, or a scalar that is fed to each tower."""
        key, part = self.batch.leaves[node.name]
        shape = node.shape
        if shape == ():
            return self.terms.atom("Feed", key, (), (), origin=node.origin)
        dims = (None,) if shape is None else shape
        if isinstance(dims[0], int) and not self.terms.is_alone:
            self.terms.sizes.setdefault((self.program, part), dims[0])
        status = Status(Kind.ROWS, 0)
        attrs = (*key, node.output)
        operands: tuple[Form, ...] = ()
        if node.op.type in PLACEHOLDERS:
            defaults = [node.operand(number) for number in range(len(node.inputs))]
            operands = tuple([self._with_own_part(each, part) for each in defaults])
        shape = (ROWS, *dims[1:])
        return self.terms.atom(
            "Leaf", attrs, operands, shape, part=part, origin=node.origin, status=status
        )

    def _with_own_part(self, default: Form, part: Part) -> Form:
        """The default of a tower's placeholder: an element of a pipeline is this tower's part."""
        drawn = finest(self.terms.parts(default))
        if not drawn or len(drawn) != 1 or len(part) != 1:
            return default
        own, other = part[0], drawn[0]
        is_same = (own.number, own.parts) == (other.number, other.parts)
        return self.terms.with_part(default, drawn, part) if is_same else default

    def _fed(self, node: Node) -> Form:
        """A placeholder without rows: the same value in both programs, if the names are equal."""
        key = self.feeds.get(node.name, short_name(node.name))
        if not key:
            cause = Cause(node.op.type, "is one of several inputs with this name", node.origin)
            return self.terms.unknown(cause, node.shape, self.program, node.name)
        operands: tuple[Form, ...] = ()
        if self.data(node.name) and not self.terms.parts(node.operand(0)):
            operands = (node.operand(0),)
        return self.terms.atom("Feed", (key,), operands, node.shape, origin=node.origin)

    def _in_frame(self, node: Node) -> Form | None:
        """A loop variable of TensorFlow 1, or its value after the loop; None for other ops."""
        name = node.name
        if name in self._frames_of_merges and node.output == 0:
            return self._loop_variables.get(name) or self._cyclic(name)
        frame = self._frames_of_exits.get(name)
        if frame is not None:
            outputs = Loop(node, (), frame).outputs()
            for each, number in frame.exits.items():
                self._values[each] = outputs[number]
            return outputs[frame.exits[name]]
        return None

    def _returned(self, node: Node) -> Form | None:
        """A result of a call with a known body; None for other ops and for loops."""
        returned = self.placement.results.get(node.name)
        if returned is None:
            return None
        if is_loop(node):
            outputs = Loop(node, attributes_of(node)).outputs()
            for number, form in enumerate(outputs):
                self._values[f"{node.name}:{number}" if number else node.name] = form
            return outputs[node.output]
        kind = self.ops[node.name].type
        if kind in FUNCTION_CALLS or set(returned) == {""}:
            return self.value(returned[""][node.output], node.name)
        if set(returned) == {"/then", "/else"}:
            yes, no = [self.value(returned[side][node.output]) for side in ("/then", "/else")]
            return node.build("Conditional", (), (node.operand(0), yes, no))
        return None

    # --- gradients ---

    def _gradient(self, node: Node, number: int, source: int, is_sparse: bool) -> Form:
        """The gradient that a recorded call takes with respect to one of its sources."""
        terms, call = self.terms, self.calls[number]
        own = self.graph.own_backward(number).get(node.name)
        if own is not None:
            cause = Cause("CustomGradient", OWN_BACKWARD, self.origin(own))
            return terms.unknown(cause, node.shape, self.program, node.name)
        if UNKNOWN_TENSOR in (*call.objectives, *call.weights, call.sources[source]):
            cause = Cause("Grad", "is taken of tensors outside of the step", node.origin)
            return terms.unknown(cause, node.shape, self.program, node.name)
        self.used_calls.add(number)
        loss = terms.add(*((each, 1.0) for each in self._objectives(call, node)))
        name = call.sources[source]
        holder = self.holder.get(producer_of(name))
        if holder is None and self.ops[producer_of(name)].type == "ReadVariableOp":
            holder = self.holder.get(producer_of(self.ops[producer_of(name)].inputs[0]))
        wrt = self.value(name) if holder is None else self.variable(self._copy_in(loss, holder))
        if call.stopped:
            cause = Cause(
                "Grad", "is taken with stop_gradients, which are not followed", node.origin
            )
            return terms.unknown(cause, node.shape, self.program, node.name)
        if not terms.depends(loss, frozenset(terms.atoms_in(wrt)) - {ONE}):
            text = "has no known path to the loss"
            cause = Cause(self.ops[producer_of(name)].type, text, self.origin(producer_of(name)))
            return terms.unknown(cause, node.shape, self.program, node.name)
        if self._is_computed_twice(producer_of(name), wrt, call):
            text = "is one of several ops with equal results, and a gradient is taken for it alone"
            cause = Cause(self.ops[producer_of(name)].type, text, self.origin(producer_of(name)))
            return terms.unknown(cause, node.shape, self.program, node.name)
        attrs = ("values",) if is_sparse else ()
        shape = node.shape if is_sparse else terms.shape(wrt)
        return terms.build("Grad", attrs, (loss, wrt), shape, node.origin)

    def _is_computed_twice(self, source: str, form: Form, call: GradientCall) -> bool:
        """Whether losses use a tensor, or a read of a variable, and equal tensors of other ops."""
        if source in self.holder:
            return False
        if self.ops[source].type == "ReadVariableOp":
            handle = self.holder.get(producer_of(self.ops[source].inputs[0]))
            if handle is not None:
                form = self.variable(handle)
        used = set().union(*[self.graph.towers[objective] for objective in call.objectives])
        alike = [
            name
            for name in used
            if name != source and name not in self.holder and self._values.get(name) == form
        ]
        return any(source not in cone([name], self.edges) for name in alike)

    def _objectives(self, call: GradientCall, node: Node) -> Iterable[Form]:
        """The scalars of a gradient call, times the weights that the program gives."""
        terms = self.terms
        for objective, weight in zip(call.objectives, call.weights, strict=True):
            name, _, output = objective.partition(":")
            form = with_shape(Node(self, name, int(output or 0)), self.value(objective))
            shape = terms.shape(form)
            if weight:
                stopped = terms.build(
                    "StopGradient", (), (self.value(weight),), shape, node.origin
                )
                form = terms.build("Mul", (), (form, stopped), shape, node.origin)
            if shape != ():
                axes = None if shape is None else tuple(range(len(shape)))
                form = terms.build("Sum", (axes, False), (form,), (), node.origin)
            yield form

    def _copy_in(self, loss: Form, holder: str) -> str:
        """The copy of a variable that a loss reads: a strategy names the first copy for all."""
        if holder not in self.copies:
            return holder
        for copy in (holder, *self._copies_of[self.copies[holder]]):
            targets = frozenset(self.terms.atoms_in(self.variable(copy))) - {ONE}
            if self.terms.depends(loss, targets):
                return copy
        return holder

    @cached_property
    def _copies_of(self) -> Mapping[str, Sequence[str]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for copy, name in self.copies.items():
            found[name].append(copy)
        return found

    # --- variables ---

    def variable(self, name: str) -> Form:
        """The value of a variable before the step."""
        shape = self.shape_of_variable(name)
        return self.terms.atom("Var", (name,), (), shape, origin=self.origin(name))

    def variable_of(self, tensor: str) -> str:
        """The variable that a handle, or a value of a variable, belongs to; empty if none."""
        name = producer_of(tensor)
        if name in self.ops and self.ops[name].type == "ReadVariableOp":
            name = producer_of(self.ops[name].inputs[0])
        return self.holder.get(name, "")

    def state_after(self, variable: str, update: str) -> Form:
        """The value of a variable directly after an update, and the updates that it waits for."""
        return self.state(variable, self._awaited[update])

    def state(self, variable: str, mask: int) -> Form:
        """The value of a variable after the updates in a mask."""
        done = [each for each in self.updates.get(variable, ()) if mask & self._bits[each.op]]
        key = ("state", variable, sum(self._bits[each.op] for each in done))
        if key not in self._values:
            for update in done[:-1]:  # so that a long chain needs no deep recursion
                self._updated(update, variable)
            self._values[key] = self._state_after(variable, done)
        return self._values[key]

    def _state_after(self, variable: str, done: Sequence[Update]) -> Form:
        last = [
            update
            for update in done
            if not any(
                other != update and self._awaited[other.op] & self._bits[update.op]
                for other in done
            )
        ]
        terms = self.terms
        if not last and variable in self.constants:
            number = self.constants[variable]
            if number is not None:
                return terms.number(number)
            name = self.copies.get(variable, variable)
            text = "has another initial value than in the other program, and may be random"
            cause = Cause("Var", text, self.origin(variable))
            return terms.unknown(cause, (), self.program, name)
        if not last:
            return self.variable(variable)
        before = sum(self._bits[each.op] for each in done if each not in last)
        old = self.state(variable, before)
        chosen = self._branches(
            [(each, self._calls_around(each.op)) for each in last], variable, old
        )
        if chosen is not None:
            return chosen
        total = [(old, 1.0)]
        for update in last:
            kind = self.ops[update.op].type
            if kind not in _SUMS and kind not in _SCATTERS and kind not in _DESCENTS:
                text = f"{len(last)} updates of {variable} run in any order"
                self.report(text, update.op, entry=UPDATES_IN_ANY_ORDER)
                cause = Cause(
                    kind, "is one of several updates in any order", self.origin(update.op)
                )
                return terms.unknown(cause, terms.shape(old), self.program, variable)
            seen = self.state(variable, self._awaited[update.op] & ~self._bits[update.op])
            total += [(self._updated(update, variable), 1.0), (seen, -1.0)]
        return terms.add(*total)

    def _calls_around(self, name: str) -> list[tuple[str, str]]:
        """The branches and loops around an op, outermost first, with the suffix of the body."""
        found = []
        while (call := self.ops[name].caller) in self.ops:
            if self.ops[call].type not in FUNCTION_CALLS:
                suffix = name[len(call) :].partition("/")[2].partition("/")[0]
                found.append((call, f"/{suffix}"))
            name = call
        return found[::-1]

    def _branches(
        self,
        updates: Sequence[tuple[Update, Sequence[tuple[str, str]]]],
        variable: str,
        old: Form,
    ) -> Form | None:
        """The value after updates in branches; None for several updates that may all run."""
        if not updates:
            return old
        if len(updates) == 1 and not updates[0][1]:
            return self._updated(updates[0][0], variable)
        heads = {around[0][0] if around else "" for _, around in updates}
        if len(heads) > 1 or "" in heads:
            return None
        call = heads.pop()
        if self.ops[call].type not in BRANCHES or self.ops[call].type.endswith("Case"):
            cause = Cause(self.ops[call].type, "updates variables in a loop", self.origin(call))
            return self.terms.unknown(cause, self.terms.shape(old), self.program, call)
        sides = []
        for suffix in ("/then", "/else"):
            inner = [(each, around[1:]) for each, around in updates if around[0][1] == suffix]
            side = self._branches(inner, variable, old)
            if side is None:
                return None
            sides.append(side)
        condition = self.value(self.data(call)[0], call)
        return self.terms.build(
            "Conditional", (), (condition, *sides), self.terms.shape(old), self.origin(call)
        )

    def _updated_value(self, node: Node) -> Form:
        """The value that an update returns."""
        sources = self.data(node.name)
        holder = self.holder.get(producer_of(sources[0])) if sources else None
        if holder is None:
            cause = Cause(node.op.type, "updates an unknown variable", node.origin)
            return self.terms.unknown(cause, node.shape, self.program, node.name)
        if node.name not in self._bits:
            return self.variable(holder)
        return self._updated(Update(node.name, 0), holder)

    def _updated(self, update: Update, variable: str) -> Form:
        """The value of a variable directly after an update."""
        if update not in self._values:
            self._values[update] = self._apply(update, variable)
        return self._values[update]

    def _apply(self, update: Update, variable: str) -> Form:
        """The new value of a variable; in a branch of TensorFlow 1, the new or the old value."""
        terms, name = self.terms, update.op
        if any(name in frame.inside for frame in self.graph.frames):
            cause = Cause(self.ops[name].type, "updates variables in a loop", self.origin(name))
            shape = self.shape_of_variable(variable)
            return terms.unknown(cause, shape, self.program, name, update.slot)
        before = self._awaited[name] & ~self._bits[name]
        old, made = self.state(variable, before), self._applied(update, variable)
        for source in self._switches(self.data(name)[update.slot]):
            switch, _, output = source.partition(":")
            condition = self.value(self.data(switch)[1], switch)
            sides = (made, old) if output == "1" else (old, made)
            made = terms.build(
                "Conditional", (), (condition, *sides), terms.shape(old), self.origin(switch)
            )
        return made

    def _switches(self, handle: str) -> Iterator[str]:
        """The outputs of ``Switch`` ops that a handle passes, the last one first."""
        while (op := self.ops[producer_of(handle)]).type not in VARIABLES:
            if op.type in SWITCHES:
                yield handle
            handle = op.inputs[0]

    def _applied(self, update: Update, variable: str) -> Form:
        terms, name = self.terms, update.op
        kind, data = self.ops[name].type, self.data(name)
        before = self._awaited[name] & ~self._bits[name]
        old = self.state(variable, before)
        shape = self.shape_of_variable(variable)
        if kind in _ASSIGNS:
            return self.value(data[1], name)
        if kind in _SUMS:
            return self._changed_by(old, terms.scaled(self.value(data[1], name), _SUMS[kind]))
        if kind in _SCATTERS:
            rows = self._slices(data[2], data[1], shape, name)
            return terms.add((old, 1.0), (rows, _SCATTERS[kind]))
        if kind in _DESCENTS:
            rate, gradient = (self.value(each, name) for each in data[1:3])
            step = terms.times(rate, gradient)
            if step is not None:
                return terms.add((old, 1.0), (step, -1.0))
        operands = [
            self.state(self.holder[producer_of(each)], before)
            if producer_of(each) in self.holder
            else self.value(each, name)
            for each in data
        ]
        if "SparseApply" in kind:
            operands = self._with_slices(operands, data, shape, name)
        node = Node(self, name, update.slot)
        attrs = (*attributes_of(node), update.slot)
        plain_kind = kind.removeprefix("Resource")
        if plain_kind.rpartition("Apply")[2] not in _ADD_A_CHANGE:
            return terms.build(plain_kind, attrs, tuple(operands), shape, node.origin)
        operands[0] = terms.number(0.0)
        change = terms.build(plain_kind, attrs, tuple(operands), shape, node.origin)
        return change if update.slot else terms.add((old, 1.0), (change, 1.0))

    def _changed_by(self, old: Form, change: Form) -> Form:
        """The sum of an old value and a change.

        A small fraction of the old value, such as by weight decay, stays apart: in the sum, it
        could not be told from rounding. Copies of a variable count together, as in the mean that a
        strategy takes of the changes of all replicas.
        """
        terms, names = self.terms, self.atoms_of_copies
        before = dict(terms.summands(with_names(terms, old, names)))
        changes = dict(terms.summands(with_names(terms, change, names)))
        is_small = {
            monomial: abs(number) < _SMALL * abs(before.get(monomial, 0.0))
            for monomial, number in changes.items()
        }
        if not any(is_small.values()):
            return terms.add((old, 1.0), (change, 1.0))
        total = [(old, 1.0)]
        for monomial, number in changes.items():
            term = terms.form({monomial: 1.0})
            if is_small[monomial]:
                term = terms.product(term, terms.atom("SmallPart", (), (), ()))
            total.append((term, number))
        return terms.add(*total)

    @cached_property
    def atoms_of_copies(self) -> Names:
        """The atom of the variable for the atom of each of its other copies."""
        atoms = Names()
        for copy, name in self.copies.items():
            if copy != name and copy in self.ops:
                shape, origin = self.shape_of_variable(copy), self.origin(copy)
                variable = self.terms.atom("Var", (name,), (), shape, origin=origin)
                pair = [max(self.terms.atoms_in(each)) for each in (self.variable(copy), variable)]
                atoms[pair[0]] = pair[1]
        return atoms

    def descent_of(self, variable: str) -> tuple[Form, Form] | None:
        """The rate and the gradient, if plain gradient descent alone updates a variable.

        The program may write it out: ``w.assign_sub(rate * gradient)``. Decays may come before or
        after it.
        """
        updates = self.updates_by_gradients(variable)
        if len(updates) != 1:
            return None
        name = updates[0]
        kind, data = self.ops[name].type, self.data(name)
        if kind in _DESCENTS:
            return self.value(data[1], name), self.value(data[2], name)
        sign = {**_SUMS, **_SCATTERS}.get(kind, 0.0)
        is_sparse = kind in _SCATTERS
        product = producer_of(data[-1]) if sign == -1.0 or is_sparse else ""
        while product and self.ops[product].type in IDENTITIES:
            product = producer_of(self.data(product)[0])
        if not product or self.ops[product].type != "Mul":
            return None
        rate, gradient = self.data(product)
        if self.terms.is_backward(self.value(rate, product)):
            rate, gradient = gradient, rate
        if self.terms.shape(self.value(rate, product)) != ():
            return None
        shape = self.shape_of_variable(variable)
        taken = (
            self._slices(gradient, data[1], shape, name)
            if is_sparse
            else self.value(gradient, product)
        )
        return self.value(rate, product), self.terms.scaled(taken, -sign)

    def updates_by_gradients(self, variable: str) -> list[str]:
        """The updates of a variable that take gradients, or values that depend on them.

        A decay that follows another update depends on gradients only by the variable's own value.
        """
        return [
            update.op
            for update in self.updates.get(variable, ())
            if any(
                self.terms.is_backward(self.value(each, update.op))
                and not self._is_own_value(each, variable)
                for each in self.data(update.op)[1:]
            )
        ]

    def _is_own_value(self, tensor: str, variable: str) -> bool:
        """Whether a tensor depends on gradients by the value of a variable alone."""

        def below(here: str) -> Sequence[str]:
            is_end = here in self._gradients or self.variable_of(here)
            return (
                () if is_end or producer_of(here) not in self.ops else self.data(producer_of(here))
            )

        passed = list(walk([tensor], below))
        ends = [
            each for each in passed if not below(each) and self.terms.is_backward(self.value(each))
        ]
        return all(self.variable_of(each) == variable for each in ends) and not any(
            self.placement.results.get(producer_of(each)) for each in passed
        )

    def line_of_gradient(self, variable: str) -> str:
        """The op to blame for a wrong gradient: the first op with the value that the update takes.

        It is the op that combines the towers' gradients. If the update takes the gradient of a
        backward op as it is, it is the update.
        """
        updates = [update.op for update in self.updates.get(variable, ())]
        for name in self.updates_by_gradients(variable):
            for source in self.data(name)[1:]:
                value = self.value(source, name)
                if self.terms.is_backward(value):
                    return self._first_with(value, source) or name
        return updates[-1] if updates else variable

    def _first_with(self, value: Form, source: str) -> str:
        """The first op on the way to a tensor with this value; empty for a backward op."""

        def equal_inputs(tensor: str) -> Iterator[str]:
            inputs = () if tensor in self._gradients else self.data(producer_of(tensor))
            return (each for each in inputs if self._values.get(each) == value)

        equal = walk([source], equal_inputs)
        names = [producer_of(each) for each in equal if each not in self._gradients]
        return min(names, key=self.number.__getitem__, default="")

    def _with_slices(
        self, operands: list[Form], data: Sequence[str], shape: Shape, name: str
    ) -> list[Form]:
        """The operands of a sparse update, with the gradient's rows and their indices joined."""
        for at, source in enumerate(data):
            output = int(source.partition(":")[2] or 0)
            op = producer_of(source)
            is_integer = self.dtype(op, output) in ("int32", "int64")
            if at and is_integer and self.shape(op, output) != ():
                joined = self._slices(data[at - 1], source, shape, name)
                return [*operands[: at - 1], joined, *operands[at + 1 :]]
        return operands

    def _slices(self, values: str, indices: str, shape: Shape, name: str) -> Form:
        operands = self.value(values, name), self.value(indices, name)
        return self.terms.build("Slices", (), operands, shape, self.origin(name))

    def state_seen_by(self, name: str, handle: str) -> Form | None:
        """The value of a resource variable that an op reads through a handle."""
        holder = self.holder.get(producer_of(handle))
        if holder is None:
            return None
        return self._state_read(holder, name)

    # --- towers ---

    def part_of_tower(self, objectives: Collection[str]) -> Part | None:
        """The part of the batch that objectives are computed from; None if it is not one part."""
        return self.batch.part_of(objectives)

    @cached_property
    def parts_of_gradients(self) -> Mapping[Origin, Part]:
        """The part of the batch that the loss of each backward op is computed from."""
        parts = [(call, self.part_of_tower(call.objectives)) for call in self.calls]
        return {
            self.origin(producer_of(tensor)): part
            for call, part in parts
            if part is not None
            for tensors in call.gradients
            for tensor in tensors
        }

    def first_row(self, part: Part) -> Form:
        """The number of the first row of a part within the whole batch."""
        return self.batch.first_row(part)


def short_name(op: str) -> str:
    """The name of an op without its name scopes."""
    return op.rpartition("/")[2]
