"""Training programs with many kinds of losses over rows, for one GPU and for several.

A loss is written once, as the code of one tower. To combine a value with the values of the other
towers, it yields the value: ``(yield "sum", value)`` is the sum over all towers, and
``(yield "rows", value)`` has the rows of all towers. Then the same loss trains towers in one
graph, replicas of a strategy, and a single GPU. Each loss has correct ways to combine the towers,
and ways with one mistake; on one GPU, all ways compute the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

tf1 = tf.compat.v1

WIDTH, UNITS, OUTPUTS = 6, 5, 8
ROWS_OF_TOWER = 4
PENALTY, LARGEST_NORM, MIXED, DISCOUNT, HARDEST, EPISODE = 0.05, 0.05, 0.7, 0.6, 3, 2
SUM, MEAN = "sum", "mean"

# Mistakes that every loss can have.
ADDED, DIVIDED, DROPPED, LABELS = (
    "added up instead of averaged",
    "divided once too often",
    "last tower dropped",
    "labels of another tower",
)
Loss = Generator[tuple[str, Any], Any, tuple[Any, str]]
Arrays = Mapping[str, npt.NDArray[Any]]


class Kind(NamedTuple):
    """A loss: its code, the ways to combine its towers, and properties of its values.

    Attributes:
        loss: the code of one tower.
        right: the ways in which towers train like one GPU.
        wrong: the ways with one mistake.
        statistics: whether the model depends on statistics of the rows; correct towers may then
            compute them on their own rows.
        any_size: whether the code does not depend on the number of rows, and correct towers may
            have different numbers of rows.
        forms: the forms of programs that can have this loss.
    """

    loss: Callable[[Tower, str], Loss]
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    statistics: bool = False
    any_size: bool = False
    forms: tuple[str, ...] = ("builder", "script", "strategy")


KINDS: dict[str, Kind] = {}


def kind(*right: str, wrong: Sequence[str] = (), **more: Any) -> Callable[..., Any]:
    def register(loss: Callable[[Tower, str], Loss]) -> Callable[[Tower, str], Loss]:
        KINDS[loss.__name__] = Kind(loss, right, tuple(wrong), **more)
        return loss

    return register


@dataclass
class Tower:
    """What one tower computes with.

    Attributes:
        index: the number of the tower, an int or a tensor.
        towers: the number of towers.
        rows: the number of rows of each tower.
        x, y, mask: the tensors of its rows.
        case: the program that the tower belongs to.
        variable: returns the variable of a name.
    """

    index: Any
    towers: int
    rows: int
    x: Any
    y: Any
    mask: Any
    case: Case
    variable: Callable[[str], Any]

    @property
    def batch(self) -> int:
        return self.rows * self.towers

    def own(self, rows: Any) -> Any:
        """The rows of this tower, of the rows of all."""
        if self.towers == 1:
            return rows
        return rows[self.index * self.rows : (self.index + 1) * self.rows]

    def dense(self, x: Any, name: str) -> Any:
        return tf.matmul(x, self.variable(f"{name}/kernel")) + self.variable(f"{name}/bias")

    def hidden(self, x: Any) -> Any:
        act = getattr(tf.nn, self.case.activation)
        if self.case.layers == "convolution":
            pictures = tf.reshape(x, [-1, 2, 3, 1])
            pictures = act(tf.nn.conv2d(pictures, self.variable("filters"), 1, "SAME"))
            x = tf.reshape(pictures, [-1, 12])
        elif self.case.layers == "deep":
            x = act(self.dense(x, "first"))
        return self.dense(x, "hidden")

    def predict(self, x: Any) -> Any:
        return self.output(self.hidden(x))

    def output(self, hidden: Any) -> Any:
        return self.dense(getattr(tf.nn, self.case.activation)(hidden), "output")

    def errors(self) -> Any:
        """The squared errors of the rows, for each output."""
        return tf.math.squared_difference(self.predict(self.x), self.y)


@kind("means averaged", "sums of the global batch", wrong=[ADDED, DIVIDED, DROPPED, LABELS])
def mean_of_rows(tower: Tower, way: str) -> Loss:
    yield from ()
    errors = tf.reduce_mean(tower.errors(), 1)
    if way == "sums of the global batch":
        return tf.reduce_sum(errors) / tower.batch, SUM
    return tf.reduce_mean(errors), MEAN


@kind("added up", wrong=[DIVIDED, DROPPED, LABELS])
def sum_of_rows(tower: Tower, way: str) -> Loss:
    yield from ()
    return tf.reduce_sum(tower.errors()), SUM


@kind("added up", wrong=[DIVIDED, DROPPED, LABELS])
def sum_of_global_batch(tower: Tower, way: str) -> Loss:
    yield from ()
    return tf.reduce_sum(tower.errors()) / tower.batch, SUM


_OWN = "own count"


@kind("count of all", "weighted by counts", wrong=[_OWN, DIVIDED, DROPPED, LABELS], any_size=True)
def token_mean(tower: Tower, way: str) -> Loss:
    total, count = tf.reduce_sum(tower.errors() * tower.mask), tf.reduce_sum(tower.mask)
    if way == _OWN:
        return total / count, MEAN
    if way == "weighted by counts":
        share = count / (yield "sum", count)
        return share * (total / count), SUM
    return total / (yield "sum", count), SUM


@kind("count of all", wrong=[_OWN, ADDED, DROPPED])
def mean_over_mean_weight(tower: Tower, way: str) -> Loss:
    weight = tf.reduce_mean(tower.mask)
    if way != _OWN:
        weight = (yield "sum", weight) / tower.towers
    return tf.reduce_mean(tower.errors() * tower.mask / weight), MEAN


@kind("weighted by counts", wrong=[_OWN, DIVIDED, LABELS], any_size=True)
def nonzero_weights(tower: Tower, way: str) -> Loss:
    loss = tf1.losses.mean_squared_error(
        tower.y,
        tower.predict(tower.x),
        weights=tower.mask,
        loss_collection=None,
        reduction=tf1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS,
    )
    if way == _OWN:
        return loss, MEAN
    count = tf.reduce_sum(tower.mask)
    return loss * count / (yield "sum", count), SUM


@kind("counts of all", wrong=["own counts", ADDED, DROPPED], any_size=True)
def dice(tower: Tower, way: str) -> Loss:
    p = tf.sigmoid(tower.predict(tower.x))
    both, sizes = tf.reduce_sum(p * tower.mask), tf.reduce_sum(p) + tf.reduce_sum(tower.mask)
    if way != "own counts":
        both, sizes = (yield "sum", both), (yield "sum", sizes)
    return 1 - 2 * both / sizes, MEAN


@kind("count of all", wrong=["own count", DIVIDED, DROPPED], any_size=True)
def focal(tower: Tower, way: str) -> Loss:
    logits = tower.predict(tower.x)
    wrong = tf.abs(tower.mask - tf.sigmoid(logits))
    errors = tf.nn.sigmoid_cross_entropy_with_logits(labels=tower.mask, logits=logits)
    total = tf.reduce_sum(tf.square(wrong) * errors)
    positives = tf.maximum(tf.reduce_sum(tower.mask), 1.0)
    if way == "own count":
        return total / positives, MEAN
    return total / (yield "sum", positives), SUM


@kind("sums of all", wrong=["own rows", ADDED, DROPPED], any_size=True)
def log_sum_exp(tower: Tower, way: str) -> Loss:
    total = tf.reduce_sum(tf.exp(tf.reduce_mean(tower.errors(), 1)))
    if way != "own rows":
        total = yield "sum", total
    return tf.math.log(total), MEAN


@kind("hardest of all", wrong=["hardest of each tower", ADDED, DROPPED, LABELS], any_size=True)
def hardest_rows(tower: Tower, way: str) -> Loss:
    errors = tf.reduce_mean(tower.errors(), 1)
    if way != "hardest of each tower":
        errors = yield "rows", errors
    return tf.reduce_mean(tf.math.top_k(errors, HARDEST).values), MEAN


@kind("hardest outputs of all", wrong=["hardest of each tower"])
def hardest_share(tower: Tower, way: str) -> Loss:
    """A share of the errors of all outputs."""
    errors = tf.reshape(tower.errors(), [-1])
    number = tower.rows * OUTPUTS // 16
    if way != "hardest of each tower":
        errors = yield "rows", errors
        number = tower.batch * OUTPUTS // 16
    return tf.reduce_mean(tf.math.top_k(errors, number).values), MEAN


@kind("negatives of all", wrong=["negatives of own rows", ADDED, DROPPED])
def in_batch_negatives(tower: Tower, way: str) -> Loss:
    """The other rows' targets are negatives."""
    found, targets, own = tower.predict(tower.x), tower.y, tf.range(tower.rows)
    if way != "negatives of own rows":
        targets = yield "rows", targets
        own += tower.index * tower.rows
    logits = tf.matmul(found, targets, transpose_b=True) / 4
    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=own, logits=logits)
    return tf.reduce_mean(errors), MEAN


@kind("negatives of all", wrong=["negatives of own rows", DIVIDED, DROPPED])
def contrastive_pairs(tower: Tower, way: str) -> Loss:
    """Rows 2i and 2i + 1 are views of one example; the embeddings of other rows are negatives."""
    found = tf.math.l2_normalize(tower.predict(tower.x), 1)
    others, own = found, tf.range(tower.rows)
    if way != "negatives of own rows":
        others = yield "rows", found
        own += tower.index * tower.rows
    total = tower.rows if way == "negatives of own rows" else tower.batch
    logits = tf.matmul(found, others, transpose_b=True) * 3 - 1e9 * tf.one_hot(own, total)
    partner = own + 1 - 2 * (own % 2)
    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partner, logits=logits)
    return tf.reduce_sum(errors) / tower.batch, SUM


@kind("pairs in each tower", wrong=[ADDED, DROPPED, "halves paired"])
def ranked_pairs(tower: Tower, way: str) -> Loss:
    """Row 2i is ranked before row 2i + 1."""
    yield from ()
    scores = tower.predict(tower.x)[:, 0]
    if way == "halves paired" and tower.towers > 1:
        first, second = tf.split(scores, 2)
    else:
        first, second = scores[::2], scores[1::2]
    return tf.reduce_mean(tf.nn.softplus(second - first)), MEAN


def _mixed(rows: Any) -> Any:
    return MIXED * rows + (1 - MIXED) * tf.reverse(rows, [0])


@kind(
    "mixed with all", wrong=["mixed in each tower", "labels mixed in each tower", ADDED, DROPPED]
)
def mixup(tower: Tower, way: str) -> Loss:
    x, y = _mixed(tower.x), _mixed(tower.y)
    if way != "mixed in each tower":
        x = tower.own(_mixed((yield "rows", tower.x)))
        if way != "labels mixed in each tower":
            y = tower.own(_mixed((yield "rows", tower.y)))
    return tf.reduce_mean(tf.math.squared_difference(tower.predict(x), y)), MEAN


@kind("mixed with all, count of all", wrong=["mixed with all, own count", "mixed in each tower"])
def mixup_of_tokens(tower: Tower, way: str) -> Loss:
    x, y = _mixed(tower.x), _mixed(tower.y)
    if way != "mixed in each tower":
        x = tower.own(_mixed((yield "rows", tower.x)))
        y = tower.own(_mixed((yield "rows", tower.y)))
    total = tf.reduce_sum(tf.math.squared_difference(tower.predict(x), y) * tower.mask)
    count = tf.reduce_sum(tower.mask)
    if way == "mixed with all, own count":
        return total / count, MEAN
    return total / (yield "sum", count), SUM


def _episodes(tower: Tower, *, in_loop: bool) -> Any:
    """The outputs of a recurrent layer, whose state starts at the first row of each episode."""
    inputs = tf.reshape(tower.hidden(tower.x), [-1, EPISODE, UNITS])
    first, recurrent = tf.zeros_like(inputs[:, 0]), tower.variable("recurrent")

    def following(state: Any, of_time: Any) -> Any:
        return tf.tanh(of_time + tf.matmul(state, recurrent))

    by_time = tf.transpose(inputs, [1, 0, 2])
    if in_loop:
        states = tf.scan(following, by_time, first)
    else:
        states = tf.stack(list(accumulate(tf.unstack(by_time), following, initial=first))[1:])
    return tower.dense(tf.reshape(tf.transpose(states, [1, 0, 2]), [-1, UNITS]), "output")


@kind("whole episodes", wrong=[ADDED, DROPPED, LABELS])
def episodes(tower: Tower, way: str) -> Loss:
    yield from ()
    return tf.reduce_mean(
        tf.math.squared_difference(_episodes(tower, in_loop=False), tower.y)
    ), MEAN


@kind("count of all", wrong=[_OWN, DROPPED])
def episodes_of_tokens(tower: Tower, way: str) -> Loss:
    errors = tf.math.squared_difference(_episodes(tower, in_loop=True), tower.y) * tower.mask
    total, count = tf.reduce_sum(errors), tf.reduce_sum(tower.mask)
    if way == _OWN:
        return total / count, MEAN
    return total / (yield "sum", count), SUM


@kind("returns of all", wrong=["returns of each tower", ADDED, DROPPED])
def discounted_returns(tower: Tower, way: str) -> Loss:
    """A row's return includes the discounted rewards of all later rows."""

    def returns(rewards: Any, number: int) -> Any:
        later = np.arange(number) - np.arange(number)[:, None]
        return tf.matmul(np.triu(DISCOUNT ** np.maximum(later, 0)).astype(np.float32), rewards)

    if way == "returns of each tower":
        targets = returns(tower.y, tower.rows)
    else:
        targets = tower.own(returns((yield "rows", tower.y), tower.batch))
    return tf.reduce_mean(tf.math.squared_difference(tower.predict(tower.x), targets)), MEAN


@kind("statistics of all", wrong=["statistics of each tower", ADDED, DROPPED])
def standardized_advantages(tower: Tower, way: str) -> Loss:
    advantages, towers = tower.y, 1
    mean, square = tf.reduce_mean(advantages), tf.reduce_mean(tf.square(advantages))
    if way != "statistics of each tower":
        mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
    mean, square = mean / towers, square / towers
    advantages = (advantages - mean) / tf.sqrt(square - mean**2 + 1e-3)
    chosen = tf.nn.log_softmax(tower.predict(tower.x))
    return -tf.reduce_mean(chosen * tf.stop_gradient(advantages)), MEAN


@kind("sums of all", wrong=["own rows", ADDED, DROPPED], any_size=True)
def root_mean_square(tower: Tower, way: str) -> Loss:
    total = tf.reduce_sum(tower.errors())
    count = tf.reduce_sum(tf.ones_like(tower.y))
    if way != "own rows":
        total, count = (yield "sum", total), (yield "sum", count)
    return tf.sqrt(total / count), MEAN


@kind("variance of all", wrong=["variance of each tower", DROPPED])
def explained_variance(tower: Tower, way: str) -> Loss:
    errors, towers = tf.reduce_mean(tower.errors()), 1
    mean, square = tf.reduce_mean(tower.y, 0), tf.reduce_mean(tf.square(tower.y), 0)
    if way != "variance of each tower":
        mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
    return errors / tf.reduce_mean(square / towers - tf.square(mean / towers)), MEAN


@kind("counts of all", wrong=["counts of each tower", ADDED, DROPPED])
def balanced_classes(tower: Tower, way: str) -> Loss:
    """Each class has a weight, the inverse of its frequency in the batch."""
    counts = tf.reduce_sum(tower.mask, 0)
    if way != "counts of each tower":
        counts = yield "sum", counts
    weights = tf.reduce_sum(counts) / (counts + 1.0)
    logits = tower.predict(tower.x)
    errors = tf.nn.sigmoid_cross_entropy_with_logits(labels=tower.mask, logits=logits)
    return tf.reduce_mean(errors * weights), MEAN


@kind("sums of all", wrong=["sums of each tower", ADDED, DROPPED])
def correlation(tower: Tower, way: str) -> Loss:
    """Pearson's correlation of predictions and targets, as a ratio of sums of centered rows."""
    found, targets, towers = tower.predict(tower.x), tower.y, 1
    means = tf.reduce_mean(found, 0), tf.reduce_mean(targets, 0)
    if way != "sums of each tower":
        means, towers = ((yield "sum", means[0]), (yield "sum", means[1])), tower.towers
    found, targets = found - means[0] / towers, targets - means[1] / towers
    products = tf.stack([found * targets, found * found, targets * targets])
    sums = tf.reduce_sum(products, 1)
    if way != "sums of each tower":
        sums = yield "sum", sums
    return -tf.reduce_mean(sums[0] / (tf.sqrt(sums[1]) * tf.sqrt(sums[2]))), MEAN


def _standardized(rows: Any, mean: Any, square: Any) -> Any:
    return (rows - mean) / tf.sqrt(square - tf.square(mean) + 1e-3)


@kind("statistics of all", wrong=["statistics of each tower", ADDED, DROPPED])
def standardized_correlation(tower: Tower, way: str) -> Loss:
    """Pearson's correlation, as the mean of products of standardized rows."""
    standardized = []
    for rows in (tower.predict(tower.x), tower.y):
        mean, square, towers = tf.reduce_mean(rows, 0), tf.reduce_mean(tf.square(rows), 0), 1
        if way != "statistics of each tower":
            mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
        standardized.append(_standardized(rows, mean / towers, square / towers))
    return -tf.reduce_mean(standardized[0] * standardized[1]), MEAN


@kind("statistics of all", wrong=["statistics of each tower", ADDED, DROPPED])
def errors_over_their_root(tower: Tower, way: str) -> Loss:
    """Errors in units of their root mean square, which has no gradient."""
    errors = tf.reduce_mean(tf.abs(tower.predict(tower.x) - tower.y), 1)
    square, towers = tf.reduce_mean(tf.square(errors)), 1
    if way != "statistics of each tower":
        square, towers = (yield "sum", square), tower.towers
    return tf.reduce_mean(errors / tf.stop_gradient(tf.sqrt(square / towers))), MEAN


@kind("deviations of all", wrong=["deviations of each tower", ADDED, DROPPED])
def spread_of_embeddings(tower: Tower, way: str) -> Loss:
    """Embeddings whose standard deviation over the batch is below 3 are pushed apart."""
    found, towers = tower.predict(tower.x), 1
    mean, square = tf.reduce_mean(found, 0), tf.reduce_mean(tf.square(found), 0)
    errors = tf.reduce_mean(tf.math.squared_difference(found, tower.y))
    if way != "deviations of each tower":
        mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
    deviation = tf.sqrt(square / towers - tf.square(mean / towers) + 1e-3)
    return errors + tf.reduce_mean(tf.nn.relu(3.0 - deviation)), MEAN


@kind("correlations of all", wrong=["correlations of each tower", DROPPED])
def redundancy(tower: Tower, way: str) -> Loss:
    """The matrix of correlations of standardized predictions and targets is pulled to identity."""
    standardized = []
    for rows in (tower.predict(tower.x), tower.y):
        mean, square, towers = tf.reduce_mean(rows, 0), tf.reduce_mean(tf.square(rows), 0), 1
        if way != "correlations of each tower":
            mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
        standardized.append(_standardized(rows, mean / towers, square / towers))
    matrix, rows = tf.matmul(*standardized, transpose_a=True), tower.rows
    if way != "correlations of each tower":
        matrix, rows = (yield "sum", matrix), tower.batch
    return tf.reduce_mean(tf.math.squared_difference(matrix / rows, tf.eye(OUTPUTS))), MEAN


def _critic(tower: Tower, way: str, *, with_gradient: bool) -> Loss:
    outputs = tower.predict(tower.x)
    values, logits = outputs[:, 0], outputs[:, 1:]
    rewards = tf.reduce_sum(tower.y, 1)
    advantages, towers = rewards - values, 1
    if not with_gradient:
        advantages = tf.stop_gradient(advantages)
    mean, square = tf.reduce_mean(advantages), tf.reduce_mean(tf.square(advantages))
    if way != "statistics of each tower":
        mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
    advantages = _standardized(advantages, mean / towers, square / towers)
    actor = -tf.reduce_mean(tf.nn.log_softmax(logits)[:, 0] * advantages)
    return actor + 0.1 * tf.reduce_mean(tf.math.squared_difference(rewards, values)), MEAN


@kind("statistics of all", wrong=["statistics of each tower", ADDED, DROPPED])
def advantages_over_critic(tower: Tower, way: str) -> Loss:
    """The advantages are differences from the model's own values, which get no gradient."""
    return (yield from _critic(tower, way, with_gradient=False))


@kind("statistics of all", wrong=["statistics of each tower", ADDED, DROPPED])
def advantages_with_gradient(tower: Tower, way: str) -> Loss:
    return (yield from _critic(tower, way, with_gradient=True))


@kind("statistics of all", wrong=["statistics of each tower", ADDED, DROPPED])
def advantages_over_temperature(tower: Tower, way: str) -> Loss:
    """The advantages are divided by a learned temperature."""
    advantages, towers = tf.reduce_sum(tower.y, 1), 1
    mean, square = tf.reduce_mean(advantages), tf.reduce_mean(tf.square(advantages))
    if way != "statistics of each tower":
        mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
    temperature = tf.nn.softplus(tower.variable("output/bias")[0]) + 0.5
    weights = tf.exp(_standardized(advantages, mean / towers, square / towers) / temperature)
    chosen = tf.nn.log_softmax(tower.predict(tower.x))[:, 1]
    return temperature - tf.reduce_mean(chosen * weights), MEAN


@kind("statistics of all", wrong=[ADDED, DROPPED, LABELS])
def standardized_inputs(tower: Tower, way: str) -> Loss:
    mean, square = tf.reduce_mean(tower.x, 0), tf.reduce_mean(tf.square(tower.x), 0)
    mean, square = (yield "sum", mean) / tower.towers, (yield "sum", square) / tower.towers
    found = tower.predict(_standardized(tower.x, mean, square))
    return tf.reduce_mean(tf.math.squared_difference(found, tower.y)), MEAN


@kind("decay in each, averaged", "part of the decay", wrong=["decay in each, added up", DROPPED])
def mean_with_decay(tower: Tower, way: str) -> Loss:
    yield from ()
    decay = PENALTY * tf.nn.l2_loss(tower.variable("hidden/kernel"))
    errors = tf.reduce_mean(tower.errors(), 1)
    if way == "part of the decay":
        return tf.reduce_sum(errors) / tower.batch + decay / tower.towers, SUM
    if way == "decay in each, added up":
        return tf.reduce_sum(errors) / tower.batch + decay, SUM
    return tf.reduce_mean(errors) + decay, MEAN


@kind("clipped after averaging", wrong=["clipped in each tower", LABELS])
def clipped_mean(tower: Tower, way: str) -> Loss:
    """`averaged` clips the gradients."""
    yield from ()
    return tf.reduce_mean(tower.errors()), MEAN


@kind("count of all, clipped", wrong=["own count, clipped"])
def clipped_token_mean(tower: Tower, way: str) -> Loss:
    total, count = tf.reduce_sum(tower.errors() * tower.mask), tf.reduce_sum(tower.mask)
    if way == "own count, clipped":
        return total / count, MEAN
    return total / (yield "sum", count), SUM


def _normalized(hidden: Any, mean: Any, square: Any, tower: Tower) -> Any:
    scale = tf.math.rsqrt(square - tf.square(mean) + 1e-3) * tower.variable("scale")
    return (hidden - mean) * scale


@kind("each tower", "synchronized", wrong=[ADDED, DROPPED, LABELS], statistics=True)
def moments_then_mean(tower: Tower, way: str) -> Loss:
    hidden, towers = tower.hidden(tower.x), 1
    if way == "synchronized":
        mean, square = tf.reduce_mean(hidden, 0), tf.reduce_mean(tf.square(hidden), 0)
        mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
        hidden = _normalized(hidden, mean / towers, square / towers, tower)
    else:
        mean, variance = tf.nn.moments(hidden, [0])
        scale = tower.variable("scale")
        hidden = tf.nn.batch_normalization(hidden, mean, variance, None, scale, 1e-3)
    return tf.reduce_mean(tf.math.squared_difference(tower.output(hidden), tower.y)), MEAN


def _fused(tower: Tower) -> Any:
    scale = tower.variable("scale")
    hidden = tower.hidden(tower.x)[:, None, None]
    hidden = tf1.nn.fused_batch_norm(hidden, scale, tf.zeros_like(scale), epsilon=1e-3)[0]
    return tower.output(hidden[:, 0, 0])


@kind("each tower", wrong=[ADDED, DIVIDED, DROPPED, LABELS], statistics=True)
def fused_then_mean(tower: Tower, way: str) -> Loss:
    yield from ()
    return tf.reduce_mean(tf.math.squared_difference(_fused(tower), tower.y)), MEAN


@kind(
    "each tower, count of all",
    wrong=[_OWN, DIVIDED, DROPPED],
    statistics=True,
    forms=("script", "strategy"),
)
def fused_then_token_mean(tower: Tower, way: str) -> Loss:
    errors = tf.math.squared_difference(_fused(tower), tower.y) * tower.mask
    total, count = tf.reduce_sum(errors), tf.reduce_sum(tower.mask)
    if way == _OWN:
        return total / count, MEAN
    return total / (yield "sum", count), SUM


@kind(
    "each tower",
    wrong=["negatives of own rows"],
    statistics=True,
    forms=("script", "strategy"),
)
def fused_then_negatives(tower: Tower, way: str) -> Loss:
    found, targets, own = _fused(tower), tower.y, tf.range(tower.rows)
    if way != "negatives of own rows":
        targets = yield "rows", targets
        own += tower.index * tower.rows
    logits = tf.matmul(found, targets, transpose_b=True) / 4
    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=own, logits=logits)
    return tf.reduce_mean(errors), MEAN


@kind("each tower", wrong=[ADDED, DROPPED, LABELS], statistics=True)
def deviation_then_mean(tower: Tower, way: str) -> Loss:
    """A normalization that is written out, with a standard deviation."""
    yield from ()
    hidden = tower.hidden(tower.x)
    hidden = (hidden - tf.reduce_mean(hidden, 0)) / (tf.math.reduce_std(hidden, 0) + 1e-3)
    hidden *= tower.variable("scale")
    return tf.reduce_mean(tf.math.squared_difference(tower.output(hidden), tower.y)), MEAN


@kind("each tower", wrong=[ADDED, DROPPED], statistics=True)
def squares_then_mean(tower: Tower, way: str) -> Loss:
    """A normalization that is written out, with the mean of squares."""
    yield from ()
    hidden = tower.hidden(tower.x)
    square = tf.reduce_mean(tf.square(hidden), 0, keepdims=True)
    hidden = _normalized(hidden, tf.reduce_mean(hidden, 0, keepdims=True), square, tower)
    return tf.reduce_mean(tf.math.squared_difference(tower.output(hidden), tower.y)), MEAN


@kind(
    "advantages of all",
    wrong=["advantages of each tower"],
    statistics=True,
    forms=("script", "strategy"),
)
def fused_then_advantages(tower: Tower, way: str) -> Loss:
    """Each tower normalizes activations; advantages are standardized over the batch."""
    advantages, towers = tf.reduce_sum(tower.y, 1), 1
    mean, square = tf.reduce_mean(advantages), tf.reduce_mean(tf.square(advantages))
    if way != "advantages of each tower":
        mean, square, towers = (yield "sum", mean), (yield "sum", square), tower.towers
    advantages = _standardized(advantages, mean / towers, square / towers)
    return -tf.reduce_mean(tf.nn.log_softmax(_fused(tower))[:, 1] * advantages), MEAN


@kind(
    "mixed with all",
    wrong=["labels mixed in each tower"],
    statistics=True,
    forms=("script", "strategy"),
)
def fused_then_mixup(tower: Tower, way: str) -> Loss:
    y = _mixed(tower.y)
    if way != "labels mixed in each tower":
        y = tower.own(_mixed((yield "rows", tower.y)))
    x = tower.own(_mixed((yield "rows", tower.x)))
    found = _fused(replace(tower, x=x))
    return tf.reduce_mean(tf.math.squared_difference(found, y)), MEAN


def _keras(tower: Tower) -> Any:
    layer = tower.variable("layer")
    return tower.output(layer(tower.hidden(tower.x), training=True))


@kind(
    *("each tower", "synchronized"),
    wrong=[ADDED, DIVIDED, DROPPED, LABELS],
    statistics=True,
    forms=("strategy",),
)
def keras_then_mean(tower: Tower, way: str) -> Loss:
    yield from ()
    return tf.reduce_mean(tf.math.squared_difference(_keras(tower), tower.y)), MEAN


@kind("each tower", wrong=[_OWN, DROPPED], statistics=True, forms=("strategy",))
def keras_then_token_mean(tower: Tower, way: str) -> Loss:
    errors = tf.math.squared_difference(_keras(tower), tower.y) * tower.mask
    total, count = tf.reduce_sum(errors), tf.reduce_sum(tower.mask)
    if way == _OWN:
        return total / count, MEAN
    return total / (yield "sum", count), SUM


@dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
        kind: one of `KINDS`.
        way: how the towers are combined, one of the ways of the kind.
        form: ``builder``, which returns a step; ``script``, which runs a session; or ``strategy``,
            whose step is a `tf.function`.
        gpus: the number of towers.
        layers: ``plain``, ``deep`` or ``convolution``.
        activation: ``tanh`` or ``relu``.
        optimizer: ``SGD``, ``Momentum`` or ``Adam``.
        any_rows: whether the placeholders take any number of rows.
        shared: whether the towers split the rows of common placeholders.
        grows: whether the global batch of a whole program grows with the number of GPUs.
        seed: of the rows.
    """

    kind: str
    way: str
    form: str = "builder"
    gpus: int = 2
    layers: str = "plain"
    activation: str = "tanh"
    optimizer: str = "SGD"
    any_rows: bool = True
    shared: bool = False
    grows: bool = False
    seed: int = 0

    @property
    def is_right(self) -> bool:
        return self.way in KINDS[self.kind].right

    def rows(self, num_gpus: int) -> int:
        """The number of rows of the global batch of the program for a number of GPUs."""
        return ROWS_OF_TOWER * (num_gpus if self.grows else self.gpus)

    def __str__(self) -> str:
        return f"{self.kind}, {self.way}, {self.form}"

    def tower(self, index: Any, towers: int, rows: Mapping[str, Any], variable: Any) -> Tower:
        return Tower(
            index, towers, self.rows(towers) // towers, case=self, variable=variable, **rows
        )

    def loss(self, tower: Tower) -> Loss:
        """The loss of a tower, with mistakes of the rows."""
        if self.way == LABELS:
            following = replace(tower, index=(tower.index + 1) % tower.towers)
            tower.y = following.own((yield "rows", tower.y))
        return (yield from KINDS[self.kind].loss(tower, self.way))

    def factors(self, how: str, towers: int) -> list[float]:
        """The factor of each tower's gradients in their sum."""
        mean = how == MEAN and not self.way.startswith(ADDED)
        factor = (1 / towers if mean else 1.0) / (towers if self.way == DIVIDED else 1)
        factors = [factor] * towers
        if self.way == DROPPED and towers > 1:
            factors[-1] = 0.0
        return factors

    @property
    def has_own_statistics(self) -> bool:
        """Whether each tower computes statistics on its own rows, which a builder declares."""
        return KINDS[self.kind].statistics and self.way != "synchronized"

    @property
    def clips(self) -> str:
        """Whether gradients are clipped in each ``tower``, or their ``average``."""
        if "clipped" not in self.kind:
            return ""
        return "tower" if self.way == "clipped in each tower" else "average"

    def initial(self) -> dict[str, npt.NDArray[np.float32]]:
        """The initial values of the variables that the model uses, by name."""
        before = {"plain": WIDTH, "deep": UNITS, "convolution": 12}[self.layers]
        shapes: dict[str, tuple[int, ...]] = {
            "hidden/kernel": (before, UNITS),
            "hidden/bias": (UNITS,),
            "output/kernel": (UNITS, OUTPUTS),
            "output/bias": (OUTPUTS,),
        }
        if self.layers == "convolution":
            shapes["filters"] = (2, 2, 1, 2)
        elif self.layers == "deep":
            shapes |= {"first/kernel": (WIDTH, UNITS), "first/bias": (UNITS,)}
        if self.kind.startswith("episodes"):
            shapes["recurrent"] = (UNITS, UNITS)
        if self.kind.startswith(("fused", "moments", "deviation", "squares")):
            shapes["scale"] = (UNITS,)
        rng = np.random.default_rng(5)
        values = {name: rng.normal(0.1, 0.6, shape) for name, shape in shapes.items()}
        if "scale" in values:
            values["scale"] += 1.0
        return {name: value.astype(np.float32) for name, value in values.items()}

    def batch(self, rng: np.random.Generator, n: int) -> dict[str, npt.NDArray[Any]]:
        """Rows whose first has far more tokens and a far larger target than the others.

        So in every order of the rows, the towers have different counts and statistics.
        """
        x = rng.normal(size=(n, WIDTH))
        y = np.tanh(x @ rng.normal(size=(WIDTH, OUTPUTS))) + rng.normal(0, 0.3, (n, OUTPUTS))
        tokens = rng.permutation([OUTPUTS] + [1] * (n - 1))
        mask = np.arange(OUTPUTS) < tokens[:, None]
        y[tokens > 1] += 4.0
        arrays = {"x": x, "y": y, "mask": rng.permuted(mask, axis=1)}
        return {name: array.astype(np.float32) for name, array in arrays.items()}

    def data(self, num_gpus: int) -> dict[str, npt.NDArray[Any]]:
        """The rows of the first step."""
        return self.batch(np.random.default_rng(self.seed), self.rows(num_gpus))


def in_lockstep(losses: Sequence[Loss]) -> list[tuple[Any, str]]:
    """Run the code of all towers; they combine their values at the same times."""
    results: list[tuple[Any, str]] = []
    answer = None
    while not results:
        values = []
        for loss in losses:
            try:
                values.append(loss.send(answer))
            except StopIteration as end:
                results.append(end.value)
        if values:
            assert not results
            how = values[0][0]
            tensors = [value for _, value in values]
            if len(losses) == 1:
                answer = tensors[0]
            else:
                with tf.device("/cpu:0"):
                    answer = tf.add_n(tensors) if how == "sum" else tf.concat(tensors, 0)
    return results


def averaged(case: Case, how: str, tower_grads: Sequence[Sequence[Any]]) -> list[Any]:
    """The gradients of the whole program, from the gradients of each tower."""
    if case.clips == "tower":
        tower_grads = [tf.clip_by_global_norm(each, LARGEST_NORM)[0] for each in tower_grads]
    factors = case.factors(how, len(tower_grads))
    total = []
    for gradients in zip(*tower_grads, strict=True):
        counted = [each for each, factor in zip(gradients, factors, strict=True) if factor]
        added = tf.add_n(counted) if len(counted) > 1 else counted[0]
        total.append(added if factors[0] == 1 else added * factors[0])
    if case.clips == "average":
        total = list(tf.clip_by_global_norm(total, LARGEST_NORM)[0])
    return total


def gradients_of(case: Case, rows: Arrays, towers: int) -> list[npt.NDArray[Any]]:
    """The gradients of a program on some rows, computed eagerly on one device."""
    variables = {name: tf.Variable(value) for name, value in case.initial().items()}
    variables |= _layers(case)
    trained = _trained(variables)
    parts = {name: np.split(array, towers) for name, array in rows.items()}
    with tf.GradientTape(persistent=True) as tape:
        losses = in_lockstep(
            [
                case.loss(
                    case.tower(
                        i,
                        towers,
                        {name: tf.constant(part[i]) for name, part in parts.items()},
                        variables.__getitem__,
                    )
                )
                for i in range(towers)
            ]
        )
    tower_grads = [
        [
            tf.zeros_like(each) if gradient is None else gradient
            for each, gradient in zip(trained, tape.gradient(loss, trained), strict=True)
        ]
        for loss, _ in losses
    ]
    return [each.numpy() for each in averaged(case, losses[0][1], tower_grads)]


def build_towers(case: Case, num_gpus: int) -> dict[str, Any]:
    """Towers in one graph with variables on the host."""
    optimizer = {
        "SGD": lambda: tf1.train.GradientDescentOptimizer(0.1),
        "Momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
        "Adam": lambda: tf1.train.AdamOptimizer(0.01),
    }[case.optimizer]()
    shared = case.shared or num_gpus == 1
    number = None if case.any_rows else case.rows(num_gpus) // (1 if shared else num_gpus)
    with tf.device("/cpu:0"):
        variables = {
            name: tf1.get_variable(name, initializer=tf.constant(value))
            for name, value in case.initial().items()
        }
    names = {"x": WIDTH, "y": OUTPUTS, "mask": OUTPUTS}

    def placeholders() -> dict[str, Any]:
        return {
            name: tf1.placeholder(tf.float32, [number, width], name)
            for name, width in names.items()
        }

    inputs: list[dict[str, Any]] = []
    if shared:
        with tf.device("/cpu:0"):
            inputs = [placeholders()]
            whole = {
                name: tf.split(each, num_gpus) if num_gpus > 1 else [each]
                for name, each in inputs[0].items()
            }

    def of_tower(index: int) -> Loss:
        """The loss of a tower, on its device."""
        with tf.device(f"/gpu:{index}"), tf1.name_scope(f"tower_{index}"):
            if shared:
                rows = {name: parts[index] for name, parts in whole.items()}
            else:
                inputs.append(placeholders())
                rows = inputs[-1]
            loss = case.loss(case.tower(index, num_gpus, rows, variables.__getitem__))
        answer = None
        while True:
            try:
                with tf.device(f"/gpu:{index}"), tf1.name_scope(f"tower_{index}/"):
                    request = loss.send(answer)
            except StopIteration as end:
                result: tuple[Any, str] = end.value
                return result
            answer = yield request

    losses = in_lockstep([of_tower(index) for index in range(num_gpus)])
    trained = list(variables.values())
    tower_grads = []
    for index, (loss, _) in enumerate(losses):
        with tf.device(f"/gpu:{index}"):
            tower_grads.append([gradient for gradient, _ in optimizer.compute_gradients(loss)])
    used = [number for number, each in enumerate(tower_grads[0]) if each is not None]
    tower_grads = [[each[number] for number in used] for each in tower_grads]
    with tf.device("/cpu:0"):
        total = averaged(case, losses[0][1], tower_grads)
        pairs = zip(total, [trained[number] for number in used], strict=True)
        train_op = optimizer.apply_gradients(list(pairs))
    declared = {"gradients-equal": {"statistics": "tower"}} if case.has_own_statistics else {}
    return {
        "train_op": train_op,
        "loss": [loss for loss, _ in losses],
        "inputs": inputs[0] if shared else inputs,
        "policy": declared,
    }


def builder(case: Case) -> Callable[..., dict[str, Any]]:
    """A builder of the towers."""

    def build(num_gpus: int = case.gpus) -> dict[str, Any]:
        return build_towers(case, num_gpus)

    return build


def single(case: Case) -> Callable[[], dict[str, Any]]:
    """A builder of the reference."""
    right = replace(case, way=KINDS[case.kind].right[0])

    def single() -> dict[str, Any]:
        return build_towers(right, 1)

    return single


def train_in_session(case: Case, num_gpus: int) -> None:
    """Build the towers, and run a session that feeds them."""
    with tf.Graph().as_default():
        step = build_towers(case, num_gpus)
        inputs = step["inputs"] if isinstance(step["inputs"], list) else [step["inputs"]]
        rows = case.data(num_gpus)
        feeds = {
            tensor: part
            for name in rows
            for tensor, part in zip(
                [each[name] for each in inputs], np.split(rows[name], len(inputs)), strict=True
            )
        }
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(2):
                session.run([step["train_op"], step["loss"]], feeds)


def _layers(case: Case) -> dict[str, Any]:
    """The layers of Keras that a model has."""
    if not case.kind.startswith("keras"):
        return {}
    layer = tf.keras.layers.BatchNormalization(synchronized=case.way == "synchronized")
    layer.build((None, UNITS))
    return {"layer": layer}


def _trained(variables: Mapping[str, Any]) -> list[Any]:
    return [
        each
        for value in variables.values()
        for each in (value.trainable_variables if hasattr(value, "build") else [value])
    ]


def train_under_strategy(case: Case, num_gpus: int) -> None:
    """Replicas of a MirroredStrategy."""
    strategy = tf.distribute.MirroredStrategy([f"/gpu:{i}" for i in range(num_gpus)])
    with strategy.scope():
        variables: dict[str, Any] = {
            name: tf.Variable(value, name=name) for name, value in case.initial().items()
        }
        variables |= _layers(case)
        trained = _trained(variables)
        optimizer = {
            "SGD": lambda: tf.keras.optimizers.SGD(0.1),
            "Momentum": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9),
            "Adam": lambda: tf.keras.optimizers.Adam(0.01),
        }[case.optimizer]()
        optimizer.build(trained)

    def replica_step(x: Any, y: Any, mask: Any) -> Any:
        context = tf.distribute.get_replica_context()
        index = context.replica_id_in_sync_group if num_gpus > 1 else 0
        rows = {"x": x, "y": y, "mask": mask}
        with tf.GradientTape() as tape:
            code = case.loss(case.tower(index, num_gpus, rows, variables.__getitem__))
            answer = None
            while True:
                try:
                    request, value = code.send(answer)
                except StopIteration as end:
                    loss, how = end.value
                    break
                if num_gpus == 1:
                    answer = value
                elif request == "sum":
                    answer = context.all_reduce("SUM", value)
                else:
                    answer = context.all_gather(value, axis=0)
            factors = case.factors(how, num_gpus)
            if case.clips != "tower":
                loss *= tf.constant(factors)[index] if factors[-1] != factors[0] else factors[0]
        gradients = tape.gradient(loss, trained)
        pairs = [
            (gradient, each)
            for gradient, each in zip(gradients, trained, strict=True)
            if gradient is not None
        ]
        if case.clips:
            gradients = [gradient for gradient, _ in pairs]
            if case.clips == "average":
                gradients = context.all_reduce("SUM", gradients)
            gradients = tf.clip_by_global_norm(gradients, LARGEST_NORM)[0]
            # The optimizer adds up the gradients of all replicas.
            gradients = [each / num_gpus for each in gradients]
            pairs = [(new, each) for new, (_, each) in zip(gradients, pairs, strict=True)]
        optimizer.apply_gradients(pairs)
        return loss

    @tf.function
    def train_step(x: Any, y: Any, mask: Any) -> Any:
        losses = strategy.run(replica_step, args=(x, y, mask))
        return strategy.reduce("SUM", losses, axis=None)

    rows = case.data(num_gpus)
    twice = tuple(np.concatenate([rows[name]] * 2) for name in ("x", "y", "mask"))
    dataset = tf.data.Dataset.from_tensor_slices(twice).batch(case.rows(num_gpus))
    for x, y, mask in strategy.experimental_distribute_dataset(dataset):
        train_step(x, y, mask)


def code_of(case: Case) -> str:
    """The source code of the loss of a case."""
    return inspect.getsource(KINDS[case.kind].loss)
