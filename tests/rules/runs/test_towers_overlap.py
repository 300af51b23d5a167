from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import placement
from support.towers import gradient, host, on, program
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Device, Op, Placement
from placement_checks.analysis.step.schedule import simulate
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.trace import OpSpan, TimedOp, Timeline, Trace
from placement_checks.rules.runs.towers_overlap import TowersOverlap
from placement_checks.verification.policy import parse_policy

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


def ran(
    graph: Placement, *tasks: TimedOp, steps: Sequence[Timeline] = (), rows: int = 16
) -> Evidence:
    """A program with these tasks, and with the observed steps if they differ from the tasks."""
    alone = simulate(tasks)
    observed = steps or ([alone] if alone else [])
    return Evidence(graph, trace=Trace(rows, observed, tasks))


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


def one_gpu(towers: int = 2, gpus: int = 2, **more: Any) -> Placement:
    """Towers that are all built on the first GPU, with separate inputs."""
    inputs = tuple((f"tower_{i}/x",) for i in range(towers))
    return program(
        gpus=[0] * towers, step={"inputs": inputs}, **{"machine": f"gpu*{gpus}", **more}
    )


INPUTS_OF_EACH = {"inputs": (("tower_0/x",), ("tower_1/x",))}


def third_waits(early: int) -> Evidence:
    """The third tower waits for another one.

    It does not overlap with the other tower either, but does not wait for it.
    """
    graph = program(waiting(2, f"^{gradient(early)}"), gpus=range(3))
    return ran(graph, works(0), works(1), works(2, early))


def read(*seconds: int) -> Evidence:
    """The host reads the examples of each tower, which takes long."""
    reads = (TimedOp(f"read_{i}", HOST, duration) for i, duration in enumerate(seconds))
    return ran(program(), *reads, works(0, 0), works(1, 1))


HALF = ran(
    in_turn(2),
    works(0, seconds=0.004),
    works(1, seconds=0.002),
    TimedOp("tower_1/loss", GPUS[1], 0.002, [0]),
)
HALF_RUN = ran(in_turn(2), *TURNS, steps=[step((0, 16), (8, 24))])


CASES = {
    "towers that compute at once": kept(ran(program(), works(0), works(1))),
    "the second tower waits for the first tower's gradients": broken(
        ran(in_turn(2, lines={"tower_1/w/MatMul": "main.py:12 net.py:3"}), *TURNS)
    ),
    # There is no control dependency; the line is where the tower takes the value.
    "the second tower takes a value of the first": broken(
        ran(
            program(
                host("scaled", "Mul", "share", "tower_0/loss"),
                waiting(1, "scaled"),
                lines={"tower_1/w/MatMul": "main.py:12 net.py:3", "scaled": "main.py:9 net.py:7"},
            ),
            *TURNS,
        )
    ),
    "the second tower waits through the host": broken(
        ran(
            program(
                host("barrier", "NoOp", "^tower_0/loss"),
                host("scaled", "Mul", "share", "share", "^barrier"),
                waiting(1, "scaled"),
            ),
            *TURNS,
        )
    ),
    # Each tower reads its weights without waiting.
    "an op of the second tower does not wait": broken(
        ran(in_turn(2), works(0), TimedOp("tower_1/w/read", GPUS[1], 0.0001), works(1, 0))
    ),
    # An example is the default value of a placeholder.
    "ops outside of the step take a value of the first tower": broken(
        ran(
            program(
                on(1, "tower_1/shown", "Mul", "tower_0/loss"),
                on(1, "tower_1/x", "PlaceholderWithDefault", "tower_1/shown"),
                waiting(1, f"^{gradient(0)}"),
            ),
            *TURNS,
        )
    ),
    # The loop may count down, or assign GPUs to towers in another order.
    "the tower on the first GPU waits": broken(
        ran(
            program(on(0, "tower_1/w/MatMul", "MatMul", *own(1), f"^{gradient(0)}"), gpus=[1, 0]),
            TimedOp("tower_0/w/MatMul", GPUS[1], 0.001),
            TimedOp("tower_1/w/MatMul", GPUS[0], 0.001, [0]),
        )
    ),
    **{
        f"{count} towers in turn": broken(
            ran(in_turn(count), works(0), *(works(i, i - 1) for i in range(1, count)))
        )
        for count in (3, 4)
    },
    **{f"the third tower waits for tower {early}": broken(third_waits(early)) for early in (0, 1)},
    "towers in turn two at a time": broken(
        ran(
            program(*(waiting(i, f"^{gradient(i - 2)}") for i in (2, 3)), gpus=range(4)),
            works(0),
            works(1),
            works(2, 0),
            works(3, 1),
        )
    ),
    "the third tower waits for both towers": broken(
        ran(
            program(
                host("scaled", "Mul", "tower_1/loss", "share"),
                waiting(2, f"^{gradient(0)}", "^scaled"),
                gpus=range(3),
            ),
            works(0),
            works(1),
            works(2, 0, 1),
        )
    ),
    "two towers that wait for each other": broken(
        ran(
            program(
                waiting(1, "^tower_0/loss"),
                on(0, "tower_0/penalty", "Mul", "tower_1/loss"),
                host("sum/w", "AddN", gradient(0), gradient(1), "tower_0/penalty"),
            ),
            *TURNS,
            TimedOp("tower_0/penalty", GPUS[0], 0.001, [1]),
        )
    ),
    **{
        f"the {which} tower has more work": kept(
            ran(program(), *(works(i, seconds=duration) for i, duration in enumerate(seconds)))
        )
        for which, seconds in (("first", (0.003, 0.001)), ("second", (0.001, 0.003)))
    },
    **{
        f"the host works {seconds} seconds for the towers": kept(read(*seconds))
        for seconds in ((1, 1), (1, 2), (2, 1))
    },
    "the run is in turn, and nothing makes the towers wait": kept(
        ran(program(), works(0), works(1, 0))
    ),
    "parts of a tower that wait for each other": kept(ran(model_parallel(), *parts_in_turn())),
    "a tower of several GPUs that waits": broken(
        ran(model_parallel(waiting(1, f"^{gradient(0, 'u')}")), *parts_in_turn(1))
    ),
    "tasks in turn, and a run in which towers compute at once": kept(
        ran(program(), *TURNS, steps=[step((0, 10), (9, 19)), step((0, 10), (2, 12))])
    ),
    "tasks in a circle, and a run in which towers compute at once": kept(
        ran(program(), *CIRCLE, steps=[step((0, 10), (9, 19)), step((0, 10), (2, 12))])
    ),
    "a busy machine keeps towers apart": kept(
        ran(program(), works(0), works(1), steps=[step((0, 10), (10, 20))], rows=1)
    ),
    "a run that is too short": kept(
        ran(program(), works(0), works(1), steps=[step((0, 4), (4, 8))])
    ),
    "a run with a small overlap": broken(ran(in_turn(2), *TURNS, steps=[step((0, 10), (6, 16))])),
    **{
        f"{count} towers on one GPU of two": broken(
            ran(one_gpu(count), TimedOp("read", HOST, 1), works(0, 0))
        )
        for count in (2, 12)
    },
    "two towers on the only GPU": not_checked(ran(one_gpu(gpus=1), works(0))),
    "two towers on one GPU, and the machine is unknown": not_checked(
        ran(one_gpu(machine=None), works(0))
    ),
    "two towers on one GPU, and another GPU computes": not_checked(
        ran(one_gpu(), works(0), works(1))
    ),
    "two towers on one GPU, which does not compute": not_checked(
        ran(one_gpu(), TimedOp("read", HOST, 1))
    ),
    "two towers on one GPU with one input": not_checked(
        ran(replace(one_gpu(), step=one_gpu().step._replace(inputs=INPUTS[:1])), works(0))
    ),
    # No op depends on it; every-tower-counts reports that.
    **{
        f"tower {tower} computes nothing{known}": not_checked(
            ran(program(step=step), works(1 - tower))
        )
        for known, step in (("", {}), (", and inputs are known", INPUTS_OF_EACH))
        for tower in (0, 1)
    },
    "one tower of three that computes nothing": not_checked(
        ran(program(gpus=range(3)), works(0), works(1))
    ),
    # A run that feeds a placeholder ignores its control inputs.
    "a fed tensor that should wait": kept(
        ran(
            program(on(1, "tower_1/x", "Placeholder", f"^{gradient(0)}"), step=INPUTS_OF_EACH),
            *TURNS,
        )
    ),
    # The first op of the second tower also takes the rows of the first tower.
    "the second tower takes the first tower's fed rows": broken(
        ran(
            program(
                waiting(1, "tower_0/x"),
                on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_0/loss"),
                step=INPUTS_OF_EACH,
            ),
            *TURNS,
            TimedOp("tower_1/loss", GPUS[1], 0.001, [1]),
        )
    ),
    "ops that wait for each other": not_checked(
        ran(program(), *CIRCLE, steps=[step((0, 10), (10, 20))])
    ),
    # Half of the second tower waits for the first tower, and then computes alone.
    **{
        f"half of a tower overlaps, at least {least}": expected(HALF, least=least)
        for least, expected in ((0.5, kept), (0.51, broken), (1, broken))
    },
    **{
        f"half of a tower overlaps in the run, at least {least}": expected(HALF_RUN, least=least)
        for least, expected in ((0.4, kept), (0.5, kept), (0.51, broken))
    },
    **{
        f"no run, {what}": not_checked(Evidence(graph, trace=Missing("it died")))
        for what, graph in {"towers": program(), "no towers": placement()}.items()
    },
    "one tower": not_checked(ran(program(gpus=[0]), works(0))),
    "two towers on one GPU": not_checked(ran(program(gpus=[0, 0]), works(0))),
    "no tower": not_checked(ran(program(gpus=[]))),
    "no variable": not_checked(ran(placement(host("a", "NoOp")))),
    "a log": not_checked(ran(program(requested=Missing("a log lacks requested devices")))),
}

test_verdicts = verdicts(TowersOverlap, CASES)


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
    found = [str(error) for error in parse_policy({"towers-overlap": {"least": least}})[1]]

    assert found == [f"towers-overlap.{error}" for error in errors]
