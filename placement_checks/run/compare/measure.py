"""Measure how the gradients and steps of a program differ from its reference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from placement_checks.analysis.variables.read_write_races import races
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS, Arrays, Measurement, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.core.placement import producer_of
from placement_checks.core.program import BatchFunction
from placement_checks.numerics.comparing import (
    Difference,
    compare_gradients,
    differing_variables,
    divide_gradients,
)
from placement_checks.numerics.sampling import select_all
from placement_checks.numerics.training_divergence import (
    common_factor,
    compare_variables,
    compensated_factor,
    is_proportional,
    variables_with_stale_copies,
)
from placement_checks.run.clipping import clipped_gradients
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.compare.replayed_checks import ReplayedChecks
from placement_checks.run.compare.row_mixing import find_row_mixing
from placement_checks.run.compare.sessions import Conditions, PairedSessions
from placement_checks.run.compare.steps import take_steps
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.interface import check_rows_differ
from placement_checks.run.feeding.replayed import ReplayedFeeding
from placement_checks.run.preconditions import (
    check_all_fed,
    check_comparable,
    check_repeatable,
    check_towers_ran_apart,
    precisions,
)
from placement_checks.run.runnable import RunnableProgram, full_precision
from placement_checks.run.session import ProgramSession, TimeLimitExceeded
from placement_checks.tf.startup import INSTALL_CUDA
from placement_checks.util.progress import step
from placement_checks.util.text import plural

# To measure noise, the reference runs with perturbations. These are the numbers of perturbations
# to try, one after the other. Most correct programs show no difference, and need no perturbation.
# If there is a difference, the noise of four perturbations may explain it. A difference below
# _CLOSE times its limit is measured again with twelve perturbations, because a value that crosses
# a kink in one of 60 runs of a small network changed gradients by 1 to 2 %, and four perturbations
# may miss it.
_PERTURBATIONS = (0, 4, 12)
_CLOSE = 1000.0
# To find mistakes with single rows, the reference runs once for each row. If it only accepts
# batches of a fixed size, each run computes a whole batch.
_MAX_SINGLE_ROWS = 128
_MAX_COMPUTED_ROWS = 1024


def measure(pair: ProgramPair, batch: BatchFunction | None, conditions: Conditions) -> Measurement:
    """Run both programs of a pair, and compare their gradients and steps.

    If something differs, the batches and initial values are saved as a case.

    Raises:
        InputError: a program or the batch function is at fault.
        CannotRun: the programs are sound, but comparing their numbers proves nothing.
    """
    check_comparable(pair.towers, pair.reference, same_towers=pair.same_towers)
    feeding = pair.feeding(batch, rows=conditions.rows, shares=conditions.shares)
    with (
        feeding.error_context(),
        step(f"running {pair.towers.name}"),
        full_precision(),
        ProgramSession(pair.towers, conditions.seconds) as towers,
        ProgramSession(pair.reference, conditions.seconds) as reference,
    ):
        sessions = PairedSessions(towers, reference, feeding, conditions)
        with step("initial values"):
            sessions.initialize(batch if isinstance(batch, Case) else None)
        if not isinstance(feeding, ReplayedFeeding):
            return _measured(sessions)
        checks = ReplayedChecks(sessions, feeding)
        with step("losses"):
            checks.choose_rows()
        measured = _measured(sessions)
        if differs(measured, conditions) and checks.choose_other_rows():
            sessions.restart(0)
            other = _measured(sessions)
            measured = measured if differs(other, conditions) else other
        return checks.check(measured)


def _measured(sessions: PairedSessions) -> Measurement:
    """Compare gradients and steps, with noise if they differ, on the rows that are chosen."""
    conditions = sessions.conditions
    for number in _PERTURBATIONS:
        if number:
            with step("initial values"):
                sessions.restart(number)
        comparison = _Comparison(sessions)
        measured = comparison.measurement()
        differences = list(_differences(measured, conditions))
        is_close = any(each.error < _CLOSE * each.limit for each in differences)
        if not differences or (number and not is_close):
            break
    return comparison.explained(measured) if differences or measured.missing else measured


def differs(measured: Measurement, conditions: Conditions) -> bool:
    """Whether a gradient or a step differs, or a variable gets a gradient in one program only."""
    return bool(measured.missing) or any(True for _ in _differences(measured, conditions))


class _Comparison:
    """A comparison of two programs in their sessions."""

    def __init__(self, sessions: PairedSessions) -> None:
        self._sessions = sessions
        self._towers = sessions.towers
        self._reference = sessions.reference
        self._feeding = sessions.feeding
        self._notes: list[str] = []
        if reason := self._towers.program.unusable_gpus:
            self._notes.append(f"{reason}, so CPU devices replaced the GPUs ({INSTALL_CUDA})")
        found, expected = precisions(self._towers.program), precisions(self._reference.program)
        self._precisions = {
            name: max(found[name], expected[name], key=lambda dtype: EPS.get(dtype, 0.0))
            for name in found.keys() & expected.keys()
        }

    def measurement(self) -> Measurement:
        """Check that the programs can be compared, then compare gradients and steps."""
        program, single = self._towers.program, self._reference.program
        rows = self._feeding.rows
        batch = self._sessions.batch(rows)
        for session, feeds in self._sessions.both(batch):
            check_all_fed(session.program, feeds)
        if not self._feeding.generated:
            check_rows_differ(batch, "let the batch function return different rows")
        with step("first run"):
            check_towers_ran_apart(self._towers, self._feeding.to_towers(batch))
            self._sessions.start_towers()
        with step("repeated runs"):
            for session, feeds in self._sessions.both(batch):
                check_repeatable(session, feeds, rows)
        trials = [self._trial(batch, rows)]
        conditions, own_rows = self._sessions.conditions, self._sessions.own_rows
        if self._feeding.uneven_rows and not own_rows:
            trials += self._uneven_trial()
        trajectory = self._steps(trials)
        return Measurement(
            reference=single.name,
            devices="simulated" if program.simulated else "real",
            towers=program.gpus,
            dtypes=program.variables,
            precisions=self._precisions,
            trials=trials,
            scale=conditions.scale,
            strategy=program.placement.strategy.name if program.placement.strategy else "",
            trajectory=trajectory,
            unreadable={**single.gradients.unreadable, **program.gradients.unreadable},
            missing=_missing_gradients(program, single),
            changed=frozenset([*clipped_gradients(single), *clipped_gradients(program)]),
            # Programs for one GPU and for several GPUs are scheduled differently. So a race may
            # end one way in every run of one program, and the other way in every run of the other.
            races={**races(program.placement), **races(single.placement)},
            earlier=single.earlier_gradients,
            optimizers=frozenset(program.gradients.optimizers),
            updates=program.gradients.updates,
            own_rows=own_rows.reason if own_rows else "",
            notes=[*self._notes, *self._order_notes()],
        )

    def _order_notes(self) -> Iterator[str]:
        if self._sessions.order_matters:
            yield (
                f"the gradients of {self._reference.program.name} depend on the order of its "
                "rows, so noise was measured with changed weights alone"
            )

    def _steps(self, trials: Sequence[Trial]) -> Trajectory | Missing:
        """Compare some steps. If the time limit ends them, equal gradients are known even so.

        Different gradients are not: the steps would show a learning rate that compensates.
        """
        sessions, limits = self._sessions, self._sessions.conditions.gradient_limits
        try:
            own_scalars = self._own_scalars(trials[0])
            return take_steps(sessions, sessions.conditions.steps, own_scalars)
        except TimeLimitExceeded as exceeded:
            if any(differing_variables(trial, self._precisions, limits) for trial in trials):
                raise
            return exceeded.missing

    def _own_scalars(self, trial: Trial) -> Arrays:
        """Return values of the program that may compensate for a common factor of all gradients.

        For example, a program that adds up gradients may divide the learning rate by the number of
        towers.
        """
        factor = self._sessions.conditions.scale * common_factor(trial, self._precisions)
        optimizers = self._towers.program.gradients.optimizers
        if np.isclose(factor, 1, rtol=1e-4) or not is_proportional(optimizers):
            return {}
        return self._sessions.own_scalars()

    def explained(self, measured: Measurement) -> Measurement:
        """Add how the reference combines rows, and save the case.

        If no file can be written, a note states why.
        """
        if not self._sessions.on_parts and not self._feeding.same_towers:
            with contextlib.suppress(TimeLimitExceeded):
                mixing = find_row_mixing(self._sessions, self._sessions.batches[0])
                measured = replace(measured, mixing=mixing)
        case = Case(self._sessions.batches, self._sessions.start)
        try:
            path = case.save(self._towers.program.built.name)
            return replace(measured, saved=str(path), saved_bytes=path.stat().st_size)
        except (OSError, RuntimeError) as error:
            notes = [*measured.notes, f"the case cannot be saved: {error}"]
            return replace(measured, notes=notes)

    def _trial(self, batch: Arrays, rows: int) -> Trial:
        """Compare gradients on one batch.

        If they differ, the reference also runs on each tower's rows, on single rows and on shifted
        rows, to find the mistake.
        """
        with step(f"gradients on {plural(rows, 'row')}"):
            return self._compared_trial(batch, rows)

    def _compared_trial(self, batch: Arrays, rows: int) -> Trial:
        sessions = self._sessions
        trial = sessions.trial(batch, rows, sessions.start)
        self._check_finite(trial.expected, batch)
        trial = replace(trial, start=select_all(sessions.start, trial.elements))
        if not_finite := _not_finite(trial.found):
            feeds, where = self._feeding.to_towers(batch), self._towers.program.placement.where
            origins = {name: _origin(self._towers, name, feeds) for name in not_finite}
            return replace(
                trial, not_finite={name: (op, where(op)) for name, op in origins.items()}
            )
        limits = sessions.conditions.gradient_limits
        if not differing_variables(trial, self._precisions, limits):
            return trial
        few = rows <= min(_MAX_SINGLE_ROWS, _MAX_COMPUTED_ROWS // self._feeding.reference_rows)
        singles = [(row,) for row in range(rows)] if few else []
        return replace(
            trial,
            per_tower=sessions.samples(batch, sessions.split(rows), trial.elements),
            per_row=sessions.samples(batch, singles, trial.elements),
            shifted=dict(sessions.shifted(batch, rows, trial.elements)),
        )

    def _uneven_trial(self) -> Iterator[Trial]:
        """Compare gradients on a batch that the towers cannot share evenly, if it can be fed."""
        rows = self._feeding.uneven_rows
        try:
            batch = self._sessions.batch(rows)
        except InputError as error:
            self._notes.append(f"there is no batch of {rows} rows: {error.message}")
            return
        try:
            self._towers.gradients(self._feeding.to_towers(batch))
        except InputError:
            self._sessions.batches = self._sessions.batches[:1]
            name = self._towers.program.name
            self._notes.append(f"not tested with an uneven batch: {name} fails on {rows} rows")
            return
        yield self._trial(batch, rows)

    def _check_finite(self, expected: Arrays, batch: Arrays) -> None:
        """Check that the gradients of the reference are finite.

        Raises:
            InputError: a gradient is not finite on the user's rows.
            CannotRun: a gradient is not finite on random or replayed rows.
        """
        name = next(iter(_not_finite(expected)), None)
        if name is None:
            return
        program = self._reference.program
        op = _origin(self._reference, name, self._sessions.to_reference(batch))
        message = (
            f"its gradient of {name} is NaN or infinite; the first op that yields such a value is "
            f"{op}{program.built_at(op)}"
        )
        fix = "pass rows on which the reference can be trained: --batch train.py:batch"
        if self._feeding.generated:
            raise CannotRun(f"{program.name}: {message}", fix)
        raise InputError(program.name, message, fix)


def _origin(session: ProgramSession, variable: str, feeds: Arrays) -> str:
    """Return the first op that makes a gradient NaN or infinite."""
    gradient = session.program.gradients.by_variable[variable].values
    ancestors = session.program.ancestors([gradient], feeds)
    return session.first_not_finite(ancestors, feeds) or producer_of(gradient)


def _not_finite(gradients: Arrays) -> list[str]:
    """Return the variables with a NaN or infinite gradient.

    Selected elements suffice, because the selection contains every NaN and infinite element.
    """
    return [name for name, value in gradients.items() if not np.all(np.isfinite(value))]


def _missing_gradients(program: RunnableProgram, single: RunnableProgram) -> dict[str, bool]:
    """Return the variables with a gradient in one program only; True if only in the reference."""
    found, expected = program.gradients, single.gradients
    missing = {
        name: True
        for name in expected.by_variable
        if name not in found.by_variable and name not in found.unreadable
    }
    for name in found.by_variable:
        untrained = name not in expected.by_variable and name not in expected.unreadable
        if untrained and name in single.variables:
            missing[name] = False
    return missing


def _differences(measured: Measurement, conditions: Conditions) -> Iterator[Difference]:
    """Yield the differences that rules may report."""
    limits = conditions.gradient_limits
    factor = compensated_factor(measured)
    for trial in measured.trials:
        compared = compare_gradients(divide_gradients(trial, factor), measured.precisions, limits)
        yield from (each for each in compared if each.state == "differs")
    if measured.trajectory:
        _, divergences = compare_variables(
            measured,
            measured.trajectory,
            conditions.weight_limits,
            scale=measured.scale * factor,
        )
        yield from (divergence.difference for divergence in divergences)
        stale = variables_with_stale_copies(measured)
        if stale and measured.trajectory.after:
            after = compare_gradients(measured.trajectory.after, measured.precisions)
            yield from (each for each in after if each.variable in stale)
