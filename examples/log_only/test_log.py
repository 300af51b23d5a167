"""Checks of the placement log of a training run. They need no TensorFlow."""

from pathlib import Path

import pytest
from placement_checks import Machine, assert_no_idle_device, assert_variables_on_host, read_logs

LOG = Path(__file__).with_name("logs") / "train.log"
GPUS = 2  # the machine that printed the log


@pytest.fixture(scope="module")
def log():
    return read_logs([LOG])


@pytest.fixture(scope="module")
def placement(log):
    return log.placement(Machine.local(GPUS))


def test_all_of_it_was_read(log):
    assert log.records
    assert not log.unread


def test_variables_are_on_the_host(placement):
    assert_variables_on_host(placement)


def test_no_gpu_is_idle(placement):
    assert_no_idle_device(placement)


@pytest.mark.parametrize("tower", range(GPUS))
def test_each_tower_is_on_its_gpu(placement, tower):
    products = [
        op.assigned
        for op in placement.ops.values()
        if op.type == "MatMul" and op.name.startswith(f"tower_{tower}/")
    ]

    assert products
    assert {device.index for device in products} == {tower}
