"""What Python's graphs of traced functions tell of the ops of a flat graph."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from placement_checks.core.placement import Frame, Tensor
from placement_checks.loading.device_scopes import deciding_line
from placement_checks.loading.origins import BodyOp, Origin, dims
from placement_checks.loading.source_lines import users_frames
from placement_checks.loading.tf_internals.keras_objects import parts_of_keras
from placement_checks.loading.traced.flattening import TracedOp

_NUMBER = re.compile(r"_\d+$")


class TracedGraph(Origin):
    """The flat graph of a traced step.

    Args:
        graphs: Python's graphs of the step's functions, by name; that of the step under ``""``.
        origins: where each op was traced, by its name in the flat graph.
        stacks: the frames in which each variable was made.
        forward: the forward op of each backward op.
        folder: where the user's source lines are; None for anywhere but in libraries.
    """

    def __init__(
        self,
        graphs: Mapping[str, Any],
        origins: Mapping[str, TracedOp],
        stacks: Mapping[str, Sequence[Any]],
        forward: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        self._graphs = graphs
        self._origins = origins
        self._stacks = stacks
        self._forward = forward
        self._folder = folder
        self._frames: dict[Any, Sequence[Frame]] = {}
        self._parts: dict[Any, Collection[str]] = {}
        self._outputs: dict[Any, Sequence[Tensor]] = {}

    def frames(self, op: str, body: BodyOp | None) -> Sequence[Frame]:
        if op in self._stacks:
            return users_frames(self._stacks[op], self._folder)
        traced = self._op(op, body)
        if traced is None:
            return ()
        stack = traced.traceback
        if stack not in self._frames:
            self._frames[stack] = users_frames(stack, self._folder)
        return self._frames[stack]

    def parts_of_keras(self, op: str, body: BodyOp | None) -> Collection[str]:
        if op in self._stacks:
            return parts_of_keras(self._stacks[op])
        traced = self._op(op, body)
        if traced is None:
            return ()
        stack = traced.traceback
        if stack not in self._parts:
            self._parts[stack] = parts_of_keras(stack)
        return self._parts[stack]

    def device_line(self, op: str, body: BodyOp | None) -> Frame | None:
        traced = None if op in self._stacks else self._op(op, body)
        return None if traced is None else deciding_line(traced, self._folder)

    def outputs(self, op: str, body: BodyOp | None) -> Sequence[Tensor]:
        traced = self._op(op, body)
        if traced is None:
            return ()
        # An op that parts a sum of all gradients has as many outputs as there are, and is asked
        # for each.
        if traced not in self._outputs:
            self._outputs[traced] = [
                Tensor(output.dtype.base_dtype.name, dims(output.shape))
                for output in traced.outputs
            ]
        return self._outputs[traced]

    def forward_op(self, op: str) -> str:
        return self._forward.get(op, "")

    def _op(self, op: str, body: BodyOp | None) -> Any:
        """Python's op; None for one that it has not traced.

        A FunctionDef may have added a number to its name.
        """
        function, name = body or self._origins.get(op, TracedOp("", ""))
        ops = self._ops.get(function, {})
        return ops.get(name) or ops.get(_NUMBER.sub("", name))

    @cached_property
    def _ops(self) -> Mapping[str, Mapping[str, Any]]:
        """Python's ops by their names, of each function."""
        return {
            function: {op.name: op for op in graph.get_operations()}
            for function, graph in self._graphs.items()
        }
