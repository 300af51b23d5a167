"""Lists the devices that TensorFlow finds on this machine, in another process.

A driver of a GPU may crash or hang when it starts. Run as
``python -m placement_checks.run.doctor.devices PARENT``, this module answers in JSON. It ends when
the process PARENT ends.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from placement_checks.util.child import Child, end_with_parent, reserve_stdout

_LIMIT = 300.0  # seconds; the first start of CUDA may compile kernels


class PhysicalDevice(NamedTuple):
    """A device of this machine."""

    type: str  # the type, such as `GPU`
    description: str  # the model and the compute capability of a GPU; `""` for other devices


def physical_devices() -> Sequence[PhysicalDevice]:
    """Return the devices that TensorFlow finds.

    Raises:
        Ended: the process that started the devices ended, or took too long.
    """
    with Child(__spec__.name, environment={}) as child, child.time_limit(_LIMIT):
        answer = child.replies.read()
        if child.wait():
            raise EOFError
    return [PhysicalDevice(*device) for device in json.loads(answer)]


def main() -> None:
    """Answer on the original standard output; other output goes to standard error."""
    end_with_parent()
    with io.TextIOWrapper(reserve_stdout()) as answer:
        devices = tf.config.list_physical_devices()
        json.dump([(device.device_type, _description(device)) for device in devices], answer)


def _description(device: tf.config.PhysicalDevice) -> str:
    if device.device_type != "GPU":
        return ""
    details = tf.config.experimental.get_device_details(device)
    capability = ".".join(map(str, details.get("compute_capability", ["unknown"])))
    return f"{details.get('device_name', 'unknown')} (compute capability {capability})"


if __name__ == "__main__":
    main()
