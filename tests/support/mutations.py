"""Valid graphs, and random damage to their fields and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import tensorflow as tf
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

tf1 = tf.compat.v1

_NUMBERS = [0, 1, -1, 2, 7, 9999, (1 << 31) - 1, 1 << 31, (1 << 62), (1 << 63) - 1, -(1 << 63)]
_TEXTS = [
    *("", "x", "^x", "x:99", "x:-1", ":", "^", "a\0b", "a\nb", "\x1b[31m", "y" * 1000, "loc:@x"),
    *("/gpu:0", "/job:w/task:7/gpu:1", "/job:w/task:999999999/gpu:1", "gpu:0:0", "/gpu:99999999"),
    *("StatefulPartitionedCall", "While", "If", "Case", "VarHandleOp", "VariableV2", "Const"),
]
_RANGES = {
    Field.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    Field.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
    Field.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    Field.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    Field.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


def two_towers() -> Any:
    """The MetaGraphDef of a program with towers, ref and resource variables, loops and
    branches."""
    with tf.Graph().as_default() as graph:
        with tf.device("/cpu:0"):
            weights = tf1.get_variable("weights", [4, 1], use_resource=True)
            bias = tf1.get_variable("bias", [1], use_resource=False)
            rows = tf.data.Dataset.range(8).map(lambda row: row + 1).batch(4)
            size = tf.cast(tf1.data.make_one_shot_iterator(rows).get_next(), tf.float32)
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        losses = []
        for tower in range(2):
            with tf.device(f"/gpu:{tower}"), tf.name_scope(f"tower_{tower}"):
                x = tf1.placeholder(tf.float32, [None, 4], name="x")
                found = tf.matmul(x, weights) + bias
                looped = tf.while_loop(lambda at: at < 3.0, lambda at: [at + 1.0], [size[0]])
                chosen = tf.cond(size[0] > 1.0, lambda: size[0], lambda: tf.constant(2.0))
                losses.append(tf.reduce_mean(found) + looped[0] + chosen)
        with tf.device("/cpu:0"):
            step = tf1.train.get_or_create_global_step()
            optimizer.minimize(tf.add_n(losses), step)
        return tf1.train.export_meta_graph(graph=graph)


def saved_model(meta: Any) -> Any:
    saved = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    saved.meta_graphs.add().meta_info_def.tags.append("serve")
    saved.meta_graphs.add().CopyFrom(meta)
    return saved


def of_kind(meta: Any, suffix: str) -> Any:
    """The protocol buffer message in a file with this suffix; None for a directory."""
    if not suffix:
        return saved_model(meta)
    copy = meta_graph_pb2.MetaGraphDef()
    copy.CopyFrom(meta)
    return copy if suffix == ".meta" else copy.graph_def


def damage_fields(message: Any, random: Random, times: int) -> None:
    """Change, clear, copy or drop fields anywhere in a message."""
    for _ in range(times):
        parts = list(_parts(message))
        part = random.choice(parts)
        given = [field for field, _ in part.ListFields()]
        field = random.choice(given if given and random.random() < 0.8 else part.DESCRIPTOR.fields)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _damage_map(getattr(part, field.name), random)
        elif field.is_repeated if hasattr(field, "is_repeated") else field.label == 3:
            _damage_list(getattr(part, field.name), field, random)
        elif field.message_type is not None:
            _damage_part(part, field, parts, random)
        elif random.random() < 0.2:
            part.ClearField(field.name)
        else:
            setattr(part, field.name, _value(field, random, parts))


def damage_bytes(data: bytes, random: Random, times: int) -> bytes:
    """Overwrite, remove or repeat some bytes, and sometimes cut off the end."""
    changed = bytearray(data)
    for _ in range(times):
        at = random.randrange(len(changed))
        match random.randrange(6):
            case 0 if len(changed) > 8:
                del changed[at : at + random.randrange(1, 9)]
            case 1:
                changed[at:at] = changed[at : at + random.randrange(1, 65)]
            case 2 if random.random() < 0.3:
                del changed[max(at, 1) :]
            case _:
                changed[at] = random.randrange(256)
    return bytes(changed)


def _parts(message: Message) -> Iterator[Any]:
    """A message and all messages in it, also the values of maps."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in sorted(value):  # in order: a seed gives one file
                    yield from _parts(value[key])
        elif isinstance(value, Message):
            yield from _parts(value)
        else:
            for item in value:
                yield from _parts(item)


def _damage_map(entries: Any, random: Random) -> None:
    keys = sorted(entries)
    if not keys or not isinstance(entries[keys[0]], Message):
        return
    key = random.choice(keys)
    match random.randrange(3):
        case 0:
            del entries[key]
        case 1 if isinstance(key, str):
            entries[random.choice([*keys, *_TEXTS])].CopyFrom(entries[key])
        case _:
            entries[key].Clear()


def _damage_list(values: Any, field: Any, random: Random) -> None:
    match random.randrange(4):
        case 0 if values:
            del values[random.randrange(len(values))]
        case 1 if values and field.message_type is not None:
            values.add().CopyFrom(random.choice(values))
        case 2 if field.message_type is not None:
            values.add()
        case _ if field.message_type is None:
            values.append(_value(field, random, []))


def _damage_part(part: Any, field: Any, parts: list[Any], random: Random) -> None:
    alike = [part for part in parts if part.DESCRIPTOR is field.message_type]
    if alike and random.random() < 0.5:
        copied = type(alike[0])()
        copied.CopyFrom(random.choice(alike))
        getattr(part, field.name).CopyFrom(copied)
    else:
        part.ClearField(field.name)


def _value(field: Any, random: Random, parts: list[Any]) -> Any:
    if field.cpp_type == Field.CPPTYPE_STRING:
        if field.type == Field.TYPE_BYTES:
            return random.choice([b"", b"\xff\xfe", b"loc:@x", random.randbytes(9)])
        names = [part.name for part in parts if part.DESCRIPTOR.name == "NodeDef"]
        return random.choice([*_TEXTS, *random.sample(names, min(len(names), 9))])
    if field.cpp_type == Field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        return random.choice([number for number in _NUMBERS if low <= number <= high])
    return random.choice([0.0, -1.0, float("nan"), float("inf")])
