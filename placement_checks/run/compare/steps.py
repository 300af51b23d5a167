"""Takes steps of a program and of its reference, from the same variables on the same rows.

Why no training step can be taken that means something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Trajectory, Trial, VariableStep
from placement_checks.core.missing import Missing
from placement_checks.core.placement import producer_of
from placement_checks.numerics.block_statistics import add_noise, uncertain_elements
from placement_checks.numerics.reducing import (
    build_variable_step,
    sample_elements,
    select_elements,
)
from placement_checks.numerics.training_divergence import find_trained_variable, is_proportional
from placement_checks.run.compare.sessions import PairedSessions
from placement_checks.run.feeding.interface import Batch
from placement_checks.run.preconditions import clipped_gradients, random_op_in_step
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession, Values
from placement_checks.util.progress import track
from placement_checks.util.text import plural


def step_blocker(sessions: PairedSessions) -> Missing | None:
    """Why no step can be taken."""
    programs = [session.program for session in (sessions.towers, sessions.reference)]
    if not all(program.placement.step.train_op for program in programs):
        return Missing(
            "the programs do not say which op is one step; return it from both builders: "
            "{'train_op': train_op}"
        )
    for session, feeds in sessions.both(sessions.batches[0]):
        name = random_op_in_step(session.program, feeds)
        if name is not None:
            return Missing(f"a step of {session.program.name} depends on the random op '{name}'")
    for program in programs:
        if program.built.fed and _alternates(program):
            return Missing(
                f"several ops of {program.name} train, each other variables, and what one of them "
                "computes depends on which comes first"
            )
    return _per_tower_blocker(sessions) if sessions.on_parts else None


def _alternates(program: RunnableProgram) -> bool:
    """Whether it was seen to run several ops that train different variables, as a GAN does."""
    analysis = analyse(program.placement)
    trained = program.gradient_tensors.gradients
    groups = set()
    for name in program.placement.step.train_op:
        runs = analysis.flow.needed_to_run([analysis.flow.number[producer_of(name)]])
        updates = analysis.updates.by_variable.items()
        groups.add(
            frozenset(
                variable
                for variable, of_variable in updates
                if variable in trained and any(runs[update.op] for update in of_variable)
            )
        )
    return len(groups - {frozenset()}) > 1


def _per_tower_blocker(sessions: PairedSessions) -> Missing | None:
    """Why the reference can take no step with the mean of its gradients on parts of the rows."""
    reference = sessions.reference.program
    on_parts = f"{reference.name} computes on the rows of each tower"
    for program in (sessions.towers.program, reference):
        if name := next(clipped_gradients(program), None):
            return Missing(f"{on_parts}, and the gradient of {name} is clipped, or else changed")
    if name := next(iter(reference.gradient_tensors.unread), None):
        return Missing(f"{on_parts}, and the gradient of {name} cannot be read")
    shapes = {variable.name: variable.shape for variable in reference.placement.variables}
    for name, gradient in reference.gradient_tensors.gradients.items():
        taken = reference.graph.get_tensor_by_name(gradient.values).shape
        if not taken.is_compatible_with(shapes[name]):
            return Missing(
                f"{on_parts}, and a step takes only some rows of the gradient of {name}"
            )
    return None


_T = TypeVar("_T")


class _ReferenceSteps(NamedTuple):
    """Of each step of the reference, what the program is compared with.

    Attributes:
        values: the variables after it, in their own dtypes.
        noise: how far they move if the rows are put in another order.
        uncertain: of each trained variable the elements whose direction is rounding, at any step.
        end: all variables after the last step, also those that are not compared.
    """

    values: list[Values]
    noise: list[dict[str, float]]
    uncertain: Mapping[str, npt.NDArray[np.bool_]]
    end: Values


def take_steps(sessions: PairedSessions, steps: int) -> Trajectory | Missing:
    """Some steps of both programs, or why there are none.

    Raises:
        InputError: the steps of the reference change none of its variables.
    """
    if (missing := step_blocker(sessions)) is not None:
        return missing
    batches = [sessions.batch(sessions.feeding.rows) for _ in range(steps)]
    taken = _reference_steps(sessions, batches)
    if isinstance(taken, Missing):
        return taken
    compared = list(_tower_steps(sessions, batches, taken))
    trained = frozenset(sessions.reference.program.gradient_tensors.gradients)
    return Trajectory(compared, trained, _gradients_after(sessions, taken.end))


def _reference_steps(
    sessions: PairedSessions, batches: Sequence[Batch]
) -> _ReferenceSteps | Missing:
    """A step on each batch; other orders of the rows are compared with it as they come."""
    reference, rows = sessions.reference, sessions.feeding.rows
    is_certain = is_proportional(sessions.towers.program.gradient_tensors.optimizers)
    orders = sessions.orders(rows)
    reference.load(sessions.start)
    values, gradients = [], []
    for batch in track(batches, "step"):
        gradients.append(sessions.expected_step(batch, with_gradients=not is_certain))
        values.append(reference.values())
    compared = [_comparable(sessions, _numeric(reference, after)) for after in values]
    if (missing := _diverged(sessions, compared)) is not None:
        return missing
    noise = [dict.fromkeys(after, 0.0) for after in compared]
    of_gradients = [dict.fromkeys(before, 0.0) for before in gradients]
    for order in track(orders, "order of the rows"):
        reference.load(sessions.start)
        for number, batch in enumerate(track(batches, "step")):
            other = sessions.expected_step(batch, order, with_gradients=not is_certain)
            add_noise(of_gradients[number], gradients[number], other)
            for part in reference.read():
                add_noise(noise[number], compared[number], part)
    return _ReferenceSteps(
        compared, noise, uncertain_elements(gradients, of_gradients), values[-1]
    )


def _diverged(sessions: PairedSessions, values: Sequence[Values]) -> Missing | None:
    """Why the steps of the reference lead nowhere.

    Raises:
        InputError: they change none of its variables.
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
    sessions: PairedSessions, batches: Sequence[Batch], reference: _ReferenceSteps
) -> Iterator[dict[str, VariableStep]]:
    """A step on each batch, compared with that of the reference as it comes."""
    towers, beside = sessions.towers, _StepComparison(sessions, reference)
    towers.begin(sessions.start)
    for number, batch in enumerate(track(batches, "step")):
        towers.step(sessions.feeding.to_towers(batch))
        after = {
            name: beside.compared(number, name, value)
            for part in towers.read()
            for name, value in _numeric(towers, part).items()
            if name in beside.names
        }
        yield {name: after[name] for name in beside.names if name in after}


class _StepComparison:
    """What the variables of the program are compared with, step after step."""

    def __init__(self, sessions: PairedSessions, reference: _ReferenceSteps) -> None:
        self._start = _with_copies(sessions, sessions.start)
        self._values = [_with_copies(sessions, values) for values in reference.values]
        self._noise = [_with_copies(sessions, noise) for noise in reference.noise]
        self._uncertain = reference.uncertain
        self._trained = sessions.reference.program.gradient_tensors.gradients
        self.names = self._values[0].keys()
        self._moving = {name: sample_elements(self._start[name].size) for name in self.names}
        self._before = {
            name: (select_elements(self._start[name], self._moving[name]),) * 2
            for name in self.names
        }

    def compared(self, number: int, name: str, found: npt.NDArray[Any]) -> VariableStep:
        """One variable of the program after a step."""
        expected = self._values[number][name]
        before = self._before[name]
        after = tuple(select_elements(values, self._moving[name]) for values in (expected, found))
        self._before[name] = after[0], after[1]
        return build_variable_step(
            self._start[name],
            expected,
            found,
            moved=(after[0] - before[0], after[1] - before[1]),
            noise=self._noise[number][name],
            uncertain=self._uncertain.get(find_trained_variable(name, self._trained) or ""),
        )


def _numeric(session: ProgramSession, values: Values) -> Values:
    """The variables that are numbers; local ones, such as a metric's, are not compared."""
    names = session.program.built.initial.compared
    return {
        name: value
        for name, value in values.items()
        if name in names and np.asarray(value).dtype.kind not in "OSU"
    }


def _comparable(sessions: PairedSessions, values: Values) -> Values:
    """Those that the program has as the reference has them: not what replicas change apart.

    A step of the reference on parts does not tell statistics of rows.
    """
    apart = sessions.towers.program.built.initial.unsynchronised
    values = {name: value for name, value in values.items() if name not in apart}
    if not sessions.on_parts:
        return values
    trained = sessions.reference.program.gradient_tensors.gradients
    return {
        name: value
        for name, value in values.items()
        if find_trained_variable(name, trained) is not None or value.dtype.kind in "iu"
    }


def _with_copies(sessions: PairedSessions, values: Mapping[str, _T]) -> Mapping[str, _T]:
    """What is known of the reference's variables, also for copies that a strategy keeps equal."""
    initial = sessions.towers.program.built.initial
    synchronised = initial.mirrors.keys() - initial.unsynchronised
    copies = {copy: initial.mirrors[copy] for copy in sorted(synchronised)}
    return {**values, **{copy: values[of] for copy, of in copies.items() if of in values}}


def _gradients_after(sessions: PairedSessions, end: Values) -> Trial:
    """The gradients after the last step, with the reference's variables in both programs.

    What else a program computes with, such as copies of its own that no step refreshes, is
    as its own steps have left it.
    """
    sessions.reference.load(end)
    sessions.towers.load(end)
    rows = sessions.feeding.rows
    return sessions.gradients(sessions.batch(rows), rows)
