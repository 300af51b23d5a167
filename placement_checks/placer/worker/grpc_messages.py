"""The few gRPC messages of TensorFlow's master and worker services that the phantom needs.

The wheel ships no ``master_pb2`` and ``worker_pb2``; the fields below are those of
``tensorflow/core/protobuf/master.proto`` and ``worker.proto``, by number. The wire carries no type
names, so the package name is our own.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.core.protobuf import config_pb2

_PACKAGE = "placement_checks_wire"
_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _BYTES, _MESSAGE = _Field.TYPE_STRING, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED

_MESSAGES: dict[str, list[tuple[str, int, Any, Any, str | None]]] = {
    "GetStatusResponse": [
        ("device_attributes", 1, _MANY, _MESSAGE, ".tensorflow.DeviceAttributes")
    ],
    "CreateSessionRequest": [
        ("graph_def", 1, _ONE, _BYTES, None),  # a message in truth, which is not parsed here
        ("config", 2, _ONE, _MESSAGE, ".tensorflow.ConfigProto"),
        ("target", 3, _ONE, _STRING, None),
    ],
    "CreateSessionResponse": [("session_handle", 1, _ONE, _STRING, None)],
    "CloseSessionRequest": [("session_handle", 1, _ONE, _STRING, None)],
}


def _classes() -> dict[str, Any]:
    """The message classes, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[module.DESCRIPTOR.name for module in (device_attributes_pb2, config_pb2)],
    )
    for message, fields in _MESSAGES.items():
        descriptor = file.message_type.add(name=message)
        for name, number, label, kind, type_name in fields:
            descriptor.field.add(
                name=name, number=number, label=label, type=kind, type_name=type_name
            )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    # Before protobuf 4.22, which TensorFlow 2.15 takes too, it was a method.
    class_of = getattr(message_factory, "GetMessageClass", None) or (
        message_factory.MessageFactory(pool).GetPrototype
    )
    return {name: class_of(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


_made = _classes()
CloseSessionRequest = _made["CloseSessionRequest"]
CreateSessionRequest = _made["CreateSessionRequest"]
CreateSessionResponse = _made["CreateSessionResponse"]
GetStatusResponse = _made["GetStatusResponse"]
