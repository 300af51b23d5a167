"""Random numbers that no row of the batch has: noise on gradients, and masks of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.steps import (
    Program,
    Value,
    add_n,
    apply,
    compare,
    mean,
    rows_of,
    split,
    square,
    stack,
    to_float,
    total,
)

from placement_checks.step.comparison import State

WIDTH = 3


def _noise(program: Program, seed: int) -> Value:
    seeds: dict[str, Any] = {"seed": 1, "seed2": seed} if seed else {}
    return program.add("RandomStandardNormal", [WIDTH], **seeds)


def _noisy_gradients(seeds: Sequence[int]) -> Program:
    """Noise is added to the gradient of each tower. The seed 0 is none."""
    program = Program()
    x = program.placeholder("x", (None, WIDTH))
    w = program.variable("w", (WIDTH,))
    towers = split(x, len(seeds)) if len(seeds) > 1 else [x]
    gradients = [
        program.gradient(mean(square(total(rows * w.read(), 1))), w) + _noise(program, seed)
        for rows, seed in zip(towers, seeds, strict=True)
    ]
    average = add_n(gradients) / float(len(seeds)) if len(seeds) > 1 else gradients[0]
    program.train(w.descend(0.1, average))
    return program


def _masked_weights(seeds: Sequence[int]) -> Program:
    """The weights are multiplied by random numbers in each tower."""
    program = Program()
    x = program.placeholder("x", (None, WIDTH))
    w = program.variable("w", (WIDTH,))
    towers = split(x, len(seeds)) if len(seeds) > 1 else [x]
    gradients = [
        program.gradient(mean(square(total(rows * (w.read() * _noise(program, seed)), 1))), w)
        for rows, seed in zip(towers, seeds, strict=True)
    ]
    average = add_n(gradients) / float(len(seeds)) if len(seeds) > 1 else gradients[0]
    program.train(w.descend(0.1, average))
    return program


def _state(towers: Program, one_gpu: Program) -> State:
    (answer,) = compare(towers, one_gpu).variables.values()
    return answer.state


@pytest.mark.parametrize("seeds", [(0, 0), (1, 2)])
def test_the_mean_of_noise_is_no_noise_of_one_gpu(seeds: Sequence[int]) -> None:
    assert _state(_noisy_gradients(seeds), _noisy_gradients(seeds[:1])) is State.UNKNOWN


def test_noise_with_one_seed_is_the_same_noise() -> None:
    assert _state(_noisy_gradients((1, 1)), _noisy_gradients((1,))) is State.PROVED


def test_noise_on_the_average_is_noise_of_one_gpu() -> None:
    assert _state(_noisy_gradients((0,)), _noisy_gradients((0,))) is State.PROVED


def test_towers_may_share_a_mask_of_weights() -> None:
    assert _state(_masked_weights((1, 1)), _masked_weights((1,))) is State.PROVED


@pytest.mark.parametrize("seeds", [(1, 2), (0, 0)])
def test_towers_with_masks_of_their_own_train_different_networks(seeds: Sequence[int]) -> None:
    assert _state(_masked_weights(seeds), _masked_weights(seeds[:1])) is not State.PROVED


def test_a_mask_of_weights_may_have_as_many_rows_as_the_batch_of_a_tower() -> None:
    def masked(towers: int) -> Program:
        program = Program()
        feeds = [None] if towers == 1 else range(towers)
        xs = [program.placeholder("x", (WIDTH * (2 // towers), WIDTH), tower) for tower in feeds]
        w = program.variable("w", (WIDTH,))
        losses = [mean(square(total(x * (w.read() * _noise(program, 1)), 1))) for x in xs]
        gradients = [program.gradient(loss, w) for loss in losses]
        average = add_n(gradients) / 2.0 if towers > 1 else gradients[0]
        program.train(w.descend(0.1, average))
        return program

    assert _state(masked(2), masked(1)) is State.PROVED


@pytest.mark.parametrize("shape", [[1], [WIDTH], [1, WIDTH]])
def test_all_towers_may_use_one_draw_that_is_not_for_rows(shape: Sequence[int]) -> None:
    """As if a function draws a scale or a mask of features, and gives it to all replicas."""

    def scaled(towers: int, draws: int, rows: int | None = None) -> Program:
        program = Program()
        x, w = program.placeholder("x", (rows, WIDTH)), program.variable("w", (WIDTH,))
        numbers = [program.add("RandomStandardNormal", shape) for _ in range(draws)] * towers
        parts = split(x, towers) if towers > 1 else [x]
        gradients = [
            program.gradient(mean(square(total(part * each * w.read(), 1))), w)
            for part, each in zip(parts, numbers, strict=False)
        ]
        average = add_n(gradients) / float(towers) if towers > 1 else gradients[0]
        program.train(w.descend(0.1, average))
        return program

    assert _state(scaled(2, 1), scaled(1, 1)) is State.PROVED
    assert _state(scaled(2, 2), scaled(1, 1)) is State.UNKNOWN
    # A tower may have as many rows, but then the shape of a variable shows what they are for.
    may_be_for_rows = shape == [1, WIDTH]
    state = _state(scaled(2, 1, 2 * WIDTH), scaled(1, 1, 2 * WIDTH))
    assert (state is State.PROVED) is not may_be_for_rows


def _with_dropout(towers: int, mask: str = "own", seeds: Sequence[int] = (0, 0)) -> Program:
    """The rows of each tower are multiplied by random numbers."""
    program = Program()
    x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
    parts = split(x, towers) if towers > 1 else [x]

    def numbers(rows: Value, seed: int = 0) -> Value:
        given: dict[str, Any] = {"seed": 1, "seed2": seed} if seed else {}
        return program.add("RandomStandardNormal", apply("Shape", rows), **given)

    masks = [numbers(rows, seed) for rows, seed in zip(parts, seeds, strict=False)]
    if mask == "shared":
        masks = masks[:1] * towers
    elif mask == "columns":
        masks = [program.add("RandomStandardNormal", [1, WIDTH]) for _ in parts]
    elif mask == "split":
        masks = split(numbers(x), towers) if towers > 1 else [numbers(x)]
    gradients = [
        program.gradient(mean(square(total(rows * each * w.read(), 1))), w)
        for rows, each in zip(parts, masks, strict=True)
    ]
    average = add_n(gradients) / float(towers) if towers > 1 else gradients[0]
    program.train(w.descend(0.1, average))
    return program


DROPOUT: dict[str, tuple[State, Program, Program]] = {
    "own numbers": (State.PROVED, _with_dropout(2), _with_dropout(1)),
    "own seeds": (
        State.PROVED,
        _with_dropout(2, seeds=(1, 2)),
        _with_dropout(1, seeds=(1,)),
    ),
    "equal seeds": (
        State.DIFFERS,
        _with_dropout(2, seeds=(1, 1)),
        _with_dropout(1, seeds=(1,)),
    ),
    "shared numbers": (State.UNKNOWN, _with_dropout(2, "shared"), _with_dropout(1)),
    "parts of numbers for all rows": (
        State.PROVED,
        _with_dropout(2, "split"),
        _with_dropout(1, "split"),
    ),
    "numbers for columns": (
        State.UNKNOWN,
        _with_dropout(2, "columns"),
        _with_dropout(1, "columns"),
    ),
    "numbers for columns on one GPU": (
        State.UNKNOWN,
        _with_dropout(2),
        _with_dropout(1, "columns"),
    ),
}


@pytest.mark.parametrize("name", DROPOUT)
def test_numbers_for_rows(name: str) -> None:
    """Each row has random numbers of its own."""
    expected, towers, one = DROPOUT[name]

    assert _state(towers, one) is expected


def _with_one_draw(towers: int, shape: Sequence[int], rows: int | None = None) -> Program:
    """All towers multiply their rows by the same random numbers."""
    program = Program()
    w, losses = program.variable("w", (WIDTH,)), []
    numbers = program.add("RandomStandardNormal", shape)
    for tower in range(towers) if towers > 1 else [None]:
        x = program.placeholder("x", (rows, WIDTH), tower)
        losses.append(mean(square(total(x * numbers * w.read(), 1))))
    average = add_n([program.gradient(loss, w) for loss in losses]) / float(towers)
    program.train(w.descend(0.1, average))
    return program


@pytest.mark.parametrize("shape", [(), (WIDTH,), (1, WIDTH)])
def test_towers_may_share_numbers_that_no_row_has(shape: Sequence[int]) -> None:
    """A gate of a layer, or a mask of features, is the same for all rows on one GPU, too."""
    assert _state(_with_one_draw(2, shape), _with_one_draw(1, shape)) is State.PROVED


def test_towers_may_not_share_numbers_of_rows() -> None:
    towers, one = (_with_one_draw(count, (5, WIDTH), 5) for count in (2, 1))

    assert _state(towers, one) is State.DIFFERS


def test_loops_may_draw_for_rows() -> None:
    """A number that the body of a loop draws is another one in each iteration."""

    def build(towers: int) -> Program:
        program = Program()
        w, gradients = program.variable("w", (WIDTH,)), []
        for tower in range(towers) if towers > 1 else [None]:
            x = program.placeholder("x", (None, WIDTH), tower)
            _, scaled = program.loop(
                lambda i, _: apply("Less", i, 3.0),
                lambda i, h: [
                    i + 1.0,
                    h * h.program.add("RandomStandardNormal", [], seed=1, seed2=2),
                ],
                [program.tensor(0.0), x * w.read()],
            )
            gradients.append(program.gradient(mean(square(total(scaled, 1))), w))
        average = add_n(gradients) / float(towers) if towers > 1 else gradients[0]
        program.train(w.descend(0.1, average))
        return program

    assert _state(build(2), build(1)) is State.DIFFERS


@pytest.mark.parametrize("are_for_rows", [True, False])
def test_numbers_of_towers_that_share_a_loss(are_for_rows: bool) -> None:
    """Towers that draw their own numbers do not differ from each other, nor for rows."""

    def build(towers: int) -> Program:
        program = Program()
        w, losses = program.variable("w", (WIDTH,)), []
        for tower in range(towers) if towers > 1 else [None]:
            x = program.placeholder("x", (None, WIDTH), tower)
            shape: Any = apply("Shape", x) if are_for_rows else []
            kept = apply("Less", program.add("RandomStandardNormal", shape), 0.8)
            losses.append(mean(square(total(apply("SelectV2", kept, x * w.read(), x), 1))))
        loss = add_n(losses) / float(towers)
        program.train(w.descend(0.1, program.gradient(loss, w)))
        return program

    assert _state(build(2), build(1)) is (State.PROVED if are_for_rows else State.UNKNOWN)


@pytest.mark.parametrize("columns", ["as many as rows", "three"])
def test_numbers_for_pairs_of_rows(columns: str) -> None:
    """A row has more random numbers in a greater batch."""

    def build(towers: int) -> Program:
        program = Program()
        w, gradients = program.variable("w", (WIDTH,)), []
        for tower in range(towers) if towers > 1 else [None]:
            x = program.placeholder("x", (None, WIDTH), tower)
            rows = rows_of(x)
            shape = stack([rows, rows if columns == "as many as rows" else 3])
            numbers = program.add("RandomStandardNormal", shape)
            loss = total(square(total(x * w.read(), 1)) * total(numbers, 1))
            gradients.append(program.gradient(loss, w))
        program.train(w.descend(0.1, add_n(gradients)))
        return program

    assert (_state(build(2), build(1)) is State.PROVED) is (columns == "three")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_classes(seed: int) -> None:
    """Classes that are drawn with one seed are the same for all towers, whatever the labels."""

    def build(towers: int, seed: int) -> Program:
        program = Program()
        w, gradients = program.variable("w", (WIDTH,)), []
        for tower in range(towers) if towers > 1 else [None]:
            x = program.placeholder("x", (None, WIDTH), tower)
            labels = apply("Cast", x, DstT="int64")
            drawn = program.add(SAMPLER, labels, num_sampled=3, range_max=8, seed2=seed)
            gradients.append(
                program.gradient(mean(square(total(x * w.read(), 1) + to_float(drawn)[0])), w)
            )
        program.train(w.descend(0.1, add_n(gradients) / float(towers)))
        return program

    state = _state(build(2, seed), build(1, 1))

    assert state is (State.PROVED if seed == 1 else State.UNKNOWN)


# The op type, the inputs, the attributes and the output of random numbers.
Drawn = tuple[str, Sequence[Any], dict[str, Any], int]
SAMPLER = "UniformCandidateSampler"
DRAWN: dict[str, tuple[Drawn, Drawn]] = {
    "type": (
        ("RandomStandardNormal", ([WIDTH],), {"seed": 1, "seed2": 2}, 0),
        ("TruncatedNormal", ([WIDTH],), {"seed": 1, "seed2": 2}, 0),
    ),
    "type without seeds": (
        ("RandomStandardNormal", ([WIDTH],), {}, 0),
        ("TruncatedNormal", ([WIDTH],), {}, 0),
    ),
    "number of samples": (
        ("StatelessMultinomial", ([[1.0, 2.0]], 5, [1, 2]), {}, 0),
        ("StatelessMultinomial", ([[1.0, 2.0]], 6, [1, 2]), {}, 0),
    ),
    "parameter": (
        ("StatelessRandomGammaV2", ([WIDTH], [1, 2], 1.0), {}, 0),
        ("StatelessRandomGammaV2", ([WIDTH], [1, 2], 2.0), {}, 0),
    ),
    "attribute": (
        (SAMPLER, ([[1]],), {"num_sampled": 3, "range_max": 8}, 0),
        (SAMPLER, ([[1]],), {"num_sampled": 3, "range_max": 9}, 0),
    ),
    "output": (
        (SAMPLER, ([[1]],), {"num_sampled": 3, "range_max": 8}, 1),
        (SAMPLER, ([[1]],), {"num_sampled": 3, "range_max": 8}, 2),
    ),
}


def _with_drawn(drawn: Drawn) -> Program:
    program = Program()
    x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
    kind, inputs, attributes, output = drawn
    made = program.add(kind, *inputs, **attributes)
    numbers = Value(program, f"{made.op}:{output}" if output else made.op)
    gradient = program.gradient(mean(square(total(x * w.read(), 1))), w)
    program.train(w.descend(0.1, gradient + total(to_float(numbers))))
    return program


@pytest.mark.parametrize("name", DRAWN)
def test_other_random_numbers(name: str) -> None:
    one, other = map(_with_drawn, DRAWN[name])

    assert _state(one, one) is State.PROVED
    assert _state(one, other) is not State.PROVED


def test_a_permutation_that_towers_divide() -> None:
    """No tower has the random numbers of another one."""

    def build(towers: int) -> Program:
        program = Program()
        x, y = program.placeholder("x", (8, WIDTH)), program.placeholder("y", (8,))
        w = program.variable("w", (WIDTH,))
        order = program.add("RandomShuffle", np.arange(8), seed=1, seed2=2)
        rows = apply("GatherV2", x, order, 0)
        parts = [split(each, towers) if towers > 1 else [each] for each in (rows, y)]
        losses = [
            mean(square(total(part * w.read(), 1) - label))
            for part, label in zip(*parts, strict=True)
        ]
        program.train(
            w.descend(0.1, add_n([program.gradient(each, w) for each in losses]) / towers)
        )
        return program

    assert _state(build(2), build(1)) is not State.DIFFERS
