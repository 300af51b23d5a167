from __future__ import annotations

from support.pictures import data_of
from support.timings import timeline
from support.towers import program

from placement_checks.core.evidence import Evidence
from placement_checks.core.trace import Trace


def test_the_fastest_step_is_drawn() -> None:
    slow = timeline({"/gpu:0": [("a", 0.0, 2.0)]})
    fast = timeline({"/cpu:0": [("b", 0.0, 0.25)], "/gpu:0": [("a", 0.25, 1.0)]})

    step = data_of(Evidence(program(), trace=Trace(8, [slow, fast], [])))["timeline"]

    assert step["seconds"] == 1.0
    assert step["caption"] == "The fastest of 2 traced steps of train.py:build, 8 rows"
    assert [(lane["label"], lane["gpu"], lane["spans"]) for lane in step["lanes"]] == [
        ("CPU:0", False, [["b", 1, 0.0, 0.25]]),
        ("GPU:0", True, [["a", 1, 0.25, 0.75]]),
    ]


def test_short_ops_are_drawn_together() -> None:
    spans = [(f"op{n}", n * 1e-5, (n + 1) * 1e-5) for n in range(50)]
    trace = Trace(8, [timeline({"/gpu:0": [*spans, ("long", 0.5, 1.0)]})], [])

    step = data_of(Evidence(program(), trace=trace))["timeline"]

    (short, long) = step["lanes"][0]["spans"]
    assert (short[:2], long[:2]) == (["op0", 50], ["long", 1])


def test_a_program_that_was_not_run_has_no_steps() -> None:
    assert data_of(program())["timeline"] is None
