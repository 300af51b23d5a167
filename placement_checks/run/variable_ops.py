"""The ops that read and assign the variables of a program, whichever kind they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from placement_checks.run.runnable import RunnableProgram

tf1 = tf.compat.v1

_MAX_BYTES = 1 << 23  # of variables that are read or assigned at once, but for one
_MAX_ITEM = 8


class VariableOps:
    """Ops that are added to the graph of a program when they are first asked for."""

    def __init__(self, program: RunnableProgram) -> None:
        self._program = program

    @cached_property
    def parts(self) -> Sequence[Sequence[str]]:
        """The variables in parts of some megabytes: TensorFlow copies what it gives and takes."""
        parts: list[list[str]] = []
        size = _MAX_BYTES
        for variable in self._program.placement.variables:
            if variable.name in self._program.variables:
                if size >= _MAX_BYTES:
                    parts.append([])
                    size = 0
                parts[-1].append(variable.name)
                size += math.prod(n or 1 for n in variable.shape or ()) * _MAX_ITEM
        return parts

    @cached_property
    def reads(self) -> Mapping[str, Any]:
        """For each variable the tensor of its value."""
        return {name: self._read(name) for name in self._program.variables}

    def _read(self, name: str) -> Any:
        holder = self._program.graph.get_tensor_by_name(f"{name}:0")
        if holder.dtype != tf.resource:
            return holder
        dtype = tf.dtypes.as_dtype(self._program.variables[name])
        with self._program.graph.as_default():
            return tf.raw_ops.ReadVariableOp(resource=holder, dtype=dtype)

    @cached_property
    def assigns(self) -> Mapping[str, tuple[Any, Any]]:
        """For each variable the op that assigns it, and the placeholder for its value."""
        return {name: self._assign(name) for name in self._program.variables}

    def _assign(self, name: str) -> tuple[Any, Any]:
        holder = self._program.graph.get_tensor_by_name(f"{name}:0")
        with self._program.graph.as_default():
            value = tf1.placeholder(self._program.variables[name])
            if holder.dtype == tf.resource:
                return tf.raw_ops.AssignVariableOp(resource=holder, value=value), value
            return tf.raw_ops.Assign(ref=holder, value=value, validate_shape=False).op, value
