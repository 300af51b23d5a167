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
from typing import Literal, NamedTuple

import numpy as np

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
from placement_checks.numerics.sampling import least_squares_ratio
from placement_checks.util.text import format_factor, join_and

CLOSE = 0.01  # tolerance of weights and ratios, which are fitted
_MAX_CONDITION = 1e5  # condition number of a fit with meaningful weights in float32

# The kind of a mistake. Rules look for its source line by the kind.
Mistake = Literal[
    "",
    "sum",
    "divided",
    "scaled",
    "changed",
    "changed in towers",
    "slices",
    "statistics",
    "own rows",
    "moved",
    "paired",
    "penalty",
    "weights",
    "counts",
    "frozen",
    "tail",
]


class Diagnosis(NamedTuple):
    """The likely mistake."""

    what: str  # a clause that describes the mistake
    fix: str  # the change to make, or the option that declares it as intended
    shown: tuple[str, ...] = ()  # the evidence, one line each
    # The number that all gradients are multiplied by, if that is the mistake.
    ratio: float | None = None
    mistake: Mistake = ""  # the kind of the mistake; `""` if the kind is not known
    consequence: str = ""  # the effect on the training; `""` if it is obvious
    towers: tuple[int, ...] = ()  # the towers with the mistake; empty if all towers have it
    op_type: str = ""  # the type of the op that combines rows, if that is the mistake


_CLIPPED_DIFFERENTLY = Diagnosis(
    "it is clipped or otherwise changed in another way than in the reference",
    "average the gradients first, then change them once, exactly as the reference does, and undo "
    "a loss scale before that",
    mistake="changed",
    consequence="the step has another direction than on one GPU",
)
# Replaces "changed" if sparse gradients are clipped: numbers alone cannot distinguish the two.
NORM_OF_SLICES = _CLIPPED_DIFFERENTLY._replace(
    what="it is clipped by a norm of sparse gradients before rows of the same index are added up, "
    "and the number of such rows depends on the towers",
    fix="convert the gradients to dense tensors before the norm, in both programs: "
    "tf.convert_to_tensor(gradient)",
    mistake="slices",
)
_BY_COUNTS = (
    "divide by the count of all towers, or weight the towers by their counts: "
    "placement_checks.average_gradients(tower_grads, weights=counts)"
)
OWN_COUNTS = Diagnosis(
    "each tower divides its loss by its own count, such as its number of tokens, and the "
    "reference by the count of the whole batch",
    _BY_COUNTS,
    mistake="counts",
    consequence="an example counts more in a tower with a small count than in the others",
)
# Replaces "statistics" if towers also divide by counts: numbers alone cannot distinguish the two.
COUNTS_OR_STATISTICS = OWN_COUNTS._replace(
    what="it is the mean over towers of the reference's gradients on each tower's rows alone: "
    "each tower divides its loss by its own count, such as its number of tokens, or takes batch "
    "statistics over its own rows",
    fix=f"{_BY_COUNTS}; only if the towers have equal counts, and statistics per tower are "
    "intended: --set gradients-equal.statistics=tower",
)
_OWN_ROWS = Diagnosis(
    "each tower combines its own rows alone, and the reference the rows of the whole batch",
    "combine the rows of all towers before that op; only if each tower shall combine its own "
    "rows: --set gradients-equal.statistics=tower",
    mistake="own rows",
    consequence="the more GPUs share a batch, the fewer rows are combined",
)
UNEXPLAINED = Diagnosis(
    "no known mistake explains it",
    "compare the two programs on this batch; if the difference is intended: "
    "--set gradients-equal.allow=VARIABLE",
)


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
        or UNEXPLAINED
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
            return _CLIPPED_DIFFERENTLY
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
            return _CLIPPED_DIFFERENTLY
        return diagnose_rows(
            self._row_factors(samples, weights / expected), self._trial, self._measured.towers
        )

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
        return diagnose_rows(times, self._trial, self._measured.towers)

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
        return OWN_COUNTS._replace(shown=tuple(describe_runs(times)))

    def _statistics_per_tower(self) -> Diagnosis:
        """Explain gradients that are right on each tower's rows, but not on the whole batch."""
        mixing = self._measured.mixing
        if mixing and mixing.op and not mixing.statistic:
            return own_rows(mixing)
        if self._is_changed:
            return Diagnosis(
                "each tower changes its gradients, by clipping for example, before their mean is "
                "taken; the reference changes the mean",
                "clip the averaged gradients, after the loop over towers; if it is intended: "
                "--set gradients-equal.statistics=tower",
                mistake="changed in towers",
                consequence="only the towers with large gradients are clipped, so the step has "
                "another direction than on one GPU",
            )
        return Diagnosis(
            "it is the mean over towers of the reference's gradients on each tower's rows alone: "
            "batch statistics, as in batch normalization, are taken over a tower's rows",
            "take them over all towers; if statistics per tower are intended: "
            "--set gradients-equal.statistics=tower",
            mistake="statistics",
            consequence="the more GPUs share a batch, the fewer rows each statistic is taken over",
        )

    def shifted(self) -> Diagnosis | None:
        """Explain inputs with rows that are shifted against each other."""
        for how, gradients in self._trial.shifted.items():
            if self._is_near(self._joined(gradients), self._found):
                return Diagnosis(
                    f"it is the reference's gradient with {how}",
                    "on that line keep the rows of all inputs together, in one order: an example "
                    "and its label are in the same row",
                    mistake="moved",
                    consequence="the model is trained on examples that are composed of different "
                    "rows",
                )
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
                return Diagnosis(
                    f"it is the gradient of {other}: gradients and variables are paired wrongly",
                    "keep each gradient with its variable; if lists are joined with zip, both "
                    "must leave out the same entries",
                    mistake="paired",
                    consequence="variables are updated by the gradients of other variables",
                )
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
            parts = "replicas" if self._measured.strategy else "towers"
            return Diagnosis(
                "it exceeds the reference's by a multiple of the variable itself, like the "
                "gradient of a weight penalty: the penalty counts more than once, perhaps in each "
                f"of the {self._measured.towers} {parts}",
                "give each replica its part: `tf.nn.scale_regularization_loss(penalty)`"
                if self._measured.strategy
                else "let the penalty count once: add it in one tower or, if gradients are added "
                "up, divide it by the number of towers",
                (f"found - expected = {format_factor(times)} x the variable",),
                mistake="penalty",
                consequence="the more GPUs, the more the weights decay",
            )
        return Diagnosis(
            "it falls short of the reference's by a multiple of the variable itself, like the "
            "gradient of a weight penalty: the penalty counts less than once, or not at all",
            "if gradients are averaged, add the full penalty to the loss of every tower",
            (f"expected - found = {format_factor(-times)} x the variable",),
            mistake="penalty",
            consequence="the weights decay less than on one GPU",
        )


def own_rows(mixing: RowMixing) -> Diagnosis:
    """Explain gradients of towers that combine their own rows by an op of the reference."""
    return _OWN_ROWS._replace(shown=(f"in the reference: {mixing.op}",), op_type=mixing.op_type)


def diagnose_ratio(ratio: float, measured: Measurement) -> Diagnosis:
    """Explain gradients that are a multiple of the reference's gradients."""
    towers = measured.towers
    declared = f"--set gradients-equal.scale={_scale_to_declare(ratio * measured.scale)}"
    if abs(ratio) < 1e-6:
        return Diagnosis(
            "it is zero",
            "look for a stop_gradient, a mask, or a loss that does not depend on the variables",
            consequence="these variables are never trained",
        )
    mistake: Mistake = "scaled"
    what = "all elements are multiplied by one number"
    fix = "if it is a loss scale, undo it before the gradients are applied: "
    fix += f"`(gradient / {format_factor(ratio)}, variable)`; if it is intended: {declared}"
    if towers > 1 and np.isclose(ratio, towers, rtol=CLOSE / 10):
        mistake = "sum"
        what, fix = _diagnose_sum(measured)
        fix += (
            f"; if the sum is intended, and the learning rate is divided by {towers}: {declared}"
        )
    elif towers > 1 and np.isclose(ratio * towers, 1, rtol=CLOSE / 10):
        mistake = "divided"
        what, fix = _diagnose_division(measured)
        fix = f"{fix}; if it is intended: {declared}"
    return Diagnosis(
        what,
        fix,
        ratio=ratio,
        mistake=mistake,
        consequence=scaled_steps(ratio),
    )


def scaled_steps(ratio: float) -> str:
    """Return the consequence of gradients that are all multiplied by one number."""
    if not ratio:
        return "the loss does not train the variable"
    if ratio < 0:
        return "the steps increase the loss instead of decreasing it"
    return (
        f"steps of gradient descent are {format_factor(ratio)} times as large; Adam hides the "
        "mistake, because it normalizes gradients"
    )


def _diagnose_sum(measured: Measurement) -> tuple[str, str]:
    """Return the mistake and the fix if the sum over towers is applied instead of the mean."""
    towers, strategy = measured.towers, measured.strategy
    if not strategy:
        return (
            f"the gradients of {towers} towers are added up instead of averaged",
            f"divide the sum by the number of towers: `tf.add_n(gradients) / {towers}`",
        )
    loss = "the loss is the mean over a replica's own rows"
    fix = (
        "divide by the rows of all replicas: `tf.nn.compute_average_loss(losses, "
        "global_batch_size=…)`"
    )
    if not measured.trials[0].split:
        loss += ", or over the rows of all replicas"
        fix += ", and give each replica its own rows: `strategy.experimental_distribute_dataset`"
    return (
        f"{strategy} adds up the gradients of {towers} replicas, which makes the sum {towers} "
        f"times too large: {loss}, or the program adds up gradients itself",
        fix,
    )


def _diagnose_division(measured: Measurement) -> tuple[str, str]:
    """Return the mistake and the fix if gradients are divided by the number of towers."""
    if not measured.strategy:
        return (
            f"it is divided by the number of towers, {measured.towers}, once too often",
            "divide the losses by the number of towers or take the mean of the gradients, not "
            "both; if the loss is a sum over rows, add up the gradients",
        )
    return (
        f"it is divided by the number of replicas, {measured.towers}, once too often",
        "divide the loss by the rows of all replicas alone, as `tf.nn.compute_average_loss` does, "
        "and add the gradients up: `tf.distribute.ReduceOp.SUM`",
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


def diagnose_rows(times: Array, trial: Trial, towers: int) -> Diagnosis:
    """Explain rows with wrong weights; ``times`` are multiples of the correct weights."""
    shown = tuple(describe_runs(times))
    if trial.split:
        return _diagnose_towers(times, trial.split, shown)
    blocks = list(equal_runs(times))
    begin, end, last = blocks[-1]
    if len(blocks) > 1 and abs(last) < CLOSE and end - begin < towers:
        rows = "row is" if end - begin == 1 else f"{end - begin} rows are"
        return Diagnosis(
            f"in a batch of {trial.rows} rows, which {towers} towers cannot share evenly, the "
            f"last {rows} ignored",
            "give the remaining rows to a tower, and weight the towers by their rows; or, if the "
            f"number of rows is a multiple of {towers} in all batches: "
            f"--set gradients-equal.rows={trial.rows // towers * towers}",
            shown,
            mistake="tail",
            consequence="some rows of every such batch train nothing",
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
        "rows do not count equally",
        "assign every row to exactly one tower, and weight the towers by their rows",
        shown,
        mistake="weights",
        consequence="some examples train the model more than others",
    )


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
    times: Array, split: Sequence[tuple[int, ...]], shown: tuple[str, ...]
) -> Diagnosis:
    per_tower = [times[list(rows)] for rows in split]
    lost = [number for number, rows in enumerate(per_tower) if np.all(np.abs(rows) < CLOSE)]
    counted = [number for number in range(len(per_tower)) if number not in lost]
    whole = len(times) / len(per_tower[counted[0]]) if len(counted) == 1 else 0.0
    if lost and whole and np.allclose(per_tower[counted[0]], whole, rtol=CLOSE):
        last = ", the last," if counted[0] == len(per_tower) - 1 else ""
        others = "the other tower" if len(per_tower) == 2 else "the other towers"
        return Diagnosis(
            f"only the rows of tower {counted[0]}{last} count: the gradients of {others} are "
            "lost, or computed on the same rows",
            "take the mean over the gradients of all towers, each computed on its own rows",
            shown,
            mistake="weights",
            consequence="the results of the other GPUs change nothing: only one of "
            f"{len(per_tower)} parts of a batch trains the model",
        )
    if lost:
        towers = f"{'tower' if len(lost) == 1 else 'towers'} {join_and(lost)}"
        return Diagnosis(
            f"{towers} {'contributes' if len(lost) == 1 else 'contribute'} nothing to it, as if "
            "the variable were frozen there",
            "look for a stop_gradient, a mask, a list of variables or an index that excludes it",
            shown,
            mistake="frozen",
            consequence=f"the rows of {towers} train the rest of the model, but not this variable",
            towers=tuple(lost),
        )
    shares = integer_shares([float(np.mean(rows)) * len(rows) for rows in per_tower])
    intended = (
        "; if the towers are intended for parts of different size: "
        f"--set 'gradients-equal.shares={shares}'"
    )
    return Diagnosis(
        "the gradients of the towers are combined with wrong factors",
        "multiply the gradient of each tower by its share of the rows"
        + (intended if shares else ""),
        shown,
        mistake="weights",
        consequence="the rows of some towers count more than the rows of others",
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
