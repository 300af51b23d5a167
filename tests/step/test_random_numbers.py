"""Random numbers that no row of the batch has: noise on gradients, and masks of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.steps import Program, Value, add_n, compare, mean, split, square, total

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
