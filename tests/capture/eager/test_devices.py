"""CPU:i + 1 simulates GPU:i, so a program must not name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support.eager_programs import devices, rows, updates, watched, weights

from placement_checks.core.errors import InputError


def step_under(device: Any) -> None:
    w = weights()

    @tf.function
    def step(x: Any) -> Any:
        with tf.device(device):
            return updates(w, x)

    step(rows())


def variable_under(device: Any) -> None:
    with tf.device(device):
        weights()


def swallowed() -> None:
    try:
        variable_under("/cpu:1")
    except Exception:
        step_under("/gpu:0")


def strategy(kind: Callable[..., Any], *devices: Any) -> Callable[[], None]:
    def make() -> None:
        kind(*devices)

    return make


REFUSED = {
    "eager": lambda: variable_under("/cpu:1"),
    "short": lambda: variable_under("CPU:2"),
    "traced": lambda: step_under("/device:CPU:1"),
    "spec": lambda: step_under(tf.DeviceSpec(device_type="CPU", device_index=1)),
    "swallowed": swallowed,
    "mirrored": strategy(tf.distribute.MirroredStrategy, ["/cpu:0", "/cpu:1"]),
    "one": strategy(tf.distribute.OneDeviceStrategy, "/cpu:1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_simulating_cpu_device_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(InputError) as caught:
        watched(REFUSED[name])

    number = 2 if name == "short" else 1
    message = str(caught.value)
    assert message.startswith(
        f"program requests /device:CPU:{number} (tests/capture/eager/test_devices.py:"
    )
    assert message.endswith(
        f", but this check uses /device:CPU:{number} in place of /device:GPU:{number - 1}; "
        "name GPU devices, and no CPU device except /cpu:0"
    )


def test_a_program_may_read_the_device_of_a_variable() -> None:
    """TensorFlow reports the name of the CPU device that simulates the GPU."""

    def program() -> None:
        with tf.device("/gpu:1"):
            w = weights()
        with tf.device(w.device):
            slot = weights("slot")

        @tf.function
        def step(x: Any) -> Any:
            with tf.device(w.device):
                slot.assign_add(w)
                return updates(w, x)

        step(rows())

    assert devices(watched(program), ["w", "slot"]) == ["/device:GPU:1"] * 2


def test_a_program_may_name_the_host() -> None:
    def program() -> None:
        with tf.device("/cpu:0"):
            w = weights()

        @tf.function
        def step(x: Any) -> Any:
            with tf.device("/device:CPU:0"):
                return updates(w, x)

        step(rows())

    assert devices(watched(program), ["w"]) == ["/device:CPU:0"]
