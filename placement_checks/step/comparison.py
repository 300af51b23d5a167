"""Compare a training step for several GPUs with the step for one GPU, variable by variable."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, NamedTuple

from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import (
    COEFFICIENT,
    COPIES_UPDATED_APART,
    DECAY,
    PART_LEFT_OUT,
    PART_UNUSED,
    SETTING,
)
from placement_checks.core.op_types import GATHERERS, PLACEHOLDERS, is_gradient_update
from placement_checks.core.placement import TRAINABLE, Placement, producer_of
from placement_checks.step.explanation import (
    ON_ONE_GPU,
    Difference,
    Excuse,
    Explanation,
    Obligation,
    only_parts_count,
)
from placement_checks.step.gradients import Names, with_names, with_values
from placement_checks.step.graph import Draw, cone, training_runs
from placement_checks.step.kinds import ONE, AtomId, Cause, Form, Origin
from placement_checks.step.op_types import op_type
from placement_checks.step.own_value import OwnValue, steps_of
from placement_checks.step.parts import WHOLE, Part, finest, share
from placement_checks.step.reader import StepReader, short_name
from placement_checks.step.stages import GradientStages
from placement_checks.step.statistics import unaccepted_means, with_means
from placement_checks.step.terms import Assumption, Terms, are_close
from placement_checks.step.weights import (
    Weights,
    compare_weights,
    multiple,
    sources_of_gradients,
)
from placement_checks.step.wording import cause_in_words
from placement_checks.util.walks import walk

TOWERS, ONE_GPU = 0, 1  # the numbers of the programs
Roots = tuple[Sequence[str], Sequence[str]]  # the ops that a run of each program runs


class State(Enum):
    """Whether a variable has the same value after both steps."""

    PROVED = auto()  # for every batch
    DIFFERS = auto()
    UNKNOWN = auto()


class Equality(NamedTuple):
    """The answer for one variable.

    Attributes:
        state: the answer.
        difference: the first difference; None if it is proved.
    """

    state: State
    difference: Difference | None = None


class StepEquality(NamedTuple):
    """The comparison of two steps.

    Attributes:
        variables: the answer for each trained variable, and for each variable that their values
            depend on, such as slots. The names are those in the program for one GPU, or in the
            other program if one GPU has no such variable.
        trained: the names of the trained variables among them.
        copies: the variables of the program for several GPUs, by the same names. The answer and
            the weights are about the first one: it differs from one GPU, if any of them does.
        assumed: what the proofs take for granted.
        weights: for trained variables that are not proved, or have another learning rate: how
            often each loss term counts in the gradient, or why this is unknown; without terms, if
            only the learning rate differs.
        parts: the part of the batch that each objective is computed from.
        sources: for variables that the optimizer updates by gradients of other variables alone:
            one of these.
    """

    variables: Mapping[str, Equality] = {}
    trained: frozenset[str] = frozenset()
    copies: Mapping[str, Sequence[str]] = {}
    assumed: frozenset[Assumption] = frozenset()
    weights: Mapping[str, Weights | Cause] = {}
    parts: Mapping[str, Part] = {}
    sources: Mapping[str, str] = {}

    def improved_by(self, other: StepEquality) -> StepEquality:
        """These answers, with the better answers that other assumptions allow.

        A proof is better than all others, and another setting alone better than an unknown value.
        """
        better = {
            name: answer
            for name, answer in other.variables.items()
            if name in self.variables and _is_better(answer, self.variables[name])
        }
        if not better:
            return self
        return self._replace(
            variables={**self.variables, **better}, assumed=self.assumed | other.assumed
        )


def _is_better(answer: Equality, than: Equality) -> bool:
    if answer.state is State.PROVED:
        return than.state is not State.PROVED
    is_unknown = than.state is State.UNKNOWN and not _has_other_setting(than)
    return is_unknown and _has_other_setting(answer)


CompareRuns = Callable[[Placement, Placement, Roots], StepEquality]


def compare_steps(towers: Placement, one_gpu: Placement) -> StepEquality | Missing:
    """Compare the training step of a program with the step of the same program for one GPU.

    Both programs may train in several runs, in turns. Then the runs are compared in their order.
    The result is computed once.

    Returns:
        The answers; missing if the ops of a step are not known.
    """
    known = towers.cached(_comparisons)
    if id(one_gpu) not in known:
        known[id(one_gpu)] = one_gpu, compare_all_runs(towers, one_gpu, ON_ONE_GPU, _compare_runs)
    return known[id(one_gpu)][1]


def _comparisons(_: Placement) -> dict[int, tuple[Placement, StepEquality | Missing]]:
    """The comparisons of a program, by the identity of the other program."""
    return {}


def compare_all_runs(
    towers: Placement, one_gpu: Placement, there: str, compare_runs: CompareRuns
) -> StepEquality | Missing:
    """Compare the runs of two programs that train in several runs, in their order.

    Args:
        towers: the program.
        one_gpu: the other program.
        there: the place of the other program.
        compare_runs: compares two runs.
    """
    runs = training_runs(towers), training_runs(one_gpu)
    if not runs[0] or not runs[1]:
        which = "the program" if not runs[0] else f"the program {there}"
        return Missing(f"the training step of {which} is not known")
    if len(runs[0]) != len(runs[1]):
        return Missing(f"the program trains in {len(runs[0])} runs, but {there} in {len(runs[1])}")
    found = StepEquality()
    for roots in zip(*runs, strict=True):
        one = compare_runs(towers, one_gpu, roots)
        found = StepEquality(
            _of_both_runs(found.variables, one.variables),
            found.trained | one.trained,
            {**found.copies, **one.copies},
            found.assumed | one.assumed,
            {**found.weights, **one.weights},
            {**found.parts, **one.parts},
            {**found.sources, **one.sources},
        )
    return found


def _of_both_runs(
    first: Mapping[str, Equality], second: Mapping[str, Equality]
) -> Mapping[str, Equality]:
    """For a variable of both runs, the answer that is no proof; the first certain difference."""
    rank = [State.PROVED, State.UNKNOWN, State.DIFFERS].index
    return {**first, **second} | {
        name: answer
        for name, answer in first.items()
        if name in second and rank(answer.state) >= rank(second[name].state)
    }


def _compare_runs(towers: Placement, one_gpu: Placement, roots: Roots) -> StepEquality:
    """Compare two runs, at first without assumptions.

    If all assumptions together prove more, each one is tried alone before.
    """
    compare = partial(_compare_assuming, towers, one_gpu, roots)
    comparison, found = compare()
    if _may_be_proved(found):
        comparison, with_all = compare(own_statistics=True, equal_rows=True)
        if found.improved_by(with_all) is not found:
            found = found.improved_by(compare(equal_rows=True)[1])
            if _may_be_proved(found):
                found = found.improved_by(compare(own_statistics=True)[1])
            if _may_be_proved(found):
                found = found.improved_by(with_all)
    names = [
        name
        for name in found.trained
        if found.variables[name].state is not State.PROVED or comparison.has_other_rate(name)
    ]
    if names and not comparison.terms.own_statistics:
        comparison, _ = compare(own_statistics=True, equal_rows=True)
    weights = {
        name: Weights() if _has_other_setting(found.variables[name]) else comparison.weights(name)
        for name in names
    }
    return found._replace(
        copies={**found.copies, **comparison.copies},
        weights=weights,
        parts=comparison.parts(),
        sources=comparison.sources(found.trained),
    )


def _compare_assuming(
    towers: Placement,
    one_gpu: Placement,
    roots: Roots,
    *,
    own_statistics: bool = False,
    equal_rows: bool = False,
) -> tuple[Comparison, StepEquality]:
    """Compare two runs with assumptions: statistics of own rows, and equally many rows.

    A divisor of a sum over rows is a number of rows only if it is one in both programs.
    """
    for reads_divisors in (True, False):
        terms = Terms(
            op_type,
            statistics=with_means if own_statistics else None,
            decisions=own_statistics,
            equal_rows=equal_rows,
        )
        comparison = Comparison(terms, towers, one_gpu, roots, reads_divisors=reads_divisors)
        answer = comparison.compare()
        if len(comparison.terms.divided) != 1:
            break
    return comparison, answer


def _has_other_setting(answer: Equality) -> bool:
    """Whether only a setting of the optimizer differs."""
    return answer.difference is not None and answer.difference.excuse is Excuse.SETTING


def _may_be_proved(found: StepEquality) -> bool:
    """Whether further assumptions may prove an answer."""
    differences = [each.difference for each in found.variables.values() if each.difference]
    others = (Obligation.UPDATE, Obligation.UPDATED)
    return any(
        each.excuse and (each.obligation not in others or each.excuse is Excuse.UNKNOWN)
        for each in differences
    )


class Comparison:
    """The terms of two steps.

    Attributes:
        terms: the terms.
        copies: see `StepEquality`; known after `compare`.
    """

    def __init__(
        self,
        terms: Terms,
        towers: Placement,
        one_gpu: Placement,
        roots: Roots,
        *,
        reads_divisors: bool = False,
    ) -> None:
        self.terms = terms
        self.one_gpu = StepReader(self.terms, one_gpu, ONE_GPU, roots[1], {})
        self.towers = StepReader(self.terms, towers, TOWERS, roots[0], {})
        self._reads_divisors = reads_divisors
        self._names = Names()
        self.copies: dict[str, Sequence[str]] = {}
        self.explanation = self._match()

    def _match(self) -> Explanation:
        """Match the variables and inputs of both programs."""
        towers, one_gpu = self.towers.placement, self.one_gpu.placement
        self.towers.copies |= matched_names(self.towers, self.one_gpu)
        shared = towers.ops.keys() & one_gpu.ops.keys()
        trained = {
            name for each in (towers, one_gpu) for name in each.collections.get(TRAINABLE, ())
        }
        single = self.one_gpu.batch
        listed = self.towers.batch.listed
        self.towers.batch.assign(single, single.listed)
        single.assign(single, listed)
        sizes = self.towers.batch.fix_sizes(), single.fix_sizes()
        if sizes[0] and sizes[1]:
            are_equal = sizes[0][WHOLE] == sizes[1][WHOLE]
            self.terms.fixed = {**sizes[1], **sizes[0]} if are_equal else {}
            self.terms.reads_divisors = self._reads_divisors and not are_equal
        self.towers.batch.compare_slices(single, ON_ONE_GPU)
        self.towers.feeds, self.one_gpu.feeds = matched_feeds(self.towers, self.one_gpu)
        known = self._match_constants(lambda name: self.towers.copies.get(name, name))
        return Explanation(self.terms, shared, trained, known=known)

    def _match_constants(self, counterpart: Callable[[str], str | None]) -> frozenset[str]:
        """Let both programs read numbers for variables that no step changes, if these differ.

        Eager code draws random values anew for each program. So a value that a loss depends on is
        unknown if it differs. Settings of optimizers are not drawn.

        Args:
            counterpart: returns the variable of the other program.

        Returns:
            The variables of the other program whose values are known in both.
        """
        theirs = self.one_gpu.placement.step.constants
        copies: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for name, number in self.towers.placement.step.constants.items():
            other = counterpart(name)
            if other is not None and other in theirs:
                copies[other][name] = number
        in_losses = set[str]()
        if self.towers.placement.step.traced:
            in_losses.update(*self.towers.graph.towers.values())
        known = set(copies)
        for name, numbers in copies.items():
            if are_close([theirs[name], *numbers.values()]):
                continue
            if in_losses.isdisjoint(numbers):
                self.one_gpu.constants[name] = theirs[name]
                self.towers.constants |= numbers
            else:
                known.remove(name)
                self.one_gpu.constants[name] = None
                self.towers.constants |= dict.fromkeys(numbers)
        return frozenset(known)

    def compare(self) -> StepEquality:
        """Compare trained variables, and their dependencies, after both steps."""
        ours = self._final_values()
        one = self.one_gpu
        names = [name for name in dict.fromkeys([*ours, *one.updates]) if name in one.ops]
        theirs = {name: one.state(name, one.all_updates) for name in names}
        resets = self._resets(ours, theirs)
        if resets:
            theirs = {name: with_values(self.terms, theirs[name], resets) for name in theirs}
            ours = {
                name: {copy: with_values(self.terms, forms[copy], resets) for copy in forms}
                for name, forms in ours.items()
            }
        trained = self._trained(theirs)
        answers: dict[str, Equality] = {}
        compared = self._with_dependencies(trained, theirs, ours)
        for name in compared:
            old = one.variable(name)
            values = ours.get(name) or {name: old}
            differing = [copy for copy, form in values.items() if form != theirs[name]]
            self.copies[name] = list(dict.fromkeys([*differing, *values]))
            if differing:
                answers[name] = self._answer(name, values, theirs[name], old)
            elif theirs[name] != old:
                answers[name] = Equality(State.PROVED)
        answers = self._without_other_means(answers, ours, theirs)
        answers = self._with_mistakes(self._with_examples(answers, trained, ours))
        answers = self._with_races(answers, {name for name in theirs if name not in compared})
        if any(copy != name for copy, name in self.towers.copies.items()):
            self.terms.assumed.add(Assumption.COPIES_START_EQUAL)
        answers = self._with_own_variables(answers)
        return StepEquality(
            answers,
            frozenset(trained) & answers.keys(),
            self.copies,
            frozenset(self.terms.assumed),
        )

    def weights(self, name: str) -> Weights | Cause:
        """How often the loss terms count in the update of a trained variable."""
        towers, one = self.towers, self.one_gpu
        copy = self.copies[name][0]
        several = self._updates_by_turns(copy)
        if several:
            text = f"is one of {len(several)} updates by gradients"
            return Cause(towers.ops[several[0]].type, text, towers.origin(several[0]))
        descents = self._descents(copy, name)
        rates: list[float] = []
        if descents is not None:
            (rate, mine), (other, its) = descents
            rates += filter(None, [multiple(self.terms, rate, other)])
        else:
            state = with_names(self.terms, towers.state(copy, towers.all_updates), self._names)
            mine, its = self._steps(state, one.state(name, one.all_updates), one.variable(name))
        found = compare_weights(self.terms, mine, its, self.towers.parts_of_gradients)
        return (
            found._replace(rates=[*found.rates, *rates]) if isinstance(found, Weights) else found
        )

    def sources(self, trained: Collection[str]) -> Mapping[str, str]:
        """For variables whose optimizer takes only gradients of other ones: one of these.

        An optimizer must update these, too: a variable may take the gradients of its local copy.

        Args:
            trained: the names of the trained variables.
        """
        towers, found = self.towers, {}
        updates = {name: towers.updates_by_gradients(self.copies[name][0]) for name in trained}
        optimized = {
            name: ops[0]
            for name, ops in updates.items()
            if len(ops) == 1 and is_gradient_update(towers.ops[ops[0]].type)
        }
        for name, update in optimized.items():
            forms = [
                with_names(self.terms, towers.value(each, update), self._names)
                for each in towers.data(update)[1:]
                if producer_of(each) not in towers.holder
            ]
            sources = sources_of_gradients(self.terms, forms)
            if sources and name not in sources and sources <= optimized.keys():
                found[name] = min(sources)
        return found

    def _updates_by_turns(self, copy: str) -> Sequence[str]:
        """Several updates by gradients of a variable, or of a slot that its update reads.

        What one of them multiplies, the others may undo.
        """
        towers = self.towers
        updates = towers.updates_by_gradients(copy)
        read = cone(updates, towers.edges) & towers.updates.keys()
        found = (towers.updates_by_gradients(name) for name in (copy, *sorted(read)))
        return next((each for each in found if len(each) > 1), ())

    def has_other_rate(self, name: str) -> bool:
        """Whether a variable is updated by gradient descent with another learning rate."""
        descents = self._descents(self.copies[name][0], name)
        return descents is not None and descents[0][0] != descents[1][0]

    def _descents(
        self, copy: str, name: str
    ) -> tuple[tuple[Form, Form], tuple[Form, Form]] | None:
        """The rates and gradients of both programs, if they are plain gradient descent."""
        ours, theirs = self.towers.descent_of(copy), self.one_gpu.descent_of(name)
        if ours is None or theirs is None:
            return None
        rate, gradient = (with_names(self.terms, form, self._names) for form in ours)
        return (rate, gradient), theirs

    def _steps(self, ours: Form, theirs: Form, old: Form) -> tuple[Form, Form]:
        """The steps that lead to two values of a variable, without decays that follow them."""
        (own,) = set(self.terms.atoms_in(old)) - {ONE}
        split = [OwnValue.split(self.terms, each, own) for each in (ours, theirs)]
        return steps_of(self.terms, *split)

    def _of_rates(
        self, copy: str, name: str, form: Form, theirs: Form, old: Form
    ) -> Difference | None:
        """Explain values that differ by the rates of optimizers that the programs write out."""
        terms, towers = self.terms, len({*self.parts().values()}) or 1
        rate, other = (
            GradientStages(reader).rate(variable, towers)
            for reader, variable in ((self.towers, copy), (self.one_gpu, name))
        )
        if rate is None or other is None or rate == other:
            return None
        rate = with_names(terms, rate, self._names)
        steps = [dict(terms.summands(step)) for step in self._steps(form, theirs, old)]
        differing = [
            terms.form({each: number for each, number in step.items() if than.get(each) != number})
            for step, than in (steps, steps[::-1])
        ]
        products = terms.times(differing[0], other), terms.times(differing[1], rate)
        if products[0] is None or products[0] != products[1]:
            return None
        return self.explanation.of_rates(rate, other, (form, theirs), old)

    def parts(self) -> Mapping[str, Part]:
        """The part of the batch that each objective of the towers is computed from."""
        towers = self.towers
        objectives = {
            each for number in towers.used_calls for each in towers.calls[number].objectives
        }
        parts = {each: towers.part_of_tower([each]) for each in objectives}
        return {each: part for each, part in parts.items() if part is not None}

    def _resets(
        self, ours: Mapping[str, Mapping[str, Form]], theirs: Mapping[str, Form]
    ) -> Mapping[AtomId, Form]:
        """The values of variables that both steps reset, such as sums of gradients."""
        terms = self.terms
        found = {}
        for name, form in theirs.items():
            values = {form, *ours.get(name, {}).values()}
            if len(values) == 1 and terms.constant(form) is not None:
                (atom,) = set(terms.atoms_in(self.one_gpu.variable(name))) - {ONE}
                found[atom] = form
        if found:
            terms.assumed.add(Assumption.RESET)
        return found

    def _trained(self, theirs: Mapping[str, Form]) -> list[str]:
        """The variables of the collection of trained variables that one of the steps knows."""
        collected = [
            name
            for reader in (self.towers, self.one_gpu)
            for name in reader.placement.collections.get(TRAINABLE, ())
        ]
        names = dict.fromkeys(self.towers.copies.get(name, name) for name in collected)
        return [name for name in names if name in theirs]

    def _with_dependencies(
        self,
        trained: Sequence[str],
        theirs: Mapping[str, Form],
        ours: Mapping[str, Mapping[str, Form]],
    ) -> list[str]:
        """Trained variables, and the variables that their values after the step depend on."""
        seen = set[AtomId]()

        def sources(name: str) -> Iterator[str]:
            forms = [theirs[name], *ours.get(name, {}).values()]
            for atom in map(self.terms.__getitem__, self.terms.all_atoms_in(forms, seen)):
                if atom.op == "Var" and atom.attrs[0] in theirs:
                    yield atom.attrs[0]

        return list(walk(trained, sources))

    def _answer(self, name: str, values: Mapping[str, Form], theirs: Form, old: Form) -> Equality:
        copy, form = next((copy, form) for copy, form in values.items() if form != theirs)
        difference = self._explained(copy, form, name, theirs, old)
        is_of_strategy = self.towers.in_sync.keys() >= values.keys()
        # Variables made by hand are copies if all take the gradients of the same towers, and one
        # of them gets the value of one GPU.
        parts = {self.terms.parts(each) for each in values.values()}
        are_copies = is_of_strategy or (len(parts) == 1 and theirs in values.values())
        difference = difference.excused(Excuse.UNMATCHED, when=len(values) > 1 and not are_copies)
        # Not in the gradients that it takes; replicas run the same code.
        own = (SETTING, DECAY, COEFFICIENT) if is_of_strategy else (SETTING, DECAY)
        if (
            difference.mistake in own
            and difference.excuse in (None, Excuse.SETTING)
            and len(set(values.values())) > 1
        ):
            text = f"not all of its copies are updated alike: {difference.text}"
            op = self.towers.updates[copy][-1].op
            if difference.mistake is COEFFICIENT:
                op = self.towers.line_of_gradient(copy)
            update = self.towers.origin(op)
            difference = Difference(Obligation.UPDATE, text, update, None, COPIES_UPDATED_APART)
        origin = difference.origin
        is_gradient = origin and origin.program == TOWERS and origin.op in self.towers.backward
        if difference.obligation is Obligation.WEIGHTS and is_gradient:
            line = self.towers.line_of_gradient(copy)
            difference = difference._replace(origin=self.towers.origin(line))
        difference = self._with_unused_part(difference, theirs)
        state = State.UNKNOWN if difference.excuse else State.DIFFERS
        return Equality(state, difference)

    def _with_unused_part(self, difference: Difference, theirs: Form) -> Difference:
        """Blame the op that cuts the batch, if the part that is left out is used nowhere.

        Then it is no mistake in the combination of gradients. One GPU may leave out a part, too,
        but of another size, if the program cuts the batch into too many parts.
        """
        is_known = difference.excuse in (None, Excuse.EQUAL)
        if difference.mistake is not PART_LEFT_OUT or not is_known:
            return difference
        losses = [self.towers.value(objective) for objective in self.parts()]
        if len(losses) > len(set(losses)):  # several towers read one part
            return difference
        for split, parts in self._used_parts.items():
            if difference.text == only_parts_count(parts):
                text = f"{difference.text}; no op uses the other outputs of {split}"
                others = self.terms.parts(theirs) - {WHOLE}
                may_be_same = bool(others) and sum(map(share, parts)) == sum(map(share, others))
                excuse = Excuse.EQUAL if may_be_same else None
                origin = self.towers.origin(split)
                return Difference(Obligation.WEIGHTS, text, origin, excuse, PART_UNUSED)
        return difference

    @cached_property
    def _used_parts(self) -> Mapping[str, Sequence[Part]]:
        """For each op that cuts the batch, and of which an output is unused, the other parts."""
        reader, found = self.towers, {}
        ops = reader.placement.ops
        read = {source.removesuffix(":0") for op in ops.values() for source in op.inputs}
        for name in ops:
            if name not in reader.reached or ops[name].type not in ("Split", "SplitV"):
                continue
            outputs = [f"{name}:{i}" if i else name for i in range(len(reader.outputs(name)))]
            used = [each for each in outputs if each in read]
            parts = [finest(self.terms.parts(reader.value(each))) for each in used]
            if len(used) < len(outputs) and all(parts):
                found[name] = sorted(filter(None, parts))
        return found

    def _final_values(self) -> Mapping[str, Mapping[str, Form]]:
        """The values of the towers' variables after the step: by the name on one GPU, by copy."""
        reader = self.towers
        finals: defaultdict[str, dict[str, Form]] = defaultdict(dict)
        read = [each.name for each in reader.placement.variables if each.name in reader.reached]
        for name in dict.fromkeys([*reader.updates, *read]):
            value = reader.state(name, reader.all_updates)
            finals[reader.copies.get(name, name)][name] = value
        atoms = self._names = reader.atoms_of_copies
        return {
            name: {copy: with_names(self.terms, form, atoms) for copy, form in forms.items()}
            for name, forms in finals.items()
        }

    def _explained(self, copy: str, form: Form, name: str, theirs: Form, old: Form) -> Difference:
        if form == old:
            text = "this step does not update it, but the step of one GPU does"
            return Difference(Obligation.UPDATED, text, self._origin(theirs))
        if theirs == old:
            text = "this step updates it, but the step of one GPU does not"
            return Difference(Obligation.UPDATED, text, self._origin(form))
        steps = self._steps(form, theirs, old)
        descents = self._descents(copy, name) if steps[0] != steps[1] else None
        # A factor that depends on gradients, such as a clip, is no rate.
        if (
            descents is not None
            and descents[0] != descents[1]
            and not any(self.terms.is_backward(rate) for rate, _ in descents)
        ):
            return self.explanation.of_descent(*descents, (form, theirs), old)
        found = self.explanation.of_update(form, theirs, old)
        if found.mistake is not SETTING and found.excuse in (None, Excuse.EQUAL, Excuse.SCALE):
            found = self._of_rates(copy, name, form, theirs, old) or found
        if found.mistake is SETTING and found.origin is None:
            found = found._replace(origin=self._origin(form))
        own, other = (
            {reader.ops[op].type.removeprefix("Resource") for op, _ in reader.updates.get(key, ())}
            for reader, key in ((self.towers, copy), (self.one_gpu, name))
        )
        if found.excuse and own != other and all("Apply" in op for op in own | other):
            text = f"its optimizer is {', '.join(own)}, but {', '.join(other)} on one GPU"
            found = found._replace(text=text, mistake=SETTING).excused(Excuse.EQUAL)
        return found

    def _origin(self, form: Form) -> Origin | None:
        atoms = sorted(self.terms.atoms_in(form), reverse=True)
        origins = [self.terms[atom].origin for atom in atoms]
        return next((origin for origin in origins if origin and origin.program == TOWERS), None)

    def _with_examples(
        self,
        answers: dict[str, Equality],
        trained: Sequence[str],
        ours: Mapping[str, Mapping[str, Form]],
    ) -> dict[str, Equality]:
        """A step that no example reaches proves nothing."""
        forms = [
            form for name in trained if name in answers for form in ours.get(name, {}).values()
        ]
        if any(self.terms.parts(form) or self.explanation.is_unknown(form) for form in forms):
            return answers
        text = "no example of this step reaches a variable that is trained"
        difference = Difference(Obligation.UPDATED, text, excuse=Excuse.OTHER_STEP)
        return without_proofs(answers, difference)

    def _with_races(
        self, answers: dict[str, Equality], irrelevant: Collection[str]
    ) -> dict[str, Equality]:
        """Values that depend on whether a read or an update comes first are not proved.

        If one GPU has such a read of the same variable, both are assumed to come first.
        """
        for variable, (read, update) in self.towers.races.items():
            name = self.towers.copies.get(variable, variable)
            if name in irrelevant:
                continue
            if name in self.one_gpu.races:
                self.terms.assumed.add(Assumption.READ_FIRST)
                continue
            text = f"{read} may read {variable} before or after {update} changes it"
            origin = self.towers.origin(read)
            difference = Difference(Obligation.UPDATE, text, origin, Excuse.OTHER_STEP)
            return without_proofs(answers, difference)
        return answers

    def _without_other_means(
        self,
        answers: dict[str, Equality],
        ours: Mapping[str, Mapping[str, Form]],
        theirs: Mapping[str, Form],
    ) -> dict[str, Equality]:
        """No proof, and no other setting alone, where means of own rows normalize no rows."""
        if Assumption.OWN_STATISTICS not in self.terms.assumed:
            return answers
        forms = [*theirs.values(), *(form for each in ours.values() for form in each.values())]
        means = unaccepted_means(self.terms, forms)
        if not means:
            return answers
        (rows,) = self.terms[min(means)].operands
        atom = self.terms.single(rows)
        text = "of one tower normalizes no rows, so that it is not the mean of all rows"
        cause = Cause("MeanOf", text, None if atom is None else atom.origin)
        difference = Difference(
            Obligation.ADDITIVE, cause_in_words(cause), cause.origin, Excuse.UNKNOWN
        )
        unknown = Equality(State.UNKNOWN, difference)
        return {
            name: unknown
            if (answer.state is State.PROVED or _has_other_setting(answer))
            and self.terms.contains(theirs[name], means)
            else answer
            for name, answer in answers.items()
        }

    def _with_mistakes(self, answers: dict[str, Equality]) -> dict[str, Equality]:
        """Mistakes in rows and random numbers: no variable is then proved."""
        reader, terms = self.towers, self.terms
        losses: defaultdict[tuple[Form, str], list[str]] = defaultdict(list)
        for number in sorted(reader.used_calls):
            for objective in reader.calls[number].objectives:
                form = with_names(terms, reader.value(objective), self._names)
                for source in reader.calls[number].sources:
                    name = reader.copies.get(source, source)
                    if terms.parts(form) and objective not in losses[form, name]:
                        losses[form, name].append(objective)
        once = Counter(
            (self.one_gpu.value(objective), source)
            for number in self.one_gpu.used_calls
            for objective in dict.fromkeys(self.one_gpu.calls[number].objectives)
            for source in self.one_gpu.calls[number].sources
        )
        for loss, objectives in losses.items():
            if len(objectives) > max(1, once[loss]):
                text = f"{objectives[1]} is computed from the same rows as {objectives[0]}"
                is_certain = all(map(self._reads_one_part, objectives))
                reader.report(text, producer_of(objectives[1]), is_certain=is_certain)
        for objective in self.parts():
            if (draws := reader.batch.draws_in_any_order(objective)) is not None:
                text = f"{' and '.join(draws)} may draw rows that do not belong together"
                reader.report(text, draws[1], is_certain=False)
        self._compare_draws()
        for mistake in sorted(reader.mistakes, key=lambda each: not each.is_certain)[:1]:
            origin = self.towers.origin(mistake.op)
            excuse = None if mistake.is_certain else Excuse.UNMATCHED
            difference = Difference(Obligation.ROWS, mistake.text, origin, excuse, mistake.entry)
            bad = Equality(State.DIFFERS if mistake.is_certain else State.UNKNOWN, difference)
            answers = {
                name: answer if answer.state is State.DIFFERS else bad
                for name, answer in answers.items()
            }
        return answers

    def _reads_one_part(self, objective: str) -> bool:
        """Whether an objective does not read rows that it gathers from several towers."""
        reader = self.towers
        behind = reader.graph.towers[objective]
        gathers = any(reader.ops[name].type in GATHERERS for name in behind)
        return not gathers and reader.part_of_tower([objective]) is not None

    def _compare_draws(self) -> None:
        """Find random numbers that several towers share, by equal seeds.

        It is uncertain whether seeds that copies of one variable hold stay equal.
        """
        drawn: dict[Any, Draw] = {}
        for draw in self.towers.draws:
            seed = draw.seed
            if isinstance(seed, int):
                seed = with_names(self.terms, Form(seed), self._names)
            other = drawn.setdefault((draw.key, seed), draw)
            if other.part != draw.part:
                text = f"{draw.op} draws the same numbers as {other.op}"
                self.towers.report(text, draw.op, is_certain=other.seed == draw.seed)

    def _with_own_variables(self, answers: dict[str, Equality]) -> dict[str, Equality]:
        """A program for one GPU that has other variables is another model, and no reference.

        Terms have no shapes of variables: layers of other sizes have equal terms.
        """
        reader = self.towers
        ours, theirs = (
            {each.name: each.shape for each in program.placement.variables}
            for program in (reader, self.one_gpu)
        )
        trained = reader.placement.collections.get(TRAINABLE, ())
        for name in dict.fromkeys([*trained, *ours]):
            single = reader.copies.get(name, name)
            is_missing = name in trained and single not in self.one_gpu.ops
            shapes = ours.get(name), theirs.get(single)
            has_other_shape = None not in shapes and shapes[0] != shapes[1]
            if not (is_missing or has_other_shape) or name not in reader.reached:
                continue
            which = "has another shape" if has_other_shape else "is not"
            text = f"the variable {name} {which} in the program for one GPU"
            difference = Difference(
                Obligation.UPDATED, text, reader.origin(name), Excuse.OTHER_STEP
            )
            other = Equality(State.UNKNOWN, difference)
            own = [] if has_other_shape else [name]
            self.copies |= dict.fromkeys(own, (name,))
            stands = {
                each: answer
                for each, answer in answers.items()
                if (answer.state is State.PROVED and not has_other_shape)
                or (answer.difference and answer.difference.obligation is Obligation.ROWS)
            }
            return dict.fromkeys([*answers, *own], other) | stands
        return answers


def without_proofs(answers: Mapping[str, Equality], difference: Difference) -> dict[str, Equality]:
    """The answers with a difference instead of each proof."""
    unknown = Equality(
        State.UNKNOWN if difference.excuse else State.DIFFERS,
        difference,
    )
    return {
        name: unknown if answer.state is State.PROVED else answer
        for name, answer in answers.items()
    }


def matched_names(towers: StepReader, one_gpu: StepReader) -> dict[str, str]:
    """The variable for one GPU of each copy, or of each variable that has another name there.

    Copies that the program makes by hand count only if the step updates them: then it keeps them
    equal, or the proof fails.
    """
    shapes = {each.name: each.shape for each in one_gpu.placement.variables}
    strategy = towers.placement.strategy
    copies = strategy.copies if strategy else {}
    result = {}
    for variable in towers.placement.variables:
        name, copy = variable.name, copies.get(variable.name)
        if name in shapes or (copy is None and name not in towers.updates):
            continue
        if copy is not None and not copy.in_sync:
            continue  # copies that are added up when they are read
        base = name if copy is None else copy.first
        short = base.partition("/")[2]
        plain = re.sub(r"_\d+$", "", base)
        alike = [each for each in shapes if shapes[each] == variable.shape]
        found = [
            each for each in alike if each == base or (short and short == each.partition("/")[2])
        ]
        found = found or [
            each
            for each in alike
            if each in (short, plain) or base.endswith(f"/{each}") or each.endswith(f"/{base}")
        ]
        if len(found) == 1:
            result[name] = found[0]
    return {**matched_slots(towers, one_gpu, result), **result}


def matched_feeds(
    towers: StepReader, one_gpu: StepReader
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Keys of inputs without rows whose names differ from others only in their name scopes.

    An input of a tower is the input for one GPU that shares most of its scopes with it.
    """
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in one_gpu.reached:
        if one_gpu.ops[name].type in PLACEHOLDERS and name not in one_gpu.batch.leaves:
            alike[short_name(name)].append(name)

    def matched(name: str) -> str:
        scopes = {each: shared_scopes(name, each) for each in alike[short_name(name)]}
        found = [each for each in scopes if scopes[each] == max(scopes.values())]
        return found[0] if len(found) == 1 else ""

    ours, theirs = [
        {
            name: matched(name)
            for name in reader.reached
            if reader.ops[name].type in PLACEHOLDERS and len(alike[short_name(name)]) > 1
        }
        for reader in (towers, one_gpu)
    ]
    return ours, theirs


def shared_scopes(one: str, other: str) -> tuple[int, bool]:
    """How many inner scopes two names share, and whether they are equal."""
    pairs = zip(one.split("/")[::-1], other.split("/")[::-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), one == other


def matched_slots(
    towers: StepReader, one_gpu: StepReader, names: Mapping[str, str]
) -> dict[str, str]:
    """Slots that have another name on one GPU: the same op uses them for the same variable."""
    result = {}
    for variable, updates in towers.updates.items():
        others = one_gpu.updates.get(names.get(variable, variable), ())
        if len(updates) != 1 or len(others) != 1 or updates[0].slot or others[0].slot:
            continue
        one, other = updates[0].op, others[0].op
        if towers.ops[one].type != one_gpu.ops[other].type:
            continue
        slots = zip(towers.graph.changed_by(one), one_gpu.graph.changed_by(other), strict=False)
        for slot, slot_of_one in slots:
            if slot and slot_of_one and slot != slot_of_one and slot not in one_gpu.ops:
                result[slot] = slot_of_one
    return result
