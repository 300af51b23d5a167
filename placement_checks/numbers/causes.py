"""Which mistake explains that a gradient is not the reference's.

Where the loss is a mean or sum over rows, so is its gradient. The gradient that the program
applies is written as a weighted sum of the reference's gradients on single rows, or on the rows of
each tower; the weights, by least squares, say what became of each row: counted twice, never, or as
much as the rows of a larger tower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from placement_checks.numbers.measurement import EPS, Array, Arrays, Measurement, Sample, Trial
from placement_checks.words import listed

_CLOSE = 0.01  # of weights and ratios, which are fitted
_WORST_CONDITION = 1e5  # of a fit whose weights still mean something in float32


class Cause(NamedTuple):
    """The likely mistake.

    Attributes:
        what: a clause that says it.
        cure: what to change, or how to declare that it is meant.
        shown: what shows it, one line each.
        ratio: the number that all gradients are multiplied by, if that is the mistake.
    """

    what: str
    cure: str
    shown: tuple[str, ...] = ()
    ratio: float | None = None


def causes(measured: Measurement, trial: Trial, variables: Sequence[str]) -> dict[str, Cause]:
    """The cause for each variable whose gradient differs; those of one mistake share it.

    Args:
        measured: what is known of both programs.
        trial: a batch for which gradients differ.
        variables: whose gradients differ, all finite.
    """
    if not variables:
        return {}
    together = _Case(measured, trial, variables)
    common = together.scaled() or together.of_towers() or together.shifted() or together.of_rows()
    if common:
        return dict.fromkeys(variables, common)
    found = {}
    for variable in variables:
        alone = _Case(measured, trial, [variable])
        found[variable] = (
            alone.paired()
            or alone.penalised()
            or alone.scaled()
            or alone.of_towers()
            or alone.of_rows()
            or _UNKNOWN
        )
    return found


_CHANGED = Cause(
    "it is clipped, or else changed, otherwise than the reference's, so that rows or towers count "
    "by another factor",
    "do to the averaged gradients, once and last, what the reference does to its own; undo a loss "
    "scale before it",
)
_UNKNOWN = Cause(
    "no mistake that is known explains it",
    "compare the two programs on this batch; if the difference is meant, leave the variable out: "
    "gradients-equal.leave_out",
)


class _Case:
    """Some variables of one trial, their gradients joined into one vector, all of one size."""

    def __init__(self, measured: Measurement, trial: Trial, variables: Sequence[str]) -> None:
        self._measured = measured
        self._trial = trial
        self._variables = variables
        self._sizes = {name: _largest(trial.expected[name]) or 1.0 for name in variables}
        self._expected = self._joined(trial.expected)
        self._found = self._joined(trial.found)
        eps = max(EPS.get(measured.precisions.get(name, ""), 0.0) for name in variables)
        noise = max(trial.noise.get(name, 0.0) / self._sizes[name] for name in variables)
        # A fit of sound gradients adds up as many roundings as there are terms, and an explanation
        # must be far nearer than the reference itself is.
        self._near = min(
            max(200 * eps, 16 * noise) * max(1.0, _largest(self._found)),
            0.1 * _largest(self._found - self._expected),
        )

    def _joined(self, gradients: Arrays) -> Array:
        return np.concatenate(
            [np.ravel(gradients[name]) / self._sizes[name] for name in self._variables]
        )

    def _is_near(self, values: Array, others: Array) -> bool:
        return _largest(values - others) <= self._near

    def scaled(self) -> Cause | None:
        """All gradients are the reference's times one number."""
        square = float(np.vdot(self._expected, self._expected))
        if not square:
            return None
        ratio = float(np.vdot(self._expected, self._found)) / square
        telling = np.count_nonzero(self._expected) > 1 or _whole(ratio) or _whole_part(ratio)
        if not telling or not self._is_near(ratio * self._expected, self._found):
            return None
        meant = _whole(ratio) or _whole_part(ratio)
        if not meant and any(name in self._measured.changed for name in self._variables):
            return _CHANGED
        return _scaled(ratio, self._measured)

    def of_towers(self) -> Cause | None:
        """The gradients are those of the towers' rows, each with a weight of its own."""
        samples = self._trial.parts
        weights = self._weights(samples, self._found)
        if weights is None:
            return None
        share = np.array([len(sample.rows) for sample in samples]) / self._trial.rows
        right = self._due(samples, share)
        if np.allclose(weights, right, rtol=_CLOSE / 100):
            return self._by_tower()
        # What is clipped last is that of one tower alone, or it has no weights that mean anything.
        alone = np.isclose(max(weights), 1, rtol=_CLOSE / 10) and np.isclose(sum(weights), 1)
        if not alone and any(name in self._measured.changed for name in self._variables):
            return _CHANGED
        return _by_rows(self._times(samples, weights / right), self._trial, self._measured.towers)

    def of_rows(self) -> Cause | None:
        """The gradients are those of single rows, each with a weight of its own.

        Rows that all have another weight explain nothing: where a loss is a function of one
        output, the gradients of any labels are made up of those of the rows.
        """
        samples = self._trial.each
        weights = self._weights(samples, self._found)
        if weights is None:
            return None
        right = self._due(samples, np.full(len(samples), 1 / self._trial.rows))
        times = self._times(samples, weights / right)
        if len(list(_blocks(times))) > self._measured.towers + 1:
            return None
        return _by_rows(times, self._trial, self._measured.towers)

    def _due(self, samples: Sequence[Sample], share: Array) -> Array:
        """The weights that make up the reference's gradients: those of a mean, or of a sum."""
        weights = self._weights(samples, self._expected)
        is_sum = weights is not None and np.allclose(weights, 1, rtol=_CLOSE)
        return np.ones(len(samples)) if is_sum else share

    def _times(self, samples: Sequence[Sample], weights: Array) -> Array:
        """The weights of the samples, for each row."""
        times = np.zeros(self._trial.rows)
        for sample, weight in zip(samples, weights, strict=True):
            times[list(sample.rows)] = weight
        return times

    def _weights(self, samples: Sequence[Sample], gradients: Array) -> Array | None:
        """The weights of the samples that make up the gradients; None if nothing fits."""
        if not samples or np.count_nonzero(self._expected) <= len(samples):
            return None
        columns = np.stack([self._joined(sample.gradients) for sample in samples], axis=1)
        weights, _, rank, singular = np.linalg.lstsq(columns, gradients, rcond=None)
        if rank < len(samples) or singular[0] > _WORST_CONDITION * singular[-1]:
            return None
        return np.asarray(weights) if self._is_near(columns @ weights, gradients) else None

    def _by_tower(self) -> Cause:
        """Right on every tower's own rows: what the program does is no sum over rows."""
        if any(name in self._measured.changed for name in self._variables):
            return Cause(
                "each tower changes its gradients, by clipping for example, before the mean is "
                "taken, the reference after it",
                "clip the averaged gradients; if it is meant, say so: "
                "gradients-equal.statistics = 'tower'",
            )
        return Cause(
            "it is the mean over towers of what the reference gives on each tower's rows alone: "
            "statistics of the batch, as batch normalisation takes, are those of a tower's rows",
            "if that is meant, say so: gradients-equal.statistics = 'tower'; else take them "
            "over all towers",
        )

    def shifted(self) -> Cause | None:
        """The rows of one input do not belong to those of the others."""
        for how, gradients in self._trial.shifted.items():
            if self._is_near(self._joined(gradients), self._found):
                return Cause(
                    f"it is what the reference gives with {how}",
                    "cut all inputs of a tower at the same rows, in the same order",
                )
        return None

    def paired(self) -> Cause | None:
        """The gradient is that of another variable."""
        (own,) = self._variables
        for other, gradient in self._trial.expected.items():
            if other == own or gradient.shape != self._trial.found[own].shape:
                continue
            size = _largest(gradient)
            eps = EPS.get(self._measured.precisions.get(other, ""), 0.0)
            close = max(200 * eps * size, 16 * self._trial.noise.get(other, 0.0))
            off = _largest(gradient - self._trial.found[own])
            apart = _largest(self._trial.expected[own] - self._trial.found[own])
            if size and off <= min(close, 0.1 * apart):
                return Cause(
                    f"it is the gradient of {other}: gradients and variables are paired wrongly",
                    "keep each gradient with its variable; where lists are joined with zip, both "
                    "must leave out the same entries",
                )
        return None

    def penalised(self) -> Cause | None:
        """The difference is a multiple of the variable itself."""
        (own,) = self._variables
        start = self._trial.start.get(own)
        if start is None or start.size < 2 or start.shape != self._trial.expected[own].shape:
            return None
        off = self._trial.found[own] - self._trial.expected[own]
        square = float(np.vdot(start, start))
        if not square or np.ptp(start) == 0:
            return None
        times = float(np.vdot(start, off)) / square
        left = np.max(np.abs(off - times * start)) / self._sizes[own]
        if left > self._near or abs(times) * np.max(np.abs(start)) / self._sizes[own] < self._near:
            return None
        towers = self._measured.towers
        if times > 0:
            return Cause(
                "what is added to it is a multiple of the variable itself, as a weight penalty's "
                f"gradient is: the penalty counts more than once, in each of the {towers} towers "
                "perhaps",
                "let the penalty count once: add it in one tower, or divide it by the number of "
                "towers where gradients are added up",
                (f"found - expected = {_number(times)} x the variable",),
            )
        return Cause(
            "what it lacks is a multiple of the variable itself, as a weight penalty's gradient "
            "is: the penalty counts less than once, or not at all",
            "add the penalty to the loss of every tower whose gradients are averaged",
            (f"expected - found = {_number(-times)} x the variable",),
        )


def _scaled(ratio: float, measured: Measurement) -> Cause:
    towers = measured.towers
    declared = f"gradients-equal.scale = {_exact(ratio * measured.scale)}"
    if abs(ratio) < 1e-6:
        return Cause(
            "nothing of it arrives",
            "look for a stop_gradient, a mask, or a loss that does not depend on the variables",
        )
    if towers > 1 and np.isclose(ratio, towers, rtol=_CLOSE / 10):
        what = f"the gradients of {towers} towers are added up where their mean is meant"
        cure = (
            "divide the sum by the number of towers; if a sum is meant, with a rate that is "
            f"divided by it, say so: {declared}"
        )
    elif towers > 1 and np.isclose(ratio * towers, 1, rtol=_CLOSE / 10):
        what = f"it is divided by the number of towers, {towers}, once too often"
        cure = (
            "divide the losses by the number of towers or take the mean of the gradients, not "
            "both; where the loss is a sum over rows, add the gradients up; if it is meant, say "
            f"so: {declared}"
        )
    else:
        what = "all of it is multiplied by one number"
        cure = (
            "if it is a loss scale, undo it before the gradients are applied; if it is meant, say "
            f"so: {declared}"
        )
    return Cause(what, cure, ratio=ratio)


def _by_rows(times: Array, trial: Trial, towers: int) -> Cause:
    """What it means that rows count so many times what they should."""
    shown = tuple(_ranges(times))
    if trial.split:
        return _by_towers(times, trial.split, shown)
    blocks = list(_blocks(times))
    begin, end, last = blocks[-1]
    if len(blocks) > 1 and abs(last) < _CLOSE and end - begin < towers:
        rows = "row counts" if end - begin == 1 else f"{end - begin} rows count"
        return Cause(
            f"of a batch of {trial.rows} rows the last {rows} for nothing",
            "give what is left over to a tower, and weight the towers by their rows; or feed "
            f"batches that {towers} divides, and say so: gradients-equal.rows = "
            f"{trial.rows // towers * towers}",
            shown,
        )
    sizes = list(_sizes(blocks, trial.rows, towers))
    if len(sizes) == towers and len(set(sizes)) > 1:
        return Cause(
            f"towers of {listed(sizes)} rows are averaged as if they were equal",
            "weight each tower by its rows, n_i / n: placement_checks.average_gradients("
            "tower_grads, weights=rows)",
            shown,
        )
    split = [part.rows for part in trial.parts]
    if len(split) == towers and all(np.ptp(times[list(rows)]) < _CLOSE for rows in split):
        return _by_towers(times, split, shown)
    return Cause(
        "rows do not count alike",
        "see that every row is in one tower, and that towers are weighted by their rows",
        shown,
    )


def _sizes(blocks: Sequence[tuple[int, int, float]], rows: int, towers: int) -> Iterator[int]:
    """The rows of each tower, if every tower counts as one of so many; none if that is not so.

    The mean over a tower's n_i rows counts each of them rows / (towers * n_i) times.
    """
    for begin, end, value in blocks:
        size = rows / (towers * value) if value > _CLOSE else 0.0
        if not size or abs(size - round(size)) > _CLOSE * size or (end - begin) % round(size):
            return
        yield from [round(size)] * ((end - begin) // round(size))


def _by_towers(times: Array, split: Sequence[tuple[int, ...]], shown: tuple[str, ...]) -> Cause:
    of = [times[list(rows)] for rows in split]
    lost = [number for number, rows in enumerate(of) if np.all(np.abs(rows) < _CLOSE)]
    kept = [number for number in range(len(of)) if number not in lost]
    whole = len(times) / len(of[kept[0]]) if len(kept) == 1 else 0.0
    if lost and whole and np.allclose(of[kept[0]], whole, rtol=_CLOSE):
        last = ", the last," if kept[0] == len(of) - 1 else ""
        others = "the other's" if len(of) == 2 else "those of the others"
        return Cause(
            f"only the rows of tower {kept[0]}{last} count: {others} are lost, or computed on the "
            "same rows",
            "take the mean over the gradients of all towers, each computed on its own rows",
            shown,
        )
    if lost:
        towers = f"{'tower' if len(lost) == 1 else 'towers'} {listed(lost)}"
        return Cause(
            f"nothing of it comes from {towers}, as if it were frozen there",
            "look for a stop_gradient, a mask, a list of variables or an index that leaves it out",
            shown,
        )
    shares = _shares([float(np.mean(rows)) * len(rows) for rows in of])
    meant = (
        "; if the towers are meant for parts of different size, say so: gradients-equal.shares = "
        f"{shares}"
    )
    return Cause(
        "the towers do not count alike",
        f"weight each tower by its rows{meant if shares else ''}",
        shown,
    )


def _shares(weights: Sequence[float]) -> list[int]:
    """Small whole numbers in the ratio of the weights; empty if there are none."""
    if min(weights) <= 0:
        return []
    for times in range(1, 13):
        shares = [times * weight / min(weights) for weight in weights]
        if all(abs(share - round(share)) < _CLOSE / 10 * times for share in shares):
            return [round(share) for share in shares]
    return []


def _blocks(times: Array) -> Iterator[tuple[int, int, float]]:
    """Rows that follow each other and count alike: the first, the one after the last, how much."""
    begin = 0
    for end in range(1, len(times) + 1):
        if end == len(times) or abs(times[end] - times[begin]) > _CLOSE:
            yield begin, end, float(np.mean(times[begin:end]))
            begin = end


def _ranges(times: Array) -> Iterator[str]:
    for begin, end, value in _blocks(times):
        rows = f"row {begin} counts" if end - begin == 1 else f"rows {begin} to {end - 1} count"
        yield f"{rows} {_number(value)} times"


def _whole(number: float) -> bool:
    return bool(abs(number) > 1.5 and np.isclose(number, round(number), rtol=1e-4))


def _whole_part(number: float) -> bool:
    """Whether it is a half, a third and so on, or nothing."""
    return abs(number) < 1e-6 or _whole(1 / number)


def _exact(ratio: float) -> str:
    """A ratio to declare: the whole number or part that is meant but for rounding, or 9 digits."""
    for meant in (float(round(ratio)), 1 / round(1 / ratio) if 0 < abs(ratio) < 1 else 0.0):
        if meant and np.isclose(ratio, meant, rtol=1e-5):
            return f"{meant:.16g}"
    return f"{ratio:.9g}"


def _number(value: float) -> str:
    """Four digits; what is zero but for rounding is zero."""
    return f"{0.0 if abs(value) < 1e-4 else value:.4g}"


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))
