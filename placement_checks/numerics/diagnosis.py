"""Find the mistake that explains why a gradient differs from the reference's.

If the loss is a mean or sum over rows, so is its gradient. The gradient of the program is fitted,
by least squares, as a weighted sum of the reference's gradients on single rows, or on the rows of
each tower. The weights show how often each row counts: twice, never, or as a row of a larger
tower.

`diagnose` tries several explanations in order. `diagnose_ratio` explains gradients that are all
multiplied by one number, `diagnose_rows` explains weights of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from placement_checks.core import mistakes
from placement_checks.core.measurement import (
    EPS,
    Array,
    Arrays,
    Measurement,
    RowMixing,
    Sample,
    Trial,
    largest,
)
from placement_checks.core.mistakes import Diagnosis, Mistake, TowerKind
from placement_checks.core.ranks import HOROVOD
from placement_checks.numerics.sampling import least_squares_ratio
from placement_checks.util.text import format_factor, join_and

_OF_TOWERS = "--set gradients-equal.statistics=tower"
CLOSE = 0.01  # tolerance of weights and ratios, which are fitted
_MAX_CONDITION = 1e5  # condition number of a fit with meaningful weights in float32


def diagnose(
    measured: Measurement, trial: Trial, variables: Sequence[str]
) -> dict[str, Diagnosis]:
    """Find the mistake behind each gradient that differs; one mistake may explain several.

    Args:
        measured: the measurement of both programs.
        trial: a batch on which gradients differ.
        variables: the variables with different gradients, all finite.
    """
    if not variables:
        return {}
    all_variables = _GradientFit(measured, trial, variables)
    common = (
        all_variables.scaled()
        or all_variables.weighted_towers()
        or all_variables.shifted()
        or all_variables.weighted_rows()
    )
    return {variable: common or _diagnose_one(measured, trial, variable) for variable in variables}


def _diagnose_one(measured: Measurement, trial: Trial, variable: str) -> Diagnosis:
    single = _GradientFit(measured, trial, [variable])
    return (
        single.swapped()
        or single.penalized()
        or single.scaled()
        or single.weighted_towers()
        or single.weighted_rows()
        or mistakes.UNEXPLAINED.stated(
            kind_of(measured),
            declared="if the difference is intended: --set gradients-equal.allow=VARIABLE",
        )
    )


class _GradientFit:
    """Fits the gradients of some variables, scaled to equal size and joined into one vector."""

    def __init__(self, measured: Measurement, trial: Trial, variables: Sequence[str]) -> None:
        self._measured = measured
        self._trial = trial
        self._variables = variables
        self._is_changed = any(name in measured.changed for name in variables)
        self._sizes = {name: largest(trial.expected[name]) or 1.0 for name in variables}
        self._expected = self._joined(trial.expected)
        self._found = self._joined(trial.found)
        eps = max(EPS.get(measured.precisions.get(name, ""), 0.0) for name in variables)
        noise = max(trial.noise.get(name, 0.0) / self._sizes[name] for name in variables)
        # A fit of sound gradients adds one rounding error per term. An explanation must be much
        # closer to the gradient than the reference is.
        self._tolerance = min(
            max(200 * eps, 16 * noise) * max(1.0, largest(self._found)),
            0.1 * largest(self._found - self._expected),
        )

    def _stated(self, mistake: Mistake, **facts: Any) -> Diagnosis:
        return mistake.stated(kind_of(self._measured), **facts)

    def _joined(self, gradients: Arrays) -> Array:
        return np.concatenate(
            [np.ravel(gradients[name]) / self._sizes[name] for name in self._variables]
        )

    def _is_near(self, values: Array, others: Array) -> bool:
        return largest(values - others) <= self._tolerance

    def scaled(self) -> Diagnosis | None:
        """Explain gradients that are a multiple of the reference's gradients."""
        ratio = least_squares_ratio(self._expected, self._found)
        if ratio is None:
            return None
        is_clear = is_simple(ratio) or np.count_nonzero(self._expected) > 1
        if not is_clear or not self._is_near(ratio * self._expected, self._found):
            return None
        if not is_simple(ratio) and self._is_changed:
            return self._stated(mistakes.CHANGED)
        return diagnose_ratio(ratio, self._measured)

    def weighted_towers(self) -> Diagnosis | None:
        """Explain gradients that are a weighted sum of the gradients on each tower's rows."""
        samples = self._trial.per_tower
        weights = self._weights(samples, self._found)
        if weights is None:
            return None
        share = np.array([len(sample.rows) for sample in samples]) / self._trial.rows
        expected = self._expected_weights(samples, share)
        if counted := self._own_counts(samples, weights, share):
            return counted
        if np.allclose(weights, expected, rtol=CLOSE / 100):
            return self._statistics_per_tower()
        # Weights are meaningless after clipping, unless only one tower is left.
        is_one_tower = np.isclose(max(weights), 1, rtol=CLOSE / 10) and np.isclose(sum(weights), 1)
        if not is_one_tower and self._is_changed:
            return self._stated(mistakes.CHANGED)
        times = self._row_factors(samples, weights / expected)
        return diagnose_rows(times, self._trial, self._measured)

    def weighted_rows(self) -> Diagnosis | None:
        """Explain gradients that are a weighted sum of the gradients on single rows.

        Rows with many different weights explain nothing: if a loss is a function of one output,
        the gradients for any labels are a weighted sum of the gradients on the rows.
        """
        samples = self._trial.per_row
        weights = self._weights(samples, self._found)
        if weights is None:
            return None
        expected = self._expected_weights(samples, np.full(len(samples), 1 / self._trial.rows))
        times = self._row_factors(samples, weights / expected)
        if len(list(equal_runs(times))) > self._measured.towers + 1:
            return None
        return diagnose_rows(times, self._trial, self._measured)

    def _expected_weights(self, samples: Sequence[Sample], share: Array) -> Array:
        """Return the weights of the samples in the reference: 1 for sums, ``share`` for means."""
        weights = self._weights(samples, self._expected)
        is_sum = weights is not None and np.allclose(weights, 1, rtol=CLOSE)
        return np.ones(len(samples)) if is_sum else share

    def _row_factors(self, samples: Sequence[Sample], weights: Array) -> Array:
        """Return the weight of each row: the weight of its sample."""
        times = np.zeros(self._trial.rows)
        for sample, weight in zip(samples, weights, strict=True):
            times[list(sample.rows)] = weight
        return times

    def _weights(self, samples: Sequence[Sample], gradients: Array) -> Array | None:
        """Fit a weighted sum of the samples to the gradients; None if no weights fit."""
        if not samples or np.count_nonzero(self._expected) <= len(samples):
            return None
        columns = np.stack([self._joined(sample.gradients) for sample in samples], axis=1)
        weights, _, _, singular = np.linalg.lstsq(columns, gradients, rcond=None)
        if singular[0] > _MAX_CONDITION * singular[-1]:
            return None
        return np.asarray(weights) if self._is_near(columns @ weights, gradients) else None

    def _own_counts(
        self, samples: Sequence[Sample], weights: Array, share: Array
    ) -> Diagnosis | None:
        """Explain weights of towers that are equal, or by rows, but not as in the reference.

        This requires that the reference's gradient is a weighted sum of its gradients on each
        tower's rows. With batch statistics, it is no such sum.
        """
        expected = self._weights(samples, self._expected)
        if expected is None or min(expected) <= 0:
            return None
        if not np.isclose(sum(expected), 1, rtol=CLOSE / 10):
            return None
        equal = np.full(len(samples), 1 / len(samples))
        is_mean = any(np.allclose(weights, each, rtol=CLOSE / 100) for each in (equal, share))
        is_by_rows = np.allclose(expected, share, rtol=CLOSE / 100)
        if not is_mean or is_by_rows or self._is_changed:
            return None
        times = self._row_factors(samples, weights / expected)
        return self._stated(mistakes.OWN_COUNTS, shown=tuple(describe_runs(times)))

    def _statistics_per_tower(self) -> Diagnosis:
        """Explain gradients that are right on each tower's rows, but not on the whole batch."""
        mixing = self._measured.mixing
        if mixing and mixing.op and not mixing.statistic:
            return own_rows(mixing, kind_of(self._measured))
        if self._is_changed:
            declared = f"if it is intended: {_OF_TOWERS}"
            return self._stated(mistakes.CHANGED_IN_TOWERS, declared=declared)
        declared = f"if statistics per tower are intended: {_OF_TOWERS}"
        return self._stated(mistakes.STATISTICS, declared=declared)

    def shifted(self) -> Diagnosis | None:
        """Explain inputs with rows that are shifted against each other."""
        for how, gradients in self._trial.shifted.items():
            if self._is_near(self._joined(gradients), self._found):
                return self._stated(mistakes.MOVED, how=how)
        return None

    def swapped(self) -> Diagnosis | None:
        """Explain a gradient that belongs to another variable."""
        (own,) = self._variables
        expected, elements = self._trial.expected, self._trial.elements
        for other, gradient in expected.items():
            # Gradients are compared if the same elements of both were selected.
            if expected[own].shape != gradient.shape:
                continue
            if elements.get(own) is not elements.get(other):
                continue
            size = largest(gradient)
            eps = EPS.get(self._measured.precisions.get(other, ""), 0.0)
            close = max(200 * eps * size, 16 * self._trial.noise.get(other, 0.0))
            error = largest(gradient - self._trial.found[own])
            error_of_own = largest(expected[own] - self._trial.found[own])
            if size and error <= min(close, 0.1 * error_of_own):
                return self._stated(mistakes.PAIRED, text=f"it is the gradient of {other}")
        return None

    def penalized(self) -> Diagnosis | None:
        """Explain a difference that is a multiple of the variable, as for a weight penalty."""
        (own,) = self._variables
        start = self._trial.start.get(own)
        if start is None or start.shape != self._trial.expected[own].shape:
            return None
        if np.ptp(start) == 0:  # if all elements are equal, any constant difference would fit
            return None
        added = self._trial.found[own] - self._trial.expected[own]
        times = float(np.vdot(start, added) / np.vdot(start, start))
        if np.max(np.abs(added - times * start)) / self._sizes[own] > self._tolerance:
            return None
        if times > 0:
            kind, towers = kind_of(self._measured), self._measured.towers
            counts = f"counts more than once, perhaps in each of the {towers} {kind}s"
            shown = f"found - expected = {format_factor(times)} x the variable"
            mistake = mistakes.PENALTY_REPEATED
        else:
            counts = "counts less than once, or not at all"
            shown = f"expected - found = {format_factor(-times)} x the variable"
            mistake = mistakes.PENALTY_TOO_SMALL
        return self._stated(mistake, op="", counts=counts, shown=(shown,))


def kind_of(measured: Measurement) -> TowerKind:
    """Return the kind of the towers that were measured."""
    if not measured.strategy:
        return "tower"
    return "rank" if measured.strategy == HOROVOD else "replica"


def own_rows(mixing: RowMixing, kind: TowerKind) -> Diagnosis:
    """Explain gradients of towers that combine their own rows by an op of the reference."""
    return mistakes.OWN_ROWS.stated(
        kind,
        shown=(f"in the reference: {mixing.op}",),
        op_type=mixing.op_type,
        declared=f"only if each {kind} shall combine its own rows: {_OF_TOWERS}",
    )


def diagnose_ratio(ratio: float, measured: Measurement, loss_scale: str = "") -> Diagnosis:
    """Explain gradients that are a multiple of the reference's gradients."""
    return diagnose_factor(
        ratio,
        measured.towers,
        kind_of(measured),
        f"--set gradients-equal.scale={_scale_to_declare(ratio * measured.scale)}",
        is_split=bool(measured.trials[0].split),
        loss_scale=loss_scale,
    )


def diagnose_factor(
    ratio: float,
    towers: int,
    kind: TowerKind,
    declared: str,
    *,
    of_losses: bool = False,
    is_split: bool = True,
    loss_scale: str = "",
) -> Diagnosis:
    """Explain gradients that are all multiplied by one number.

    Args:
        ratio: the number.
        towers: the number of towers.
        kind: their kind.
        declared: the option that declares the number; ``""`` if none does.
        of_losses: whether the losses are multiplied, and not their gradients.
        is_split: whether each replica has rows of its own.
        loss_scale: an op that multiplies the losses by the number; ``""`` if there is none.
    """
    if abs(ratio) < 1e-6:
        return mistakes.ZERO.stated(kind)
    mistake = mistakes.SCALED if ratio > 0 else mistakes.NEGATIVE
    intended = "if it is intended"
    ops: tuple[str, ...] = ()
    is_sum = towers > 1 and bool(np.isclose(ratio, towers, rtol=CLOSE / 10))
    if towers > 1 and np.isclose(ratio * towers, 1, rtol=CLOSE / 10):
        mistake = mistakes.LOSSES_DIVIDED if of_losses else mistakes.DIVIDED
    elif loss_scale:
        mistake = mistakes.LOSS_SCALE
        # A scale that a program chooses is undone where the gradients are applied.
        ops = (loss_scale,) if is_sum else ()
    elif is_sum:
        mistake = mistakes.SUM_OF_LOSSES if of_losses else mistakes.SUM
        if kind == "replica" and not is_split:
            mistake = mistakes.SUM_OF_BATCHES
        intended = f"if the sum is intended, and the learning rate is divided by {towers}"
    declared = declared and f"{intended}: {declared}"
    return mistake.stated(
        kind,
        ratio=ratio,
        declared=declared,
        ops=ops,
        towers=towers,
        factor=format_factor(ratio),
        op=loss_scale,
    )


def is_simple(ratio: float) -> bool:
    """Whether a ratio is a whole number above 1, a half, a third and so on, or zero."""
    return _is_integer(ratio) or abs(ratio) < 1e-6 or _is_integer(1 / ratio)


def _is_integer(number: float) -> bool:
    return bool(abs(number) > 1.5 and np.isclose(number, round(number), rtol=1e-4))


def _scale_to_declare(ratio: float) -> str:
    """Format a ratio as an integer, as the reciprocal of an integer, or with 9 digits."""
    for exact in (float(round(ratio)), 1 / round(1 / ratio) if 0 < abs(ratio) < 1 else 0.0):
        if exact and np.isclose(ratio, exact, rtol=1e-5):
            return f"{exact:.16g}"
    return f"{ratio:.9g}"


def diagnose_rows(times: Array, trial: Trial, measured: Measurement) -> Diagnosis:
    """Explain rows with wrong weights; ``times`` are multiples of the correct weights."""
    shown, towers, kind = tuple(describe_runs(times)), measured.towers, kind_of(measured)
    if trial.split:
        return _diagnose_towers(times, trial.split, shown, kind)
    blocks = list(equal_runs(times))
    begin, end, last = blocks[-1]
    if len(blocks) > 1 and abs(last) < CLOSE and end - begin < towers:
        lost = "row is" if end - begin == 1 else f"{end - begin} rows are"
        declared = (
            f"or, if the number of rows is a multiple of {towers} in all batches: "
            f"--set gradients-equal.rows={trial.rows // towers * towers}"
        )
        return mistakes.TAIL.stated(
            kind, shown=shown, rows=trial.rows, towers=towers, lost=lost, declared=declared
        )
    sizes = list(_tower_sizes(blocks, trial.rows, towers))
    if len(sizes) == towers and len(set(sizes)) > 1:
        return mistakes.SIZES.stated(kind, shown=shown, sizes=join_and(sizes))
    split = [part.rows for part in trial.per_tower]
    if len(split) == towers and all(np.ptp(times[list(rows)]) < CLOSE for rows in split):
        return _diagnose_towers(times, split, shown, kind)
    return mistakes.ROWS.stated(kind, shown=shown)


def _tower_sizes(
    blocks: Sequence[tuple[int, int, float]], rows: int, towers: int
) -> Iterator[int]:
    """Yield the number of rows of each tower, if all towers have equal weights; else stop early.

    A row in a tower of n_i rows then counts rows / (towers * n_i) times.
    """
    for begin, end, value in blocks:
        size = rows / (towers * value) if value > CLOSE else 0.0
        if not size or abs(size - round(size)) > CLOSE * size or (end - begin) % round(size):
            return
        yield from [round(size)] * ((end - begin) // round(size))


def _diagnose_towers(
    times: Array, split: Sequence[tuple[int, ...]], shown: tuple[str, ...], kind: TowerKind
) -> Diagnosis:
    per_tower = [times[list(rows)] for rows in split]
    lost = [number for number, rows in enumerate(per_tower) if np.all(np.abs(rows) < CLOSE)]
    counted = [number for number in range(len(per_tower)) if number not in lost]
    whole = len(times) / len(per_tower[counted[0]]) if len(counted) == 1 else 0.0
    if lost and whole and np.allclose(per_tower[counted[0]], whole, rtol=CLOSE):
        last = ", the last," if counted[0] == len(per_tower) - 1 else ""
        others = f"the other {kind}" if len(per_tower) == 2 else f"the other {kind}s"
        return mistakes.ONE_TOWER.stated(
            kind, shown=shown, only=f"{counted[0]}{last}", others=others, towers=len(per_tower)
        )
    if lost:
        left_out = f"{kind if len(lost) == 1 else f'{kind}s'} {join_and(lost)}"
        who = f"{left_out} {'contributes' if len(lost) == 1 else 'contribute'}"
        return mistakes.FROZEN.stated(
            kind, shown=shown, at=tuple(lost), who=who, left_out=left_out
        )
    totals = [float(np.mean(rows)) * len(rows) for rows in per_tower]
    shares = integer_shares(totals)
    factors = [f"{np.mean(rows):.4g} on {kind} {n}" for n, rows in enumerate(per_tower)]
    mistake = mistakes.OPPOSED if min(totals) < 0 < max(totals) else mistakes.UNEVEN
    declared = (
        f"if the {kind}s are intended for parts of different size: "
        f"--set 'gradients-equal.shares={shares}'"
    )
    return mistake.stated(
        kind, shown=shown, factors=join_and(factors), declared=declared if shares else ""
    )


def integer_shares(weights: Sequence[float]) -> list[int]:
    """Return small integers proportional to the weights of towers; empty if there are none."""
    if min(weights) <= 0:
        return []
    for times in range(1, 13):
        shares = [times * weight / min(weights) for weight in weights]
        if all(abs(share - round(share)) < CLOSE / 10 * times for share in shares):
            return [round(share) for share in shares]
    return []


def equal_runs(times: Array) -> Iterator[tuple[int, int, float]]:
    """Yield runs of rows with equal weights: the first row, the end, and the mean weight."""
    begin = 0
    for end in range(1, len(times) + 1):
        if end == len(times) or abs(times[end] - times[begin]) > CLOSE:
            yield begin, end, float(np.mean(times[begin:end]))
            begin = end


def describe_runs(times: Array) -> Iterator[str]:
    """Yield a text for each run of rows with equal weights."""
    for begin, end, value in equal_runs(times):
        rows = f"row {begin} counts" if end - begin == 1 else f"rows {begin} to {end - 1} count"
        yield f"{rows} {format_factor(value)} times"
