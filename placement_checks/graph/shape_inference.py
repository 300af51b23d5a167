"""Infer the dtypes and shapes of the outputs in a saved graph, in another process.

Shape inference of an inconsistent graph can abort the process, and a file may contain any graph.
Run as ``python -m placement_checks.graph.shape_inference PARENT``, this module reads a GraphDef
from standard input and answers in JSON. It ends when the process PARENT ends.
"""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from placement_checks.core.errors import PlacerError
from placement_checks.core.placement import Tensor
from placement_checks.tf import c_library
from placement_checks.util.child import Child, Ended, end_with_parent, reserve_stdout

_LIMIT = 300.0  # seconds; 200,000 ops take 30
# Exit codes of a process that TensorFlow aborts.
_ABORTED = (-signal.SIGABRT, -signal.SIGSEGV)
_QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def infer_outputs(graph_def: Any) -> Mapping[str, Sequence[Tensor]]:
    """Infer the outputs of every op, by name; empty if the graph cannot be imported.

    Raises:
        PlacerError: the process ended without an answer, or took too long.
    """
    with Child(__spec__.name, environment=_QUIET) as child:
        try:
            with child.time_limit(_LIMIT):
                child.requests.write(graph_def.SerializeToString())
                child.requests.close()
                answer = child.replies.read()
                if child.wait():
                    raise EOFError
        except Ended as ended:
            if ended.code in _ABORTED:
                return {}
            raise PlacerError(
                "the process that infers shapes",
                ended.how,
                "run it again, or deselect the rule",
                details=ended.output,
                is_predicate=True,
            ) from None
    return {
        name: [Tensor(dtype, None if dims is None else tuple(dims)) for dtype, dims in outputs]
        for name, outputs in json.loads(answer).items()
    }


def main() -> None:
    """Answer on the original standard output; other output goes to standard error."""
    end_with_parent()
    with io.TextIOWrapper(reserve_stdout()) as answer:
        json.dump(_infer(sys.stdin.buffer.read()), answer)


def _infer(data: bytes) -> dict[str, list[tuple[str, list[int | None] | None]]]:
    c_library.load()
    from tensorflow.core.framework import graph_pb2

    from placement_checks.graph.graph_def import op_types

    try:
        graph_def = graph_pb2.GraphDef.FromString(data)
        c_library.provide_kernels(op_types(graph_def))
        graph = c_library.import_graph(graph_def)
    except Exception:  # an op of a custom library, or a damaged graph
        return {}
    return {
        op.name: [
            (
                output.dtype.base_dtype.name,
                None if output.shape.rank is None else output.shape.as_list(),
            )
            for output in op.outputs
        ]
        for op in graph.get_operations()
    }


if __name__ == "__main__":
    main()
