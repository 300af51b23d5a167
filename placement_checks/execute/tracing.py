"""Traces steps of a program: what TensorFlow's step statistics tell of each op."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.devices import Device
from placement_checks.execute.devices import stood_in_for
from placement_checks.execute.fitness import all_fed, says_step
from placement_checks.execute.programs import Runnable
from placement_checks.execute.sessions import Running, Values
from placement_checks.placement import producer_of
from placement_checks.timing.replay import Task
from placement_checks.timing.timeline import Slice, Timeline
from placement_checks.timing.trace import Trace
from placement_checks.wiring import wiring

tf1 = tf.compat.v1

_LEAST, _MOST = 2, 10  # steps of a program that is watched
_LONG = 2.0  # seconds after which it is watched no longer
_ALL_STREAMS = "/stream:all"


class Tracer:
    """Traces one program, step by step."""

    def __init__(self, running: Running, feeds: Values, rows: int) -> None:
        """Take a first step, of which no statistics are kept: TensorFlow still gets ready.

        Args:
            running: the session of the program.
            feeds: the rows of a step.
            rows: how many they are.
        """
        self._running = running
        self._feeds = feeds
        self._rows = rows
        self._steps: list[Mapping[Device, Sequence[Slice]]] = []
        self._parts = self._step().partition_graphs

    def _step(self) -> Any:
        metadata = tf1.RunMetadata()
        self._running.step(self._feeds, metadata)
        return metadata

    def step(self) -> None:
        """Take a step, and keep its statistics."""
        simulated = self._running.program.simulated
        self._steps.append(dict(_lanes(self._step().step_stats, simulated=simulated)))

    def trace(self) -> Trace:
        """What the steps so far tell."""
        tasks = _tasks(
            self._parts, _shortest(self._steps), simulated=self._running.program.simulated
        )
        return Trace(self._rows, [_from_zero(each) for each in self._steps], tasks)


def watched(program: Runnable, feeds: Values, rows: int, seconds: float) -> Trace:
    """Some steps of a program, on as many threads as it has towers.

    Args:
        program: what runs.
        feeds: the rows of a step.
        rows: how many they are.
        seconds: that one run may take.

    Raises:
        InputError: a step failed.
        Unmeasurable: it does not say what a step is, cannot be fed, or cannot run here.
    """
    says_step(program)
    all_fed(program, feeds)
    with Running(program, seconds, threads=program.gpus if program.simulated else 0) as running:
        running.begin({})
        tracer = Tracer(running, feeds, rows)
        begin = time.perf_counter()
        for number in range(_MOST):
            if number >= _LEAST and time.perf_counter() - begin > _LONG:
                break
            tracer.step()
        return tracer.trace()


def tower_devices(program: Runnable) -> list[tuple[Device, ...]]:
    """The devices of each tower, as the program asks for them."""
    return [tower.devices for tower in wiring(program.placement).towers]


def _lanes(statistics: Any, *, simulated: bool) -> Iterator[tuple[Device, list[Slice]]]:
    """What each device did, in seconds since the epoch.

    Of a GPU TensorFlow tells when kernels were queued, under the device's own name, and when they
    ran, under that of its streams.
    """
    named = {each.device: each for each in statistics.dev_stats}
    for name, stats in named.items():
        if "/stream:" in name or "/memcpy" in name:
            continue
        ran = next((named[each] for each in named if each == f"{name}{_ALL_STREAMS}"), stats)
        slices = [_slice(node) for node in ran.node_stats]
        yield _told(name, simulated=simulated), sorted(slices, key=lambda each: each.start)


def _slice(node: Any) -> Slice:
    begin = (node.all_start_nanos or 1000 * node.all_start_micros) / 1e9
    start = (node.op_start_rel_nanos or 1000 * node.op_start_rel_micros) / 1e9
    end = (node.op_end_rel_nanos or 1000 * node.op_end_rel_micros) / 1e9
    op = node.node_name.partition(":")[0]  # of a kernel it is name:type
    return Slice(op, begin + start, begin + max(start, end))


def _told(name: str, *, simulated: bool) -> Device:
    device = Device.parse(name)
    return stood_in_for(device) if simulated else device


def _from_zero(lanes: Mapping[Device, Sequence[Slice]]) -> Timeline:
    begin = min((each.start for lane in lanes.values() for each in lane), default=0.0)
    return Timeline(
        {
            device: [Slice(each.op, each.start - begin, each.end - begin) for each in lane]
            for device, lane in sorted(lanes.items(), key=lambda item: str(item[0]))
        }
    )


def _shortest(steps: Sequence[Mapping[Device, Sequence[Slice]]]) -> Mapping[str, float]:
    """The least time that each op took in a step; in a loop, that of all its turns together."""
    least: dict[str, float] = {}
    for lanes in steps:
        taken: dict[str, float] = defaultdict(float)
        for lane in lanes.values():
            for each in lane:
                taken[each.op] += each.end - each.start
        for op, seconds in taken.items():
            least[op] = min(seconds, least.get(op, seconds))
    return least


def _tasks(parts: Sequence[Any], seconds: Mapping[str, float], *, simulated: bool) -> list[Task]:
    """The ops of the partition graphs, with what each waits for."""
    nodes = [node for part in parts for node in part.node]
    number = {node.name: index for index, node in enumerate(nodes)}
    sends = {
        node.attr["tensor_name"].s: index for index, node in enumerate(nodes) if _is(node, "Send")
    }
    return [
        Task(
            node.name,
            _told(node.device, simulated=simulated),
            seconds.get(node.name, 0.0),
            sorted(_needs(node, nodes, number, sends)),
        )
        for node in nodes
    ]


def _needs(
    node: Any, nodes: Sequence[Any], number: Mapping[str, int], sends: Mapping[bytes, int]
) -> Collection[int]:
    """The ops that one waits for; one that receives waits for the one that sends.

    Not the way back of a loop, whose turns count as one.
    """
    found = {number[producer_of(each)] for each in node.input if producer_of(each) in number}
    if _is(node, "Recv") and node.attr["tensor_name"].s in sends:
        found.add(sends[node.attr["tensor_name"].s])
    return {each for each in found if nodes[each].op not in ("NextIteration", "RefNextIteration")}


def _is(node: Any, kind: str) -> bool:
    return str(node.op).removeprefix("_Host").removeprefix("_") == kind
