"""Compare a training step for several GPUs with the step for one GPU, variable by variable."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.step.calls import GradientCall
from placement_checks.step.explanation import Difference, Explanation, Obligation
from placement_checks.step.gradients import with_names
from placement_checks.step.op_types import op_type
from placement_checks.step.parts import WHOLE
from placement_checks.step.reader import StepReader
from placement_checks.step.terms import Assumption, AtomId, Form, Origin, Terms

TOWERS, ONE_GPU = 0, 1  # the numbers of the programs


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
        variables: the answer for each variable that one of the steps changes, by the name in the
            program for one GPU, or in the other program if one GPU has no such variable.
        copies: the variables of the program for several GPUs, by the same names.
        assumed: what the proofs take for granted.
    """

    variables: Mapping[str, Equality]
    copies: Mapping[str, Sequence[str]]
    assumed: frozenset[Assumption]


class Comparison:
    """The terms of two steps."""

    def __init__(
        self,
        towers: Placement,
        one_gpu: Placement,
        calls: tuple[Sequence[GradientCall], Sequence[GradientCall]],
        roots: tuple[Sequence[str], Sequence[str]],
        *,
        own_statistics: bool = True,
    ) -> None:
        self.terms = Terms(op_type, own_statistics=own_statistics)
        self.explanation = Explanation(self.terms)
        self.one_gpu = StepReader(self.terms, one_gpu, ONE_GPU, roots[1], calls[1], {})
        self.towers = StepReader(self.terms, towers, TOWERS, roots[0], calls[0], {})
        self.towers.copies |= matched_names(self.towers, self.one_gpu)
        single = self.one_gpu.batch
        listed = self.towers.batch.listed
        self.towers.batch.assign(single, single.listed)
        single.assign(single, listed)
        sizes = self.towers.batch.fix_sizes(), single.fix_sizes()
        if sizes[0] and sizes[1] and sizes[0][WHOLE] == sizes[1][WHOLE]:
            self.terms.fixed = {**sizes[1], **sizes[0]}
        self._names: Mapping[AtomId, AtomId] = {}

    def compare(self) -> StepEquality:
        """Compare the values of all variables after both steps."""
        finals = self._final_values()
        answers = {}
        copies = {}
        one = self.one_gpu
        for name in dict.fromkeys([*finals, *one.updates]):
            if name not in one.ops:
                continue
            old = one.variable(name)
            ours = finals.get(name) or {name: old}
            copies[name] = tuple(ours)
            theirs = one.state(name, one.all_updates)
            if set(ours.values()) == {theirs}:
                if theirs != old:
                    answers[name] = Equality(State.PROVED)
                continue
            form = next(form for form in ours.values() if form != theirs)
            answers[name] = self._answer(self._explained(form, theirs, old))
        answers = self._with_mistakes(self._with_examples(answers, finals))
        if any(copy != name for copy, name in self.towers.copies.items()):
            self.terms.assumed.add(Assumption.COPIES_START_EQUAL)
        answers = self._with_own_variables(answers, copies)
        return StepEquality(answers, copies, frozenset(self.terms.assumed))

    def _final_values(self) -> Mapping[str, Mapping[str, Form]]:
        """The values of the towers' variables after the step: by the name on one GPU, by copy."""
        reader = self.towers
        finals: defaultdict[str, dict[str, Form]] = defaultdict(dict)
        read = [each.name for each in reader.placement.variables if each.name in reader.reached]
        for name in dict.fromkeys([*reader.updates, *read]):
            value = reader.state(name, reader.all_updates)
            finals[reader.copies.get(name, name)][name] = value
        atoms = {}
        for copy, name in reader.copies.items():
            if copy != name and copy in reader.ops:
                shape = reader.shape_of_variable(copy)
                variable = self.terms.atom("Var", (name,), (), shape, origin=reader.origin(copy))
                pair = [list(self.terms.atoms_in(each)) for each in (reader.variable(copy), variable)]
                atoms[max(pair[0])] = max(pair[1])
        self._names = atoms
        return {
            name: {copy: with_names(self.terms, form, atoms) for copy, form in forms.items()}
            for name, forms in finals.items()
        }

    def _explained(self, form: Form, theirs: Form, old: Form) -> Difference:
        if form == old:
            text = "this step does not update it, but the step of one GPU does"
            return Difference(Obligation.UPDATED, text, self._origin(theirs))
        if theirs == old:
            text = "this step updates it, but the step of one GPU does not"
            return Difference(Obligation.UPDATED, text, self._origin(form))
        return self.explanation.of_update(form, theirs)

    def _origin(self, form: Form) -> Origin | None:
        atoms = sorted(self.terms.atoms_in(form), reverse=True)
        origins = [self.terms[atom].origin for atom in atoms]
        return next((origin for origin in origins if origin and origin.program == TOWERS), None)

    def _answer(self, difference: Difference) -> Equality:
        state = State.DIFFERS if difference.is_certain else State.UNKNOWN
        return Equality(state, difference)

    def _with_examples(
        self, answers: dict[str, Equality], finals: Mapping[str, Mapping[str, Form]]
    ) -> dict[str, Equality]:
        """A step that no example reaches proves nothing."""
        trained = {
            self.towers.copies.get(name, name)
            for name in self.towers.placement.collections.get(TRAINABLE, ())
        }
        updated = trained & answers.keys()
        forms = [form for name in updated for form in finals.get(name, {}).values()]
        if any(self.terms.parts(form) or self.explanation.is_unknown(form) for form in forms):
            return answers
        text = "no example of this step reaches a variable that is trained"
        empty = Difference(Obligation.UPDATED, text, is_certain=False)
        return {
            name: Equality(State.UNKNOWN, empty) if answer.state is State.PROVED else answer
            for name, answer in answers.items()
        }

    def _with_mistakes(self, answers: dict[str, Equality]) -> dict[str, Equality]:
        """Mistakes in rows and random numbers: no variable is then proved."""
        reader, terms = self.towers, self.terms
        losses: defaultdict[Form, list[str]] = defaultdict(list)
        for number in sorted(reader.used_calls):
            for objective in reader.calls[number].objectives:
                form = with_names(terms, reader.value(objective), self._names)
                if terms.parts(form) and objective not in losses[form]:
                    losses[form].append(objective)
        once = Counter(
            self.one_gpu.value(objective)
            for number in self.one_gpu.used_calls
            for objective in dict.fromkeys(self.one_gpu.calls[number].objectives)
        )
        for form, objectives in losses.items():
            if len(objectives) > max(1, once[form]):
                text = f"{objectives[1]} is computed from the same rows as {objectives[0]}"
                reader.report(text, objectives[1].partition(":")[0])
        drawn = {}
        for draw in reader.draws:
            seed = draw.seed
            if isinstance(seed, int):
                seed = with_names(terms, Form(seed), self._names)
            other = drawn.setdefault((draw.key, seed), draw)
            if other.part != draw.part:
                reader.report(f"{draw.op} draws the same numbers as {other.op}", draw.op)
        for mistake in reader.mistakes[:1]:
            difference = Difference(Obligation.ROWS, mistake.text, Origin(TOWERS, mistake.op))
            bad = Equality(State.DIFFERS, difference)
            answers = {
                name: answer if answer.state is State.DIFFERS else bad
                for name, answer in answers.items()
            }
        return answers

    def _with_own_variables(
        self, answers: dict[str, Equality], copies: dict[str, tuple[str, ...]]
    ) -> dict[str, Equality]:
        """A program for one GPU that has other variables is another model, and no reference."""
        reader = self.towers
        for name in reader.placement.collections.get(TRAINABLE, ()):
            if reader.copies.get(name, name) in self.one_gpu.ops or name not in reader.reached:
                continue
            text = f"the variable {name} is not in the program for one GPU"
            origin = Origin(TOWERS, name)
            difference = Difference(Obligation.UPDATED, text, origin, is_certain=False)
            other = Equality(State.UNKNOWN, difference)
            copies[name] = (name,)
            return {
                each: answer if self._stands(answer) else other for each, answer in answers.items()
            } | {name: other}
        return answers

    def _stands(self, answer: Equality) -> bool:
        """Whether an answer holds although the programs have different variables."""
        difference = answer.difference
        return difference is None or difference.obligation is Obligation.ROWS


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
        found = [each for each in alike if each == base or (short and short == each.partition("/")[2])]
        found = found or [
            each
            for each in alike
            if each in (short, plain) or base.endswith(f"/{each}") or each.endswith(f"/{base}")
        ]
        if len(found) == 1:
            result[name] = found[0]
    return result
