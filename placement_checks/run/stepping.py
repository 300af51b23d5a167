"""Takes steps of a program and of its reference, from the same variables on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Array, Arrays, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.numerics.noise import noise_of, uncertain_elements
from placement_checks.run.feeding import Batch
from placement_checks.run.paired_sessions import PairedSessions
from placement_checks.run.preconditions import random_steps
from placement_checks.run.session import ProgramSession, Values
from placement_checks.util.text import plural


class _Steps(NamedTuple):
    """Of each step of the reference, the variables after it and the gradients before it."""

    values: list[dict[str, Array]]
    gradients: list[dict[str, Array]]


def trajectory(sessions: PairedSessions, steps: int) -> Trajectory | Missing:
    """Some steps of both programs, or why there are none.

    Raises:
        InputError: the steps of the reference change none of its variables.
    """
    if (missing := _no_steps(sessions)) is not None:
        return missing
    reference, rows = sessions.reference, sessions.feeding.rows
    batches = [sessions.batch(rows) for _ in range(steps)]
    orders = sessions.orders(rows)
    first = _of_reference(sessions, batches, list(range(rows)))
    end = reference.values()
    others = [_of_reference(sessions, batches, order) for order in orders]
    initial = _with_copies(sessions, sessions.start)
    start = {name: np.asarray(initial[name], np.float64) for name in first.values[0]}
    last = first.values[-1]
    not_finite = [name for name in start if not np.all(np.isfinite(last[name]))]
    if not_finite:
        return Missing(
            f"after {plural(steps, 'step')} of the reference {not_finite[0]} is NaN or infinite"
        )
    if all(np.array_equal(last[name], start[name]) for name in start):
        raise InputError(
            reference.program.name,
            f"{plural(steps, 'step')} changed none of its variables",
            "return the op that trains as train_op",
        )
    found = _of_towers(sessions, batches)
    noise = [
        noise_of(values, [other.values[number] for other in others])
        for number, values in enumerate(first.values)
    ]
    uncertain = uncertain_elements([taken.gradients for taken in (first, *others)])
    return Trajectory(start, first.values, found, noise, uncertain, _after(sessions, end))


def _no_steps(sessions: PairedSessions) -> Missing | None:
    """Why no step can be taken."""
    if not all(
        session.program.placement.step.train_op
        for session in (sessions.towers, sessions.reference)
    ):
        return Missing(
            "the programs do not say which op is one step; return it from both builders: "
            "{'train_op': train_op}"
        )
    for session, feeds in sessions.both(sessions.batches[0]):
        name = random_steps(session.program, feeds)
        if name is not None:
            return Missing(f"a step of {session.program.name} depends on the random op '{name}'")
    return None


def _of_reference(
    sessions: PairedSessions, batches: Sequence[Batch], order: Sequence[int]
) -> _Steps:
    """A step on each batch, with its rows in this order."""
    reference = sessions.reference
    reference.load(sessions.start)
    steps = _Steps([], [])
    for batch in batches:
        steps.gradients.append(sessions.reference_runs.gradients(batch, order))
        reference.step(sessions.feeding.to_reference(batch, order))
        steps.values.append(_with_copies(sessions, _values(reference)))
    return steps


def _of_towers(sessions: PairedSessions, batches: Sequence[Batch]) -> list[dict[str, Array]]:
    """The variables after a step on each batch."""
    towers = sessions.towers
    towers.begin(sessions.start)
    found = []
    for batch in batches:
        towers.step(sessions.feeding.to_towers(batch))
        found.append(_values(towers))
    return found


def _values(session: ProgramSession) -> dict[str, Any]:
    """The variables that are numbers; local ones, such as a metric's, are not compared."""
    return {
        name: np.asarray(value, np.float64)
        for name, value in session.values().items()
        if name in session.program.built.initial.initializers
        and np.asarray(value).dtype.kind not in "OSU"
    }


def _with_copies(sessions: PairedSessions, values: Arrays) -> dict[str, Array]:
    """The reference's values, also for the copies that a strategy keeps equal."""
    initial = sessions.towers.program.built.initial
    synchronised = initial.mirrors.keys() - initial.unsynchronised
    copies = {copy: initial.mirrors[copy] for copy in sorted(synchronised)}
    return {**values, **{copy: values[of] for copy, of in copies.items() if of in values}}


def _after(sessions: PairedSessions, end: Values) -> Trial:
    """The gradients after the last step, with the reference's variables in both programs.

    What else a program computes with, such as copies of its own that no step refreshes, is
    as its own steps have left it.
    """
    sessions.reference.load(end)
    sessions.towers.load(end)
    rows = sessions.feeding.rows
    return sessions.gradients(sessions.batch(rows), rows)
