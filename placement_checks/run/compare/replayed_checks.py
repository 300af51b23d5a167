"""What the gradients of a watched program are compared with, and whether a difference counts.

Nothing says what a watched program means to compute. A finding about it has to be true: where
another reading of what it was fed might explain a difference, nothing is said but that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.towers.inputs import scales_of
from placement_checks.analysis.variables.mixed_losses import shared_ops
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS, Measurement, Trial
from placement_checks.core.placement import producer_of
from placement_checks.numerics.block_statistics import weighted_mean
from placement_checks.numerics.comparing import differing_variables
from placement_checks.numerics.diagnosis import UNEXPLAINED, diagnose
from placement_checks.run.compare.sessions import Conditions, PairedSessions
from placement_checks.run.feeding.replayed import ReplayedFeeding
from placement_checks.util.text import join_and, plural

_TOLERANCE = 32 * EPS["float32"]  # of losses that are sums


class ReplayedChecks:
    """Two watched programs in their sessions."""

    def __init__(self, sessions: PairedSessions, feeding: ReplayedFeeding) -> None:
        self._sessions = sessions
        self._feeding = feeding
        self._batch = sessions.batch(feeding.rows)

    def conditions(self, conditions: Conditions) -> Conditions:
        """How the two are compared.

        On all rows, where the loss of the reference is the mean, or the sum, of those on the rows
        of each tower, or where towers meet in the model, as by moments of all rows. Else, as in
        batch normalisation, on the rows of each tower; so also where the reference does not take
        them all.

        Raises:
            CannotRun: they cannot be compared.
        """
        feeding = self._feeding
        is_whole = feeding.takes_all and not conditions.statistics_per_tower
        if is_whole and (shared_ops(self._sessions.towers.program.placement) or self._adds_up()):
            return conditions
        sizes = {len(part) for part in feeding.parts}
        name = self._sessions.reference.program.name
        if len(sizes) > 1:
            raise CannotRun(
                f"the towers are fed {join_and(map(len, feeding.parts))} rows, and {name} cannot "
                "be compared on all of them at once; give --batch"
            )
        if not feeding.takes_parts:
            raise CannotRun(
                f"{name} does not take {plural(max(sizes), 'row')}, which a tower is fed; give "
                "--batch"
            )
        return replace(conditions, statistics_per_tower=True, steps_on_parts=True)

    def _adds_up(self) -> bool:
        """Whether the loss on all rows is made up of those on the rows of each tower.

        A sum over rows is taken for one only where the reference was fed as many: divided by a
        number of rows that is written down, a mean would look like one.
        """
        runs, feeding = self._sessions.reference_runs, self._feeding
        if not feeding.takes_parts:
            return False
        with contextlib.suppress(InputError):
            whole = np.array(runs.losses(self._batch))
            parts = np.array([runs.losses(self._batch, part) for part in feeding.parts])
            shares = np.array([len(part) for part in feeding.parts]) / feeding.rows
            added_up = _close(whole, shares @ parts)
            if feeding.same_size:
                added_up |= _close(whole, parts.sum(axis=0))
            return bool(added_up.size and np.all(added_up))
        return False

    def checked(self, measured: Measurement, conditions: Conditions) -> Measurement:
        """What was measured, if all that differs is a mistake of the program.

        Raises:
            CannotRun: it may not be.
        """
        for trial in measured.trials:
            wrong = differing_variables(trial, measured.precisions) - trial.not_finite.keys()
            found = diagnose(measured, trial, sorted(wrong))
            unexplained = [name for name, diagnosis in found.items() if diagnosis is UNEXPLAINED]
            if unexplained:
                raise self._unclear(unexplained, "and no known mistake explains it")
            if wrong and (numbers := self._feeding.not_alike):
                fed = join_and(f"'{name}'" for name in numbers)
                raise self._unclear(
                    sorted(wrong), f"and both are fed numbers of their own for {fed}"
                )
            if not conditions.statistics_per_tower:
                if wrong and not wrong & measured.changed and _is_mean_on_parts(trial, measured):
                    raise self._unclear(
                        sorted(wrong), "but the mean of those on each tower's rows"
                    )
                continue
            if changed := sorted(wrong & measured.changed):
                raise self._unclear(changed, "each tower's alone, and they are clipped or changed")
            scaled = [name for name, diagnosis in found.items() if diagnosis.ratio is not None]
            if scaled and not self._feeding.same_size and not self._is_mean():
                why = "each tower's alone, and it is not seen whether its loss is a sum over rows"
                raise self._unclear(scaled, why)
        alone = ", each tower's alone" if conditions.statistics_per_tower else ""
        note = f"the rows are those that were fed when it was watched{alone}"
        return replace(measured, notes=[*measured.notes, note])

    def _unclear(self, names: Sequence[str], why: str) -> CannotRun:
        some = join_and([*names[:2], *([f"{len(names) - 2} more"] if names[2:] else [])])
        return CannotRun(
            f"the gradients of {some} are not those of {self._sessions.reference.program.name} "
            f"on the rows that were fed, {why}; give --batch to know more"
        )

    def _is_mean(self) -> bool:
        """Whether the loss of the reference stays what it is if all rows count twice.

        Where it takes no more rows, the graph has to show that it divides by their number.
        """
        feeding, runs = self._feeding, self._sessions.reference_runs
        if not feeding.takes_any_number:
            return self._is_seen_to_be_a_mean()
        part = feeding.parts[0]
        with contextlib.suppress(InputError):
            once = np.array(runs.losses(self._batch, part))
            more = np.array(runs.losses(self._batch, feeding.more_often(part)))
            return bool(np.all(_close(once, more)))
        return False

    def _is_seen_to_be_a_mean(self) -> bool:
        """Whether sums over rows in its loss are divided by their number."""
        analysis = analyse(self._sessions.reference.program.placement)
        for name in analysis.placement.step.objectives:
            scales = scales_of(analysis, analysis.flow.number[producer_of(name)])
            if scales is None or not all(map(self._counts_rows, scales.divisors)):
                return False
            if any(map(self._counts_rows, scales.factors)):
                return False
        return True

    def _counts_rows(self, tensor: str) -> bool:
        """Whether a tensor is a multiple of the number of rows."""
        name = tensor if ":" in tensor else f"{tensor}:0"
        feeds = self._feeding.to_reference(self._batch)
        value = np.asarray(self._sessions.reference.run(name, feeds))
        return bool(np.all(value) and not np.any(value % self._feeding.of_reference))


def _is_mean_on_parts(trial: Trial, measured: Measurement) -> bool:
    """Whether the program has the mean of what the reference gives on each tower's rows.

    Statistics of rows may show in gradients alone, and in no loss.
    """
    mean = weighted_mean(trial.per_tower, trial.rows)
    if mean.keys() != trial.expected.keys():
        return False
    return not differing_variables(replace(trial, expected=mean), measured.precisions)


def _close(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(some - others) <= _TOLERANCE * np.maximum(abs(some), abs(others)))
