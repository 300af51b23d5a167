"""Read saved graphs: ``.pb``, ``.pbtxt`` and ``.meta`` files, and SavedModel directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Error, Message
from tensorflow.core.framework import graph_pb2, variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from placement_checks.core.errors import InputError
from placement_checks.core.placement import GLOBAL, TRAINABLE, StepOps, producer_of
from placement_checks.graph.details import GraphFile
from placement_checks.graph.reading import GraphSource

_MAX_REASON = 200  # characters; a parser may quote a line, and a line may be very long
_KINDS: dict[str, tuple[type[Message], ...]] = {
    ".pb": (graph_pb2.GraphDef, saved_model_pb2.SavedModel),
    ".pbtxt": (graph_pb2.GraphDef, meta_graph_pb2.MetaGraphDef, saved_model_pb2.SavedModel),
    ".meta": (meta_graph_pb2.MetaGraphDef,),
}


def load(file: Path, name: str) -> GraphSource:
    """Read a file with the suffix ``.pb``, ``.pbtxt`` or ``.meta``; reports call it ``name``.

    The graph of a SavedModel is the MetaGraph tagged ``train``, else the first one with ops.

    Raises:
        InputError: the file cannot be read, or contains no graph.
    """
    proto = _parse(file, name)
    if isinstance(proto, saved_model_pb2.SavedModel):
        graphs = [graph for graph in proto.meta_graphs if _has_ops(graph)]
        tagged = (graph for graph in graphs if "train" in graph.meta_info_def.tags)
        proto = next(tagged, graphs[0])
    if isinstance(proto, meta_graph_pb2.MetaGraphDef):
        return GraphSource(
            details=GraphFile(proto.graph_def),
            collections={
                key: _variables(proto, key, name)
                for key in (GLOBAL, TRAINABLE)
                if key in proto.collection_def
            },
            step_ops=_step_ops(proto, name),
        )
    return GraphSource(details=GraphFile(proto))


def _parse(file: Path, name: str) -> Any:
    """Parse a file as the first message type that fits it and contains ops."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(
            name, f"cannot be read: {error.strerror}", "check the path", is_predicate=True
        ) from None
    reasons = []
    for kind in _KINDS[file.suffix]:
        try:
            if file.suffix == ".pbtxt":
                # The graph is sent to other processes in the binary format, which allows less
                # nesting than text: parse it again to see whether it can be sent.
                written = text_format.Parse(data.decode(), kind()).SerializeToString()
                proto: Any = kind.FromString(written)
            else:
                proto = kind.FromString(data)
        except (Error, text_format.ParseError, UnicodeDecodeError) as error:
            reasons.append(str(error).partition("\n")[0][:_MAX_REASON])
            continue
        except RecursionError:
            reasons.append("its nesting is too deep")
            continue
        if _has_ops(proto):
            return proto
        reasons.append("it contains no ops")
    raise InputError(
        name,
        f"cannot be read as a graph: {reasons[0]}",
        "write the file again, it may be truncated",
        is_predicate=True,
    )


def _has_ops(proto: Any) -> bool:
    if isinstance(proto, saved_model_pb2.SavedModel):
        return any(_has_ops(graph) for graph in proto.meta_graphs)
    graph = proto.graph_def if isinstance(proto, meta_graph_pb2.MetaGraphDef) else proto
    return bool(graph.node)


def _variables(meta: Any, key: str, program: str) -> tuple[str, ...]:
    """The names in one collection of serialized VariableDefs."""
    try:
        return tuple(
            producer_of(variable_pb2.VariableDef.FromString(entry).variable_name)
            for entry in meta.collection_def[key].bytes_list.value
        )
    except DecodeError as error:
        raise InputError(
            program,
            f"its collection '{key}' cannot be read: {error}",
            "write the file again, it may be damaged",
        ) from None


def _step_ops(meta: Any, program: str) -> StepOps:
    def nodes(key: str) -> tuple[str, ...]:
        return tuple(map(producer_of, meta.collection_def[key].node_list.value))

    return StepOps(
        train_ops=nodes("train_op"),
        update_ops=nodes("update_ops"),
        counters=_variables(meta, "global_step", program),
    )
