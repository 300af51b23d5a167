"""CPU:i + 1 simulates GPU:i, so a program must not name it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import tensorflow as tf
from support.eager_programs import devices, rows, updates, watched, weights

from placement_checks import place
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


def test_dtensor_is_refused(tmp_path: Path) -> None:
    """In a file, because TensorFlow keeps the custom device of DTensor until its process ends."""
    (tmp_path / "sharded.py").write_text(
        dedent(
            """
            import tensorflow as tf
            from tensorflow.experimental import dtensor

            def train():
                mesh = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
                layout = dtensor.Layout.replicated(mesh, rank=2)
                zeros = dtensor.call_with_layout(tf.zeros, layout, shape=(2, 1))
                w = dtensor.DVariable(zeros)

                @tf.function
                def step(x):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
                    w.assign_sub(tape.gradient(loss, w))

                step(dtensor.copy_to_mesh(tf.ones([4, 2]), layout))
            """
        )
    )

    with pytest.raises(InputError, match=r"sharded.py:train trains with DTensor .*not supported"):
        place(f"{tmp_path}/sharded.py:train", gpus=2)
