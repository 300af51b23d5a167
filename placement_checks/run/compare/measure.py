"""Runs a program and its reference on the same rows, from the same variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS, Arrays, Measurement, Trial
from placement_checks.core.missing import Missing
from placement_checks.core.placement import producer_of
from placement_checks.core.program import BatchFunction
from placement_checks.numerics.comparing import Difference, compare_gradients, differing_variables
from placement_checks.numerics.reducing import select_all
from placement_checks.numerics.training_divergence import (
    compare_variables,
    compensated_factor,
    variables_with_stale_copies,
)
from placement_checks.run.compare import steps
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.replayed_checks import ReplayedChecks
from placement_checks.run.compare.sessions import Conditions, PairedSessions
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.interface import Batch
from placement_checks.run.feeding.replayed import ReplayedFeeding, error_context
from placement_checks.run.preconditions import (
    ancestors,
    check_all_fed,
    check_comparable,
    check_repeatable,
    check_towers_ran_apart,
    clipped_gradients,
    precisions,
    shared_races,
)
from placement_checks.run.runnable import full_precision
from placement_checks.run.session import ProgramSession
from placement_checks.util.progress import step

# Other orders of the rows, in which the noise is measured. In two of a thousand programs three
# show less than an eighth of that of a single number. So more are asked before a difference is
# told that is less than some times what it may be.
_ORDERS, _MORE_ORDERS = 3, 12
_CLOSE = 16.0

# Why no steps are taken.
_STATISTICS_PER_TOWER = (
    "the statistics are those of each tower's rows, which the reference takes no step with; "
    "only the gradients are compared"
)


def measure(pair: ProgramPair, batch: BatchFunction | None, conditions: Conditions) -> Measurement:
    """Run both programs of a pair, and compare what they compute.

    Args:
        pair: the program and its reference.
        batch: gives the rows; None for rows that are made up.
        conditions: how they are run.

    Raises:
        InputError: a program or the batch function is at fault.
        CannotRun: the programs are sound, but numbers would mean nothing.
    """
    check_comparable(pair.towers, pair.reference)
    feeding = pair.feeding(batch, rows=conditions.rows, shares=conditions.shares)
    with (
        error_context(feeding),
        step(f"running {pair.towers.name}"),
        full_precision(),
        ProgramSession(pair.towers, conditions.seconds) as towers,
        ProgramSession(pair.reference, conditions.seconds) as reference,
    ):
        case = batch if isinstance(batch, Case) else None
        for orders in (_ORDERS, _MORE_ORDERS):
            sessions = PairedSessions(
                *(towers, reference, feeding),
                scale=conditions.scale,
                seed=conditions.seed,
                orders=orders,
            )
            sessions.begin(case)
            as_fed = (
                ReplayedChecks(sessions, feeding) if isinstance(feeding, ReplayedFeeding) else None
            )
            as_compared = as_fed.conditions(conditions) if as_fed else conditions
            comparison = _Comparison(sessions, as_compared)
            measured = comparison.measurement()
            differences = list(_differences(measured))
            if not any(each.error < _CLOSE * each.limit for each in differences):
                break
        if differences or measured.missing:
            measured = comparison.saved(measured)
        return as_fed.checked(measured, as_compared) if as_fed else measured


class _Comparison:
    """Two programs in their sessions."""

    def __init__(self, sessions: PairedSessions, conditions: Conditions) -> None:
        self._sessions = sessions
        self._towers = sessions.towers
        self._reference = sessions.reference
        self._feeding = sessions.feeding
        self._conditions = conditions
        sessions.on_parts = conditions.statistics_per_tower
        self._notes: list[str] = []
        self._precisions = _coarser_dtypes(
            precisions(self._towers.program), precisions(self._reference.program)
        )

    def measurement(self) -> Measurement:
        """Everything that is measured."""
        program, single = self._towers.program, self._reference.program
        rows = self._feeding.rows
        batch = self._sessions.batch(rows)
        for session, feeds in self._sessions.both(batch):
            check_all_fed(session.program, feeds)
        check_towers_ran_apart(self._towers, self._feeding.to_towers(batch))
        self._towers.begin(self._sessions.start)
        for session, feeds in self._sessions.both(batch):
            check_repeatable(session, feeds)
        trials = [self._trial(batch, rows)]
        if self._feeding.odd and not self._conditions.statistics_per_tower:
            trials += self._odd_trial(program.name)
        trajectory = (
            Missing(_STATISTICS_PER_TOWER)
            if self._conditions.statistics_per_tower and not self._conditions.steps_on_parts
            else steps.take_steps(self._sessions, self._conditions.steps)
        )
        return Measurement(
            reference=single.name,
            devices="simulated" if program.simulated else "real",
            towers=program.gpus,
            dtypes=program.variables,
            precisions=self._precisions,
            trials=trials,
            scale=self._conditions.scale,
            strategy=program.placement.strategy.name if program.placement.strategy else "",
            trajectory=trajectory,
            unread={**single.gradient_tensors.unread, **program.gradient_tensors.unread},
            missing=dict(self._missing()),
            changed=frozenset([*clipped_gradients(single), *clipped_gradients(program)]),
            races=shared_races(program, single),
            optimizers=frozenset(program.gradient_tensors.optimizers),
            updates=program.gradient_tensors.updates,
            notes=self._notes,
        )

    def saved(self, measured: Measurement) -> Measurement:
        """With the file of the case; what is measured is not lost where none can be written."""
        case = Case(self._sessions.batches, self._sessions.start)
        try:
            path = case.save(self._towers.program.name)
            return replace(measured, saved=str(path), saved_bytes=path.stat().st_size)
        except (OSError, RuntimeError) as error:
            return replace(measured, notes=[*self._notes, f"the case cannot be saved: {error}"])

    def _odd_trial(self, name: str) -> Iterator[Trial]:
        rows = self._feeding.odd
        try:
            batch = self._sessions.batch(rows)
        except InputError as error:
            self._notes.append(f"there is no batch of {rows} rows: {error.message}")
            return
        try:
            self._towers.gradients(self._feeding.to_towers(batch))
        except InputError:
            self._sessions.batches = self._sessions.batches[:1]
            self._notes.append(f"{name} takes no batch of {rows} rows")
            return
        yield self._trial(batch, rows)

    def _trial(self, batch: Batch, rows: int) -> Trial:
        """The gradients of both programs on one batch; if they differ, also what explains it."""
        sessions, runs = self._sessions, self._sessions.reference_runs
        trial = sessions.gradients(batch, rows)
        self._refuse_not_finite(trial.expected, batch)
        trial = replace(
            trial,
            start=select_all(sessions.start, trial.elements),
            per_tower=runs.per_tower(batch, rows, trial.elements),
        )
        if not_finite := _not_finite(trial.found):
            feeds = self._feeding.to_towers(batch)
            origins = {name: self._origin(self._towers, name, feeds) for name in not_finite}
            return replace(trial, not_finite=origins)
        if not differing_variables(trial, self._precisions):
            return trial
        return replace(
            trial,
            per_row=runs.per_row(batch, rows, trial.elements),
            shifted=dict(runs.shifted(batch, rows, trial.elements)),
        )

    def _missing(self) -> Iterator[tuple[str, bool]]:
        program, single = self._towers.program, self._reference.program
        ours, theirs = program.gradient_tensors, single.gradient_tensors
        for name in single.gradient_tensors.gradients:
            if name not in ours.gradients and name not in ours.unread:
                yield name, True
        for name in ours.gradients:
            untrained = name not in theirs.gradients and name not in theirs.unread
            if untrained and name in single.variables:
                yield name, False

    def _refuse_not_finite(self, expected: Arrays, batch: Batch) -> None:
        """Refuse a reference whose gradient is NaN or infinite.

        Raises:
            InputError: it is so, on rows of the user's.
            CannotRun: it is so, on rows that were made up.
        """
        name = next(iter(_not_finite(expected)), None)
        if name is None:
            return
        op, where = self._origin(self._reference, name, self._sessions.to_reference(batch))
        at = f", built at {where}" if where else ""
        message = (
            f"its gradient of {name} is NaN or infinite; the first op that yields such a value is "
            f"{op}{at}"
        )
        fix = "give rows with --batch on which the reference can be trained"
        if self._feeding.made_up:
            raise CannotRun(f"{self._reference.program.name}: {message}; {fix}")
        raise InputError(self._reference.program.name, message, fix)

    def _origin(
        self, session: ProgramSession, variable: str, feeds: Batch
    ) -> tuple[str, str | None]:
        """The first op that makes a gradient NaN or infinite, and its source line."""
        program = session.program
        gradient = program.gradient_tensors.gradients[variable].values
        op = session.first_not_finite(ancestors(program, [gradient], feeds), feeds)
        op = op or producer_of(gradient)
        return op, program.placement.where(op)


def _not_finite(gradients: Arrays) -> list[str]:
    """The variables whose gradient is NaN or infinite, which its largest element tells."""
    return [name for name, value in gradients.items() if not np.all(np.isfinite(value))]


def _coarser_dtypes(some: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Of each variable the dtype with the larger eps."""
    return {
        name: max(some[name], others[name], key=lambda dtype: EPS.get(dtype, 0.0))
        for name in some.keys() & others.keys()
    }


def _differences(measured: Measurement) -> Iterator[Difference]:
    """Those in which a rule may find a mistake."""
    factor = compensated_factor(measured)
    if factor == 1:
        for trial in measured.trials:
            compared_on_it = compare_gradients(trial, measured.precisions)
            yield from (each for each in compared_on_it if each.state == "differs")
    if measured.trajectory:
        _, divergences = compare_variables(
            measured, measured.trajectory, scale=measured.scale * factor
        )
        yield from (divergence.difference for divergence in divergences)
        stale = variables_with_stale_copies(measured)
        if stale and measured.trajectory.after:
            after = compare_gradients(measured.trajectory.after, measured.precisions)
            yield from (each for each in after if each.variable in stale)
