"""Which mistake explains that a gradient is not the reference's.

Where the loss is a mean or sum over rows, so is its gradient. The gradient that the program
applies is written as a weighted sum of the reference's gradients on single rows, or on the rows of
each tower; the weights, by least squares, say what became of each row: counted twice, never, or as
much as the rows of a larger tower.

What it means that all gradients are those of the reference, times one number.

What it means that the rows of a batch count otherwise than they should.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from placement_checks.core.measurement import (
    EPS,
    Array,
    Arrays,
    Measurement,
    Sample,
    Trial,
    largest,
)
from placement_checks.util.text import join_and

CLOSE = 0.01  # of weights and ratios, which are fitted


# What was done wrong, by which its line is found in the program.
Mistake = Literal[
    "",
    "sum",
    "divided",
    "scaled",
    "changed",
    "changed in towers",
    "slices",
    "statistics",
    "moved",
    "paired",
    "penalty",
    "weights",
    "counts",
    "frozen",
    "tail",
]


class Diagnosis(NamedTuple):
    """The likely mistake.

    Attributes:
        what: a clause that says it.
        fix: what to change, or how to declare that it is meant.
        shown: what shows it, one line each.
        ratio: the number that all gradients are multiplied by, if that is the mistake.
        mistake: which of those that are known.
        consequence: what it means for the training; ``""`` where that is plain.
        towers: those that it is in, where it is not in all.
    """

    what: str
    fix: str
    shown: tuple[str, ...] = ()
    ratio: float | None = None
    mistake: Mistake = ""
    consequence: str = ""
    towers: tuple[int, ...] = ()


def diagnose_rows(times: Array, trial: Trial, towers: int) -> Diagnosis:
    """What it means that rows count so many times what they should."""
    shown = tuple(describe_runs(times))
    if trial.split:
        return _diagnose_towers(times, trial.split, shown)
    blocks = list(equal_runs(times))
    begin, end, last = blocks[-1]
    if len(blocks) > 1 and abs(last) < CLOSE and end - begin < towers:
        rows = "row counts" if end - begin == 1 else f"{end - begin} rows count"
        return Diagnosis(
            f"of a batch of {trial.rows} rows, which {towers} towers do not divide, the last "
            f"{rows} for nothing",
            "give what is left over to a tower, and weight the towers by their rows; or, if all "
            f"batches have a number of rows that {towers} divides: "
            f"--set gradients-equal.rows={trial.rows // towers * towers}",
            shown,
            mistake="tail",
            consequence="of every such batch some rows train nothing",
        )
    sizes = list(_tower_sizes(blocks, trial.rows, towers))
    if len(sizes) == towers and len(set(sizes)) > 1:
        return Diagnosis(
            f"towers of {join_and(sizes)} rows are averaged as if they were equal",
            "weight each tower by its rows, n_i / n: placement_checks.average_gradients("
            "tower_grads, weights=rows)",
            shown,
            mistake="weights",
            consequence="a row counts more in a small tower than in a large one",
        )
    split = [part.rows for part in trial.per_tower]
    if len(split) == towers and all(np.ptp(times[list(rows)]) < CLOSE for rows in split):
        return _diagnose_towers(times, split, shown)
    return Diagnosis(
        "rows do not count alike",
        "see that every row is in one tower, and that towers are weighted by their rows",
        shown,
        mistake="weights",
        consequence="some examples train the model more than others",
    )


def _tower_sizes(
    blocks: Sequence[tuple[int, int, float]], rows: int, towers: int
) -> Iterator[int]:
    """The rows of each tower, if every tower counts as one of so many; none if that is not so.

    The mean over a tower's n_i rows counts each of them rows / (towers * n_i) times.
    """
    for begin, end, value in blocks:
        size = rows / (towers * value) if value > CLOSE else 0.0
        if not size or abs(size - round(size)) > CLOSE * size or (end - begin) % round(size):
            return
        yield from [round(size)] * ((end - begin) // round(size))


def _diagnose_towers(
    times: Array, split: Sequence[tuple[int, ...]], shown: tuple[str, ...]
) -> Diagnosis:
    per_tower = [times[list(rows)] for rows in split]
    lost = [number for number, rows in enumerate(per_tower) if np.all(np.abs(rows) < CLOSE)]
    counted = [number for number in range(len(per_tower)) if number not in lost]
    whole = len(times) / len(per_tower[counted[0]]) if len(counted) == 1 else 0.0
    if lost and whole and np.allclose(per_tower[counted[0]], whole, rtol=CLOSE):
        last = ", the last," if counted[0] == len(per_tower) - 1 else ""
        others = "the other's" if len(per_tower) == 2 else "those of the others"
        return Diagnosis(
            f"only the rows of tower {counted[0]}{last} count: {others} are lost, or computed on "
            "the same rows",
            "take the mean over the gradients of all towers, each computed on its own rows",
            shown,
            mistake="weights",
            consequence="what the other GPUs compute changes nothing: only one of "
            f"{len(per_tower)} parts of a batch trains the model",
        )
    if lost:
        towers = f"{'tower' if len(lost) == 1 else 'towers'} {join_and(lost)}"
        return Diagnosis(
            f"nothing of it comes from {towers}, as if it were frozen there",
            "look for a stop_gradient, a mask, a list of variables or an index that leaves it out",
            shown,
            mistake="frozen",
            consequence=f"the rows of {towers} train the rest of the model, and not this",
            towers=tuple(lost),
        )
    shares = _shares([float(np.mean(rows)) * len(rows) for rows in per_tower])
    meant = (
        "; if the towers are meant for parts of different size: "
        f"--set 'gradients-equal.shares={shares}'"
    )
    return Diagnosis(
        "the towers do not count alike",
        f"weight each tower by its rows{meant if shares else ''}",
        shown,
        mistake="weights",
        consequence="the rows of some towers count more than those of others",
    )


def _shares(weights: Sequence[float]) -> list[int]:
    """Small whole numbers in the ratio of the weights; empty if there are none."""
    if min(weights) <= 0:
        return []
    for times in range(1, 13):
        shares = [times * weight / min(weights) for weight in weights]
        if all(abs(share - round(share)) < CLOSE / 10 * times for share in shares):
            return [round(share) for share in shares]
    return []


def equal_runs(times: Array) -> Iterator[tuple[int, int, float]]:
    """Rows that follow each other and count alike: the first, the one after the last, how much."""
    begin = 0
    for end in range(1, len(times) + 1):
        if end == len(times) or abs(times[end] - times[begin]) > CLOSE:
            yield begin, end, float(np.mean(times[begin:end]))
            begin = end


def describe_runs(times: Array) -> Iterator[str]:
    """How often rows count, a text for each run of rows that count alike."""
    for begin, end, value in equal_runs(times):
        rows = f"row {begin} counts" if end - begin == 1 else f"rows {begin} to {end - 1} count"
        yield f"{rows} {format_factor(value)} times"


def format_factor(value: float) -> str:
    """Four digits, which rounding of the sixth does not change; what is nearly zero is zero."""
    return f"{0.0 if abs(value) < 1e-4 else float(f'{value:.6g}'):.4g}"


def diagnose_ratio(ratio: float, measured: Measurement) -> Diagnosis:
    """What it means that all gradients are the reference's times one number."""
    towers = measured.towers
    declared = f"--set gradients-equal.scale={_scale_to_declare(ratio * measured.scale)}"
    if abs(ratio) < 1e-6:
        return Diagnosis(
            "it is zero",
            "look for a stop_gradient, a mask, or a loss that does not depend on the variables",
            consequence="these variables are never trained",
        )
    mistake: Mistake
    if towers > 1 and np.isclose(ratio, towers, rtol=CLOSE / 10):
        mistake = "sum"
        what, fix = _diagnose_sum(measured)
        fix = f"{fix}; if a sum is meant, with a rate that is divided by it: {declared}"
    elif towers > 1 and np.isclose(ratio * towers, 1, rtol=CLOSE / 10):
        mistake = "divided"
        what, fix = _diagnose_division(measured)
        fix = f"{fix}; if it is meant: {declared}"
    else:
        what = "all of it is multiplied by one number"
        mistake = "scaled"
        fix = (
            "if it is a loss scale, undo it before the gradients are applied: "
            f"`(gradient / {ratio:.4g}, variable)`; if it is meant: {declared}"
        )
    return Diagnosis(
        what,
        fix,
        ratio=ratio,
        mistake=mistake,
        consequence=f"the step is that of a learning rate {ratio:.4g} times as high; optimisers "
        "that divide by the size of gradients, such as Adam, hide it",
    )


def _diagnose_sum(measured: Measurement) -> tuple[str, str]:
    """What it means that the sum over towers is applied, and what to do."""
    towers, strategy = measured.towers, measured.strategy
    if not strategy:
        return (
            f"the gradients of {towers} towers are added up where their mean is meant",
            f"divide the sum by the number of towers: `tf.add_n(gradients) / {towers}`",
        )
    loss = "the loss is the mean over a replica's own rows"
    fix = (
        "divide by the rows of all replicas: `tf.nn.compute_average_loss(losses, "
        "global_batch_size=…)`"
    )
    if not measured.trials[0].split:
        loss += ", or over the rows of all"
        fix += ", and give each rows of its own: `strategy.experimental_distribute_dataset`"
    return (
        f"{strategy} adds up the gradients of {towers} replicas, and each is whole already: "
        f"{loss}, or the program adds gradients up itself",
        fix,
    )


def _diagnose_division(measured: Measurement) -> tuple[str, str]:
    """What it means that gradients are divided by the number of towers, and what to do."""
    if not measured.strategy:
        return (
            f"it is divided by the number of towers, {measured.towers}, once too often",
            "divide the losses by the number of towers or take the mean of the gradients, not "
            "both; where the loss is a sum over rows, add the gradients up",
        )
    return (
        f"it is divided by the number of replicas, {measured.towers}, once too often",
        "divide the loss by the rows of all replicas alone, as `tf.nn.compute_average_loss` does, "
        "and add the gradients up: `tf.distribute.ReduceOp.SUM`",
    )


def is_simple(ratio: float) -> bool:
    """Whether it is a whole number, a half, a third and so on, or nothing."""
    return _is_integer(ratio) or abs(ratio) < 1e-6 or _is_integer(1 / ratio)


def _is_integer(number: float) -> bool:
    return bool(abs(number) > 1.5 and np.isclose(number, round(number), rtol=1e-4))


def _scale_to_declare(ratio: float) -> str:
    """A ratio to declare: the whole number or part that is meant but for rounding, or 9 digits."""
    for meant in (float(round(ratio)), 1 / round(1 / ratio) if 0 < abs(ratio) < 1 else 0.0):
        if meant and np.isclose(ratio, meant, rtol=1e-5):
            return f"{meant:.16g}"
    return f"{ratio:.9g}"


_WORST_CONDITION = 1e5  # of a fit whose weights still mean something in float32


def diagnose(
    measured: Measurement, trial: Trial, variables: Sequence[str]
) -> dict[str, Diagnosis]:
    """The cause for each variable whose gradient differs; those of one mistake share it.

    Args:
        measured: what is known of both programs.
        trial: a batch for which gradients differ.
        variables: whose gradients differ, all finite.
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
    if common:
        return dict.fromkeys(variables, common)
    found = {}
    for variable in variables:
        own = _GradientFit(measured, trial, [variable])
        found[variable] = (
            own.swapped()
            or own.penalised()
            or own.scaled()
            or own.weighted_towers()
            or own.weighted_rows()
            or UNEXPLAINED
        )
    return found


_CLIPPED_DIFFERENTLY = Diagnosis(
    "it is clipped, or else changed, in another way than the reference's, so that rows or towers "
    "count by another factor",
    "change the averaged gradients once, as the reference changes its own, and undo a loss scale "
    "before that",
    mistake="changed",
    consequence="the step points elsewhere than on one GPU",
)
# What "changed" is where sparse gradients are clipped; numbers alone cannot tell the two apart.
NORM_OF_SLICES = _CLIPPED_DIFFERENTLY._replace(
    what="it is clipped by a norm of sparse gradients, before rows of one index are added up, and "
    "how many of these there are depends on the towers",
    fix="make them dense before the norm, in both programs: tf.convert_to_tensor(gradient)",
    mistake="slices",
)
_BY_COUNTS = (
    "divide by the count of all towers, or weight the towers by their counts: "
    "placement_checks.average_gradients(tower_grads, weights=counts)"
)
_OWN_COUNTS = Diagnosis(
    "each tower divides its loss by a count of its own, such as its tokens, and the reference by "
    "that of the whole batch",
    _BY_COUNTS,
    mistake="counts",
    consequence="an example counts more in a tower with a small count than in the others",
)
# What "statistics" is where towers also divide by counts; numbers alone cannot tell them apart.
COUNTS_OR_STATISTICS = _OWN_COUNTS._replace(
    what="it is the mean over towers of what the reference gives on each tower's rows alone: each "
    "tower divides its loss by a count of its own, such as its tokens, or takes batch statistics "
    "over its own rows",
    fix=f"{_BY_COUNTS}; only if the towers have equal counts, and statistics of each tower's rows "
    "are meant: --set gradients-equal.statistics=tower",
)
UNEXPLAINED = Diagnosis(
    "no known mistake explains it",
    "compare the two programs on this batch; if the difference is meant, allow it for the "
    "variable: gradients-equal.allow",
)


class _GradientFit:
    """Some variables of one trial, their gradients joined into one vector, all of one size."""

    def __init__(self, measured: Measurement, trial: Trial, variables: Sequence[str]) -> None:
        self._measured = measured
        self._trial = trial
        self._variables = variables
        self._sizes = {name: largest(trial.expected[name]) or 1.0 for name in variables}
        self._expected = self._joined(trial.expected)
        self._found = self._joined(trial.found)
        eps = max(EPS.get(measured.precisions.get(name, ""), 0.0) for name in variables)
        noise = max(trial.noise.get(name, 0.0) / self._sizes[name] for name in variables)
        # A fit of sound gradients adds up as many roundings as there are terms, and an explanation
        # must be far nearer than the reference itself is.
        self._tolerance = min(
            max(200 * eps, 16 * noise) * max(1.0, largest(self._found)),
            0.1 * largest(self._found - self._expected),
        )

    def _joined(self, gradients: Arrays) -> Array:
        return np.concatenate(
            [np.ravel(gradients[name]) / self._sizes[name] for name in self._variables]
        )

    def _is_near(self, values: Array, others: Array) -> bool:
        return largest(values - others) <= self._tolerance

    def scaled(self) -> Diagnosis | None:
        """All gradients are the reference's times one number."""
        square = float(np.vdot(self._expected, self._expected))
        if not square:
            return None
        ratio = float(np.vdot(self._expected, self._found)) / square
        is_clear = is_simple(ratio) or np.count_nonzero(self._expected) > 1
        if not is_clear or not self._is_near(ratio * self._expected, self._found):
            return None
        if not is_simple(ratio) and any(
            name in self._measured.changed for name in self._variables
        ):
            return _CLIPPED_DIFFERENTLY
        return diagnose_ratio(ratio, self._measured)

    def weighted_towers(self) -> Diagnosis | None:
        """The gradients are those of the towers' rows, each with a weight of its own."""
        samples = self._trial.per_tower
        weights = self._weights(samples, self._found)
        if weights is None:
            return None
        share = np.array([len(sample.rows) for sample in samples]) / self._trial.rows
        due = self._expected_weights(samples, share)
        if counted := self._own_counts(samples, weights, share):
            return counted
        if np.allclose(weights, due, rtol=CLOSE / 100):
            return self._statistics_per_tower()
        # What is clipped last is that of one tower alone, or it has no weights that mean anything.
        is_one_tower = np.isclose(max(weights), 1, rtol=CLOSE / 10) and np.isclose(sum(weights), 1)
        if not is_one_tower and any(name in self._measured.changed for name in self._variables):
            return _CLIPPED_DIFFERENTLY
        return diagnose_rows(
            self._row_factors(samples, weights / due), self._trial, self._measured.towers
        )

    def weighted_rows(self) -> Diagnosis | None:
        """The gradients are those of single rows, each with a weight of its own.

        Rows that all have another weight explain nothing: where a loss is a function of one
        output, the gradients of any labels are made up of those of the rows.
        """
        samples = self._trial.per_row
        weights = self._weights(samples, self._found)
        if weights is None:
            return None
        due = self._expected_weights(samples, np.full(len(samples), 1 / self._trial.rows))
        times = self._row_factors(samples, weights / due)
        if len(list(equal_runs(times))) > self._measured.towers + 1:
            return None
        return diagnose_rows(times, self._trial, self._measured.towers)

    def _expected_weights(self, samples: Sequence[Sample], share: Array) -> Array:
        """The weights that make up the reference's gradients: those of a mean, or of a sum."""
        weights = self._weights(samples, self._expected)
        is_sum = weights is not None and np.allclose(weights, 1, rtol=CLOSE)
        return np.ones(len(samples)) if is_sum else share

    def _row_factors(self, samples: Sequence[Sample], weights: Array) -> Array:
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
        weights, _, _, singular = np.linalg.lstsq(columns, gradients, rcond=None)
        if singular[0] > _WORST_CONDITION * singular[-1]:
            return None
        return np.asarray(weights) if self._is_near(columns @ weights, gradients) else None

    def _own_counts(
        self, samples: Sequence[Sample], weights: Array, share: Array
    ) -> Diagnosis | None:
        """Towers that count by their rows, or alike, where the reference weights them otherwise.

        The reference's gradient is then made up of those of the towers' rows. With statistics of
        the whole batch it is not.
        """
        due = self._weights(samples, self._expected)
        if due is None or not (min(due) > 0 and np.isclose(sum(due), 1, rtol=CLOSE / 10)):
            return None
        alike = np.full(len(samples), 1 / len(samples))
        is_mean = any(np.allclose(weights, each, rtol=CLOSE / 100) for each in (alike, share))
        is_by_rows = np.allclose(due, share, rtol=CLOSE / 100)
        is_changed = any(name in self._measured.changed for name in self._variables)
        if not is_mean or is_by_rows or is_changed:
            return None
        return _OWN_COUNTS._replace(
            shown=tuple(describe_runs(self._row_factors(samples, weights / due)))
        )

    def _statistics_per_tower(self) -> Diagnosis:
        """Right on every tower's own rows: the program computes more than a sum over rows."""
        if any(name in self._measured.changed for name in self._variables):
            return Diagnosis(
                "each tower changes its gradients, by clipping for example, before their mean is "
                "taken; the reference changes the mean",
                "clip the averaged gradients, after the loop over towers; if it is meant: "
                "--set gradients-equal.statistics=tower",
                mistake="changed in towers",
                consequence="only the towers with large gradients are cut down, so that the step "
                "points elsewhere than on one GPU",
            )
        return Diagnosis(
            "it is the mean over towers of what the reference gives on each tower's rows alone: "
            "batch statistics, as in batch normalisation, are taken over a tower's rows",
            "take them over all towers; if those of each tower's rows are meant: "
            "--set gradients-equal.statistics=tower",
            mistake="statistics",
            consequence="the more GPUs share a batch, the fewer rows the statistics are taken of",
        )

    def shifted(self) -> Diagnosis | None:
        """The rows of one input do not belong to those of the others."""
        for how, gradients in self._trial.shifted.items():
            if self._is_near(self._joined(gradients), self._found):
                return Diagnosis(
                    f"it is what the reference gives with {how}",
                    "on that line keep the rows of all inputs together, in one order: an "
                    "example's label is in its own row",
                    mistake="moved",
                    consequence="the model is trained on examples that are put together from "
                    "different rows",
                )
        return None

    def swapped(self) -> Diagnosis | None:
        """The gradient is that of another variable."""
        (own,) = self._variables
        for other, gradient in self._trial.expected.items():
            if not self._same_elements(own, other):
                continue
            size = largest(gradient)
            eps = EPS.get(self._measured.precisions.get(other, ""), 0.0)
            close = max(200 * eps * size, 16 * self._trial.noise.get(other, 0.0))
            error = largest(gradient - self._trial.found[own])
            error_of_own = largest(self._trial.expected[own] - self._trial.found[own])
            if size and error <= min(close, 0.1 * error_of_own):
                return Diagnosis(
                    f"it is the gradient of {other}: gradients and variables are paired wrongly",
                    "keep each gradient with its variable; where lists are joined with zip, both "
                    "must leave out the same entries",
                    mistake="paired",
                    consequence="each of them is moved by the gradient of another",
                )
        return None

    def _same_elements(self, one: str, other: str) -> bool:
        """Whether of two gradients of one shape the same elements are kept."""
        kept, elements = self._trial.expected, self._trial.elements
        return kept[one].shape == kept[other].shape and elements.get(one) is elements.get(other)

    def penalised(self) -> Diagnosis | None:
        """The difference is a multiple of the variable itself."""
        (own,) = self._variables
        start = self._trial.start.get(own)
        if start is None or start.shape != self._trial.expected[own].shape:
            return None
        if np.ptp(start) == 0:  # any constant is a multiple of it, and any single number
            return None
        added = self._trial.found[own] - self._trial.expected[own]
        times = float(np.vdot(start, added) / np.vdot(start, start))
        if np.max(np.abs(added - times * start)) / self._sizes[own] > self._tolerance:
            return None
        towers = self._measured.towers
        parts, once = (
            ("replicas", "give each replica its part: `tf.nn.scale_regularization_loss(penalty)`")
            if self._measured.strategy
            else (
                "towers",
                "let the penalty count once: add it in one tower, or divide it by the number of "
                "towers where gradients are added up",
            )
        )
        if times > 0:
            return Diagnosis(
                "what is added to it is a multiple of the variable itself, as a weight penalty's "
                f"gradient is: the penalty counts more than once, in each of the {towers} {parts} "
                "perhaps",
                once,
                (f"found - expected = {format_factor(times)} x the variable",),
                mistake="penalty",
                consequence="the more GPUs, the harder the weights are pulled to zero",
            )
        return Diagnosis(
            "what it lacks is a multiple of the variable itself, as a weight penalty's gradient "
            "is: the penalty counts less than once, or not at all",
            "add the penalty to the loss of every tower whose gradients are averaged",
            (f"expected - found = {format_factor(-times)} x the variable",),
            mistake="penalty",
            consequence="the weights are held back less than on one GPU",
        )
