"""Graphs that were saved: ``.pb``, ``.pbtxt``, ``.meta`` and SavedModel folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import graph_pb2, variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from placement_checks.capture.graph import Source, name_of
from placement_checks.errors import InputError
from placement_checks.placement import GLOBAL, TRAINABLE, Training

_LIMIT = 1 << 31  # bytes; protobuf reads no larger message
_KINDS: dict[str, tuple[type[Message], ...]] = {
    ".pb": (graph_pb2.GraphDef, saved_model_pb2.SavedModel),
    ".pbtxt": (graph_pb2.GraphDef, meta_graph_pb2.MetaGraphDef, saved_model_pb2.SavedModel),
    ".meta": (meta_graph_pb2.MetaGraphDef,),
}


def load(path: Path) -> Source:
    """Read a saved graph.

    Raises:
        InputError: there is no such file, it is too large, or it holds no graph.
    """
    name = str(path)
    file = path
    if path.is_dir():
        saved = [path / f"saved_model{suffix}" for suffix in (".pb", ".pbtxt")]
        file = next((each for each in saved if each.is_file()), saved[0])
        if not file.is_file():
            raise InputError(name, "is a folder without a saved_model.pb", "name a SavedModel")
    if not file.is_file():
        raise InputError(name, "there is no such file", "check the path")
    if file.stat().st_size >= _LIMIT:
        raise InputError(
            name,
            "is larger than the 2 GB that a protobuf may have",
            "save it without its constants",
        )
    message = _parse(file, name)
    if isinstance(message, saved_model_pb2.SavedModel):
        message = _for_training(message)
    if isinstance(message, meta_graph_pb2.MetaGraphDef):
        return Source(name, message.graph_def, _collections(message), training=_training(message))
    return Source(name, message)


def _parse(file: Path, name: str) -> Any:
    """The first kind of message that the file can be read as and that holds ops."""
    data = file.read_bytes()
    reasons = []
    for kind in _KINDS[file.suffix]:
        try:
            if file.suffix == ".pbtxt":
                message: Any = text_format.Parse(data.decode(), kind())
            else:
                message = kind.FromString(data)
        except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
            reasons.append(str(error).split("\n")[0])
            continue
        if _nodes(message):
            return message
        reasons.append("it holds no ops")
    raise InputError(
        name, f"cannot be read as a graph: {reasons[0]}", "write it again, it may be cut short"
    )


def _nodes(message: Any) -> bool:
    if isinstance(message, saved_model_pb2.SavedModel):
        return any(_nodes(each) for each in message.meta_graphs)
    graph = message.graph_def if isinstance(message, meta_graph_pb2.MetaGraphDef) else message
    return bool(graph.node)


def _for_training(saved: Any) -> Any:
    """The MetaGraph tagged ``train``, else the first."""
    return next(
        (each for each in saved.meta_graphs if "train" in each.meta_info_def.tags),
        saved.meta_graphs[0],
    )


def _collections(meta: Any) -> dict[str, tuple[str, ...]]:
    """The names in the collections of variables, whose entries are serialised VariableDefs."""
    return {
        key: tuple(
            name_of(variable_pb2.VariableDef.FromString(entry).variable_name)
            for entry in meta.collection_def[key].bytes_list.value
        )
        for key in (GLOBAL, TRAINABLE)
        if key in meta.collection_def
    }


def _training(meta: Any) -> Training:
    """What its collections tell of a training step."""

    def nodes(key: str) -> tuple[str, ...]:
        return tuple(map(name_of, meta.collection_def[key].node_list.value))

    counters = meta.collection_def["global_step"].bytes_list.value
    return Training(
        train_ops=nodes("train_op"),
        update_ops=nodes("update_ops"),
        counters=tuple(
            name_of(variable_pb2.VariableDef.FromString(each).variable_name) for each in counters
        ),
    )
