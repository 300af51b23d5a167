"""Take training steps of a program and its reference, from equal variables on equal rows.

The reference takes its steps first. Its variables after each step are stored in their own dtypes.
Then the reference takes the same steps in perturbed runs, to measure the noise. When
the program takes its steps, its variables are compared one after the other with the stored values,
so that no second copy of all values is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Arrays, Trajectory, VariableStep
from placement_checks.core.missing import Missing
from placement_checks.core.placement import producer_of
from placement_checks.numerics.sampling import (
    add_noise,
    build_variable_step,
    sample_elements,
    select_elements,
    uncertain_elements,
)
from placement_checks.numerics.training_divergence import is_proportional
from placement_checks.run.clipping import clipped_gradients
from placement_checks.run.compare.row_state import values_of_towers
from placement_checks.run.compare.sessions import PairedSessions
from placement_checks.run.preconditions import random_op_in_step
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession
from placement_checks.util.progress import step, track
from placement_checks.util.text import plural

_T = TypeVar("_T")


def take_steps(sessions: PairedSessions, steps: int, own_values: Arrays) -> Trajectory | Missing:
    """Take steps of both programs, and compare their variables after each step.

    Args:
        sessions: both programs.
        steps: the number of steps.
        own_values: initial values of the program that replace the values of the reference. These
            variables are not compared.

    Returns:
        The steps, or the reason why no steps can be compared.

    Raises:
        InputError: the steps of the reference change none of its variables.
    """
    if (missing := _step_blocker(sessions)) is not None:
        return missing
    batches = [sessions.batch(sessions.feeding.rows) for _ in range(steps)]
    reference = _reference_steps(sessions, batches)
    if isinstance(reference, Missing):
        return reference
    compared = list(_tower_steps(sessions, batches, reference, own_values))
    trained = frozenset(sessions.reference.program.gradients.by_variable)
    # Both programs get the reference's variables. The program's own steps determine all its other
    # state, such as copies of variables that no step refreshes.
    sessions.reference.load(reference.end)
    sessions.towers.load(values_of_towers(sessions.towers.program, reference.end))
    rows = sessions.feeding.rows
    with step("gradients after the steps"):
        after = sessions.trial(sessions.batch(rows), rows, reference.end)
    return Trajectory(compared, trained, after, _owners(sessions, compared[0]))


def _step_blocker(sessions: PairedSessions) -> Missing | None:
    """Return why no steps can be compared; None if they can."""
    programs = [session.program for session in (sessions.towers, sessions.reference)]
    if not all(program.placement.step.train_op for program in programs):
        return Missing(
            "the programs declare no train_op",
            "return it from both builders: {'train_op': train_op}",
        )
    for session, feeds in sessions.both(sessions.batches[0]):
        name = random_op_in_step(session.program, feeds)
        if name is not None:
            return Missing(f"a step of {session.program.name} depends on the random op '{name}'")
    for program in programs:
        if program.built.fed and _alternates(program):
            return Missing(
                f"several ops of {program.name} train different variables, and their results "
                "depend on the order of these ops"
            )
    return _per_tower_blocker(sessions) if sessions.on_parts else None


def _alternates(program: RunnableProgram) -> bool:
    """Whether several training ops update different variables, as in a GAN."""
    analysis = analyze(program.placement)
    trained = program.gradients.by_variable
    flow, by_variable = analysis.flow, analysis.updates.by_variable
    groups = set()
    for name in program.placement.step.train_op:
        runs = flow.reachable([flow.number[producer_of(name)]], along=flow.all_inputs)
        groups.add(
            frozenset(
                variable
                for variable in by_variable.keys() & trained.keys()
                if any(update.op in runs for update in by_variable[variable])
            )
        )
    return len(groups - {frozenset()}) > 1


def _per_tower_blocker(sessions: PairedSessions) -> Missing | None:
    """Return why the reference cannot take a step with the mean of its per-tower gradients."""
    reference = sessions.reference.program
    per_tower = (
        f"steps cannot be compared: {reference.name} runs on the rows of one tower at a time"
    )
    if not sessions.clips_as_program:
        for program in (sessions.towers.program, reference):
            if name := next(iter(clipped_gradients(program)), None):
                return Missing(
                    f"{per_tower}, and the gradient of {name} is clipped or otherwise changed"
                )
    if name := next(iter(reference.gradients.unreadable), None):
        return Missing(f"{per_tower}, and the gradient of {name} cannot be read")
    shapes = {variable.name: variable.shape for variable in reference.placement.variables}
    for name, gradient in reference.gradients.by_variable.items():
        shape = reference.graph.get_tensor_by_name(gradient.values).shape
        if not shape.is_compatible_with(shapes[name]):
            return Missing(
                f"{per_tower}, and a step takes only some rows of the gradient of {name}"
            )
    return None


class _ReferenceSteps(NamedTuple):
    """The steps of the reference.

    Attributes:
        values: the compared variables after each step, in their own dtypes.
        noise: for each step, how much each variable differs in perturbed runs.
        uncertain: a mask for each trained variable: the elements with a gradient whose sign may
            change by rounding in at least one step.
        end: all variables after the last step.
    """

    values: list[Arrays]
    noise: list[dict[str, float]]
    uncertain: Mapping[str, npt.NDArray[np.bool_]]
    end: Arrays


def _reference_steps(
    sessions: PairedSessions, batches: Sequence[Arrays]
) -> _ReferenceSteps | Missing:
    """Take the steps of the reference, and the same steps in perturbed runs."""
    reference, rows = sessions.reference, sessions.feeding.rows
    with_gradients = not is_proportional(sessions.towers.program.gradients.optimizers)
    perturbations = sessions.perturbations(rows)
    reference.load(sessions.start)
    values, gradients = [], []
    for batch in track(batches, "reference step"):
        gradients.append(sessions.expected_step(batch, with_gradients=with_gradients))
        values.append(reference.values())
    compared = [_comparable(sessions, _numeric(reference, after)) for after in values]
    if (missing := _diverged(sessions, compared)) is not None:
        return missing
    noise = [dict.fromkeys(after, 0.0) for after in compared]
    gradient_noise = [dict.fromkeys(before, 0.0) for before in gradients]
    for perturbation in track(perturbations, "perturbed run"):
        reference.load(sessions.start)
        sessions.perturb(sessions.start, perturbation)
        for number, batch in enumerate(track(batches, "step")):
            other = sessions.expected_step(
                batch, perturbation.order, with_gradients=with_gradients
            )
            add_noise(gradient_noise[number], gradients[number], other)
            for part in reference.read():
                add_noise(noise[number], compared[number], part)
    uncertain = uncertain_elements(gradients, gradient_noise)
    return _ReferenceSteps(compared, noise, uncertain, values[-1])


def _diverged(sessions: PairedSessions, values: Sequence[Arrays]) -> Missing | None:
    """Return why the values after the steps of the reference cannot be compared.

    Raises:
        InputError: the steps changed no variable.
    """
    steps, last = plural(len(values), "step"), values[-1]
    for name, value in last.items():
        if not np.all(np.isfinite(value)):
            return Missing(f"after {steps} of the reference {name} is NaN or infinite")
        if np.iscomplexobj(value):
            return Missing(f"{name} is {value.dtype.name}, and complex values are not compared")
    if all(np.array_equal(value, sessions.start[name]) for name, value in last.items()):
        raise InputError(
            sessions.reference.program.name,
            f"{steps} changed none of its variables",
            "return the op that trains as train_op",
        )
    return None


def _tower_steps(
    sessions: PairedSessions,
    batches: Sequence[Arrays],
    reference: _ReferenceSteps,
    own_values: Arrays,
) -> Iterator[dict[str, VariableStep]]:
    """Take the steps of the program, and yield the comparison of variables after each step."""
    towers, comparison = sessions.towers, _StepComparison(sessions, reference, own_values)
    sessions.start_towers()
    towers.load(own_values)
    for number, batch in enumerate(track(batches, "step")):
        towers.step(sessions.feeding.to_towers(batch))
        after = {
            name: comparison.compare(number, name, value)
            for part in towers.read()
            for name, value in _numeric(towers, part).items()
            if name in comparison.names
        }
        yield {name: after[name] for name in comparison.names if name in after}


class _StepComparison:
    """Comparison of variables of the program and the reference, step by step."""

    def __init__(
        self, sessions: PairedSessions, reference: _ReferenceSteps, own_values: Arrays
    ) -> None:
        self._start = _with_copies(sessions, sessions.start)
        self._values = [_with_copies(sessions, values) for values in reference.values]
        self._noise = [_with_copies(sessions, noise) for noise in reference.noise]
        self._uncertain = reference.uncertain
        mirrors = sessions.towers.program.built.initial.mirrors
        self.names = [
            name for name in self._values[0] if mirrors.get(name, name) not in own_values
        ]
        self._owners = _owners(sessions, self.names)
        self._elements = {name: sample_elements(self._start[name].size) for name in self.names}
        self._before = {
            name: (select_elements(self._start[name], self._elements[name]),) * 2
            for name in self.names
        }

    def compare(self, number: int, name: str, found: npt.NDArray[Any]) -> VariableStep:
        """Compare one variable of the program after step ``number``."""
        expected = self._values[number][name]
        before = self._before[name]
        elements = self._elements[name]
        after = select_elements(expected, elements), select_elements(found, elements)
        self._before[name] = after
        return build_variable_step(
            self._start[name],
            expected,
            found,
            moved=(after[0] - before[0], after[1] - before[1]),
            noise=self._noise[number][name],
            uncertain=self._uncertain.get(self._owners.get(name, "")),
        )


def _owners(sessions: PairedSessions, names: Iterable[str]) -> dict[str, str]:
    """Map each name of a trained variable, its copies and its slots to the trained variable."""
    reference, mirrors = sessions.reference.program, sessions.towers.program.built.initial.mirrors
    owner_of = find_slots(reference.placement).owner_of
    firsts = {name: mirrors.get(name, name) for name in names}
    owners = {name: owner_of.get(first, first) for name, first in firsts.items()}
    trained = reference.gradients.by_variable
    return {name: owner for name, owner in owners.items() if owner in trained}


def _numeric(session: ProgramSession, values: Arrays) -> Arrays:
    """Return the numeric variables, without local variables such as metrics."""
    names = session.program.built.initial.compared
    return {
        name: value
        for name, value in values.items()
        if name in names and np.asarray(value).dtype.kind not in "OSU"
    }


def _comparable(sessions: PairedSessions, values: Arrays) -> Arrays:
    """Return the variables that should be equal in both programs.

    Variables that replicas change separately, and variables with another shape, are omitted. If
    the reference computes on the rows of each tower, statistics of rows are omitted, because its
    steps compute them on one tower's rows.
    """
    unsynchronized = sessions.towers.program.built.initial.unsynchronized
    omitted = unsynchronized | sessions.of_other_shape
    owners = _owners(sessions, values)
    return {
        name: value
        for name, value in values.items()
        if name not in omitted
        and (not sessions.on_parts or name in owners or value.dtype.kind in "iu")
    }


def _with_copies(sessions: PairedSessions, values: Mapping[str, _T]) -> Mapping[str, _T]:
    """Return the values, with the values of first copies repeated for synchronized copies."""
    initial = sessions.towers.program.built.initial
    synchronized = sorted(initial.mirrors.keys() - initial.unsynchronized)
    firsts = {copy: initial.mirrors[copy] for copy in synchronized}
    return {**values, **{copy: values[first] for copy, first in firsts.items() if first in values}}
