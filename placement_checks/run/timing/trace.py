"""Trace steps of a program: when each op ran, from TensorFlow's step statistics."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.devices import Device
from placement_checks.core.measurement import Arrays
from placement_checks.core.op_types import EXITS, NEXT_ITERATIONS, RECEIVES, SENDS, SWITCHES
from placement_checks.core.placement import producer_of
from placement_checks.core.trace import OpSpan, TimedOp, Timeline, Trace
from placement_checks.run.preconditions import check_all_fed, check_step_known
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession
from placement_checks.tf.simulated_devices import to_requested
from placement_checks.util.progress import step

tf1 = tf.compat.v1

_MIN_STEPS, _MAX_STEPS = 2, 10
_MAX_SECONDS = 2.0  # no further step is traced after this time
_Seconds = Mapping[tuple[Device, str], float]
_DEVICE = re.compile(r"/device:\w+:\d+$")


class Tracer:
    """Traces one program, step by step."""

    def __init__(self, session: ProgramSession, feeds: Arrays, rows: int) -> None:
        """Take a warm-up step without statistics, on feeds with this number of rows."""
        self._session = session
        self._feeds = feeds
        self._rows = rows
        self._steps: list[Mapping[Device, Sequence[OpSpan]]] = []
        self._parts = self._step().partition_graphs

    def _step(self) -> Any:
        metadata = tf1.RunMetadata()
        self._session.step(self._feeds, metadata)
        return metadata

    def step(self) -> None:
        """Take a step and store its statistics."""
        self._steps.append(dict(self._lanes(self._step().step_stats)))

    def _lanes(self, statistics: Any) -> Iterator[tuple[Device, list[OpSpan]]]:
        """Yield each device with the spans of its ops, in seconds since the epoch.

        TensorFlow records two times for each kernel of a GPU: under the full device name the time
        when the kernel was queued, and under ``/device:GPU:0/stream:all`` the time when it ran
        (core/profiler/convert/xplane_to_step_stats.cc).
        """
        named = {device_stats.device: device_stats for device_stats in statistics.dev_stats}
        for name, stats in named.items():
            device = _DEVICE.search(name)
            if device is None:
                continue
            streams = f"{device[0]}/stream:all"
            ran = next((named[other] for other in named if other.endswith(streams)), stats)
            spans = [_op_span(node) for node in ran.node_stats]
            yield self._device(name), sorted(spans, key=lambda span: span.start)

    def _device(self, name: str) -> Device:
        device = Device.parse(name)
        return to_requested(device) if self._session.program.simulated else device

    def trace(self) -> Trace:
        """Return the trace of all steps so far."""
        nodes = _Nodes([node for part in self._parts for node in part.node])
        seconds = _shortest_times(self._steps)
        ops = []
        for node in nodes.nodes:
            device = self._device(node.device)
            duration = seconds.get((device, node.name), 0.0)
            ops.append(TimedOp(node.name, device, duration, sorted(nodes.dependencies(node))))
        return Trace(self._rows, [_from_zero(lanes) for lanes in self._steps], ops)


def trace_steps(program: RunnableProgram, feeds: Arrays, rows: int, seconds: float) -> Trace:
    """Trace some steps of a program, on as many threads as it has towers.

    The feeds hold ``rows`` rows; one run takes ``seconds`` at most.

    Raises:
        InputError: a step failed.
        CannotRun: the program declares no training op, a placeholder is not fed, or the step
            cannot run on this machine.
    """
    check_step_known(program)
    check_all_fed(program, feeds)
    threads = program.gpus if program.simulated else 0
    with (
        ProgramSession(program, seconds, threads=threads) as session,
        step(f"tracing {program.name}"),
    ):
        session.initialize({})
        tracer = Tracer(session, feeds, rows)
        begin = time.perf_counter()
        for number in range(_MAX_STEPS):
            if number >= _MIN_STEPS and time.perf_counter() - begin > _MAX_SECONDS:
                break
            tracer.step()
        return tracer.trace()


def tower_devices(program: RunnableProgram) -> list[tuple[Device, ...]]:
    """Return the requested devices of each tower."""
    return [tower.devices for tower in analyze(program.placement).towers]


def _op_span(node: Any) -> OpSpan:
    begin = (node.all_start_nanos or 1000 * node.all_start_micros) / 1e9
    start = (node.op_start_rel_nanos or 1000 * node.op_start_rel_micros) / 1e9
    end = (node.op_end_rel_nanos or 1000 * node.op_end_rel_micros) / 1e9
    op = node.node_name.partition(":")[0]  # kernels are called name:type
    return OpSpan(op, begin + start, begin + max(start, end))


def _from_zero(lanes: Mapping[Device, Sequence[OpSpan]]) -> Timeline:
    begin = min((span.start for lane in lanes.values() for span in lane), default=0.0)
    return Timeline(
        {
            device: [OpSpan(span.op, span.start - begin, span.end - begin) for span in lane]
            for device, lane in sorted(lanes.items())
        }
    )


def _shortest_times(steps: Sequence[Mapping[Device, Sequence[OpSpan]]]) -> _Seconds:
    """Return the shortest time of each op in a step, summed over the iterations of a loop.

    The key contains the device, because an op in a function body may have the name of another op.
    """
    least: dict[tuple[Device, str], float] = {}
    for lanes in steps:
        durations: dict[tuple[Device, str], float] = defaultdict(float)
        for device, lane in lanes.items():
            for span in lane:
                durations[device, span.op] += span.end - span.start
        for op, seconds in durations.items():
            least[op] = min(seconds, least.get(op, seconds))
    return least


class _Nodes:
    """The dependencies between nodes of partition graphs.

    Sends and receives connect the nodes of different devices.

    All iterations of a loop count as one: no node waits for the next iteration, and the exit of
    the loop waits for the end of an iteration.
    """

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes
        self._index = {node.name: index for index, node in enumerate(nodes)}
        self._sends = {
            node.attr["tensor_name"].s: index
            for index, node in enumerate(nodes)
            if node.op in SENDS
        }
        self._iterations: dict[str, set[int]] = defaultdict(set)
        for node in nodes:
            if node.op in SWITCHES:
                value, condition = node.input[:2]
                for merge in self._indices([value]):
                    self._iterations[producer_of(condition)].update(
                        index
                        for index in self._indices(nodes[merge].input)
                        if nodes[index].op in NEXT_ITERATIONS
                    )

    def dependencies(self, node: Any) -> Collection[int]:
        """Return the indices of the nodes that a node waits for."""
        found = set(self._indices(node.input))
        if node.op in RECEIVES:
            send = self._sends.get(node.attr["tensor_name"].s)
            found |= set() if send is None else {send}
        if node.op in EXITS:
            for switch in self._indices(node.input[:1]):
                for condition in self.nodes[switch].input[1:2]:
                    found |= self._iterations[producer_of(condition)]
            return found
        return {index for index in found if self.nodes[index].op not in NEXT_ITERATIONS}

    def _indices(self, names: Iterable[str]) -> Iterator[int]:
        for name in names:
            if producer_of(name) in self._index:
                yield self._index[producer_of(name)]
