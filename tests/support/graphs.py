"""Placements written by hand: requested devices, and assigned devices as the placer could
return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placement_checks import Device, Machine, Op, Placement, Variable
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.frames import Frame
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Details, Tensor
from placement_checks.core.variables import Variables


def op(
    name: str, type: str, requested: str = "", assigned: str = "", *inputs: str, **more: Any
) -> Op:
    """An op. It is assigned to the local host unless `assigned` names a job."""
    device = Device.parse(assigned).over(LOCALHOST) if assigned else None
    return Op(name, type, Device.parse(requested), inputs, device, **more)


@dataclass
class HandWrittenDetails(Details):
    """The details of ops, written by hand."""

    lines: Mapping[str, str]
    shapes: Mapping[str, tuple[int | None, ...] | None]
    attributes_of: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, Any]
    device_lines: Mapping[str, str]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    keras_parts: Mapping[str, str] = field(default_factory=dict)

    def frames(self, op: str) -> tuple[Frame, ...]:
        return tuple(map(_frame, self.lines.get(op, "").split()))

    def device_line(self, op: str) -> Frame | None:
        line, _, function = self.device_lines.get(op, "").partition(" in ")
        return _frame(line)._replace(function=function) if line else None

    def outputs(self, op: str) -> tuple[Tensor, ...]:
        if value := self.value(op):
            return (Tensor(self.dtypes.get(op, value[0]), self.shapes.get(op, value[1])),)
        if op not in self.shapes and op not in self.dtypes:
            return ()
        return (Tensor(self.dtypes.get(op, "float32"), self.shapes.get(op)),)

    def attributes(self, op: str) -> Mapping[str, Any]:
        return self.attributes_of.get(op, {})

    def custom_gradient(self, op: str) -> str:
        return str(self.attributes(op).get("_gradient_op_type", ""))

    def value(self, op: str) -> tuple[Any, ...] | None:
        if op not in self.values:
            return None
        value = self.values[op]
        elements = value if isinstance(value, tuple) else (value,)
        shape = (len(value),) if isinstance(value, tuple) else ()
        return ("int32" if isinstance(elements[0], int) else "float32", shape, *elements)

    def parts_of_keras(self, op: str) -> tuple[str, ...]:
        return (self.keras_parts[op],) if op in self.keras_parts else ()


def _frame(line: str) -> Frame:
    file, number = line.split(":")
    return Frame(file, int(number), "build")


def placement(
    *ops: Op,
    machine: str | None = "gpu*2",
    lines: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int | None, ...] | None] | None = None,
    outputs: Mapping[str, tuple[int | None, ...] | None] | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    values: Mapping[str, Any] | None = None,
    device_lines: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    keras_parts: Mapping[str, str] | None = None,
    **more: Any,
) -> Placement:
    """A placement of `ops`.

    The mappings have op names as keys:

    * `lines`: the user's source lines of an op, such as "main.py:9 net.py:3"
    * `outputs`: the shape of the only output, and `dtypes`: its dtype, by default float32
    * `values`: the value of a constant
    * `device_lines`: the line that decided the requested device, of a device scope
      ("main.py:9") or a device function ("main.py:9 in chosen")
    * `keras_parts`: the part of Keras that created the op
    """

    fields = {"program": "train.py:build", "placer": "phantom", **more}
    if fields["placer"]:
        fields = {"assigned": True, **fields}
    variables = [
        Variable(op.name, "float32", (shapes or {}).get(op.name, (4,)))
        for op in ops
        if op.type in VARIABLES and not op.caller
    ]
    return Placement(
        ops={op.name: op for op in ops},
        variables=Variables(variables),
        machine=Machine.parse(machine) if machine else None,
        details=HandWrittenDetails(
            lines or {},
            outputs or {},
            attributes or {},
            values or {},
            device_lines or {},
            dtypes or {},
            keras_parts or {},
        ),
        **fields,
    )
