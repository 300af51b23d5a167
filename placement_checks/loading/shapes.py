"""What the ops of a saved graph yield, told by a process of its own.

Where a graph contradicts itself TensorFlow ends the process that infers its shapes (`CHECK`), and
a file may hold anything. Run as ``python -m placement_checks.loading.shapes PARENT`` it reads a
GraphDef and answers in JSON; it ends when the process PARENT is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from placement_checks.core.errors import PlacerError
from placement_checks.core.placement import Tensor
from placement_checks.util.processes import end_with, ending, start

_LIMIT = 300.0  # seconds; 200,000 ops take 30
# How TensorFlow ends a process over a graph that contradicts itself.
_SELF_CONTRADICTING = (-signal.SIGABRT, -signal.SIGSEGV)
_QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def outputs_of(graph_def: Any) -> Mapping[str, Sequence[Tensor]]:
    """The outputs of every op, by its name; empty if the graph cannot be imported.

    Raises:
        PlacerError: the process ended without an answer, or took too long.
    """
    with open(os.devnull, "wb") as nowhere:
        process = start(__spec__.name, str(os.getpid()), environment=_QUIET, stderr=nowhere)
    with process:
        try:
            answer, _ = process.communicate(graph_def.SerializeToString(), _LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise _failed(f"took more than {_LIMIT:.0f} s and was ended") from None
        except BaseException:  # Ctrl-C, or an alarm: nobody waits for it any longer
            process.kill()
            raise
    if process.returncode in _SELF_CONTRADICTING:
        return {}
    if process.returncode:
        raise _failed(ending(process.returncode))
    return {
        name: [Tensor(dtype, None if dims is None else tuple(dims)) for dtype, dims in outputs]
        for name, outputs in json.loads(answer).items()
    }


def _failed(how: str) -> PlacerError:
    return PlacerError(
        "the process that infers shapes", how, "run it again, or leave out the rule"
    )


def main() -> None:
    """Answer on standard output, which nothing else is written to."""
    end_with(int(sys.argv[1]))
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        json.dump(_imported(sys.stdin.buffer.read()), answer)


def _imported(data: bytes) -> dict[str, list[tuple[str, list[int | None] | None]]]:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        try:
            tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(data), name="")
        except Exception:  # ops of a library of one's own; or whatever a damaged graph raises
            return {}
    return {
        op.name: [
            (each.dtype.base_dtype.name, None if each.shape.rank is None else each.shape.as_list())
            for each in op.outputs
        ]
        for op in graph.get_operations()
    }


if __name__ == "__main__":
    main()
