"""Checks of the devices of towers, and of their results compared with one GPU."""

from placement_checks import (
    assert_every_tower_counts,
    assert_rules,
    assert_training_equal,
    assert_variables_on_host,
    assert_variables_shared,
)
from train import batch, build_single, build_towers


def test_variables_are_on_the_host_and_shared(place):
    evidence = place(build_towers, gpus=2)

    assert_variables_on_host(evidence)
    assert_variables_shared(evidence)


def test_no_gpu_computes_for_nothing(place):
    assert_every_tower_counts(place(build_towers, gpus=2))


def test_all_rules_that_can_be_checked(place):
    assert_rules(place(build_towers, gpus=4))


def test_training_is_that_of_one_gpu():
    assert_training_equal(build_towers, build_single, batch, gpus=2)
