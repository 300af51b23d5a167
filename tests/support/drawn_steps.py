"""Training programs of towers that are put together from parts, right ones and wrong ones.

A `Recipe` names one part of each kind, such as how the batch is cut. Whether the program trains as
one GPU does is not known from the recipe: a run with NumPy shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from support.steps import (
    Handle,
    Program,
    Value,
    add_n,
    apply,
    concat,
    largest,
    mean,
    partition,
    relu,
    reshape,
    rows_of,
    split,
    split_by_sizes,
    square,
    stack,
    stop_gradient,
    to_float,
    total,
    unstack,
)

RATE = 0.1
WIDTH, UNITS = 4, 2


@dataclass(frozen=True)
class Tower:
    """What the code of a tower sees.

    Attributes:
        x, y, mask: its rows.
        w, v, b: the variables.
        rows: the number of rows of all towers, as a float.
    """

    x: Value
    y: Value
    mask: Value
    w: Handle
    v: Handle
    b: Handle
    rows: Value


# --- layers: from rows of UNITS columns to rows of UNITS columns ---

LAYERS: Mapping[str, Callable[[Value, Tower], Value]] = {
    "relu": lambda h, _: relu(h),
    "tanh": lambda h, _: apply("Tanh", h),
    "sigmoid": lambda h, _: apply("Sigmoid", h),
    "sin": lambda h, _: apply("Sin", h),
    "squared": lambda h, _: square(h) * 0.3,
    "shifted": lambda h, t: h + t.v.read(),
    "scaled": lambda h, _: h * 0.7 + 0.2,
    "gated": lambda h, t: h * t.b.read(),
    "softmax": lambda h, _: apply("Softmax", h),
    "normalized": lambda h, _: h / apply("Sqrt", total(square(h), 1, keeps=True) + 0.5),
    "residual": lambda h, _: h + apply("Tanh", h),
    "swapped": lambda h, _: apply("Pack", *(apply("Unpack", h, axis=1),) * 2, axis=1),
    "columns": lambda h, _: concat([_columns(h, 1, 2), _columns(h, 0, 1)], 1),
    "flattened": lambda h, _: reshape(reshape(h, [-1, 1, UNITS]), [-1, UNITS]),
    "by_rows": lambda h, _: reshape(h, [rows_of(h), UNITS]),
    "masked": lambda h, t: h * apply("ExpandDims", t.mask, 1),
    "chosen": lambda h, _: apply("SelectV2", apply("Greater", h, 0.1), h, h * 0.5),
    "cut_off": lambda h, _: h * stop_gradient(apply("Sigmoid", h)),
    "with_x": lambda h, t: h + _columns(t.x, 1, 1 + UNITS),
    "centered": lambda h, _: h - mean(h, 0, keeps=True),
    "of_all_rows": lambda h, _: h / (largest(square(h)) + 1.0),
    "cumulated": lambda h, _: apply("Cumsum", h, 0) * 0.1,
    "flipped": lambda h, _: apply("ReverseV2", h, [0]),
    "pairs": lambda h, _: reshape(_tiled_pairs(h), [-1, UNITS]),
    "by_columns": lambda h, _: apply("Transpose", apply("Transpose", h, [1, 0]), [1, 0]),
    "one_hot": lambda h, t: (
        h * apply("OneHot", apply("Cast", t.mask, DstT="int32"), UNITS, 1.5, 0.5)
    ),
    "row_numbers": lambda h, _: (
        h * apply("ExpandDims", 1.0 + 0.1 * to_float(apply("Range", 0, rows_of(h), 1)), 1)
    ),
    "ones": lambda h, t: h + apply("OnesLike", h) * t.b.read(),
    "filled": lambda h, t: h + apply("Fill", stack([rows_of(h), UNITS]), 0.3) * t.b.read(),
}


def _columns(value: Value, begin: int, end: int) -> Value:
    return apply("Slice", value, [0, begin], [-1, end - begin])


def _tiled_pairs(h: Value) -> Value:
    """The maximum of two neighboring rows, for both of them."""
    pairs = reshape(h, [-1, 2 * UNITS])
    both = apply("Maximum", _columns(pairs, 0, UNITS), _columns(pairs, UNITS, 2 * UNITS))
    return concat([both, both], 1)


# --- losses of rows, and the loss of a tower ---


def _chosen(rows: Value, mask: Value) -> Value:
    """The rows with a positive mask."""
    found = apply("Where", apply("Greater", mask, 0.0))
    ends = [0, 0], [0, 1], [1, 1]
    masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2}  # [:, 0]
    return apply("GatherV2", rows, apply("StridedSlice", found, *ends, **masks), 0)


def _ones_like(rows: Value) -> Value:
    """Ones, as the losses of TensorFlow 1 count rows."""
    return apply("Fill", apply("Shape", rows), 1.0)


ROW_LOSSES: Mapping[str, Callable[[Value, Tower], Value]] = {
    "squared": lambda h, t: square(total(h, 1) - t.y),
    "difference": lambda h, t: apply("SquaredDifference", total(h * t.v.read(), 1), t.y),
    "logistic": lambda h, t: apply("Softplus", -(total(h, 1) * t.y)),
    "absolute": lambda h, t: apply("Abs", largest(h, 1) - t.y),
    "matrix": lambda h, t: square(reshape(h @ reshape(t.v.read(), [UNITS, 1]), [-1]) - t.y),
    "cross_entropy": lambda h, t: apply(
        "SoftmaxCrossEntropyWithLogits", h, stack([t.mask, 1.0 - t.mask], 1)
    ),
    "with_features": lambda h, t: square(total(h, 1) - t.y) + 0.1 * total(square(t.x), 1),
    "weighted_columns": lambda h, t: total(h * np.array([0.3, 0.7]), 1) * t.y,
}

LOSSES: Mapping[str, Callable[[Value, Tower], Value]] = {
    "mean": lambda rows, _: mean(rows),
    "sum": lambda rows, _: total(rows),
    "sum_by_rows": lambda rows, _: total(rows) / to_float(rows_of(rows)),
    "sum_by_size": lambda rows, _: total(rows) / to_float(apply("Size", rows)),
    "sum_by_ones": lambda rows, _: apply("DivNoNan", total(rows), total(_ones_like(rows))),
    "sum_by_ones_of_columns": lambda rows, _: (
        total(rows) / total(_ones_like(apply("ExpandDims", rows, 1)) * 0.5) * 0.5
    ),
    "sum_by_all_rows": lambda rows, t: total(rows) / t.rows,
    "masked_mean": lambda rows, t: total(rows * t.mask) / (total(t.mask) + 1.0),
    "masked_by_rows": lambda rows, t: total(rows * t.mask) / to_float(rows_of(rows)),
    "chosen_rows": lambda rows, t: total(_chosen(rows, t.mask)) / to_float(rows_of(rows)),
    "chosen_mean": lambda rows, t: mean(_chosen(rows, t.mask)),
    "chosen_by_others": lambda rows, t: (
        total(_chosen(rows, apply("ReverseV2", t.mask, [0]))) / to_float(rows_of(rows))
    ),
    "weighted": lambda rows, t: mean(rows * t.mask) * 0.5 + 0.25 * mean(rows),
    "root": lambda rows, _: apply("Sqrt", mean(rows * rows) + 0.1),
    "largest": lambda rows, _: largest(rows),
    "product": lambda rows, t: mean(rows) * mean(t.mask),
    "log_mean": lambda rows, _: apply("Log", mean(square(rows)) + 1.0),
    "scaled": lambda rows, t: mean(rows) * t.b.read() + mean(rows * 0.5),
    "dot": lambda rows, t: reshape(
        apply("MatMul", reshape(rows, [1, -1]), reshape(t.mask, [-1, 1])), []
    ),
    "mean_of_means": lambda rows, t: mean(mean(stack([rows, rows * t.mask], 1), 1)),
    "with_constant": lambda rows, _: mean(rows) + 3.0,
    "first_row": lambda rows, _: rows[0] + 0.0 * total(rows),
    "but_last": lambda rows, _: total(rows[:-1]) / 4.0,
    "squared_mean": lambda rows, _: square(mean(rows)),
    "variance": lambda rows, _: mean(square(rows - mean(rows))),
    "moments": lambda rows, _: mean(square(rows)) - square(mean(rows)),
}


# --- how the batch is cut ---


def _slices(value: Value, count: int) -> list[Value]:
    size = rows_of(value) // count
    return [value[size * i : size * (i + 1)] for i in range(count)]


def _unequal(value: Value, count: int) -> list[Value]:
    """The first tower has half of the rows, the others share the other half."""
    half = rows_of(value) // 2
    share = half // (count - 1)
    return [
        value[:half],
        *(value[half + share * i : half + share * (i + 1)] for i in range(count - 1)),
    ]


def _sized(value: Value, count: int) -> list[Value]:
    size = rows_of(value) // count
    return split_by_sizes(value, stack([size] * count), count)


def _rest_by_size(value: Value, count: int) -> list[Value]:
    size = rows_of(value) // count
    return split_by_sizes(value, stack([*[size] * (count - 1), -1]), count)


def _stacked(value: Value, count: int) -> list[Value]:
    parts = reshape(value, [count, -1, *value.shape[1:]])
    return [*unstack(parts, count)[:-1], parts[count - 1]]


def _interleaved(value: Value, count: int) -> list[Value]:
    return unstack(reshape(value, [-1, count, *value.shape[1:]]), count, axis=1)


def _by_numbers(value: Value, count: int) -> list[Value]:
    size = rows_of(value) // count
    numbers = [apply("Range", size * i, size * (i + 1), 1) for i in range(count)]
    return [apply("GatherV2", value, each, 0) for each in numbers]


def _by_every_number(value: Value, count: int) -> list[Value]:
    numbers = [apply("Range", i, rows_of(value), count) for i in range(count)]
    return [apply("GatherV2", value, each, 0) for each in numbers]


def _dealt(value: Value, count: int) -> list[Value]:
    numbers = apply("Range", 0, rows_of(value), 1)
    return partition(value, apply("FloorMod", numbers, count), count)


def _rounded_up(value: Value, count: int) -> list[Value]:
    rows = rows_of(value)
    size = apply("Cast", apply("Ceil", to_float(rows) / float(count)), DstT="int32")
    ends = [apply("Minimum", size * i, rows) for i in range(count + 1)]
    return [value[ends[i] : ends[i + 1]] for i in range(count)]


CUTS: Mapping[str, Callable[[Value, int], list[Value]]] = {
    "split": split,
    "slices": _slices,
    "strided": lambda value, count: [value[i::count] for i in range(count)],
    "unequal": _unequal,
    "split_by_sizes": _sized,
    "last_slice_open": lambda value, count: [
        *_slices(value, count)[:-1],
        value[(rows_of(value) // count) * (count - 1) :],
    ],
    "rest_by_size": _rest_by_size,
    "stacked": _stacked,
    "interleaved": _interleaved,
    "by_numbers": _by_numbers,
    "by_every_number": _by_every_number,
    "dealt": _dealt,
    "rounded_up": _rounded_up,
    "same_slice": lambda value, count: [split(value, count)[0]] * count,
    "whole": lambda value, count: [value] * count,
    "shifted": lambda value, count: [*split(value, count)[1:], split(value, count)[0]],
}
FEEDS = "feeds"


# --- how the towers are combined ---


@dataclass(frozen=True)
class Towers:
    """The towers of a program: their losses, and the rows of each and of all."""

    program: Program
    losses: Sequence[Value]
    rows: Sequence[Value]
    all_rows: Value

    def gradients(self, variable: Handle) -> list[Value]:
        """The gradient of each tower; zeros for a loss that does not depend on the variable."""
        return [self._gradient(loss, variable) for loss in self.losses]

    def _gradient(self, loss: Value, variable: Handle) -> Value:
        if self.program.depends(loss, variable):
            return self.program.gradient(loss, variable)
        return apply("ZerosLike", variable.read())


def _by_rows(towers: Towers, variable: Handle) -> Value:
    pairs = zip(towers.gradients(variable), towers.rows, strict=True)
    return add_n([gradient * (rows / towers.all_rows) for gradient, rows in pairs])


def _running_mean(towers: Towers, variable: Handle) -> Value:
    first, *rest = towers.gradients(variable)
    for number, gradient in enumerate(rest, 2):
        first = first + (gradient - first) / float(number)
    return first


def _clipped(gradient: Value) -> Value:
    norm = apply("Sqrt", total(square(gradient)) + 1e-3)
    return gradient * apply("Minimum", 1.0, 1.0 / norm)


COMBINATIONS: Mapping[str, Callable[[Towers, Handle], Value]] = {
    "add_n": lambda t, v: add_n(t.gradients(v)) / float(len(t.losses)),
    "times_inverse": lambda t, v: add_n(t.gradients(v)) * (1 / len(t.losses)),
    "stacked": lambda t, v: mean(stack(t.gradients(v)), 0),
    "concatenated": lambda t, v: mean(
        concat([apply("ExpandDims", gradient, 0) for gradient in t.gradients(v)]), 0
    ),
    "running_mean": _running_mean,
    "by_rows": _by_rows,
    "of_all_losses": lambda t, v: t.program.gradient(add_n(t.losses) / float(len(t.losses)), v),
    "of_stacked_losses": lambda t, v: t.program.gradient(mean(stack(t.losses)), v),
    "of_losses_by_rows": lambda t, v: t.program.gradient(
        add_n([loss * rows / t.all_rows for loss, rows in zip(t.losses, t.rows, strict=True)]), v
    ),
    "weighted_calls": lambda t, v: add_n(
        [
            t.program.gradient(loss, v, rows / t.all_rows)
            for loss, rows in zip(t.losses, t.rows, strict=True)
            if t.program.depends(loss, v)
        ]
    ),
    "clipped_after": lambda t, v: _clipped(add_n(t.gradients(v)) / float(len(t.losses))),
    "sum": lambda t, v: add_n(t.gradients(v)),
    "last": lambda t, v: t.gradients(v)[-1],
    "but_last": lambda t, v: add_n(t.gradients(v)[:-1]) / float(len(t.losses) - 1 or 1),
    "first_twice": lambda t, v: (
        add_n([t.gradients(v)[0], *t.gradients(v)[:-1]]) / float(len(t.losses))
    ),
    "divided_twice": lambda t, v: add_n(t.gradients(v)) / float(len(t.losses) ** 2),
    "clipped_before": lambda t, v: (
        add_n([_clipped(g) for g in t.gradients(v)]) / float(len(t.losses))
    ),
    "by_other_rows": lambda t, v: add_n(
        [
            gradient * (rows / t.all_rows)
            for gradient, rows in zip(t.gradients(v), [*t.rows[1:], t.rows[0]], strict=True)
        ]
    ),
    "running_sum": lambda t, v: sum(t.gradients(v)[1:], t.gradients(v)[0]) / float(len(t.losses)),
    "exponential": lambda t, v: sum(
        (g * 0.5 for g in t.gradients(v)[1:]), t.gradients(v)[0] * 0.5
    ),
    "largest": lambda t, v: largest(stack(t.gradients(v)), 0),
}

PENALTIES = ("none", "in_each", "in_each_by_count", "in_first", "of_each_row")
OPTIMIZERS = ("descent", "assign_sub", "momentum", "adam", "decayed", "in_turn")
MISTAKES = (
    "none",
    "none",
    "none",
    "labels_of_next",
    "other_layer_in_last",
    "other_number_in_last",
    "stale_copy_in_last",
    "other_labels_in_last",
)


@dataclass(frozen=True)
class Recipe:
    """The parts of a program."""

    count: int
    cut: str
    layers: tuple[str, ...]
    row_loss: str
    loss: str
    penalty: str
    combination: str
    optimizer: str
    mistake: str


def recipes(
    *,
    cuts: Iterable[str] = (FEEDS, *CUTS),
    layers: Iterable[str] = tuple(LAYERS),
    losses: Iterable[str] = tuple(LOSSES),
    combinations: Iterable[str] = tuple(COMBINATIONS),
    mistakes: Iterable[str] = MISTAKES,
    penalties: Iterable[str] = PENALTIES,
) -> st.SearchStrategy[Recipe]:
    """Recipes of the named parts."""
    return st.builds(
        Recipe,
        count=st.integers(2, 4),
        cut=st.sampled_from(tuple(cuts)),
        layers=st.lists(st.sampled_from(tuple(layers)), max_size=2).map(tuple),
        row_loss=st.sampled_from(tuple(ROW_LOSSES)),
        loss=st.sampled_from(tuple(losses)),
        penalty=st.sampled_from(tuple(penalties)),
        combination=st.sampled_from(tuple(combinations)),
        optimizer=st.sampled_from(OPTIMIZERS),
        mistake=st.sampled_from(tuple(mistakes)),
    )


# Parts of programs that train as one GPU does, whatever they are combined with.
_WRONG_CUTS = ("same_slice", "whole")
RIGHT_CUTS = (FEEDS, *(each for each in CUTS if each not in _WRONG_CUTS))
_NOT_BY_ROW = ["centered", "of_all_rows", "cumulated", "flipped", "pairs", "row_numbers"]
# Constant rows that are added to other rows are not followed yet.
_NOT_FOLLOWED = ["ones", "filled"]
ROW_LAYERS = tuple(each for each in LAYERS if each not in (*_NOT_BY_ROW, *_NOT_FOLLOWED))
MEANS = [
    "mean",
    "sum_by_rows",
    "sum_by_size",
    "sum_by_ones",
    "sum_by_ones_of_columns",
    "masked_by_rows",
    "chosen_rows",
    "weighted",
    "scaled",
    "with_constant",
]
FOR_ANY_ROWS = ("by_rows", "of_losses_by_rows", "weighted_calls")  # of each tower
RIGHT_COMBINATIONS = (
    *FOR_ANY_ROWS,
    *("add_n", "times_inverse", "stacked", "concatenated", "running_mean"),
    *("of_all_losses", "of_stacked_losses", "clipped_after"),
)


def right_recipes() -> st.SearchStrategy[Recipe]:
    """Recipes of programs that train as one GPU does, if all towers have equally many rows."""
    return recipes(
        cuts=RIGHT_CUTS,
        layers=ROW_LAYERS,
        losses=MEANS,
        combinations=RIGHT_COMBINATIONS,
        mistakes=["none"],
        penalties=["none", "in_each", "of_each_row"],
    )


def build(recipe: Recipe, count: int) -> Program:
    """The program of a recipe for a number of GPUs; for one GPU, without a mistake."""
    program = Program()
    shapes = {"x": (None, WIDTH), "y": (None,), "mask": (None,)}
    if recipe.cut == FEEDS and count > 1:
        parts = [
            [program.placeholder(key, shape, tower) for key, shape in shapes.items()]
            for tower in range(count)
        ]
        all_rows = add_n([to_float(rows_of(part[0])) for part in parts])
    else:
        wholes = [program.placeholder(key, shape) for key, shape in shapes.items()]
        all_rows = to_float(rows_of(wholes[0]))
        cut = CUTS[recipe.cut] if count > 1 else lambda value, _: [value]
        parts = [list(part) for part in zip(*[cut(whole, count) for whole in wholes], strict=True)]
    if recipe.mistake == "labels_of_next" and count > 1:
        parts = [
            [x, other[1], mask]
            for (x, _, mask), other in zip(parts, [*parts[1:], parts[0]], strict=True)
        ]
    w = program.variable("w", (WIDTH, UNITS))
    v = program.variable("v", (UNITS,))
    b = program.variable("b")
    stale = program.variable("stale", (UNITS,), is_trained=False)
    slots = {
        each.name: [
            program.variable(
                f"{each.name}/slot_{i}", program.variables[each.name], is_trained=False
            )
            for i in range(2)
        ]
        for each in (w, v, b)
    }
    powers = [program.variable(f"power_{i}", (), is_trained=False) for i in range(2)]
    losses, rows = [], []
    for number, (x, y, mask) in enumerate(parts):
        with program.tower(number):
            is_wrong = count > 1 and number == count - 1
            own_v = stale if is_wrong and recipe.mistake == "stale_copy_in_last" else v
            if is_wrong and recipe.mistake == "other_labels_in_last":
                y = mask
            tower = Tower(x, y, mask, w, own_v, b, all_rows)
            losses.append(_loss(recipe, tower, is_wrong, number, count))
            rows.append(to_float(rows_of(x)))
    towers = Towers(program, losses, rows, all_rows)
    updates: list[Value] = []
    combine = COMBINATIONS[recipe.combination if count > 1 else "running_sum"]
    if recipe.combination == "clipped_after" or recipe.combination == "clipped_before":
        combine = combine if count > 1 else COMBINATIONS["clipped_after"]
    for variable in (w, v, b):
        if not any(program.depends(loss, variable) for loss in losses):
            continue
        gradient = combine(towers, variable)
        updates += _updates(recipe, variable, gradient, slots[variable.name], powers, updates)
    program.train(*updates)
    return program


def _loss(recipe: Recipe, tower: Tower, is_wrong: bool, number: int, count: int) -> Value:
    h = tower.x @ tower.w.read()
    for name in recipe.layers:
        h = LAYERS[name](h, tower)
    if is_wrong and recipe.mistake == "other_layer_in_last":
        h = apply("Tanh", h)
    if is_wrong and recipe.mistake == "other_number_in_last":
        h = h * 1.001
    rows = ROW_LOSSES[recipe.row_loss](h, tower)
    loss = LOSSES[recipe.loss](rows, tower)
    penalty = apply("L2Loss", tower.w.read()) * 0.05
    if recipe.penalty == "in_each":
        return loss + penalty
    if recipe.penalty == "in_each_by_count":
        return loss + penalty / float(count)
    if recipe.penalty == "in_first" and number == 0:
        return loss + penalty
    if recipe.penalty == "of_each_row":
        return loss + mean(square(tower.x @ tower.w.read())) * 0.1
    return loss


def _updates(
    recipe: Recipe,
    variable: Handle,
    gradient: Value,
    slots: Sequence[Handle],
    powers: Sequence[Handle],
    before: Sequence[Value],
) -> list[Value]:
    kind, program = recipe.optimizer, variable.program
    if kind == "assign_sub":
        return [variable.assign_sub(gradient * RATE)]
    if kind == "momentum":
        return [variable.apply_momentum(slots[0], RATE, gradient)]
    if kind == "adam":
        return [variable.apply_adam((slots[0], slots[1]), (powers[0], powers[1]), RATE, gradient)]
    if kind == "decayed":
        with program.after(variable.assign_sub(gradient * RATE)):
            return [variable.assign(variable.read() * 0.99)]
    if kind == "in_turn":
        with program.after(*before, gradient):
            return [variable.descend(RATE, gradient)]
    return [variable.descend(RATE, gradient)]
