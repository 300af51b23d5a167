"""Query the placer process for the devices of one graph, and check the answer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from tensorflow.core.framework import types_pb2

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.placement import Placement
from placement_checks.graph.graph_def import op_types
from placement_checks.placer.worker.client import PlacerProcess, PlacerUnavailable, Request
from placement_checks.placer.worker.protocol import GraphRefused
from placement_checks.tf.graphs import definition_of

_FIRST = "A0_"  # prefix of a job's name, which sorts it before other jobs
_TASK = re.compile(rf"/job:{_FIRST}(\w+)((?:/replica:\d+)?)(?:/task:(\d+))?")


class TaskOrder:
    """Translates task names, so that the placer process prefers the devices of the master.

    If an op may be on several devices, TensorFlow's placer prefers the devices of the master,
    which is the task that opens the session; otherwise it takes the first device by name.
    Measurements on clusters of processes, with each task as the master, confirm this: ops without
    a device follow the master, and so do ops that name a job but no task. In the placer process,
    the master is an extra task without usable devices, so only the names of devices count. This
    class renames the program's master so that its name comes first.

    Two cases are not covered: an op that names a task without a job, and an op that must choose
    between other tasks because the master has no suitable device.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._job = "" if machine.is_local else machine.master.job
        self._swapped: dict[int, int] = {}
        if self._job:
            first, master = min(machine.jobs[self._job]), machine.master.index
            self._swapped = {first: master, master: first}

    def tasks(self) -> list[list[object]]:
        """``[job, index, devices]`` of every task; devices are ``((type, count), …)``."""
        return [
            [*self._renamed(task.job, task.index), task.devices] for task in self._machine.tasks
        ]

    def device(self, name: str) -> str:
        """Rename a requested device for the placer process."""
        if f"/job:{self._job}" not in name:
            return name
        device = Device.parse(name)
        if device.job != self._job:
            return name
        job, task = self._renamed(device.job, device.task)
        return str(replace(device, job=job, task=task))

    def restore(self, text: str) -> str:
        """Restore the machine's names in a text of the placer process."""
        if _FIRST not in text:
            return text
        return _TASK.sub(self._restored, text)

    def _restored(self, match: re.Match[str]) -> str:
        task = "" if match[3] is None else f"/task:{self._task(int(match[3]))}"
        return f"/job:{match[1]}{match[2]}{task}"

    def _renamed(self, job: str, task: int | None) -> tuple[str, int | None]:
        if job != self._job:
            return job, task
        return _FIRST + job, None if task is None else self._task(task)

    def _task(self, index: int) -> int:
        return self._swapped.get(index, index)


_RESOURCE: int = types_pb2.DT_RESOURCE
_FIRST_REF: int = types_pb2.DT_FLOAT_REF


_UNKNOWN_OP = re.compile(r"Op type not registered '([^']*)'")
# Lowering a function adds a number to the names of its ops: while/body/_12/Tanh.
_LOWERED = re.compile(r"/_\d+(?=/)")


def name_in_body(node: str) -> str:
    """Return the name in `Placement.ops` of a placed node from the body of a function."""
    return _LOWERED.sub("", node)


@dataclass(frozen=True)
class PlacerQuery:
    """A graph, and the process that places it."""

    process: PlacerProcess  # the placer
    # The GraphDef, from `placing.prepare_graph_def`; callers may change devices in it between two
    # queries.
    graph_def: Any
    placement: Placement  # the requested placement, with its machine

    @contextlib.contextmanager
    def send(self, *, soft: bool) -> Iterator[Callable[[], list[str]]]:
        """Send the graph; the block may do other work before it calls the result.

        Yields:
            A function that waits for the answer: the devices of the placement's ops, in the order
            of the placement; ``""`` for an op in a function's body that was not placed.

        Raises:
            GraphRefused: the placer's own error, when the block calls the result.
            PlacerUnavailable: this installation has no usable placer.
            PlacerError: the process died or hung.
            InputError: the answer contradicts the request.
        """
        request = Request(
            self.graph_def.SerializeToString(),
            len(self.placement.ops),
            op_types(self.graph_def),
            self._order.tasks(),
            soft,
        )
        with self.process.send(request) as answer:
            del request  # its graph may be large
            yield partial(self._checked, answer, soft)

    def place(self, *, soft: bool) -> list[str]:
        """Send the graph and wait for the answer, as in `send`."""
        with self.send(soft=soft) as answer:
            return answer()

    @cached_property
    def _order(self) -> TaskOrder:
        assert self.placement.machine is not None
        return TaskOrder(self.placement.machine)

    def _checked(self, answer: Callable[[], Mapping[str, str]], soft: bool) -> list[str]:
        try:
            placed = answer()
        except GraphRefused as refused:
            if unknown := _UNKNOWN_OP.search(str(refused)):
                raise PlacerUnavailable(
                    f"the placer does not know the op type {unknown[1]}: "
                    "ops of custom op libraries cannot be placed"
                ) from None
            raise GraphRefused(self._order.restore(str(refused))) from None
        restored = cache(self._order.restore)
        devices = list(map(restored, self._in_order(placed)))
        nodes = self.graph_def.node
        requested = [] if soft else [restored(node.device) for node in nodes]
        check_answer(devices[: len(nodes)], requested, self.placement, self.graph_def)
        return devices

    def _in_order(self, placed: Mapping[str, str]) -> list[str]:
        """The devices in the order of the placement's ops.

        A function that is called twice may be placed on two devices; the device of the last call
        is returned.
        """
        ops = self.placement.ops
        if any(op.caller for op in ops.values()):
            bodies = {name_in_body(name): device for name, device in placed.items()}
            placed = bodies | dict(placed)
        return [placed.get(name, "") for name in ops]


def check_answer(
    devices: Sequence[str], requested: Sequence[str], placement: Placement, graph_def: Any
) -> None:
    """Check that every op got a device of the machine, and the device that it requests.

    Args:
        devices: the assigned device of each op of the graph, in graph order.
        requested: the requested device of each op, in the same order; empty for soft placement.
        placement: the requested placement, with its machine.
        graph_def: the graph that was placed.

    Raises:
        InputError: the answer contradicts the request.
    """
    assert placement.machine is not None
    nodes = graph_def.node
    faults: list[str] = []
    if unknown := set(devices) - set(map(str, placement.machine.devices)):
        faults += [
            f"'{node.name}' is on {device}, which is not in {placement.machine}"
            if device
            else f"'{node.name}' has no device"
            for node, device in zip(nodes, devices, strict=True)
            if device in unknown
        ]
    if elsewhere := {
        (device, request)
        for device, request in set(zip(devices, requested, strict=False))
        if device and not Device.parse(device).matches(Device.parse(request))
    }:
        followed = {name for op in placement.ops.values() for name in op.colocated}
        faults += [
            f"'{node.name}' requests {request} and is on {device}"
            for node, device, request in zip(nodes, devices, requested, strict=True)
            if (device, request) in elsewhere
            and not (node.name in followed or "_class" in node.attr or _follows_resource(node))
        ]
    if faults:
        raise InputError(
            placement.program,
            f"the placer's answer for {len(faults)} of {len(devices)} ops cannot be right: "
            + faults[0],
            "report this graph as a bug: rules do not judge a graph with a wrong placement",
        )


def _follows_resource(node: Any) -> bool:
    """Whether an op has a resource or a reference among its inputs and outputs.

    The placer assigns such an op to the device of the resource, even in strict placement, whatever
    the op requests.
    """
    types = (dtype for value in node.attr.values() for dtype in (value.type, *value.list.type))
    return _has_resource(node.op) or any(map(_is_resource, types))


@lru_cache(maxsize=4096)
def _has_resource(op_type: str) -> bool:
    registered = definition_of(op_type)
    return registered is not None and any(
        argument.is_ref or _is_resource(argument.type)
        for argument in (*registered.input_arg, *registered.output_arg)
    )


def _is_resource(dtype: int) -> bool:
    return dtype == _RESOURCE or dtype >= _FIRST_REF
