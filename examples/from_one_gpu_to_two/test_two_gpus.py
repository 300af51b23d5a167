"""The port to several GPUs trains like one GPU."""

import pytest
from placement_checks import assert_equal_to_one_gpu, assert_rules
from two_gpus import build


@pytest.mark.parametrize("gpus", [2, 4])
def test_the_port_trains_like_one_gpu(place, gpus):
    evidence = place(build, gpus=gpus)

    assert_rules(evidence)
    assert_equal_to_one_gpu(evidence)
