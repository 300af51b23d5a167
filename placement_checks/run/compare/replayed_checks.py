"""Decide on which rows the reference of a whole script computes, and what a difference proves.

The program for one GPU computes on all rows at once, and so does the reference. It computes on the
rows of each tower only for a reason that reports name: batch statistics, which programs compute
per tower on purpose, or a reference that does not accept all rows. The gradients of the parts are
then combined, which is right only if the loss of the reference combines rows by nothing but sums.

The meaning of recorded rows is inferred, so another meaning might explain a difference. A
difference counts only if a known mistake explains it. Otherwise the comparison is refused, and the
reason is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.inputs import loss_scales
from placement_checks.analysis.variables.mixed_losses import mixed_losses
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS, Measurement, RowMixing, Trial
from placement_checks.core.mistakes import UNEXPLAINED
from placement_checks.core.placement import producer_of, with_output
from placement_checks.numerics.comparing import Limits, differing_variables
from placement_checks.numerics.diagnosis import diagnose
from placement_checks.run.compare.row_mixing import find_row_mixing
from placement_checks.run.compare.sessions import OwnRows, PairedSessions
from placement_checks.run.feeding.interface import PASS_BATCH
from placement_checks.run.feeding.replayed import ReplayedFeeding
from placement_checks.util.text import join_and, listed, plural

_TOLERANCE = 32 * EPS["float32"]  # relative difference of losses that count as equal
# A difference that noise may explain. Other statistics change gradients by more.
_NEARLY_EQUAL = Limits(tolerance=1e-3 / EPS["float32"])


class ReplayedChecks:
    """Checks for two scripts with replayed rows."""

    def __init__(self, sessions: PairedSessions, feeding: ReplayedFeeding) -> None:
        self._sessions = sessions
        self._feeding = feeding
        self._batch = feeding.recorded
        self._name = sessions.reference.program.name

    def choose_rows(self) -> None:
        """Choose whether the reference computes on all rows or on the rows of each tower.

        Raises:
            CannotRun: the reference cannot compute on all rows. Either it does not accept the rows
                of one tower, or the towers get different numbers of rows, or its loss on all rows
                is not the sum or mean of its losses on the rows of each tower.
        """
        if self._sessions.own_rows:
            self._check_parts()
        elif why_not_all := self._why_not_all_rows():
            self._check_parts()
            if self._mixing.op:
                raise self._neither(why_not_all)
            unknown = "; which ops of its loss combine rows was not observed"
            self._sessions.own_rows = OwnRows(why_not_all + ("" if self._observed else unknown))
        elif (
            self._sessions.of_other_shape
            or mixed_losses(self._sessions.towers.program.placement).shared_ops
            or self._is_additive()
        ):
            return
        elif self._has_only_statistics and not self._is_nearly_equal():
            self._sessions.own_rows = self._statistics_per_tower()

    def choose_other_rows(self) -> bool:
        """Choose the rows of each tower for a program that differs on all rows; True if possible.

        Raises:
            CannotRun: the reference has batch statistics, so that the program may differ on
                purpose. It does not accept the rows of each tower, or its loss also combines rows
                otherwise.
        """
        # With a state for each row, the reference takes only all rows.
        is_fixed = self._sessions.on_parts or self._sessions.of_other_shape
        if is_fixed or not self._mixing.statistic:
            return False
        if self._mixing.op:
            raise self._neither(f"because of batch statistics ({self._mixing.statistic})")
        self._check_parts()
        self._sessions.own_rows = self._statistics_per_tower()
        return True

    def _neither(self, why: str) -> CannotRun:
        return CannotRun(
            f"the loss of {self._name} on all rows is not a sum or mean of its losses on each "
            f"tower's rows, because of {self._mixing.op}, and it cannot be compared on all rows, "
            f"{why}",
            PASS_BATCH,
        )

    @cached_property
    def _observed(self) -> RowMixing | None:
        return find_row_mixing(self._sessions, self._batch)

    @property
    def _mixing(self) -> RowMixing:
        return self._observed or RowMixing()

    @cached_property
    def _has_only_statistics(self) -> bool:
        """Whether batch statistics alone combine rows, and the reference accepts equal parts."""
        sizes = {len(part) for part in self._feeding.parts}
        is_possible = self._feeding.takes_parts and len(sizes) == 1
        return is_possible and bool(self._mixing.statistic) and not self._mixing.op

    def _statistics_per_tower(self) -> OwnRows:
        part, adds_up = self._feeding.parts[0], False
        with contextlib.suppress(InputError):
            once, twice = self._losses(part), self._losses([*part, *part])
            adds_up = bool(np.all(_close(2 * once, twice)))
        return OwnRows(f"because of batch statistics ({self._mixing.statistic})", adds_up)

    def _is_nearly_equal(self) -> bool:
        """Whether the gradients of both programs on all rows differ by no more than noise.

        Towers may take statistics over all rows.
        """
        sessions = self._sessions
        with contextlib.suppress(InputError):
            trial = sessions.trial(self._batch, self._feeding.rows, sessions.start)
            precisions = dict.fromkeys(trial.expected, "float32")
            return not differing_variables(trial, precisions, _NEARLY_EQUAL)
        return False

    def _why_not_all_rows(self) -> str:
        """Return why the reference cannot compute on all rows; ``""`` if it can.

        If the reference was fed another number of rows than the towers, its graph may depend on
        this number.
        """
        feeding, was_fed = self._feeding, self._feeding.inputs.reference_rows
        if not feeding.takes_all:
            return f"because {self._name} takes {plural(was_fed, 'row')} at once"
        if feeding.same_size:
            return ""
        if not self._is_mean():
            return (
                f"because {self._name} was fed {plural(was_fed, 'row')}, and its loss depends on "
                "their number"
            )
        if self._ignores_rows():
            return f"because {self._name} uses only the first {plural(was_fed, 'row')} of a batch"
        return ""

    def _check_parts(self) -> None:
        """Check that the reference accepts the rows of each tower, and that all have as many.

        Raises:
            CannotRun: it does not.
        """
        feeding = self._feeding
        sizes = {len(part) for part in feeding.parts}
        if len(sizes) > 1:
            raise CannotRun(
                "the towers get different numbers of rows "
                f"({join_and(map(len, feeding.parts))}), and {self._name} cannot be compared on "
                f"all {feeding.rows} in one run",
                PASS_BATCH,
            )
        if not feeding.takes_parts:
            raise CannotRun(
                f"{self._name} does not take {plural(max(sizes), 'row')}, the rows of one tower",
                PASS_BATCH,
            )

    def _losses(self, rows: Sequence[int] | None = None) -> npt.NDArray[np.float64]:
        return np.array(self._sessions.losses(self._batch, rows))

    def _is_additive(self) -> bool:
        """Whether the loss on all rows is the mean or sum of the losses on each tower's rows."""
        feeding = self._feeding
        with contextlib.suppress(InputError):
            whole = self._losses()
            parts = np.array([self._losses(part) for part in feeding.parts])
            shares = np.array([len(part) for part in feeding.parts]) / feeding.rows
            is_additive = _close(whole, shares @ parts)
            if feeding.same_size:
                is_additive |= _close(whole, parts.sum(axis=0))
            return bool(is_additive.size and np.all(is_additive))
        return False

    def _ignores_rows(self) -> bool:
        """Whether the reference ignores rows after as many rows as it was fed."""
        first, *others = self._feeding.parts
        with contextlib.suppress(InputError):
            whole, repeated = self._losses(), self._losses(list(first) * (1 + len(others)))
            return np.array_equal(whole, repeated) and bool(others)
        return False

    def check(self, measured: Measurement) -> Measurement:
        """Check that every difference proves a mistake; return the measurement with a note.

        Raises:
            CannotRun: a difference may have another cause.
        """
        for trial in measured.trials:
            self._check_trial(trial, measured)
        note = "the rows are from the recorded first step"
        return replace(measured, notes=[*measured.notes, note])

    def _check_trial(self, trial: Trial, measured: Measurement) -> None:
        limits = self._sessions.conditions.gradient_limits
        different = differing_variables(trial, measured.precisions, limits)
        wrong = different - trial.not_finite.keys()
        if not wrong:
            return
        diagnoses = diagnose(measured, trial, sorted(wrong))
        unexplained = [
            name for name, found in diagnoses.items() if found.mistake == UNEXPLAINED.key
        ]
        if unexplained:
            raise self._inconclusive(unexplained, ", and no known mistake explains the difference")
        if self._feeding.inputs.unequal_scalars:
            fed = join_and(f"'{name}'" for name in self._feeding.inputs.unequal_scalars)
            raise self._inconclusive(
                wrong, f", but the two programs are also fed different numbers for {fed}"
            )
        if not measured.own_rows:
            return
        changed = wrong & measured.changed
        if changed and not self._sessions.clips_as_program:
            raise self._inconclusive(
                changed,
                ", compared on each tower's rows alone; these gradients are clipped or otherwise "
                "changed, which may be the cause",
            )
        scaled = [name for name, found in diagnoses.items() if found.ratio is not None]
        if scaled and not self._feeding.same_size and not self._is_mean():
            raise self._inconclusive(
                scaled,
                ", compared on each tower's rows alone; a loss that is a sum over rows may be the "
                "cause",
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
            more = [*part] * max(2, feeding.inputs.reference_rows // len(part) + 1)
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
        name = with_output(tensor)
        feeds = self._feeding.to_reference(self._batch)
        value = np.asarray(self._sessions.reference.run(name, feeds))
        return bool(np.all(value) and not np.any(value % self._feeding.inputs.reference_rows))


def _close(
    some: npt.NDArray[np.float64], others: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(some - others) <= _TOLERANCE * np.maximum(abs(some), abs(others)))
