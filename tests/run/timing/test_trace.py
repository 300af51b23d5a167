"""TensorFlow's step statistics: the intervals of each device, and the dependencies of ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import pairs
from tensorflow.core.framework import step_stats_pb2

from placement_checks import Device, Program
from placement_checks.analysis.step.schedule import possible_overlap, simulate
from placement_checks.capture.programs import load
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.errors import CannotRun
from placement_checks.core.trace import TimedOp, Timeline, Trace
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.session import ProgramSession
from placement_checks.run.timing import trace as tracing
from placement_checks.run.timing.trace import Tracer, tower_devices, trace_steps
from placement_checks.tf.simulated_devices import to_requested, to_simulated

tf1 = tf.compat.v1

HOST, *GPUS = (Device.parse(name).over(LOCALHOST) for name in ("/cpu:0", "/gpu:0", "/gpu:1"))
HOST_NAME, *GPU_NAMES = map(str, (HOST, *GPUS))


# Programs that run.


def traced(towers: Callable[..., Any], gpus: int = 2) -> tuple[Trace, Sequence[Sequence[Device]]]:
    """Some steps of a program on simulated devices, and the devices of its towers."""
    reference = Program("single", partial(towers, 1))
    pair = ProgramPair.from_programs(
        load(Program("towers", towers), gpus), load(reference, 1), "simulated"
    )
    feeding = pair.feeding(pairs.batch)
    feeds = feeding.to_towers(feeding.batch(np.random.default_rng(0), feeding.rows))
    return trace_steps(pair.towers, feeds, feeding.rows, 60), tower_devices(pair.towers)


def shares(towers: Callable[..., Any], gpus: int = 2) -> list[float]:
    """The share of time that each pair of towers can compute at once."""
    trace, devices = traced(towers, gpus)
    return [pair.share for pair in possible_overlap(trace, devices)]


def long(x: Any) -> Any:
    """The value x, after a computation that takes longer than everything else."""
    squares = tf.matmul(x, x, transpose_b=True)
    large = tf.tile(squares, [25, 25]) / 100
    for _ in range(3):
        large = tf.tanh(tf.matmul(large, large))
    return x + 0 * tf.reduce_mean(large)


def with_inputs(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Sound towers; `change` replaces their graph first."""
    return partial(pairs.towers, loss=lambda x, y: pairs.squared_error(change(x), y))


def after_the_gradients_of_the_last(x: Any) -> Any:
    ops = tf1.get_default_graph().get_operations()
    with tf.control_dependencies([op for op in ops if op.name.startswith("gradients")]):
        return long(tf.identity(x))


def test_a_simulated_gpu_is_reported_as_the_gpu() -> None:
    trace, devices = traced(pairs.towers)

    assert devices == [(GPUS[0],), (GPUS[1],)]
    assert trace.rows == 16
    for step in (*trace.steps, simulate(trace.ops)):
        assert step is not None
        assert list(step.lanes) == [HOST, *GPUS]
        assert step.seconds > 0
    for gpu, op in zip(GPUS, ("MatMul", "MatMul_1"), strict=True):
        assert op in {span.op for span in trace.shortest.lanes[gpu]}


@pytest.mark.parametrize("gpus", [2, 3])
def test_sound_towers_can_compute_at_once(gpus: int) -> None:
    found = shares(with_inputs(long), gpus)

    assert len(found) == gpus * (gpus - 1) / 2
    assert min(found) >= 0.5


def test_towers_that_wait_for_each_other_cannot() -> None:
    (found,) = shares(with_inputs(after_the_gradients_of_the_last))

    assert found < 0.05


def turns(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, value: (i + 1, long(value)), [0, x])[1]


def turns_of_v1(x: Any) -> Any:
    """With Enter, NextIteration and Exit in the graph itself."""
    enabled = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        return turns(x)
    finally:
        if enabled:
            tf1.enable_control_flow_v2()


def branch(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) < 1e9, lambda: long(x), lambda: x)


def test_towers_that_wait_for_a_loop_cannot() -> None:
    """The body of a loop runs before the ops after the loop."""

    def change(x: Any) -> Any:
        return turns(after_the_gradients_of_the_last(x))

    (found,) = shares(with_inputs(change))

    assert found < 0.05


@pytest.mark.parametrize("change", [turns, turns_of_v1, branch, tf.function(long)])
def test_loops_branches_and_functions_have_a_schedule(change: Callable[[Any], Any]) -> None:
    trace, devices = traced(with_inputs(change))
    (pair,) = possible_overlap(trace, devices)

    assert pair.share >= 0.5
    assert simulate(trace.ops) is not None
    for gpu in GPUS:  # ops of the body are included; 2.15 reports only the call of a function
        ops = {slice.op for slice in trace.shortest.lanes[gpu]}
        assert any("Tanh" in op or "PartitionedCall" in op for op in ops)


@pytest.mark.parametrize(("tick", "steps"), [(0.0, 10), (1.5, 3), (3.0, 2)])
def test_a_trace_has_ten_steps_or_two_seconds(
    tick: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, tick)
    monkeypatch.setattr(tracing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    trace, _ = traced(pairs.towers)

    assert len(trace.steps) == steps


@pytest.mark.parametrize("gpus", [2, 3])
def test_a_program_has_as_many_threads_as_towers(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class Noted(ProgramSession):
        def __init__(self, *args: Any, **options: Any) -> None:
            opened.append(options)
            super().__init__(*args, **options)

    monkeypatch.setattr(tracing, "ProgramSession", Noted)

    traced(pairs.towers, gpus)

    assert opened == [{"threads": gpus}]


def test_a_program_without_a_train_op() -> None:
    def silent(num_gpus: int = 2) -> Mapping[str, Any]:
        return {key: value for key, value in pairs.towers(num_gpus).items() if key != "train_op"}

    with pytest.raises(CannotRun) as error:
        traced(silent)

    assert str(error.value) == (
        "towers declares no train_op; return it from the function that builds the graph: "
        "{'train_op': train_op}"
    )


def test_an_unfed_placeholder() -> None:
    def warmer(x: Any) -> Any:
        return x * tf1.placeholder(tf.float32, [], name="temperature")

    with pytest.raises(CannotRun) as error:
        traced(with_inputs(warmer))

    message = str(error.value)
    assert message.startswith("nothing feeds the placeholder 'temperature' of towers, built at ")
    assert f"{Path(__file__).name}:" in message
    assert message.endswith(
        "; list it in the inputs that its builder returns, and let the batch function return its "
        "value"
    )


@pytest.mark.parametrize("gpu", ["/device:GPU:0", "/job:worker/task:1/device:GPU:3"])
def test_devices_that_simulate_gpus(gpu: str) -> None:
    assert to_requested(Device.parse(to_simulated(gpu))) == Device.parse(gpu)


@pytest.mark.parametrize("device", ["/device:CPU:0", "/cpu", "/device:GPU:3", "/job:ps", ""])
def test_devices_that_simulate_nothing(device: str) -> None:
    assert to_requested(Device.parse(device)) == Device.parse(device)


# Statistics written by hand.


class Played:
    """A session with known step statistics."""

    def __init__(
        self, *steps: Mapping[str, Sequence[Any]], parts: Sequence[Any] = (), simulated: bool
    ) -> None:
        self.program = SimpleNamespace(simulated=simulated)
        self._metadata = self._of(parts, steps)

    @staticmethod
    def _of(parts: Sequence[Any], steps: Sequence[Mapping[str, Sequence[Any]]]) -> Iterator[Any]:
        # No statistics are kept of the first step, and graphs of no other.
        yield tf1.RunMetadata(partition_graphs=[tf1.GraphDef(node=part) for part in parts])
        for step in steps:
            yield tf1.RunMetadata(
                step_stats=step_stats_pb2.StepStats(
                    dev_stats=[
                        step_stats_pb2.DeviceStepStats(device=device, node_stats=nodes)
                        for device, nodes in step.items()
                    ]
                )
            )

    def step(self, _feeds: Any, metadata: Any) -> None:
        metadata.CopyFrom(next(self._metadata))


def played(
    *steps: Mapping[str, Sequence[Any]], parts: Sequence[Any] = (), simulated: bool = False
) -> Trace:
    running: Any = Played(*steps, parts=parts, simulated=simulated)
    tracer = Tracer(running, {}, 8)
    for _ in steps:
        tracer.step()
    return tracer.trace()


def ran(op: str, begin: int, start: int, end: int) -> Any:
    """An op with the start of its kernel, and the relative start and end, in microseconds."""
    return step_stats_pb2.NodeExecStats(
        node_name=op, all_start_micros=begin, op_start_rel_micros=start, op_end_rel_micros=end
    )


def microseconds(timeline: Timeline) -> dict[Device, list[tuple[str, int, int]]]:
    return {
        device: [(span.op, round(span.start * 1e6), round(span.end * 1e6)) for span in lane]
        for device, lane in timeline.lanes.items()
    }


def test_the_times_of_a_gpu_are_its_streams_times() -> None:
    """The device's own name has the times when the host queued kernels."""
    streams = [ran("loss:Mean", 1090, 0, 9), ran("conv:Conv2D", 1010, 0, 80)]
    trace = played(
        {
            HOST_NAME: [ran("read", 1000, 0, 3)],
            GPU_NAMES[0]: [ran("conv", 1002, 1, 2), ran("loss", 1005, 1, 2)],
            "/device:GPU:0/stream:14": streams[:1],
            "/device:GPU:0/stream:all": streams,
            "/device:GPU:0/memcpy": [ran("copied", 1003, 0, 5)],
            "/device:GPU:0/sync": [ran("waited", 1003, 0, 5)],
            "/device:GPU:10/stream:all": [ran("stranger", 1003, 0, 5)],
            GPU_NAMES[1]: [ran("other", 1020, 1, 2)],
        },
        parts=[[tf1.NodeDef(name="conv", op="Conv2D", device=GPU_NAMES[0])]],
    )

    assert microseconds(trace.shortest) == {
        HOST: [("read", 0, 3)],
        GPUS[0]: [("conv", 10, 90), ("loss", 90, 99)],
        GPUS[1]: [("other", 21, 22)],
    }
    (task,) = trace.ops
    assert task._replace(seconds=round(task.seconds, 9)) == TimedOp("conv", GPUS[0], 80e-6, [])
    assert trace.rows == 8


def test_lanes_of_twelve_gpus() -> None:
    gpus = [Device.parse(f"/gpu:{number}").over(LOCALHOST) for number in range(12)]

    trace = played({str(gpu): [ran("conv", 0, 0, 1)] for gpu in reversed(gpus)})

    assert list(trace.shortest.lanes) == gpus


@pytest.mark.parametrize(("simulated", "device"), [(True, "/gpu:0"), (False, "/cpu:1")])
def test_a_cpu_device_is_a_gpu_only_if_it_simulates_one(simulated: bool, device: str) -> None:
    name = str(Device.parse("/cpu:1").over(LOCALHOST))
    trace = played(
        {name: [ran("conv", 0, 0, 1)]},
        parts=[[tf1.NodeDef(name="conv", op="Conv2D", device=name)]],
        simulated=simulated,
    )

    target = Device.parse(device).over(LOCALHOST)
    assert list(trace.shortest.lanes) == [target]
    assert [task.device for task in trace.ops] == [target]


def test_nanoseconds_are_used_if_available() -> None:
    op = step_stats_pb2.NodeExecStats(
        node_name="op",
        **dict.fromkeys(("all_start_micros", "op_start_rel_micros", "op_end_rel_micros"), 7),
        all_start_nanos=2_000,
        op_start_rel_nanos=1_000,
        op_end_rel_nanos=5_000,
    )

    trace = played({HOST_NAME: [ran("first", 1, 0, 1), op]})

    assert microseconds(trace.shortest) == {HOST: [("first", 0, 1), ("op", 2, 6)]}


def test_an_op_does_not_end_before_it_starts() -> None:
    trace = played({HOST_NAME: [ran("unfinished", 1000, 4, 0), ran("op", 1000, 0, 2)]})

    assert microseconds(trace.shortest) == {HOST: [("op", 0, 2), ("unfinished", 4, 4)]}


def test_an_op_of_a_body_with_the_same_name_is_another_op() -> None:
    trace = played(
        {GPU_NAMES[0]: [ran("conv", 0, 0, 5)], GPU_NAMES[1]: [ran("conv", 0, 0, 70)]},
        parts=[[tf1.NodeDef(name="conv", op="Conv2D", device=GPU_NAMES[0])]],
    )

    (task,) = trace.ops
    assert round(task.seconds, 9) == 5e-6


def test_an_op_takes_its_shortest_time_of_all_steps() -> None:
    """Iterations of a loop are added up, and ops that never ran take no time."""
    names = ("quick", "turned", "never")
    trace = played(
        {HOST_NAME: [ran("quick", 0, 0, 9), ran("turned", 10, 0, 2), ran("turned", 20, 1, 3)]},
        {HOST_NAME: [ran("quick", 0, 1, 6), ran("turned", 10, 0, 5), ran("turned", 20, 0, 1)]},
        {HOST_NAME: [ran("quick", 0, 0, 7)]},
        parts=[[tf1.NodeDef(name=name, device=HOST_NAME) for name in names]],
    )

    taken = {task.op: round(1e6 * task.seconds) for task in trace.ops}
    assert taken == {"quick": 5, "turned": 4, "never": 0}


def edge(name: str, op: str, device: str, tensor: str, *inputs: str) -> Any:
    node = tf1.NodeDef(name=name, op=op, device=device, input=inputs)
    node.attr["tensor_name"].s = tensor.encode()
    return node


@pytest.mark.parametrize("prefix", ["_", "_Host", ""])
def test_ops_wait_for_inputs_and_receives_for_sends(prefix: str) -> None:
    node = tf1.NodeDef
    host = [
        node(name="w", op="VarHandleOp", device=HOST_NAME),
        node(name="begin", op="NoOp", device=HOST_NAME),
        node(name="read", op="Split", device=HOST_NAME, input=["w", "^begin"]),
        edge("read/_0", f"{prefix}Send", HOST_NAME, "edge_1_read", "read:1"),
        edge("begin/_2", f"{prefix}Send", HOST_NAME, "edge_2_begin", "begin"),
    ]
    gpu = [
        edge("begin/_3", f"{prefix}Recv", GPU_NAMES[0], "edge_2_begin"),
        edge("read/_1", f"{prefix}Recv", GPU_NAMES[0], "edge_1_read", "^begin/_3"),
        node(name="double", op="Mul", device=GPU_NAMES[0], input=["read/_1", "read/_1"]),
        edge("fed", f"{prefix}Recv", GPU_NAMES[0], "edge_9_elsewhere"),
    ]

    trace = played({HOST_NAME: []}, parts=[host, gpu])

    names = [task.op for task in trace.ops]
    assert {task.op: [names[need] for need in task.needs] for task in trace.ops} == {
        "w": [],
        "begin": [],
        "read": ["w", "begin"],
        "read/_0": ["read"],
        "begin/_2": ["begin"],
        "begin/_3": ["begin/_2"],
        "read/_1": ["read/_0", "begin/_3"],
        "double": ["read/_1"],
        "fed": [],
    }
    assert {task.device for task in trace.ops} == {HOST, GPUS[0]}


@pytest.mark.parametrize("kind", ["NextIteration", "RefNextIteration"])
def test_the_back_edge_of_a_loop_is_not_waited_for(kind: str) -> None:
    node = partial(tf1.NodeDef, device=HOST_NAME)
    loop = [
        node(name="enter", op="Enter"),
        node(name="merge", op="Merge", input=["enter", "next"]),
        node(name="body", op="Tanh", input=["merge"]),
        node(name="next", op=kind, input=["body"]),
    ]

    trace = played({HOST_NAME: [ran("body", 0, 0, 5)]}, parts=[loop])

    assert [list(task.needs) for task in trace.ops] == [[], [0], [1], [2]]
    assert simulate(trace.ops) is not None


@pytest.mark.parametrize("ref", ["", "Ref"])
def test_exits_of_a_loop_wait_for_an_iteration(ref: str) -> None:
    """The dependency includes other variables of that loop, but not of another loop."""
    node = partial(tf1.NodeDef, device=HOST_NAME)

    def loop(name: str) -> list[Any]:
        return [
            node(name=f"{name}/enter", op=f"{ref}Enter"),
            node(name=f"{name}/merge", op=f"{ref}Merge", input=[f"{name}/enter", f"{name}/next"]),
            node(name=f"{name}/switch", op=f"{ref}Switch", input=[f"{name}/merge", name[0]]),
            node(name=f"{name}/body", op="Tanh", input=[f"{name}/switch:1"]),
            node(name=f"{name}/next", op=f"{ref}NextIteration", input=[f"{name}/body"]),
            node(name=f"{name}/exit", op=f"{ref}Exit", input=[f"{name}/switch"]),
        ]

    nodes = [
        node(name="a", op="LoopCond"),
        node(name="b", op="LoopCond"),
        *(node for name in ("a1", "a2", "b1") for node in loop(name)),
    ]

    trace = played({HOST_NAME: [ran("a1/body", 0, 0, 5)]}, parts=[nodes])

    waits = {task.op: {trace.ops[need].op for need in task.needs} for task in trace.ops}
    assert waits["a1/exit"] == {"a1/switch", "a1/next", "a2/next"}
    assert waits["b1/exit"] == {"b1/switch", "b1/next"}
    assert waits["a1/merge"] == {"a1/enter"}
    assert simulate(trace.ops) is not None
