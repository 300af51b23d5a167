"""The process that uses the GPUs: ``python -m placement_checks.run.doctor.worker PARENT``.

It reads requests from standard input and writes answers to standard output, as messages of
`placer.worker.protocol`. It ends when its input ends, or when the process PARENT ends.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from placement_checks.placer.worker import protocol
from placement_checks.util.child import end_with_parent, reserve_stdout


def main() -> None:
    end_with_parent()
    requests = os.fdopen(os.dup(0), "rb")
    answers = reserve_stdout()
    while True:
        try:
            request, _ = protocol.read(requests)
        except EOFError:
            os._exit(0)
        protocol.write(answers, _ACTIONS[request.pop("action")](**request))


def _devices() -> dict[str, Any]:
    """The GPUs that TensorFlow finds: their models and compute capabilities."""
    found = []
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, details.get("compute_capability", ["unknown"])))
        found.append([details.get("device_name", "unknown"), capability])
    return {"gpus": found}


_ACTIONS = {"devices": _devices}


if __name__ == "__main__":
    main()
