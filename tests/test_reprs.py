"""Every public object has a repr of one line, for pytest and the prompt."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from support.graphs import op, placement
from support.timings import timing

import placement_checks
from placement_checks import (
    RULES,
    CaughtLog,
    Cluster,
    Device,
    Evidence,
    Finding,
    LocalCluster,
    Log,
    Machine,
    Missing,
    Need,
    PlacementBaseline,
    Program,
    Report,
    Step,
    Variable,
    Verdict,
)
from placement_checks.core.errors import InputError
from placement_checks.logs import Record
from placement_checks.testing.baselines import BaselineFiles

GRAPH = placement(op("w\n", "VarHandleOp", "/gpu:0", "GPU:0"), op("c", "Const"))
FINDING = Finding("w", "VarHandleOp", "assigned", "w is on /gpu:0", "", frames=("a.py:3",))
BROKEN = Verdict("variables-on-host", "broken", "assigned", findings=[FINDING])
UNCHECKED = Verdict("weights-equal", "not-checked", None, "no reference is given")
WORKERS = Machine.parse("ps*1; worker*1: gpu*1")
SPEC = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
NAMES = f"RULES({len(RULES)} rules: {', '.join(RULES)})"
PLACED = "Placement(train.py:build on gpu*2, phantom: 2 ops, 1 variable)"

SHOWN = {
    "RULES": (RULES, NAMES),
    "CaughtLog": (CaughtLog(), "CaughtLog(Log(the caught log: 0 records))"),
    "Cluster": (
        Cluster(SPEC, WORKERS),
        "Cluster(ps*1: cpu*1; worker*1: gpu*1, master grpc://127.0.0.1:2)",
    ),
    "Device": (
        Device.parse("/job:ps/cpu:0"),
        "Device('/job:ps/device:CPU:0')",
    ),
    "Evidence": (Evidence(GRAPH), f"Evidence({PLACED})"),
    "Finding": (FINDING, "Finding(w: w is on /gpu:0, at a.py:3)"),
    "Log": (
        Log("outputlog", {Record("a", "Add", "/cpu:0"): 1}, 1000, torn=2),
        "Log(outputlog: 1,000 records, 2 torn)",
    ),
    "Machine": (WORKERS, "Machine('ps*1: cpu*1; worker*1: gpu*1')"),
    "Missing": (Missing("no reference", "--reference"), None),
    "Need": (Need.ASSIGNED, "<Need.ASSIGNED: 2>"),
    "Op": (
        GRAPH.by_number[0],
        "Op(w\\n (VarHandleOp): requests /device:GPU:0, on /device:GPU:0)",
    ),
    "Placement": (GRAPH, PLACED),
    "PlacementBaseline": (
        PlacementBaseline(Path("placements"), "test_it", "test_it", BaselineFiles()),
        "PlacementBaseline(of the program in placements)",
    ),
    "PlacementError": (InputError("train.py", "is no program", is_predicate=True), None),
    "Program": (Program("train.py:build", print), "Program(train.py:build)"),
    "Report": (Report(Evidence(GRAPH), [BROKEN, UNCHECKED]), None),
    "Rule": (RULES["variables-on-host"](), None),
    "Step": (
        Step(train_op="train", loss=["a", "b"], config="soft\nplacement"),
        "Step(train_op='train', loss=['a', 'b'], config='soft\\nplacement')",
    ),
    "Timing": (timing(), None),
    "Variable": (Variable("w", "float32", (4,)), None),
    "Verdict": (BROKEN, "Verdict(variables-on-host: broken, 1 finding)"),
}
# A cluster starts processes; a `Place` is the function of a fixture.
WITHOUT = {"Impact", "LocalCluster", "Place"}


def test_every_public_object_is_shown() -> None:
    objects = {
        name
        for name in placement_checks.__all__
        if not inspect.isfunction(getattr(placement_checks, name))
    }

    assert objects - WITHOUT == SHOWN.keys()
    assert LocalCluster.__repr__ is Cluster.__repr__


@pytest.mark.parametrize("name", SHOWN)
def test_a_repr_is_one_line(name: str) -> None:
    shown, text = SHOWN[name]

    assert repr(shown).isprintable()
    assert " object at 0x" not in repr(shown)
    assert name in repr(shown) or name in ("PlacementError", "Rule")
    assert name == "RULES" or len(repr(shown)) < 500  # RULES names every rule
    if text:
        assert repr(shown) == text


def test_a_log_inside_its_block() -> None:
    with CaughtLog() as caught:
        assert repr(caught) == "CaughtLog(its block is still running)"


def test_unknown_values_are_shown() -> None:
    unplaced = placement(
        op("w", "VarHandleOp"), machine=None, placer=None, assigned=Missing("no wheel")
    )

    assert repr(unplaced) == "Placement(train.py:build, not placed: no wheel: 1 op, 1 variable)"
    assert repr(unplaced.by_number[0]) == "Op(w (VarHandleOp): requests no device, not placed)"
    assert repr(UNCHECKED) == "Verdict(weights-equal: not checked, no reference is given)"
    assert repr(Step()) == "Step()"
    assert repr(Device()) == "Device('')"


def test_a_report_counts_its_verdicts() -> None:
    report = Report(Evidence(GRAPH), [BROKEN, UNCHECKED])

    assert repr(report) == "Report(train.py:build: 0 kept, 1 broken, 1 not checked)"


def test_a_timing_shows_its_ratio_if_any() -> None:
    measured = (
        "Timing(towers on 2 simulated devices: 0.500 (0.500 to 0.500) of the time of one GPU)"
    )

    assert repr(timing()) == measured
    assert repr(timing(2.0)) == "Timing(towers on 2 simulated devices: no ratio measured)"
