"""Why a variable gets another value than in the step for one GPU.

Both forms are walked together, from the update back to the inputs, to the first difference. If an
op there is unknown, or the terms are too weak to follow it, the difference shows no mistake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from enum import Enum
from typing import Any, NamedTuple

from placement_checks.core.mistakes import (
    COEFFICIENT,
    DECAY,
    FIRST_DIFFERENCE,
    NUMBER,
    OWN_COUNTS,
    PAIRED,
    PART_LEFT_OUT,
    PARTS_PAIRED,
    SETTING,
    UNEVEN_PARTS,
    Mistake,
)
from placement_checks.step.kinds import (
    OF_SHAPES,
    ONE,
    AtomId,
    Cause,
    Form,
    Kind,
    Monomial,
    Origin,
)
from placement_checks.step.op_types import INSENSITIVE
from placement_checks.step.own_value import OwnValue, ratio_of_decays, steps_of
from placement_checks.step.parts import (
    OF_ANY_SIZE,
    WHOLE,
    Cut,
    Part,
    are_all_rows,
    describe,
    finest,
)
from placement_checks.step.terms import Atom, Terms, are_close
from placement_checks.step.weights import degree_in_rows, gradient_in, multiple
from placement_checks.step.wording import cause_in_words, in_words
from placement_checks.util.text import words
from placement_checks.util.walks import walk

ON_ONE_GPU = "on one GPU"


class Obligation(Enum):
    """What has to be equal in both programs."""

    FUNCTION = "the towers compute what one GPU computes"
    ROWS = "each tower has rows and random numbers of its own"
    ADDITIVE = "the towers' results add up to the result for all rows"
    WEIGHTS = "every part of the batch counts, as often as on one GPU"
    UPDATE = "the update is the update for one GPU"
    UPDATED = "the same variables are updated"


class Excuse(Enum):
    """Why a difference of terms may be no mistake.

    Terms that differ break a rule only without an excuse: then the values differ for some batch,
    and no program is meant to differ in this way. `of_towers` are the excuses that also hold if
    the towers differ from each other, and not only from the program for one GPU.
    """

    SETTING = "the values differ, but settings of the optimizer may differ on purpose"
    OWN_COUNTS = "the values differ, unless the counts of all towers are equal"
    SCALE = "state, random numbers and rates may be scaled in one place, and divided in another"
    DIVISOR = "the divisor may be the number of rows, and the batches may differ in size"
    EQUAL = "other operands, other ops or several differences together may yield the same value"
    UNMATCHED = "state or random numbers have no certain counterpart in the other program"
    UNFOLLOWED = "terms cannot follow an op"
    UNKNOWN = "an op has an unknown type, or combines rows"
    OTHER_STEP = "the steps as a whole cannot be compared"

    @property
    def may_be_intended(self) -> bool:
        """Whether the values do differ, so that this is a doubt; else they may be equal."""
        return self in (Excuse.SETTING, Excuse.OWN_COUNTS)

    @property
    def of_towers(self) -> bool:
        """Whether it also excuses towers that differ from each other."""
        return self in (Excuse.UNMATCHED, Excuse.UNFOLLOWED)


class Difference(NamedTuple):
    """The first difference between two values.

    Attributes:
        obligation: the obligation that does not hold.
        text: the difference.
        origin: the op that shows it; None if no op does.
        excuse: why it may be no mistake; None if it is one.
        mistake: the mistake that it shows, if both places are understood; None if the obligation
            alone is known, or if an op cannot be followed.
    """

    obligation: Obligation
    text: str
    origin: Origin | None = None
    excuse: Excuse | None = None
    mistake: Mistake | None = None

    def excused(self, excuse: Excuse, *, when: bool = True) -> Difference:
        """This difference with an excuse, unless it has one. A doubt may turn out to be none."""
        has_other = self.excuse is not None and not self.excuse.may_be_intended
        return self._replace(excuse=excuse) if when and not has_other else self


# Ops that terms cannot follow: a difference behind them shows no mistake.
_UNFOLLOWED = frozenset(
    words(
        """
        While StridedSliceOf SplitV Split Unpack Range GatherNd Where Mean CustomGradient
        DynamicStitch DynamicPartition
        """
    )
)
# Ops that do not change if a number is added to all logits of a row.
_OF_DIFFERENCES = frozenset(
    words(
        """
        Softmax LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
        """
    )
)
# Scalars that cannot be replaced by other scalars.
_BASIC_SCALARS = frozenset({"Rows", "Var", "Feed"})
_MAX_DEPTH = 300
_JOINT = frozenset({Kind.JOINT, Kind.UNKNOWN})
_IN_TOWER = "in another tower"
# The gradient and the settings of optimizers, by the number of the input.
_SETTINGS: Mapping[str, Mapping[int, str]] = {
    op: {number: name.replace("_", " ") for number, name in enumerate(inputs) if name != "-"}
    for op, *inputs in map(
        str.split,
        (
            "ApplyMomentum - - learning_rate gradient momentum",
            "ApplyKerasMomentum - - learning_rate gradient momentum",
            "ApplyAdam - - - - - learning_rate beta1 beta2 epsilon gradient",
            "ApplyRMSProp - - - learning_rate decay momentum epsilon gradient",
            "ApplyCenteredRMSProp - - - - learning_rate decay momentum epsilon gradient",
            "ApplyAdagrad - - learning_rate gradient",
            "ApplyAdagradV2 - - learning_rate epsilon gradient",
            "ApplyAdadelta - - - learning_rate decay epsilon gradient",
            "ApplyFtrl - - - gradient learning_rate l1 l2 power_of_the_learning_rate",
        ),
    )
}
_OPTIMIZERS = ("Apply", "SparseApply")
_GRADIENT = "gradient"
_STATE = "optimizer's state"  # the name of other operands
# Mistakes that another setting of the optimizer may make up for.
_COEFFICIENTS = (COEFFICIENT, DECAY, NUMBER)
# The operand of a choice that decides.
_CONDITIONS = {"Conditional": 0, "Select": 0, "SelectV2": 0, "Chosen": 1}

# Terms of parts that become equal, with their coefficients.
_Members = Mapping[Cut, tuple[Monomial, float]]


class Explanation:
    """Finds the first difference of two forms.

    Args:
        terms: the terms.
        variables: the names of the variables that both programs have.
        trained: the names of trained variables.
        known: the names of variables whose values are known in both programs.
        there: the place of the other form.
        is_revision: whether the other program is the same program before. Then it has towers, too,
            and no setting of the optimizer differs on purpose.
    """

    def __init__(
        self,
        terms: Terms,
        variables: Set[str],
        trained: Set[str],
        *,
        known: Set[str] = frozenset(),
        there: str = ON_ONE_GPU,
        is_revision: bool = False,
    ) -> None:
        self._terms = terms
        self._variables, self._trained, self._known = variables, trained, known
        self._there, self._is_revision = there, is_revision
        self._old: AtomId | None = None  # the value of a trained variable before the step

    def of_descent(
        self,
        towers: tuple[Form, Form],
        one_gpu: tuple[Form, Form],
        values: tuple[Form, Form],
        old: Form,
    ) -> Difference:
        """Explain why two steps of gradient descent, each a rate and a gradient, differ.

        Args:
            towers: the step in the program for several GPUs.
            one_gpu: the step in the program for one GPU.
            values: the values of the variable after both steps, and after decays.
            old: the value of the variable before the step.
        """
        (rate, gradient), (other_rate, other) = towers, one_gpu
        found = None
        if gradient != other:
            found = self.of_update(gradient, other, old, start=0.0)
        if rate == other_rate and found is not None:
            return found
        (own,) = set(self._terms.atoms_in(old)) - {ONE}
        if OwnValue.split(self._terms, gradient, own).counts:
            return self._setting(found, "learning rate", rate, other_rate, 0)
        return self.of_rates(rate, other_rate, values, old, found)

    def of_rates(
        self,
        rate: Form,
        other: Form,
        values: tuple[Form, Form],
        old: Form,
        found: Difference | None = None,
    ) -> Difference:
        """Explain steps with different learning rates, and perhaps with different decays, too."""
        found = self._setting(found, "learning rate", rate, other, 0)
        (own,) = set(self._terms.atoms_in(old)) - {ONE}
        one, two = (OwnValue.split(self._terms, each, own) for each in values)
        decay = self._decay(own, one, two, 1.0) if found.mistake is SETTING else None
        return found if decay is None else found._replace(text=f"{found.text}, and {decay.text}")

    def _setting(
        self, found: Difference | None, name: str, ours: Form, theirs: Form, depth: int
    ) -> Difference:
        """Explain a setting of the optimizer.

        Args:
            found: the difference of the gradients; None if these are equal. It is explained
                instead if no setting makes up for it.
            name: the setting, or the operand of the optimizer.
            ours: its value in the program for several GPUs.
            theirs: its value in the program for one GPU.
            depth: the depth of the walk.
        """
        if found is not None and found.excuse is None and found.mistake not in _COEFFICIENTS:
            return found
        inner = self._forms(ours, theirs, Obligation.UPDATE, depth + 1)
        value, other = (self._terms.constant(form) for form in (ours, theirs))
        are_known = value is not None and other is not None
        is_setting = name != _STATE and not self._is_revision
        if (
            is_setting
            and inner.excuse in (Excuse.EQUAL, Excuse.SCALE)
            and (inner.mistake in _COEFFICIENTS or (value is None) != (other is None))
        ):
            inner = inner._replace(excuse=None)  # a schedule with other numbers, or none
        text = f"its {name} {'may differ' if inner.excuse else 'differs'}: {inner.text}"
        if value is not None and other is not None:
            text = f"its {name} is {value:.4g}, but {other:.4g} {self._there}"
        if found is not None and found.mistake is DECAY:
            text += f", and {found.text}"
        elif found is not None:
            text += f", and its gradient may differ: {found.text}"
        excuse: Excuse | None
        if found is not None and (found.excuse or found.mistake is not DECAY):
            excuse = found.excuse or Excuse.SCALE
        elif self._is_revision:
            excuse = None if are_known else inner.excuse
        else:
            excuse = inner.excuse or (Excuse.SETTING if is_setting else Excuse.UNMATCHED)
        return Difference(Obligation.UPDATE, text, inner.origin, excuse, SETTING)

    def of_update(
        self, towers: Form, one_gpu: Form, old: Form, *, start: float = 1.0
    ) -> Difference:
        """Explain why two values of a variable after the step differ, or two gradients.

        Args:
            towers: the value in the program for several GPUs.
            one_gpu: the value in the program for one GPU.
            old: the value of the variable before the step.
            start: how often the old value counts without a decay: 0 in a gradient.
        """
        terms = self._terms
        (atom,) = set(terms.atoms_in(old)) - {ONE}
        self._old = atom if terms[atom].attrs[0] in self._trained else None
        known = {monomial for monomial, _ in terms.summands(one_gpu)}
        for monomial, _ in terms.summands(towers):
            nested = None if monomial in known else self._gradient_behind_stop(monomial)
            if nested is not None and not any(map(self._gradient_behind_stop, known)):
                text = "a gradient is the weight of another gradient, as in a chain rule by hand"
                return Difference(Obligation.ADDITIVE, text, nested, Excuse.EQUAL)
        found = self._with_decay(towers, one_gpu, start, Obligation.UPDATE, 0)
        return found if found.excuse is None else self._lost_rows(towers, one_gpu) or found

    def _lost_rows(self, towers: Form, one_gpu: Form) -> Difference | None:
        """Explain a value that depends on all rows of an input only on one GPU; else None.

        Nothing else in the value makes up for rows that it does not depend on.
        """
        if self.is_unknown(towers):
            return None
        ours, theirs = map(self._rows_of_inputs, (towers, one_gpu))
        for key, parts in theirs.items():
            found = ours[key]
            if WHOLE in parts and found and _leave_out_rows(found):
                text = only_parts_count(sorted(found))
                return Difference(Obligation.WEIGHTS, text, mistake=PART_LEFT_OUT)
        return None

    def _rows_of_inputs(self, form: Form) -> Mapping[tuple[Any, ...], set[Part]]:
        """The parts of each input that the elements of a form depend on."""
        terms, found = self._terms, defaultdict[tuple[Any, ...], set[Part]](set)

        def below(atom: AtomId) -> Iterable[AtomId]:
            return () if terms[atom].op in OF_SHAPES else terms.atoms_of_operands(atom)

        for atom in map(terms.__getitem__, walk(terms.atoms_in(form), below)):
            if atom.op == "Leaf" and atom.part is not None:
                found[atom.attrs].add(atom.part)
        return found

    # --- sums ---

    def _with_decay(
        self, ours: Form, theirs: Form, start: float, place: Obligation, depth: int
    ) -> Difference:
        """Explain two values of a variable, or gradients, which may contain a weight decay."""
        terms, own = self._terms, self._old
        one, other = (OwnValue.split(terms, each, own) for each in (ours, theirs))
        decay = self._decay(own, one, other, start)
        steps = steps_of(terms, one, other) if start else (one.rest, other.rest)
        if decay is not None and steps[0] == steps[1]:
            return decay
        also = "" if decay is None else f", and {decay.text}"
        times = multiple(terms, *steps) if start else None
        gradients = [each for each, _ in terms.summands(steps[0]) if gradient_in(terms, each)]
        # Gradients alone may be multiplied.
        if times is not None and (also or len(gradients) < len(terms.summands(steps[0]))):
            text = f"its step counts {times:.4g} times as much, as with another learning rate"
            return Difference(place, text + also, None, Excuse.SETTING, SETTING)
        found = self._forms(*steps, place, depth)
        if found.mistake is SETTING:
            return found._replace(text=found.text + also)
        penalties = [each for each in gradients if not terms.parts_of(each)]  # decays, too
        return found.excused(Excuse.EQUAL, when=decay is not None and bool(penalties))

    def _decay(
        self, own: AtomId | None, ours: OwnValue, theirs: OwnValue, start: float
    ) -> Difference | None:
        """Explain how often the variable's own value counts; None if it counts equally often."""
        terms = self._terms
        mine, its = ours.decays(start), theirs.decays(start)
        ratio = ratio_of_decays(mine, its)
        if ratio == 1.0 or mine == its or own is None:
            return None
        text = "its own value, as in weight decay, counts"
        if ratio is not None:
            text += f" {ratio:.3g} times as much as {self._there}"
        elif mine and its:
            text += f" in another way than {self._there}"
        elif its:
            text += f" only {self._there}"
        else:
            text += f", but not {self._there}"
            gradients = [
                each
                for each, _ in terms.summands(ours.rest)
                if gradient_in(terms, each) is not None
            ]
            if not all(map(terms.parts_of, gradients)):
                text += "; with a penalty in its loss, it decays twice"
        factors = [terms[atom] for _, scalars in (*mine, *its) for atom, _ in scalars]
        are_basic = all(atom.op in _BASIC_SCALARS for atom in factors)
        found = Difference(Obligation.WEIGHTS, text, terms[own].origin, mistake=DECAY)
        variables = {atom.attrs[0] for atom in factors if atom.op == "Var"}
        if variables:  # such as a rate
            return found.excused(Excuse.SETTING if variables <= self._known else Excuse.SCALE)
        return found.excused(Excuse.EQUAL, when=not ((mine and its) or are_basic))

    def _forms(self, ours: Form, theirs: Form, place: Obligation, depth: int) -> Difference:
        terms = self._terms
        a, b = dict(terms.summands(ours)), dict(terms.summands(theirs))
        left = {m: c for m, c in a.items() if b.get(m) != c}
        right = {m: c for m, c in b.items() if a.get(m) != c}
        if len(left) == len(right) == 1 and self._is_same_op(left, right, place):
            return self._pairs(left, right, place, depth)
        if self._is_revision and (of_parts := self._of_parts(left, right, place, depth)):
            return of_parts
        groups: defaultdict[Any, dict[Cut, tuple[Monomial, float]]] = defaultdict(dict)
        joint: Cause | None = None
        crossed: Cause | None = None
        for monomial, number in left.items():
            parts = terms.parts_of(monomial)
            part = finest(parts)
            is_joint = part == WHOLE and terms.status_of(monomial, WHOLE).kind in _JOINT
            if (parts and part is None) or is_joint:  # perhaps rows of a part
                crossed = crossed or self._unknown_in(monomial) or self._cause_in(monomial)
            if part:
                lifted = terms.lifted(monomial, part)
                if isinstance(lifted, Cause):
                    joint = joint or self._unknown_in(monomial) or lifted
                    continue
                whole, share = lifted
                key = whole, part[:-1], part[-1].siblings
                groups[key][part[-1]] = monomial, number * share
        if joint is None and (groups or not self._have_similar(left, right)):
            joint = crossed
        if (mixed := self._mixed_parts(left, right)) is not None:
            return mixed
        if joint is not None:
            found = self._own_counts(left, right, joint)
            return found or self._from_cause(joint, Obligation.ADDITIVE)
        if groups:
            return self._parts(_with_slices_of_all_sizes(groups), right, depth)
        common = [monomial for monomial in left if monomial in right]
        if common and len(common) == max(len(left), len(right)):
            found = self._ratio(common[0], left[common[0]], right[common[0]])
            # Columns that are joined in another order may be added up.
            is_moved = any(terms[self._main(each)].op == "Place" for each in common[1:])
            found = found.excused(Excuse.EQUAL, when=is_moved)
            equal = (each for each in a if each not in left)
            is_term = any(gradient_in(terms, each) is not None for each in equal)  # of a loss
            return found._replace(origin=self._cite_term(common[0])) if is_term else found
        return self._pairs(left, right, place, depth)

    def _of_parts(
        self,
        left: Mapping[Monomial, float],
        right: Mapping[Monomial, float],
        place: Obligation,
        depth: int,
    ) -> Difference | None:
        """Explain the terms of the first part that has terms in both programs.

        Towers may differ from each other in both programs, so the same towers are compared. None
        if no part has terms in both.
        """
        by_part: list[defaultdict[Part, dict[Monomial, float]]] = []
        for side in (left, right):
            found: defaultdict[Part, dict[Monomial, float]] = defaultdict(dict)
            for monomial, number in side.items():
                found[finest(self._terms.parts_of(monomial)) or WHOLE][monomial] = number
            by_part.append(found)
        differences = {
            part: self._pairs(own, by_part[1][part], place, depth)
            for part, own in by_part[0].items()
            if part and part in by_part[1]
        }
        if not differences:
            return None
        part, first = next(iter(differences.items()))
        if len({each.text for each in differences.values()}) == 1:
            return first
        return first._replace(text=f"{first.text}, in {describe(part)} of the batch")

    def _is_same_op(
        self, left: Mapping[Monomial, float], right: Mapping[Monomial, float], place: Obligation
    ) -> bool:
        """Whether both sides are one op on different operands, and no sum over rows."""
        (mine,), (other,) = left, right
        one, two = self._terms[self._main(mine)], self._terms[self._main(other)]
        if one.op != two.op or one.op in ("Grad", "Sum") or one.operands == two.operands:
            return False
        if len(one.operands) != len(two.operands):
            return False
        is_joint = one.status.kind in _JOINT
        return place is not Obligation.FUNCTION or is_joint

    def _ratio(self, monomial: Monomial, number: float, other: float) -> Difference:
        """Explain a coefficient."""
        what = self._name(self._terms[self._main(monomial)])
        text = f"{what} counts {number / other:.4g} times as much as {self._there}"
        atoms = [self._terms[atom] for atom in (monomial[0], *(atom for atom, _ in monomial[1]))]
        known = self._trained | self._known
        is_state = any(
            atom.op == "Var" and atom.attrs[0] not in known for atom in atoms
        ) and not any(atom.is_backward for atom in atoms)
        is_scaled = is_state or any(atom.op == "Random" for atom in atoms)
        has_same_rows = self._is_revision or WHOLE in self._terms.fixed
        degree = 0 if has_same_rows else degree_in_rows(self._terms, monomial, WHOLE)
        if degree == 1 and number / other > 0:
            text += f", which is right if the batch has {other / number:.4g} times as many rows"
        mistake = COEFFICIENT
        if monomial == (ONE, ()):
            mistake = NUMBER
            text = f"a number is {number:.4g}, but {other:.4g} {self._there}"
        found = Difference(Obligation.WEIGHTS, text, self._cite(monomial), mistake=mistake)
        return found.excused(Excuse.SCALE, when=is_scaled).excused(
            Excuse.DIVISOR, when=degree != 0
        )

    def _have_similar(self, left: Iterable[Monomial], right: Iterable[Monomial]) -> bool:
        def signature(monomial: Monomial) -> tuple[str, int]:
            atom = self._terms[self._main(monomial)]
            return atom.op, len(atom.operands)

        known = {signature(monomial) for monomial in right}
        return any(signature(monomial) in known for monomial in left)

    # --- parts ---

    def _parts(
        self,
        groups: Mapping[Any, Mapping[Cut, tuple[Monomial, float]]],
        right: Mapping[Monomial, float],
        depth: int,
    ) -> Difference:
        """Explain why terms of parts did not add up to a term of all rows.

        It is certain only if the term of all rows is among the terms for one GPU.
        """
        for (form, around, siblings), members in groups.items():
            whole = dict(self._terms.summands(form))
            times = next((whole[each] / right[each] for each in whole if each in right), None)
            is_expected = bool(around) or times is not None
            first = next(iter(members.values()))[0]
            if not are_all_rows(members):
                others = [
                    key
                    for key in groups
                    if key[1:] == (around, siblings)
                    and key[0] != form
                    and not groups[key].keys() & members.keys()
                ]
                if others:
                    return self._unlike(groups, others[0], form, depth)
                return Difference(  # in the update: the terms of these parts are right
                    Obligation.WEIGHTS,
                    only_parts_count([(*around, cut) for cut in sorted(members)]),
                    excuse=None if is_expected else Excuse.EQUAL,
                    mistake=PART_LEFT_OUT,
                )
            weights = [weight * (times or 1.0) for _, (_, weight) in sorted(members.items())]
            shown = ", ".join(f"{weight:.3g}" for weight in weights)
            if not are_close(weights):
                text = f"the parts of the batch count {shown} times"
                text += "" if times is None else f" as much as {self._there}"
                if siblings[0] in OF_ANY_SIZE and min(weights) / max(weights) > 0:
                    text += ", which is right only for rows in this proportion"
                return Difference(
                    Obligation.WEIGHTS, text, self._cite(first), mistake=UNEVEN_PARTS
                )
        text = f"the towers' results could not be added up to the result {self._there}"
        return Difference(Obligation.ADDITIVE, text, excuse=Excuse.EQUAL)

    def _mixed_parts(
        self, left: Iterable[Monomial], right: Mapping[Monomial, float]
    ) -> Difference | None:
        """Explain terms that compute with rows of one part where they need rows of another.

        With one part in place of the others, such a term is a part of a term for one GPU.
        """
        terms = self._terms
        for monomial in left:
            parts = sorted(terms.parts_of(monomial))
            if len({(each[:-1], each[-1:] and each[-1].share) for each in parts}) > 1:
                continue
            form = terms.form({monomial: 1.0})
            for part in parts[1:]:
                form = terms.with_part(form, part, parts[0])
            if form == terms.form({monomial: 1.0}) or len(terms.summands(form)) != 1:
                continue
            lifted = terms.lifted(terms.summands(form)[0][0], parts[0])
            if isinstance(lifted, Cause):
                continue
            if not all(each in right for each, _ in terms.summands(lifted[0])):
                continue
            atoms = list(self._atoms(monomial))
            sources = {each.part: each for each in atoms if each.part is not None}
            are_cut = all(part[-1].family not in OF_ANY_SIZE for part in parts)
            named = [
                f"{describe(part) if are_cut else 'rows'} of {self._name(sources[part])}"
                for part in parts[:2]
            ]
            text = f"an op computes with {' and with '.join(named)}"
            mixing = [each for each in atoms if each.parts and each.finest is None]
            are_paired = all(each.op == "Leaf" for each in sources.values())
            # A product with a number of another part's rows has no op that mixes both.
            origin = mixing[-1].origin if mixing else self._cite(monomial)
            found = Difference(Obligation.FUNCTION, text, origin, mistake=PARTS_PAIRED)
            return found.excused(Excuse.EQUAL, when=not (are_paired and are_cut))
        return None

    def _own_counts(
        self, left: Mapping[Monomial, float], right: Mapping[Monomial, float], cause: Cause
    ) -> Difference | None:
        """Explain terms of towers that are divided by counts, such as of tokens.

        If the mean of such terms is the terms for one GPU, with the whole batch in place of the
        parts, they are equal for equal counts. Otherwise, the cause forbids to compare them.
        """
        terms = self._terms
        counts: list[Atom] = []
        for monomial in left:
            part = finest(terms.parts_of(monomial))
            scalars = list(monomial[1])
            if terms[monomial[0]].op == "Grad":
                loss = terms.summands(terms[monomial[0]].operands[0])
                scalars += [each for (_, factors), _ in loss for each in factors]
            divisors = [terms[atom] for atom, power in scalars if power < 0]
            own = [each for each in divisors if each.finest == part and each.op != "Rows"]
            if not part or not own or any(map(self._is_trained, own)):
                return None
            counts += own
        text = f"each tower divides by {self._name(counts[0])} for its own rows"
        excuse = Excuse.OWN_COUNTS
        if not all(map(self._is_count, counts)) or not self._are_means(left, right):
            if cause.origin not in [each.origin for each in counts]:
                return None
            excuse = Excuse.UNKNOWN
            text += f", so the result may differ from the result {self._there}"
        return Difference(Obligation.ADDITIVE, text, counts[0].origin, excuse, OWN_COUNTS)

    def _are_means(self, left: Mapping[Monomial, float], right: Mapping[Monomial, float]) -> bool:
        """Whether terms on the whole batch, in place of parts, have the terms as their mean."""
        terms = self._terms
        weights: defaultdict[tuple[Monomial, Part], dict[Cut, float]] = defaultdict(dict)
        for monomial, number in left.items():
            part = finest(terms.parts_of(monomial)) or WHOLE
            whole = terms.summands(terms.with_part(terms.form({monomial: 1.0}), part, part[:-1]))
            if len(whole) != 1:
                return False
            weights[whole[0][0], part[:-1]][part[-1]] = number * whole[0][1]
        for (whole_term, _), by_cut in weights.items():
            numbers = [*by_cut.values(), right.get(whole_term, 0.0) / len(by_cut)]
            if not are_all_rows(by_cut) or not are_close(numbers):
                return False
        return {term for term, _ in weights} == right.keys()

    def _is_count(self, atom: Atom) -> bool:
        """Whether a divisor is a count; an extent without a mask may be equal for all towers."""
        atoms = map(self._terms.__getitem__, self._terms.all_atoms_in(atom.operands))
        return atom.op != "Dim" or any(each.op in ("Masked", "Where") for each in atoms)

    def _is_trained(self, atom: Atom) -> bool:
        """Whether an atom depends on the values of trained variables."""
        if atom.op == "Dim":
            return False
        atoms = map(self._terms.__getitem__, self._terms.all_atoms_in(atom.operands))
        return any(each.op == "Var" and each.attrs[0] in self._trained for each in atoms)

    def _unlike(self, groups: Mapping[Any, Any], key: Any, form: Form, depth: int) -> Difference:
        """Explain why the towers compute different functions of their rows."""
        there, self._there = self._there, _IN_TOWER
        inner = self._forms(key[0], form, Obligation.FUNCTION, depth + 1)
        self._there = there
        origin = inner.origin
        if origin is None or origin.program:
            origin = self._cite(next(iter(groups[key].values()))[0])
        excuse = inner.excuse if inner.excuse and inner.excuse.of_towers else None
        is_unknown = self.is_unknown(key[0]) or self.is_unknown(form)
        is_paired = inner.mistake is PAIRED
        text = inner.text if is_paired else f"the towers differ from each other: {inner.text}"
        mistake = PAIRED if is_paired else None
        found = Difference(Obligation.FUNCTION, text, origin, excuse, mistake)
        # Each tower may still compute what it computes at the revision.
        found = found.excused(Excuse.EQUAL, when=self._is_revision)
        return found.excused(Excuse.UNKNOWN, when=is_unknown)

    # --- products ---

    def _pairs(
        self,
        left: Mapping[Monomial, float],
        right: Mapping[Monomial, float],
        place: Obligation,
        depth: int,
    ) -> Difference:
        """Explain the first pair of similar terms, or the terms without a counterpart.

        It is certain only if nothing else differs: ``relu(2 * x) / 2`` is ``relu(x)``.
        """
        terms = self._terms
        used: set[Monomial] = set()
        for monomial, number in left.items():
            one = terms[self._main(monomial)]
            for other in right:
                two = terms[self._main(other)]
                if other in used or (one.op, len(one.operands)) != (two.op, len(two.operands)):
                    continue
                used.add(other)
                is_only = len(left) == len(right)
                if one is not two:
                    is_only = is_only and number == right[other]
                    is_only = is_only and self._around(monomial) == self._around(other)
                    found = self._operands(one, two, place, depth)
                    is_doubt = found.excuse is not None and found.excuse.may_be_intended
                    is_only = is_only and (len(left) == 1 or not is_doubt)
                elif monomial == other:
                    found = self._ratio(monomial, number, right[other])
                    is_only = len(left) == len(right) == 1
                else:
                    found = self._factors(monomial, other, depth)
                    is_only = is_only and number == right[other]
                return found.excused(Excuse.EQUAL, when=not is_only)
        return self._without_counterpart(left, right, place)

    def _operands(self, one: Atom, two: Atom, place: Obligation, depth: int) -> Difference:
        if one.attrs != two.attrs and one.operands == two.operands:
            return self._unlike_ops(one, two, place)
        below = Obligation.FUNCTION if one.op == "Grad" else place
        differing = [
            (number, mine, other)
            for number, (mine, other) in enumerate(
                zip(one.operands, self._aligned(one, two), strict=True)
            )
            if mine != other
        ]
        if not differing or depth >= _MAX_DEPTH:
            return self._unlike_ops(one, two, place)
        number, mine, other = differing[0]
        if one.op.startswith(_OPTIMIZERS):
            return self._optimizer(one, differing, place, depth)
        is_square = one.op == "Mul" and len(set(one.operands)) == len(set(two.operands)) == 1
        if is_square:  # the sign of both factors does not matter
            other = self._with_sign_of(mine, other)
        found = self._forms(mine, other, below, depth + 1)
        if _CONDITIONS.get(one.op) == number:
            found = found._replace(obligation=Obligation.ADDITIVE).excused(Excuse.EQUAL)
            if self._terms.is_backward(mine) or self._terms.is_backward(other):
                return found  # such as a clip, for gradients that differ in the same way
            return found._replace(
                text=f"a decision differs: {found.text}",
                mistake=NUMBER if found.mistake is NUMBER else None,
            )
        sources = [self._terms.single(form) for form in (mine, other)]
        if one.op == "Grad" and number == 1 and all(each and each.op == "Var" for each in sources):
            names = [self._name(each) for each in sources if each]
            text = f"it takes the gradient of {names[0]}, but of {names[1]} {self._there}"
            return found._replace(text=text, origin=one.origin, mistake=PAIRED)
        if one.op in _UNFOLLOWED:
            return self._unfollowed(one, below)
        is_shift = one.op in _OF_DIFFERENCES and number == 0 and self._is_shift(mine, other)
        is_hidden = (one.op in INSENSITIVE or len(differing) > 1) and not is_square
        return found._replace(origin=found.origin or one.origin).excused(
            Excuse.EQUAL, when=is_hidden or is_shift
        )

    def _optimizer(
        self,
        one: Atom,
        differing: Sequence[tuple[int, Form, Form]],
        place: Obligation,
        depth: int,
    ) -> Difference:
        """Explain the operands of an optimizer that differ: the gradient, or its settings."""
        names = _SETTINGS.get(one.op, {})
        gradients = [
            each
            for each in differing
            if names.get(each[0]) == _GRADIENT or self._terms.is_backward(each[1])
        ]
        others = [each for each in differing if each not in gradients]
        found: Difference | None = None
        if gradients:
            found = self._with_decay(*gradients[0][1:], 0.0, place, depth + 1)
            are_settings = all(number in names for number, _, _ in others)
            is_only = len(gradients) == 1 and are_settings
            found = found.excused(Excuse.EQUAL, when=not is_only)
        if others:
            number, mine, other = others[0]
            found = self._setting(found, names.get(number, _STATE), mine, other, depth)
        assert found is not None
        return found._replace(origin=found.origin or one.origin)

    def _unfollowed(self, atom: Atom, place: Obligation) -> Difference:
        text = f"{in_words(atom.op, atom.origin)} cannot be followed"
        return Difference(place, text, atom.origin, Excuse.UNFOLLOWED)

    def _with_sign_of(self, form: Form, other: Form) -> Form:
        """Another form, or its negative, so that it has more terms in common with a form."""
        terms = self._terms
        ours, negative = set(terms.summands(form)), terms.scaled(other, -1.0)
        return max(other, negative, key=lambda each: len(ours & set(terms.summands(each))))

    def _is_shift(self, form: Form, other: Form) -> bool:
        """Whether two forms differ by terms that are equal for all elements of the last axis."""
        terms = self._terms
        ours, theirs = set(terms.summands(form)), set(terms.summands(other))
        shapes = [terms[monomial[0]].shape for monomial, _ in ours ^ theirs]
        return all(shape is not None and shape[-1:] in ((), (1,)) for shape in shapes)

    def _around(self, monomial: Monomial) -> Sequence[object]:
        """The factors of the main atom of a monomial, and its power."""
        main = self._main(monomial)
        return [(0 if atom == main else atom, power) for atom, power in monomial[1]]

    def _aligned(self, one: Atom, two: Atom) -> Sequence[Form]:
        """The operands of the other op, in the order that fits if they may be exchanged."""
        terms = self._terms

        def tops(form: Form) -> list[str]:
            return sorted(terms[self._main(monomial)].op for monomial, _ in terms.summands(form))

        def likeness(operands: Sequence[Form]) -> int:
            pairs = list(zip(one.operands, operands, strict=True))
            return 10 * sum(x == y for x, y in pairs) + sum(tops(x) == tops(y) for x, y in pairs)

        if len(one.operands) != 2 or one.op not in ("Mul", "Maximum", "Minimum"):
            return two.operands
        return max((two.operands, two.operands[::-1]), key=likeness)

    def _factors(self, monomial: Monomial, other: Monomial, depth: int) -> Difference:
        """Explain different scalar factors of one tensor."""
        terms = self._terms
        mine, theirs = dict(monomial[1]), dict(other[1])
        own = [atom for atom in mine if theirs.get(atom) != mine[atom]]
        others = [atom for atom in theirs if mine.get(atom) != theirs[atom]]
        are_alone = len(own) == len(others) == 1 and mine[own[0]] == theirs[others[0]]
        for x in mine:
            for y in theirs:
                one, two = terms[x], terms[y]
                if x in theirs or y in mine or one.op != two.op or depth >= _MAX_DEPTH:
                    continue
                found = self._operands(one, two, Obligation.UPDATE, depth + 1)
                return found.excused(Excuse.EQUAL, when=not are_alone)
        unknown = self._unknown_in(monomial) or self._unknown_in(other)
        if unknown is not None:
            return self._from_cause(unknown, Obligation.WEIGHTS)
        differing = {*own, *others}
        first = max(differing)
        text = self._factor_in_words(first, mine, theirs)
        origin = terms[first].origin if first in mine else None
        is_rows = all(terms[each].op == "Rows" for each in differing)
        found = Difference(
            Obligation.WEIGHTS,
            text,
            origin or self._cite_term(monomial),
            mistake=COEFFICIENT if is_rows else FIRST_DIFFERENCE,
        )
        are_basic = all(terms[each].op in _BASIC_SCALARS for each in differing)
        return found.excused(Excuse.EQUAL, when=not are_basic)

    def _factor_in_words(
        self, factor: AtomId, mine: Mapping[AtomId, int], theirs: Mapping[AtomId, int]
    ) -> str:
        """How a tensor with scalar factors differs from one with other powers of one factor."""
        name = self._name(self._terms[factor])
        if factor in mine and factor in theirs:
            return f"it has another power of {name} than {self._there}"
        power = mine.get(factor, 0) or theirs[factor]
        verb = "multiplied" if power > 0 else "divided"
        if factor in mine:
            return f"it is {verb} by {name}, but not {self._there}"
        return f"it is not {verb} by {name}, as it is {self._there}"

    def _without_counterpart(
        self, left: Mapping[Monomial, float], right: Mapping[Monomial, float], place: Obligation
    ) -> Difference:
        terms = self._terms
        for monomial in (*left, *right):
            weak = self._find_op(monomial, _UNFOLLOWED)
            if weak is not None:
                return self._unfollowed(weak, place)
        for monomial in (*left, *right):
            unknown = self._unknown_in(monomial)
            if unknown is not None:
                return self._from_cause(unknown, place)
        for monomial in left:
            others = ", ".join(self._name(terms[self._main(each)]) for each in list(right)[:3])
            name = self._name(terms[self._main(monomial)])
            text = f"it is {name}, but {others} {self._there}"
            if not others:
                text = f"it has {name} as a term, but not {self._there}"
            cited = self._cite(monomial)
            return Difference(place, text, cited, Excuse.EQUAL, FIRST_DIFFERENCE)
        for monomial in right:
            name = self._name(terms[self._main(monomial)])
            text = f"it lacks {name}, which is a term {self._there}"
            return Difference(place, text, None, Excuse.EQUAL, FIRST_DIFFERENCE)
        text = "the values differ only by rounding"
        return Difference(place, text, excuse=Excuse.EQUAL)

    def _unlike_ops(self, one: Atom, two: Atom, place: Obligation) -> Difference:
        if one.op == two.op == "Leaf":
            same = one.attrs == two.attrs
            text = "rows of a tower could not be added up"
            if not same:
                text = self._unlike_names(one, two, "it reads")
            return Difference(place, text, one.origin, Excuse.EQUAL)
        if one.op == "Random":
            text = f"random numbers could not be matched with the random numbers {self._there}"
            return Difference(Obligation.ROWS, text, one.origin, Excuse.UNMATCHED)
        for atom in (one, two):
            if atom.status.kind is Kind.UNKNOWN:
                cause = atom.status.cause or Cause(atom.op, "is unknown", atom.origin)
                return self._from_cause(cause._replace(is_known=False), place)
        if one.op == two.op and one.op.startswith(_OPTIMIZERS):
            mine, other = (
                ", ".join(f"{name}={value}" for name, value in each.attrs[:-1]) or "no option"
                for each in (one, two)
            )
            text = f"its optimizer, {one.op.removeprefix('Apply')}, has {mine}, but {other} "
            text += self._there
            return Difference(Obligation.UPDATE, text, one.origin, Excuse.SETTING, SETTING)
        if one.op == two.op == "Slice" and one.status.kind is Kind.JOINT:
            text = "it is a slice that may be rows"
            return Difference(place, text, one.origin, Excuse.UNFOLLOWED)
        text = self._unlike_names(one, two, "it is")
        # Another op may compute the same, but not another variable, unless each tower has one.
        are_known = one.op == two.op == "Var" and {one.attrs[0], two.attrs[0]} <= self._variables
        are_state = self._is_state(one) and self._is_state(two)
        excuse = Excuse.UNMATCHED if are_state else Excuse.EQUAL
        if are_known and not (are_state and self._there == _IN_TOWER):
            return Difference(place, text, one.origin, mistake=FIRST_DIFFERENCE)
        mistake = None if are_state else FIRST_DIFFERENCE
        return Difference(place, text, one.origin, excuse, mistake)

    def _unlike_names(self, one: Atom, two: Atom, verb: str) -> str:
        name, other = self._name(one), self._name(two)
        if name == other:
            return f"{verb} {name}, but another one {self._there}"
        return f"{verb} {name}, but {other} {self._there}"

    def _is_state(self, atom: Atom) -> bool:
        """Whether an atom depends on variables that are not trained, and on no row."""
        variables = {
            each.attrs[0]
            for each in (
                atom,
                *map(self._terms.__getitem__, self._terms.all_atoms_in(atom.operands)),
            )
            if each.op == "Var"
        }
        return bool(variables) and not atom.parts and variables.isdisjoint(self._trained)

    # --- causes ---

    def _from_cause(self, cause: Cause, obligation: Obligation) -> Difference:
        text = cause_in_words(cause)
        if cause.is_known:
            text += f", so the result may differ from the result {self._there}"
        return Difference(obligation, text, cause.origin, Excuse.UNKNOWN)

    def _cause_in(self, monomial: Monomial) -> Cause:
        for atom_id in (monomial[0], *(atom for atom, _ in monomial[1])):
            atom = self._terms[atom_id]
            is_joint = atom.status.kind in _JOINT
            if (atom.parts and atom.finest is None) or is_joint:
                return atom.status.cause or Cause(
                    atom.op, "combines rows of several towers", atom.origin
                )
        main = self._terms[self._main(monomial)]
        return Cause(main.op, "is multiplied by a result of another tower", main.origin)

    def _unknown_in(self, monomial: Monomial) -> Cause | None:
        """The cause, if a monomial contains an unknown op."""
        for atom in self._atoms(monomial):
            if atom.status.kind is Kind.UNKNOWN:
                cause = atom.status.cause or Cause(atom.op, "is unknown", atom.origin)
                return cause._replace(is_known=False)
        return None

    def is_unknown(self, form: Form) -> bool:
        """Whether a form contains an op that is not understood."""
        return any(_is_unknown(self._terms[atom]) for atom in self._terms.all_atoms_in([form]))

    def _find_op(self, monomial: Monomial, ops: frozenset[str]) -> Atom | None:
        return next((atom for atom in self._atoms(monomial) if atom.op in ops), None)

    def _atoms(self, monomial: Monomial) -> Iterable[Atom]:
        form = self._terms.form({monomial: 1.0})
        return map(self._terms.__getitem__, self._terms.all_atoms_in([form]))

    def _gradient_behind_stop(self, monomial: Monomial) -> Origin | None:
        """Where a gradient is the weight of another gradient."""
        terms = self._terms

        def below(place: tuple[AtomId, bool]) -> list[tuple[AtomId, bool]]:
            atom, is_stopped = place
            inner = terms.atoms_of_operands(atom) if terms[atom].is_backward else ()
            is_stopped = is_stopped or terms[atom].op == "StopGradient"
            return [(each, is_stopped) for each in inner]

        start = [(monomial[0], False), *((atom, False) for atom, _ in monomial[1])]
        stopped = (terms[atom] for atom, is_stopped in walk(start, below) if is_stopped)
        return next((atom.origin for atom in stopped if atom.op == "Grad"), None)

    # --- names ---

    def _main(self, monomial: Monomial) -> AtomId:
        """The atom that says most: the tensor, or the scalar that was made last."""
        return monomial[0] or max((atom for atom, _ in monomial[1]), default=ONE)

    def _name(self, atom: Atom) -> str:
        """A term in words."""
        return in_words(atom.op, atom.origin, "a result of")

    def _cite_term(self, monomial: Monomial) -> Origin | None:
        """The op of the loss term that a gradient is taken of, such as its sum over rows."""
        gradient = self._find_op(monomial, frozenset({"Grad"}))
        if gradient is None:
            return self._cite(monomial)
        (term, _), *_ = self._terms.summands(gradient.operands[0])
        factors = [atom for each in (term, monomial) for atom, _ in each[1]]
        sums = (self._terms[atom] for atom in (term[0], *factors))
        found = next((atom.origin for atom in sums if atom.op == "Sum"), None)
        return found or self._cite(term) or self._cite(monomial)

    def _cite(self, monomial: Monomial) -> Origin | None:
        """The op that a monomial comes from."""
        atoms = sorted(
            (atom for atom in (monomial[0], *(a for a, _ in monomial[1])) if atom), reverse=True
        )
        return next((self._terms[atom].origin for atom in atoms if self._terms[atom].origin), None)


def only_parts_count(parts: Sequence[Part]) -> str:
    """The text of a difference that consists in parts of the batch that are left out."""
    return f"only {' and '.join(map(describe, parts))} of the batch counts"


def _leave_out_rows(parts: Collection[Part]) -> bool:
    """Whether parts are known to lack rows: parts of one family, or slices."""
    if WHOLE in parts:
        return False
    cuts = {part[0] for part in parts}
    are_alike = len({cut.siblings for cut in cuts}) == 1 and all(cut.parts for cut in cuts)
    return (are_alike or all(cut.is_slice for cut in cuts)) and not are_all_rows(cuts)


def _is_unknown(atom: Atom) -> bool:
    """Whether an op is of an unknown type, or combines rows in an unknown way."""
    kind, _, cause = atom.status
    return kind is Kind.UNKNOWN or (
        kind is Kind.JOINT and cause is not None and not cause.is_known
    )


def _with_slices_of_all_sizes(groups: Mapping[Any, _Members]) -> Mapping[Any, _Members]:
    """Groups of parts in which slices of different sizes are siblings."""
    found: dict[Any, _Members] = {}
    for (whole, around, siblings), members in groups.items():
        is_sliced = next(iter(members)).is_slice
        key = whole, around, ("range", 0) if is_sliced else siblings
        found[key] = {**found.get(key, {}), **members}
    return found
