"""Checks of the replicas of a strategy, without GPUs."""

import pytest
from placement_checks import (
    assert_created_in_scope,
    assert_every_tower_counts,
    assert_replicas_in_sync,
    assert_rules,
    place,
    with_numbers,
)
from train import train, train_on_one_gpu


@pytest.fixture(scope="module")
def evidence():
    """Evidence on two replicas, compared with one GPU. It is built once for all tests."""
    return with_numbers(place(train, gpus=2), train_on_one_gpu)


def test_what_is_trained_is_made_under_the_scope(evidence):
    assert_created_in_scope(evidence)


def test_every_replica_counts_and_all_stay_equal(evidence):
    assert_every_tower_counts(evidence)
    assert_replicas_in_sync(evidence)


def test_training_is_that_of_one_gpu(evidence):
    assert_rules(evidence, "gradients-equal", "weights-equal")
