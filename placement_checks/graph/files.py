"""Graphs that were saved: ``.pb``, ``.pbtxt``, ``.meta`` and SavedModel folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Error, Message
from tensorflow.core.framework import graph_pb2, variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from placement_checks.core.errors import InputError
from placement_checks.core.placement import GLOBAL, TRAINABLE, StepOps
from placement_checks.graph.op_origins import GraphFile
from placement_checks.graph.reading import GraphSource, name_of
from placement_checks.targets.names import graph_file

_REASON = 200  # characters of it: a parser may quote a line of the file, which may be all of it
_KINDS: dict[str, tuple[type[Message], ...]] = {
    ".pb": (graph_pb2.GraphDef, saved_model_pb2.SavedModel),
    ".pbtxt": (graph_pb2.GraphDef, meta_graph_pb2.MetaGraphDef, saved_model_pb2.SavedModel),
    ".meta": (meta_graph_pb2.MetaGraphDef,),
}


def load(path: Path) -> GraphSource:
    """Read a saved graph, by its suffix ``.pb``, ``.pbtxt`` or ``.meta``, or a SavedModel folder.

    Raises:
        InputError: there is no such file, it is too large, or it holds no graph.
    """
    name = str(path)
    file = graph_file(path)
    message = _parse(file, name)
    if isinstance(message, saved_model_pb2.SavedModel):
        message = _for_training(message)
    if isinstance(message, meta_graph_pb2.MetaGraphDef):
        graph_def, collections = message.graph_def, _collections(message, name)
        return GraphSource(
            name, graph_def, collections, GraphFile(graph_def), _step_ops(message, name)
        )
    return GraphSource(name, message, origin=GraphFile(message))


def _parse(file: Path, name: str) -> Any:
    """The first kind of message that the file can be read as and that holds ops."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(name, f"cannot be read: {error.strerror}", "check the path") from None
    reasons = []
    for kind in _KINDS[file.suffix]:
        try:
            if file.suffix == ".pbtxt":
                # And back: it is sent on as bytes, in which less may be nested than in a text.
                written = text_format.Parse(data.decode(), kind()).SerializeToString()
                message: Any = kind.FromString(written)
            else:
                message = kind.FromString(data)
        except (Error, text_format.ParseError, UnicodeDecodeError) as error:
            reasons.append(str(error).partition("\n")[0][:_REASON])
            continue
        except RecursionError:
            reasons.append("it nests too deep")
            continue
        if _nodes(message):
            return message
        reasons.append("it holds no ops")
    raise InputError(
        name, f"cannot be read as a graph: {reasons[0]}", "write it again, it may be cut short"
    )


def _nodes(message: Any) -> bool:
    if isinstance(message, saved_model_pb2.SavedModel):
        return any(_nodes(graph) for graph in message.meta_graphs)
    graph = message.graph_def if isinstance(message, meta_graph_pb2.MetaGraphDef) else message
    return bool(graph.node)


def _for_training(saved: Any) -> Any:
    """The MetaGraph tagged ``train``, else the first, of those that hold ops."""
    graphs = [graph for graph in saved.meta_graphs if _nodes(graph)]
    return next((graph for graph in graphs if "train" in graph.meta_info_def.tags), graphs[0])


def _collections(meta: Any, program: str) -> dict[str, tuple[str, ...]]:
    """The names in the collections of variables."""
    return {
        key: _variables(meta, key, program)
        for key in (GLOBAL, TRAINABLE)
        if key in meta.collection_def
    }


def _variables(meta: Any, key: str, program: str) -> tuple[str, ...]:
    """The names in one collection, whose entries are serialised VariableDefs."""
    try:
        return tuple(
            name_of(variable_pb2.VariableDef.FromString(entry).variable_name)
            for entry in meta.collection_def[key].bytes_list.value
        )
    except DecodeError as error:
        raise InputError(
            program,
            f"its collection '{key}' cannot be read: {error}",
            "write it again, it may be damaged",
        ) from None


def _step_ops(meta: Any, program: str) -> StepOps:
    """What its collections show of a training step."""

    def nodes(key: str) -> tuple[str, ...]:
        return tuple(map(name_of, meta.collection_def[key].node_list.value))

    return StepOps(
        train_ops=nodes("train_op"),
        update_ops=nodes("update_ops"),
        counters=_variables(meta, "global_step", program),
    )
