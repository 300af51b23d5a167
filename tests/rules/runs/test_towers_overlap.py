from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import placement
from support.snapshots import messages
from support.towers import gradient, host, on, program, without_two_towers
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Finding, Op, Placement, Verdict
from placement_checks.analysis.step.schedule import simulate
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.trace import OpSpan, TimedOp, Timeline, Trace
from placement_checks.rules.runs.towers_overlap import TowersOverlap
from placement_checks.verification.policy import policy_errors

HOST, *GPUS = (
    Device.parse(name).over(LOCALHOST) for name in ("/cpu:0", *(f"/gpu:{i}" for i in range(4)))
)
CIRCLE = [
    TimedOp("tower_0/w/MatMul", GPUS[0], 1, [1]),
    TimedOp("tower_1/w/MatMul", GPUS[1], 1, [0]),
]
INPUTS = (("tower_0/x",), ("tower_1/x",))


def works(tower: int, *needs: int, seconds: float = 0.001) -> TimedOp:
    """A tower's work in one op; by default too short for an observed overlap."""
    return TimedOp(f"tower_{tower}/w/MatMul", GPUS[tower], seconds, needs)


def step(*spans: tuple[int, int]) -> Timeline:
    """A step; each tower computes between two given milliseconds."""
    return Timeline(
        {
            GPUS[tower]: [OpSpan(f"tower_{tower}/w/MatMul", start / 1000, end / 1000)]
            for tower, (start, end) in enumerate(spans)
        }
    )


def checked(
    graph: Placement,
    *tasks: TimedOp,
    steps: Sequence[Timeline] = (),
    rows: int = 16,
    least: float = 0.5,
) -> Verdict:
    """The verdict on a program with these tasks; `ran` are the observed steps, if they differ."""
    alone = simulate(tasks)
    ran = steps or ([alone] if alone else [])
    return TowersOverlap(least).judge(Evidence(graph, trace=Trace(rows, ran, tasks)))


def waiting(tower: int, *inputs: str) -> Op:
    """The first op of tower i, which also waits for other ops."""
    return on(tower, f"tower_{tower}/w/MatMul", "MatMul", *own(tower), *inputs)


def own(tower: int) -> tuple[str, str]:
    return f"tower_{tower}/x", f"tower_{tower}/w/read"


def in_turn(towers: int, **more: Any) -> Placement:
    """Towers that each wait for the gradients of the tower before."""
    changes = (waiting(i, f"^{gradient(i - 1)}") for i in range(1, towers))
    return program(*changes, gpus=range(towers), **more)


TURNS = [works(0), works(1, 0)]


def test_kept(snapshot: SnapshotAssertion) -> None:
    verdict = checked(program(), works(0), works(1))

    assert verdict == Verdict("towers-overlap", "kept", "executed", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = in_turn(2, lines={"tower_1/w/MatMul": "main.py:12 net.py:3"})

    verdict = checked(graph, *TURNS)

    assert (verdict.state, verdict.evidence) == ("broken", "executed")
    assert messages(verdict) == snapshot
    assert verdict.findings == [
        Finding(
            object="/device:GPU:1",
            op="",
            evidence="executed",
            expected="overlap for at least 50% of the time",
            found="0%",
            message=ANY,
            consequence=ANY,
            fix=ANY,
            frames=("main.py:12", "net.py:3"),
            path=(
                "tower_1/w/MatMul (MatMul) net.py:3",
                "gradients/tower_0/w/MatMul_grad/MatMul (MatMul)",
            ),
        )
    ]


def test_a_value_of_the_other_tower_makes_it_wait(snapshot: SnapshotAssertion) -> None:
    """There is no control dependency; the line is where the tower takes the value."""
    lines = {"tower_1/w/MatMul": "main.py:12 net.py:3", "scaled": "main.py:9 net.py:7"}
    graph = program(
        host("scaled", "Mul", "share", "tower_0/loss"), waiting(1, "scaled"), lines=lines
    )

    (finding,) = checked(graph, *TURNS).findings

    assert finding.where == "main.py:12"
    assert messages(finding) == snapshot


def test_the_path_may_lead_over_the_host_and_along_values() -> None:
    graph = program(
        host("barrier", "NoOp", "^tower_0/loss"),
        host("scaled", "Mul", "share", "share", "^barrier"),
        waiting(1, "scaled"),
    )

    (finding,) = checked(graph, *TURNS).findings

    assert finding.path == (
        "tower_1/w/MatMul (MatMul)",
        "scaled (Mul)",
        "barrier (NoOp)",
        "tower_0/loss (Mean)",
    )


def test_the_op_that_waits_is_named_not_what_ran_before_it() -> None:
    """Each tower reads its weights without waiting."""
    graph = in_turn(2)
    read = TimedOp("tower_1/w/read", GPUS[1], 0.0001)

    (finding,) = checked(graph, works(0), read, works(1, 0)).findings

    assert finding.path == ("tower_1/w/MatMul (MatMul)", f"{gradient(0)} (MatMul)")


def test_ops_outside_of_the_step_are_not_named() -> None:
    """An example is the default value of a placeholder."""
    graph = program(
        on(1, "tower_1/shown", "Mul", "tower_0/loss"),
        on(1, "tower_1/x", "PlaceholderWithDefault", "tower_1/shown"),
        waiting(1, f"^{gradient(0)}"),
    )

    (finding,) = checked(graph, *TURNS).findings

    assert finding.path == ("tower_1/w/MatMul (MatMul)", f"{gradient(0)} (MatMul)")


def test_the_tower_on_the_first_gpu_may_wait(snapshot: SnapshotAssertion) -> None:
    """The loop may count down, or assign GPUs to towers in another order."""
    late = on(0, "tower_1/w/MatMul", "MatMul", *own(1), f"^{gradient(0)}")
    graph = program(late, gpus=[1, 0])
    tasks = [
        TimedOp("tower_0/w/MatMul", GPUS[1], 0.001),
        TimedOp("tower_1/w/MatMul", GPUS[0], 0.001, [0]),
    ]

    (finding,) = checked(graph, *tasks).findings

    assert finding.object == "/device:GPU:0"
    assert messages(finding) == snapshot


@pytest.mark.parametrize("towers", [3, 4])
def test_each_tower_in_a_row_is_found_with_the_tower_it_waits_for(
    towers: int, snapshot: SnapshotAssertion
) -> None:
    row = [works(0), *(works(i, i - 1) for i in range(1, towers))]

    verdict = checked(in_turn(towers), *row)

    assert [finding.object for finding in verdict.findings] == [
        f"/device:GPU:{i}" for i in range(1, towers)
    ]
    for i, finding in enumerate(verdict.findings, start=1):
        assert finding.path == (f"tower_{i}/w/MatMul (MatMul)", f"{gradient(i - 1)} (MatMul)")
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("early", [0, 1])
def test_only_a_waiting_tower_is_found_with_the_tower_it_waits_for(
    early: int, snapshot: SnapshotAssertion
) -> None:
    """It does not overlap with the other tower either, but does not wait for it."""
    graph = program(waiting(2, f"^{gradient(early)}"), gpus=range(3))

    verdict = checked(graph, works(0), works(1), works(2, early))

    (finding,) = verdict.findings
    assert finding.object == "/device:GPU:2"
    assert finding.path == ("tower_2/w/MatMul (MatMul)", f"{gradient(early)} (MatMul)")
    assert messages(verdict) == snapshot


def test_towers_in_turn_two_at_a_time() -> None:
    graph = program(*(waiting(i, f"^{gradient(i - 2)}") for i in (2, 3)), gpus=range(4))

    verdict = checked(graph, works(0), works(1), works(2, 0), works(3, 1))

    assert [finding.path for finding in verdict.findings] == [
        (f"tower_{i}/w/MatMul (MatMul)", f"{gradient(i - 2)} (MatMul)") for i in (2, 3)
    ]


def test_the_nearest_of_several_awaited_towers_is_found() -> None:
    graph = program(
        host("scaled", "Mul", "tower_1/loss", "share"),
        waiting(2, f"^{gradient(0)}", "^scaled"),
        gpus=range(3),
    )

    (finding,) = checked(graph, works(0), works(1), works(2, 0, 1)).findings

    assert finding.path == ("tower_2/w/MatMul (MatMul)", f"{gradient(0)} (MatMul)")


def test_the_second_of_two_towers_that_wait_for_each_other_is_found() -> None:
    graph = program(
        waiting(1, "^tower_0/loss"),
        on(0, "tower_0/penalty", "Mul", "tower_1/loss"),
        host("sum/w", "AddN", gradient(0), gradient(1), "tower_0/penalty"),
    )

    (finding,) = checked(graph, *TURNS, TimedOp("tower_0/penalty", GPUS[0], 0.001, [1])).findings

    assert finding.object == "/device:GPU:1"
    assert finding.path == ("tower_1/w/MatMul (MatMul)", "tower_0/loss (Mean)")


# Correct, and unusual.


@pytest.mark.parametrize("seconds", [(0.003, 0.001), (0.001, 0.003)], ids=["first", "second"])
def test_silent_on_a_tower_with_more_work(
    seconds: tuple[float, float], snapshot: SnapshotAssertion
) -> None:
    verdict = checked(
        program(), *(works(i, seconds=duration) for i, duration in enumerate(seconds))
    )

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("seconds", [(1, 1), (1, 2), (2, 1)])
def test_silent_on_a_host_that_works_long_for_each_tower(seconds: tuple[int, int]) -> None:
    """The host may finish one tower's work before the other's."""
    reads = (TimedOp(f"read_{i}", HOST, duration) for i, duration in enumerate(seconds))

    assert checked(program(), *reads, works(0, 0), works(1, 1)).state == "kept"


def parts_in_turn(*needs: int) -> list[TimedOp]:
    """Towers of two GPUs each, one after the other; the second one has ``needs``."""
    return [
        works(0),
        TimedOp("tower_0/u/MatMul", GPUS[2], 0.001, [0]),
        works(1, *needs),
        TimedOp("tower_1/u/MatMul", GPUS[3], 0.001, [2]),
    ]


def model_parallel(*more: Op) -> Placement:
    """Each tower has a layer on another GPU."""
    layers = (
        on(2 + i, f"tower_{i}/u/MatMul", "MatMul", f"tower_{i}/w/MatMul", f"tower_{i}/u/read")
        for i in (0, 1)
    )
    return program(*layers, *more, variables=["w", "u"], machine="gpu*4")


def test_silent_on_towers_that_do_not_wait(snapshot: SnapshotAssertion) -> None:
    """The program does not keep them apart."""
    verdict = checked(program(), works(0), works(1, 0))

    assert (verdict.state, list(verdict.findings)) == ("kept", [])
    assert messages(verdict) == snapshot


def test_silent_on_the_parts_of_a_tower_that_wait_for_each_other(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = checked(model_parallel(), *parts_in_turn())

    assert (verdict.state, list(verdict.findings)) == ("kept", [])
    assert messages(verdict) == snapshot


def test_a_tower_of_several_gpus_that_waits(snapshot: SnapshotAssertion) -> None:
    graph = model_parallel(waiting(1, f"^{gradient(0, 'u')}"))

    (finding,) = checked(graph, *parts_in_turn(1)).findings

    assert finding.object == "/device:GPU:1"
    assert finding.path == ("tower_1/w/MatMul (MatMul)", f"{gradient(0, 'u')} (MatMul)")
    assert messages(finding) == snapshot


@pytest.mark.parametrize("tasks", [TURNS, CIRCLE], ids=["in turn", "in a circle"])
def test_silent_where_the_run_shows_that_towers_compute_at_once(
    tasks: Sequence[TimedOp], snapshot: SnapshotAssertion
) -> None:
    verdict = checked(program(), *tasks, steps=[step((0, 10), (9, 19)), step((0, 10), (2, 12))])

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_silent_where_a_busy_machine_kept_towers_apart(snapshot: SnapshotAssertion) -> None:
    verdict = checked(program(), works(0), works(1), steps=[step((0, 10), (10, 20))], rows=1)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_silent_where_a_run_is_too_short_to_show_anything(snapshot: SnapshotAssertion) -> None:
    verdict = checked(program(), works(0), works(1), steps=[step((0, 4), (4, 8))])

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_small_observed_overlap_does_not_keep_the_rule(snapshot: SnapshotAssertion) -> None:
    verdict = checked(in_turn(2), *TURNS, steps=[step((0, 10), (6, 16))])

    assert verdict.state == "broken"
    assert messages(verdict) == snapshot


# All on one GPU.


def one_gpu(towers: int = 2, gpus: int = 2, **more: Any) -> Placement:
    """Towers that are all built on the first GPU, with separate inputs."""
    inputs = tuple((f"tower_{i}/x",) for i in range(towers))
    return program(
        gpus=[0] * towers,
        step={"inputs": inputs},
        **{"machine": f"gpu*{gpus}", **more},
    )


@pytest.mark.parametrize("towers", [2, 3])
def test_towers_that_share_a_gpu(towers: int, snapshot: SnapshotAssertion) -> None:
    verdict = checked(one_gpu(towers), TimedOp("read", HOST, 1), works(0, 0))

    assert verdict == Verdict(
        "towers-overlap",
        "broken",
        "executed",
        findings=[
            Finding(
                object="/device:GPU:0",
                op="",
                evidence="executed",
                expected=f"{towers} towers, each on a separate GPU",
                found="all of them on /device:GPU:0",
                message=ANY,
                consequence=ANY,
                fix=ANY,
            )
        ],
    )
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("graph", "tasks"),
    [
        pytest.param(one_gpu(gpus=1), [works(0)], id="the only GPU"),
        pytest.param(one_gpu(machine=None), [works(0)], id="GPUs are not known"),
        pytest.param(one_gpu(), [works(0), works(1)], id="another GPU computes"),
        pytest.param(one_gpu(), [TimedOp("read", HOST, 1)], id="no GPU computes"),
        pytest.param(
            replace(one_gpu(), step=one_gpu().step._replace(inputs=INPUTS[:1])),
            [works(0)],
            id="one input for all",
        ),
    ],
)
def test_silent_without_evidence_of_towers_on_one_gpu(
    graph: Placement, tasks: Sequence[TimedOp]
) -> None:
    assert checked(graph, *tasks).state == "not-checked"


# Not checked.


def test_not_checked_without_a_run() -> None:
    """The reason is the run's reason."""
    for graph in (program(), placement()):
        assert TowersOverlap().judge(Evidence(graph, trace=Missing("it died"))) == Verdict(
            "towers-overlap", "not-checked", None, "it died"
        )
    assert TowersOverlap().judge(program()).state == "not-checked"


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert checked(graph, works(0), works(1)) == Verdict(
        "towers-overlap", "not-checked", None, reason
    )


INPUTS_OF_EACH = {"inputs": (("tower_0/x",), ("tower_1/x",))}


@pytest.mark.parametrize("idle", [0, 1])
@pytest.mark.parametrize("known", [{}, INPUTS_OF_EACH], ids=["no inputs", "inputs"])
def test_a_tower_that_computes_nothing(
    idle: int,
    known: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    snapshot: SnapshotAssertion,
) -> None:
    """No op depends on it; every-tower-counts reports that."""
    verdict = checked(program(step=known), works(1 - idle))

    assert verdict == Verdict("towers-overlap", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_one_tower_of_three_that_computes_nothing(snapshot: SnapshotAssertion) -> None:
    verdict = checked(program(gpus=range(3)), works(0), works(1))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_fed_tensors_wait_for_nothing() -> None:
    """A run that feeds a placeholder ignores its control inputs."""
    x = on(1, "tower_1/x", "Placeholder", f"^{gradient(0)}")

    verdict = checked(program(x, step=INPUTS_OF_EACH), *TURNS)

    assert (verdict.state, list(verdict.findings)) == ("kept", [])


def test_a_fed_tensor_of_the_other_tower_hides_no_wait() -> None:
    """The first op of the second tower also takes the rows of the first tower."""
    loss = on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_0/loss")
    graph = program(waiting(1, "tower_0/x"), loss, step=INPUTS_OF_EACH)
    tasks = [*TURNS, TimedOp("tower_1/loss", GPUS[1], 0.001, [1])]

    (finding,) = checked(graph, *tasks).findings

    assert finding.path == ("tower_1/loss (Mean)", "tower_0/loss (Mean)")


def test_ops_that_wait_for_each_other(snapshot: SnapshotAssertion) -> None:
    verdict = checked(program(), *CIRCLE, steps=[step((0, 10), (10, 20))])

    assert verdict == Verdict("towers-overlap", "not-checked", None, ANY, note=ANY)
    assert messages(verdict) == snapshot


# Declared differences.


@pytest.mark.parametrize(("least", "state"), [(0.5, "kept"), (0.51, "broken"), (1, "broken")])
def test_the_least_share_that_is_no_breach(
    least: float, state: str, snapshot: SnapshotAssertion
) -> None:
    """Half of the second tower waits for the first tower, and then computes alone."""
    half = TimedOp("tower_1/loss", GPUS[1], 0.002, [0])

    verdict = checked(
        in_turn(2), works(0, seconds=0.004), works(1, seconds=0.002), half, least=least
    )

    assert verdict.state == state
    assert messages(verdict) == snapshot
    for finding in verdict.findings:
        assert finding.expected == f"overlap for at least {least:.0%} of the time"
        assert finding.found == "50%"


@pytest.mark.parametrize(("least", "state"), [(0.4, "kept"), (0.5, "kept"), (0.51, "broken")])
def test_the_least_share_applies_to_the_run(least: float, state: str) -> None:
    verdict = checked(in_turn(2), *TURNS, steps=[step((0, 16), (8, 24))], least=least)

    assert verdict.state == state


@pytest.mark.parametrize(
    ("least", "errors"),
    [
        (0.01, []),
        (1, []),
        *(
            (least, [f"least: {least} is not a share; give a share above 0, up to 1"])
            for least in (0, -0.5, 1.01, 50)
        ),
        *(
            (least, [f"least: {least!r} does not fit; give a number"])
            for least in ("half", True, math.nan, math.inf)
        ),
    ],
)
def test_policy_errors_name_the_wrong_field(
    least: str | bool | float, errors: Sequence[str]
) -> None:
    found = [str(error) for error in policy_errors({"towers-overlap": {"least": least}})]

    assert found == [f"towers-overlap.{error}" for error in errors]
