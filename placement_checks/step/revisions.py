"""Compare a training step with the step of an earlier revision of the program.

Both programs have towers, so variables and inputs are matched one to one, and copies of a variable
stay apart. What the comparison with one GPU accepts on purpose is a difference here: batch
statistics of other rows, another learning rate, another number of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import SETTING
from placement_checks.core.op_types import PLACEHOLDERS, RANDOM, RANDOM_STATELESS
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.step.comparison import (
    Comparison,
    Equality,
    Roots,
    State,
    StepEquality,
    compare_all_runs,
    matched_slots,
    shared_scopes,
    without_proofs,
)
from placement_checks.step.explanation import Difference, Excuse, Explanation, Obligation
from placement_checks.step.gradients import Names, with_names
from placement_checks.step.graph import Race
from placement_checks.step.kinds import AtomId, Form, Origin
from placement_checks.step.op_types import op_type
from placement_checks.step.parts import WHOLE, Cut, Family, Part
from placement_checks.step.reader import StepReader, short_name
from placement_checks.step.terms import Assumption, Terms


class Revision(NamedTuple):
    """An earlier revision of a program, and how it is matched.

    Attributes:
        placement: the program at the revision.
        there: the revision in words, such as ``at HEAD``.
        names: the name at the revision of each renamed variable or slot.
        reading: returns the towers that read an input at the revision.
        towers: the number of towers at the revision.
    """

    placement: Placement
    there: str
    names: Mapping[str, str] = {}
    reading: Callable[[str], Collection[int]] = lambda _: ()
    towers: int = 1


def compare_revisions(program: Placement, revision: Revision) -> StepEquality | Missing:
    """Compare the training step of a program with its step at a revision, for every batch.

    Every variable that one of the steps updates is compared, also if it is not trained. The
    devices of ops, and what variables are initialized with, are not compared. The rows of an input
    are those of its counterpart: which rows an input pipeline yields is not compared.

    Returns:
        The answers, by the names of the variables in the program; missing if the ops of a step are
        not known.
    """

    def compare_runs(new: Placement, old: Placement, roots: Roots) -> StepEquality:
        def compared(terms: Terms) -> StepEquality:
            return _RevisionComparison(terms, new, old, roots, revision).compare()

        # Towers may have any rows.
        apart = compared(Terms(op_type, are_parts_apart=True))
        if all(answer.state is State.PROVED for answer in apart.variables.values()):
            return apart
        found = compared(Terms(op_type)).improved_by(apart)
        return found.improved_by(compared(Terms(op_type, equal_rows=True)))

    return compare_all_runs(program, revision.placement, revision.there, compare_runs)


class _RevisionComparison(Comparison):
    """The terms of a step, and of the step at a revision."""

    def __init__(
        self, terms: Terms, new: Placement, old: Placement, roots: Roots, revision: Revision
    ) -> None:
        self._revision = revision
        self._is_sure = True  # whether no other variable or input could be the counterpart
        self._problems: list[Difference] = []  # why nothing is proved
        super().__init__(terms, new, old, roots)

    # --- counterparts ---

    def _match(self) -> Explanation:
        new, old = self.towers, self.one_gpu
        self._old_names = self._match_variables()
        self._new_names = {name: each for each, name in self._old_names.items()}
        self._names = Names(self._renamed_atoms())
        self._match_inputs()
        sizes = new.batch.fix_sizes(), old.batch.fix_sizes()
        if sizes[0] and sizes[1] and sizes[0][WHOLE] == sizes[1][WHOLE]:
            self.terms.fixed = {**sizes[1], **sizes[0]}
        new.batch.compare_slices(old.batch, self._revision.there)
        new.feeds, old.feeds = self._matched_feeds()
        self._known = self._match_constants(self._old_names.get)
        for reader in (new, old):
            reader.batch.report_mistakes()
        same = {name for name, other in self._old_names.items() if name == other}
        return Explanation(
            self.terms,
            same,
            set(old.placement.collections.get(TRAINABLE, ())),
            known=self._known,
            there=self._revision.there,
            is_revision=True,
        )

    def _match_variables(self) -> dict[str, str]:
        """The name at the revision of each variable that it has.

        A renamed variable is a guess if the name of another one with an equal shape ends as alike.
        """
        new, old = self.towers, self.one_gpu
        shapes = {each.name: each.shape for each in old.placement.variables}
        renamed = {
            name: other
            for name, other in self._revision.names.items()
            if name not in shapes and other not in new.ops
        }
        renamed |= {
            name: other
            for name, other in matched_slots(new, old, renamed).items()
            if name not in renamed and other not in renamed.values() and other not in new.ops
        }
        found = {
            each.name: renamed.get(each.name, each.name)
            for each in new.placement.variables
            if each.name in renamed or (each.name in shapes and each.name not in renamed.values())
        }
        self._is_sure = all(
            shared_scopes(name, other) > shared_scopes(name, each)
            for name, other in renamed.items()
            if name in new.updates
            for each in renamed.values()
            if each != other and shapes.get(each) == shapes.get(other)
        )
        return found

    def _renamed_atoms(self) -> Iterator[tuple[AtomId, AtomId]]:
        for name, other in self._old_names.items():
            if name != other:
                pair = self.towers.variable(name), self.one_gpu.variable(other)
                yield max(self.terms.atoms_in(pair[0])), max(self.terms.atoms_in(pair[1]))

    def _match_inputs(self) -> None:
        """Match inputs with rows, by their kind."""
        new, old = self.towers, self.one_gpu
        ours, theirs = self._inputs(new), self._inputs(old)
        counts: defaultdict[Any, int] = defaultdict(int)
        for order, kind in enumerate(theirs):
            own, others = ours.pop(kind, []), theirs[kind]
            counterparts = self._counterparts(own, others)
            self._set_apart(set(own) - counterparts.keys())
            alike: defaultdict[Part, list[str]] = defaultdict(list)
            for name in others:
                part = self._part_read(name, kind[0])
                old.batch.leaves[name] = (kind[0], order, counts[order, part]), part
                counts[order, part] += 1
                if name not in new.ops:
                    alike[part].append(name)
            if any(len(each) > 1 for each in alike.values()):
                self._is_sure = False
            for name, other in counterparts.items():
                new.batch.leaves[name] = old.batch.leaves[other]
                self._compare_rows(name, other)
        for names in ours.values():
            self._set_apart(set(names))

    def _inputs(self, reader: StepReader) -> dict[Any, list[str]]:
        """The inputs with rows that a step reads, and scalars for its towers, by their kind."""
        batch = reader.batch
        drawn = {
            name for group, names in batch.groups.items() if group[0] == "draw" for name in names
        }
        found: defaultdict[Any, list[str]] = defaultdict(list)
        names = {*batch.leaves, *(name for each in batch.groups.values() for name in each)}
        for name in sorted(names & reader.reached, key=reader.number.__getitem__):
            family: Family = "draw" if name in drawn else "feed"
            outputs = tuple(
                (each.dtype, each.shape and each.shape[1:], each.shape == ())
                for each in reader.outputs(name)
            )
            found[family, reader.ops[name].type if name in drawn else "", outputs].append(name)
        return found

    def _part_read(self, name: str, family: Family) -> Part:
        read, towers = self._revision.reading(name), self._revision.towers
        return (Cut(family, min(read), towers),) if len(read) == 1 and towers > 1 else WHOLE

    def _set_apart(self, names: Set[str]) -> None:
        """Match some inputs of the program with nothing."""
        batch = self.towers.batch
        batch.unmatched |= names
        batch.leaves = {name: leaf for name, leaf in batch.leaves.items() if name not in names}

    def _compare_rows(self, name: str, other: str) -> None:
        """A batch of another fixed size is another step."""
        for one, two in zip(self.towers.outputs(name), self.one_gpu.outputs(other), strict=True):
            rows = [each.shape[0] for each in (one, two) if each.shape]
            if len(rows) == 2 and None not in rows and rows[0] != rows[1]:
                text = f"{name} has {rows[0]} rows, but {rows[1]} {self._revision.there}"
                self._problems.append(Difference(Obligation.ROWS, text, self.towers.origin(name)))

    def _matched_feeds(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Keys of inputs without rows: the names of the inputs at the revision."""
        new, old = self.towers, self.one_gpu
        found: list[defaultdict[Any, list[str]]] = [defaultdict(list), defaultdict(list)]
        for reader, kinds in zip((new, old), found, strict=True):
            for name in sorted(reader.reached, key=reader.number.__getitem__):
                if reader.ops[name].type in PLACEHOLDERS and name not in reader.batch.leaves:
                    kinds[tuple(reader.outputs(name))].append(name)
        keys: dict[str, str] = {}
        for kind, ours in found[0].items():
            pairs = self._counterparts(ours, found[1][kind])
            if sum(name != other for name, other in pairs.items()) > 1:
                self._is_sure = False
            keys |= pairs
            new.batch.unmatched |= set(ours) - pairs.keys()
        return keys, {name: name for names in found[1].values() for name in names}

    def _counterparts(self, ours: Sequence[str], theirs: Sequence[str]) -> dict[str, str]:
        """The inputs of one kind at the revision: inputs with equal names, and renamed inputs.

        An input is renamed if the other program has no op with its name. Renamed inputs match by
        the ends of their names, or else in their order.
        """
        left = [name for name in ours if name not in self.one_gpu.ops]
        free = [name for name in theirs if name not in self.towers.ops]
        if len(left) != len(free):
            self._is_sure = False
            left, free = [], []
        elif sorted(map(short_name, left)) == sorted(map(short_name, free)):
            left, free = sorted(left, key=short_name), sorted(free, key=short_name)
        if left:
            self.terms.assumed.add(Assumption.RENAMED_INPUTS)
        return {name: name for name in ours if name in theirs} | dict(zip(left, free, strict=True))

    # --- values of variables ---

    def compare(self) -> StepEquality:
        """Compare all variables that one of the steps updates."""
        new, old = self.towers, self.one_gpu
        answers: dict[str, Equality] = {}
        for name in new.updates:
            other = self._old_names.get(name)
            if other is None:
                text = f"there is no such variable {self._revision.there}"
                answers[name] = _unknown(Obligation.UPDATED, text, self.towers.origin(name))
            else:
                answers[name] = self._compared(name, other)
        for other in old.updates:
            updated = self._new_names.get(other)
            if updated is None:
                text = f"the variable {other} is only updated {self._revision.there}"
                answers[other] = _unknown(Obligation.UPDATED, text)
            elif updated not in answers:
                answers[updated] = self._compared(updated, other)
        self._find_problems()
        forms = [old.state(name, old.all_updates) for name in old.updates]
        atoms = map(self.terms.__getitem__, self.terms.all_atoms_in(forms))
        known = old.updates.keys() | self._known
        if any(atom.op == "Var" and atom.attrs[0] not in known for atom in atoms):
            self.terms.assumed.add(Assumption.CONSTANT_STATE)
        answers = self._with_examples(
            answers, list(answers), {name: {name: self._after(name)} for name in answers}
        )
        for problem in sorted(self._problems, key=lambda each: each.excuse is not None)[:1]:
            answers = without_proofs(answers, problem)
        collected = {
            *new.placement.collections.get(TRAINABLE, ()),
            *(
                self._new_names.get(name, name)
                for name in old.placement.collections.get(TRAINABLE, ())
            ),
        }
        return StepEquality(
            answers,
            frozenset(collected & answers.keys()),
            {name: (name,) for name in answers},
            frozenset(self.terms.assumed),
        )

    def _after(self, name: str) -> Form:
        """The value of a variable after the step, with the names of the revision."""
        if name not in self.towers.ops:
            return Form(0)
        state = self.towers.state(name, self.towers.all_updates)
        return with_names(self.terms, state, self._names)

    def _compared(self, name: str, other: str) -> Equality:
        ours, theirs = self._after(name), self.one_gpu.state(other, self.one_gpu.all_updates)
        if ours == theirs:
            return Equality(State.PROVED)
        answer = self._answer(other, {name: ours}, theirs, self.one_gpu.variable(other))
        difference = answer.difference
        if difference is None:
            return answer
        if difference.origin is None and name in self.towers.updates:
            origin = self.towers.origin(self.towers.updates[name][-1].op)
            difference = difference._replace(origin=origin)
        if difference.mistake is SETTING and any(
            each.slot for each in self.towers.updates.get(name, ())
        ):
            difference = difference.excused(Excuse.EQUAL)  # a slot may not depend on it
            return Equality(State.UNKNOWN, difference)
        if self._is_sure or difference.excuse:
            return answer._replace(difference=difference)
        text = f"{difference.text}; or another variable or input is the counterpart"
        return Equality(State.UNKNOWN, difference._replace(text=text, excuse=Excuse.UNMATCHED))

    def _explained(self, copy: str, form: Form, name: str, theirs: Form, old: Form) -> Difference:
        there = self._revision.there
        if form == old or theirs == old:
            is_gone = form == old
            text = f"only the step {there} updates it" if is_gone else f"it is not updated {there}"
            return Difference(Obligation.UPDATED, text, self._origin(form))
        found = super()._explained(copy, form, name, theirs, old)
        # On purpose or not, a revision has another setting.
        return found._replace(excuse=None) if found.excuse is Excuse.SETTING else found

    # --- what no term shows ---

    def _find_problems(self) -> None:
        self._compare_shapes()
        self._compare_draws()
        for reader in (self.towers, self.one_gpu):
            for mistake in reader.mistakes[:1]:
                where = "" if reader is self.towers else f" {self._revision.there}"
                origin = reader.origin(mistake.op)
                self._problems.append(
                    Difference(Obligation.ROWS, mistake.text + where, origin, Excuse.OTHER_STEP)
                )
        if [*_seeds(self.towers, self._names)] != [*_seeds(self.one_gpu, Names())]:
            self.terms.assumed.add(Assumption.OTHER_SEEDS)
        ours = {self._old_names.get(name, name): race for name, race in self.towers.races.items()}
        theirs = self.one_gpu.races
        if ours.keys() & theirs.keys():
            self.terms.assumed.add(Assumption.READ_FIRST)
        for races, other, reader in ((ours, theirs, self.towers), (theirs, ours, self.one_gpu)):
            for name in sorted(races.keys() - other.keys())[:1]:
                self._problems.append(self._race(name, races[name], reader))

    def _race(self, name: str, race: Race, reader: StepReader) -> Difference:
        there = "" if reader is self.towers else f" {self._revision.there}"
        text = f"{race.read} may read {name} before or after {race.update} changes it{there}"
        return Difference(Obligation.UPDATE, text, reader.origin(race.read), Excuse.OTHER_STEP)

    def _compare_shapes(self) -> None:
        """Terms have no shapes of variables: layers of other sizes have equal terms."""
        variables = [
            {each.name: (each.dtype, each.shape) for each in reader.placement.variables}
            for reader in (self.towers, self.one_gpu)
        ]
        for name, other in self._old_names.items():
            ours, theirs = variables[0][name], variables[1][other]
            if ours != theirs and (name in self.towers.reached or other in self.one_gpu.reached):
                shown = [f"{dtype}{list(shape or ())}" for dtype, shape in (ours, theirs)]
                text = f"{name} is {shown[0]}, but {shown[1]} {self._revision.there}"
                origin = self.towers.origin(name)
                self._problems.append(Difference(Obligation.FUNCTION, text, origin))


def _unknown(obligation: Obligation, text: str, origin: Origin | None = None) -> Equality:
    return Equality(State.UNKNOWN, Difference(obligation, text, origin, Excuse.OTHER_STEP))


def _seeds(reader: StepReader, names: Names) -> Iterator[Any]:
    """The seeds of a step's random ops, in their order."""
    for name in sorted(reader.reached, key=reader.number.__getitem__):
        kind = reader.ops[name].type
        if kind in RANDOM_STATELESS:
            seed = reader.operand(name, RANDOM_STATELESS[kind])
            yield with_names(reader.terms, seed, names)
        elif kind in RANDOM:
            attributes = reader.placement.details.attributes(name)
            yield attributes.get("seed", 0), attributes.get("seed2", 0)
