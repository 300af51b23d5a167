"""The simulated schedule of a step, and the properties of any schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from placement_checks import Device
from placement_checks.analysis.step.schedule import simulate
from placement_checks.core.trace import OpSpan, TimedOp, Timeline

HOST, GPU, OTHER = (Device.parse(name) for name in ("/cpu:0", "/gpu:0", "/gpu:1"))


@st.composite
def steps(draw: st.DrawFn, seconds: Sequence[int] = (0, 1, 2, 5)) -> list[TimedOp]:
    """Ops of whole seconds in any order, which wait for ops that were built before."""
    size = draw(st.integers(1, 10))
    place = draw(st.permutations(range(size)))
    tasks = {}
    for number in range(size):
        before = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        tasks[place[number]] = TimedOp(
            f"op{place[number]}",
            draw(st.sampled_from([HOST, GPU, OTHER])),
            draw(st.sampled_from(seconds)),
            sorted(place[need] for need in before),
        )
    return [tasks[number] for number in range(size)]


def waits(tasks: Sequence[TimedOp]) -> nx.DiGraph:
    """The edges from each op to the ops that wait for it, as a graph of networkx."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(tasks)))
    edges = ((need, number) for number, task in enumerate(tasks) for need in task.needs)
    graph.add_edges_from(edges)
    return graph


def slices(timeline: Timeline | None) -> dict[str, OpSpan]:
    """The time span of each op; ops that take no time are in no lane."""
    assert timeline is not None
    return {span.op: span for lane in timeline.lanes.values() for span in lane}


def ready(tasks: Sequence[TimedOp], timeline: Timeline | None) -> dict[str, float]:
    """The time when all inputs of each op were ready."""
    ran = slices(timeline)
    graph = waits(tasks)
    return {
        task.op: max(
            (
                ran[tasks[need].op].end
                for need in nx.ancestors(graph, number)
                if tasks[need].seconds
            ),
            default=0,
        )
        for number, task in enumerate(tasks)
    }


def lanes(tasks: Sequence[TimedOp], timeline: Timeline | None) -> Iterator[list[TimedOp]]:
    """The ops of each device that take time, in the order of execution."""
    ran = slices(timeline)
    for device in (HOST, GPU, OTHER):
        mine = [task for task in tasks if task.device == device and task.seconds]
        yield sorted(mine, key=lambda task: ran[task.op].start)


@given(steps())
def test_every_op_runs_once_on_its_device_for_as_long_as_it_takes(
    tasks: Sequence[TimedOp],
) -> None:
    timeline = simulate(tasks)

    assert timeline is not None
    assert sorted(
        (span.op, device, span.end - span.start)
        for device, lane in timeline.lanes.items()
        for span in lane
    ) == sorted((task.op, task.device, task.seconds) for task in tasks if task.seconds)


@given(steps())
def test_no_op_starts_before_its_inputs_have_ended(tasks: Sequence[TimedOp]) -> None:
    timeline = simulate(tasks)
    earliest = ready(tasks, timeline)

    assert all(span.start >= earliest[op] for op, span in slices(timeline).items())


@given(steps())
def test_a_device_runs_one_op_at_a_time_in_the_order_of_readiness(
    tasks: Sequence[TimedOp],
) -> None:
    """The device is never idle while an op is ready."""
    timeline = simulate(tasks)
    ran, earliest = slices(timeline), ready(tasks, timeline)

    for lane in lanes(tasks, timeline):
        assert lane == sorted(lane, key=lambda task: earliest[task.op])
        free = 0.0
        for task in lane:
            assert ran[task.op].start == max(free, earliest[task.op])
            free = ran[task.op].end


@given(steps([1, 2, 5]))
def test_ops_ready_at_once_run_in_the_order_of_building(
    tasks: Sequence[TimedOp],
) -> None:
    timeline = simulate(tasks)
    earliest = ready(tasks, timeline)

    for lane in lanes(tasks, timeline):
        assert lane == sorted(lane, key=lambda task: (earliest[task.op], tasks.index(task)))


@given(steps())
def test_the_length_of_a_step_is_bounded_by_longest_path_and_sum(
    tasks: Sequence[TimedOp],
) -> None:
    timeline = simulate(tasks)
    graph = waits(tasks)
    graph.add_edges_from(("begin", number) for number in range(len(tasks)))
    for _, number, edge in graph.edges(data=True):
        edge["weight"] = tasks[number].seconds

    longest = nx.dag_longest_path_length(graph)
    busiest = max(sum(task.seconds for task in lane) for lane in lanes(tasks, timeline))

    assert timeline is not None
    assert max(longest, busiest) <= timeline.seconds <= sum(task.seconds for task in tasks)


@given(steps(), st.data())
def test_ops_that_wait_for_each_other_never_run(tasks: list[TimedOp], data: st.DataObject) -> None:
    late = data.draw(st.integers(0, len(tasks) - 1))
    early = data.draw(st.sampled_from(sorted({late, *nx.ancestors(waits(tasks), late)})))
    tasks[early] = tasks[early]._replace(needs=[*tasks[early].needs, late])

    assert simulate(tasks) is None


def test_an_op_that_takes_no_time_does_not_queue() -> None:
    """A copy arrives when it is sent, although its device is busy."""
    tasks = [
        TimedOp("long", GPU, 5),
        TimedOp("sent", HOST, 1),
        TimedOp("copied", GPU, 0, [1]),
        TimedOp("next", OTHER, 2, [2]),
    ]

    assert slices(simulate(tasks))["next"] == ("next", 1, 3)


def test_lanes_are_in_the_order_of_devices() -> None:
    tasks = [TimedOp("a", OTHER, 1), TimedOp("b", GPU, 1), TimedOp("c", HOST, 1)]

    timeline = simulate(tasks)

    assert timeline is not None
    assert list(timeline.lanes) == [HOST, GPU, OTHER]


def test_lanes_of_twelve_gpus_are_in_numeric_order() -> None:
    gpus = [Device.parse(f"/gpu:{number}") for number in range(12)]

    timeline = simulate([TimedOp("a", gpu, 1) for gpu in reversed(gpus)])

    assert timeline is not None
    assert list(timeline.lanes) == gpus


def test_a_step_without_ops_takes_no_time() -> None:
    assert simulate([]) == Timeline({})
