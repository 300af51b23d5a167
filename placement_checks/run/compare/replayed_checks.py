"""Decide on which rows to compare whole scripts, and whether a difference proves a mistake.

The meaning of recorded rows is inferred, so another meaning might explain a difference. A
difference counts only if a known mistake explains it and no other reading of the recorded feeds
does. Otherwise the comparison is refused, and the reason is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.inputs import loss_scales
from placement_checks.analysis.variables.mixed_losses import shared_ops
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS, Measurement, Trial
from placement_checks.core.placement import producer_of
from placement_checks.numerics.comparing import differing_variables
from placement_checks.numerics.diagnosis import UNEXPLAINED, diagnose
from placement_checks.numerics.sampling import weighted_mean
from placement_checks.run.compare.sessions import PairedSessions
from placement_checks.run.feeding.interface import PASS_BATCH
from placement_checks.run.feeding.replayed import ReplayedFeeding
from placement_checks.util.text import join_and, listed, plural

_TOLERANCE = 32 * EPS["float32"]  # relative difference of losses that count as equal
_TOWER_ALONE = "on each tower's rows alone"


class ReplayedChecks:
    """Checks for two scripts with replayed rows."""

    def __init__(self, sessions: PairedSessions, feeding: ReplayedFeeding) -> None:
        self._sessions = sessions
        self._feeding = feeding
        self._batch = sessions.batch(feeding.rows)

    def adapt(self) -> None:
        """Choose whether the reference computes on all rows or on the rows of each tower.

        It computes on all rows if its loss on all rows is the mean or the sum of its losses on
        each tower's rows, or if towers share ops in the model, such as moments of all rows.
        Otherwise, it computes on the rows of each tower: for example, with batch normalization,
        or if the reference does not accept all rows at once.

        Raises:
            CannotRun: the reference cannot compute on all rows, and either it does not accept the
                rows of one tower, or the towers get different numbers of rows.
        """
        feeding, conditions = self._feeding, self._sessions.conditions
        takes_all = feeding.takes_all and not conditions.statistics_per_tower
        placement = self._sessions.towers.program.placement
        has_rows = bool(self._sessions.of_other_shape)  # the reference takes only all rows
        if takes_all and (has_rows or shared_ops(placement) or self._is_additive()):
            return
        sizes = {len(part) for part in feeding.parts}
        name = self._sessions.reference.program.name
        if len(sizes) > 1:
            raise CannotRun(
                "the towers get different numbers of rows "
                f"({join_and(map(len, feeding.parts))}), and {name} cannot be compared on all "
                f"{feeding.rows} in one run",
                PASS_BATCH,
            )
        if not feeding.takes_parts:
            raise CannotRun(
                f"{name} does not take {plural(max(sizes), 'row')}, the rows of one tower",
                PASS_BATCH,
            )
        per_tower = replace(conditions, statistics_per_tower=True, steps_on_parts=True)
        self._sessions.conditions = per_tower

    def _is_additive(self) -> bool:
        """Whether the loss on all rows is the mean or sum of the losses on each tower's rows.

        A sum counts only if the reference was fed as many rows as the towers: otherwise a mean
        that divides by a constant number of rows would look like a sum.
        """
        losses, feeding = self._sessions.losses, self._feeding
        if not feeding.takes_parts:
            return False
        with contextlib.suppress(InputError):
            whole = np.array(losses(self._batch))
            parts = np.array([losses(self._batch, part) for part in feeding.parts])
            shares = np.array([len(part) for part in feeding.parts]) / feeding.rows
            is_additive = _close(whole, shares @ parts)
            if feeding.same_size:
                is_additive |= _close(whole, parts.sum(axis=0))
            return bool(is_additive.size and np.all(is_additive))
        return False

    def check(self, measured: Measurement) -> Measurement:
        """Check that every difference proves a mistake; return the measurement with a note.

        Raises:
            CannotRun: a difference may have another cause.
        """
        for trial in measured.trials:
            self._check_trial(trial, measured)
        alone = f", compared {_TOWER_ALONE}" if self._sessions.on_parts else ""
        note = f"the rows are from the recorded first step{alone}"
        return replace(measured, notes=[*measured.notes, note])

    def _check_trial(self, trial: Trial, measured: Measurement) -> None:
        limits = self._sessions.conditions.gradient_limits
        different = differing_variables(trial, measured.precisions, limits)
        wrong = different - trial.not_finite.keys()
        if not wrong:
            return
        diagnoses = diagnose(measured, trial, sorted(wrong))
        unexplained = [name for name, found in diagnoses.items() if found is UNEXPLAINED]
        if unexplained:
            raise self._inconclusive(unexplained, ", and no known mistake explains the difference")
        if self._feeding.inputs.unequal_scalars:
            fed = join_and(f"'{name}'" for name in self._feeding.inputs.unequal_scalars)
            raise self._inconclusive(
                wrong, f", but the two programs are also fed different numbers for {fed}"
            )
        changed = wrong & measured.changed
        if not self._sessions.on_parts:
            if not changed and _is_mean_per_tower(trial, measured):
                raise self._inconclusive(
                    wrong, ", but equal the mean of its gradients on each tower's rows alone"
                )
            return
        if changed and not self._sessions.clips_as_program:
            raise self._inconclusive(
                changed,
                f", compared {_TOWER_ALONE}; these gradients are clipped or otherwise changed, "
                "which may be the cause",
            )
        scaled = [name for name, found in diagnoses.items() if found.ratio is not None]
        if scaled and not self._feeding.same_size and not self._is_mean():
            raise self._inconclusive(
                scaled,
                f", compared {_TOWER_ALONE}; a loss that is a sum over rows may be the cause",
            )

    def _inconclusive(self, names: Collection[str], why: str) -> CannotRun:
        return CannotRun(
            f"the gradients of {listed(sorted(names), 2)} differ from "
            f"{self._sessions.reference.program.name} on the recorded rows{why}",
            "compare on other rows: --batch train.py:batch",
        )

    def _is_mean(self) -> bool:
        """Whether the loss of the reference is a mean: repeating the rows does not change it.

        If the reference does not accept more rows, the loss must be divided by the number of rows
        in its graph.
        """
        feeding, losses = self._feeding, self._sessions.losses
        if not feeding.inputs.any_batch_size:
            return self._divides_by_rows()
        part = feeding.parts[0]
        with contextlib.suppress(InputError):
            once = np.array(losses(self._batch, part))
            more = [*part] * (feeding.inputs.reference_rows // len(part) + 1)
            repeated = np.array(losses(self._batch, more))
            return bool(np.all(_close(once, repeated)))
        return False

    def _divides_by_rows(self) -> bool:
        """Whether the reference divides sums over rows in its loss by the number of rows."""
        analysis = analyze(self._sessions.reference.program.placement)
        for name in analysis.placement.step.objectives:
            scales = loss_scales(analysis, analysis.flow.number[producer_of(name)])
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
        return bool(np.all(value) and not np.any(value % self._feeding.inputs.reference_rows))


def _is_mean_per_tower(trial: Trial, measured: Measurement) -> bool:
    """Whether the program's gradients are the mean of the reference's on each tower's rows.

    Statistics of rows, as in batch normalization, may affect gradients without affecting a loss.
    """
    mean = weighted_mean(trial.per_tower, trial.rows)
    if mean.keys() != trial.expected.keys():
        return False
    return not differing_variables(replace(trial, expected=mean), measured.precisions)


def _close(
    some: npt.NDArray[np.float64], others: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(some - others) <= _TOLERANCE * np.maximum(abs(some), abs(others)))
