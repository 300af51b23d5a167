"""The output of pytest if ``==`` of two placements fails."""

from __future__ import annotations

import pytest
from support.graphs import op, placement

from placement_checks import Evidence
from placement_checks.core.missing import Missing
from placement_checks.testing.pytest_plugin import pytest_assertrepr_compare

OLD = placement(
    op("conv/Add", "Add", "", "GPU:0"),
    op("conv/w", "VarHandleOp", "", "CPU:0"),
    op("gone", "NoOp", "", "CPU:0"),
)
NEW = placement(
    op("conv/Add", "Add", "", "CPU:0"),
    *(op(f"conv/Mul{number}", "Mul", "", "GPU:0") for number in range(4)),
    op("conv/w", "VarHandleOp", "", "GPU:0"),
)


class Config:
    """The used part of pytest's configuration."""

    def __init__(self, verbosity: int = 0) -> None:
        self._verbosity = verbosity

    def get_verbosity(self) -> int:
        return self._verbosity


def explained(left: object, right: object, op: str = "==", verbosity: int = 0) -> list[str] | None:
    config: pytest.Config = Config(verbosity)  # type: ignore[assignment]
    return pytest_assertrepr_compare(config, op, left, right)


@pytest.mark.parametrize("left", [NEW, Evidence(NEW)])
@pytest.mark.parametrize("right", [OLD, Evidence(OLD)])
def test_devices_of_ops_on_either_side(left: object, right: object) -> None:
    assert explained(left, right) == [
        "the left side: 2 moved, 1 new, 1 gone; 0 ops placed as in the right side",
        "moved:",
        "  1 op: /gpu:0 -> /cpu:0  (Add conv/Add)",
        "  1 op: /cpu:0 -> /gpu:0  (VarHandleOp conv/w)",
        "new:",
        "  4 ops on /gpu:0  (Mul conv/Mul0, Mul conv/Mul1, Mul conv/Mul2, ...)",
        "gone:",
        "  1 op, was on /cpu:0  (NoOp gone)",
    ]


def test_variables_come_first_and_vv_lists_all_ops() -> None:
    many = [f"v{number}" for number in range(9)]
    here, there = (
        placement(
            *(op(f"{name}/read", "Identity", "", device) for name in many),
            *(op(name, "VarHandleOp", "", device) for name in many),
        )
        for device in ("CPU:0", "GPU:0")
    )

    variables = [f"VarHandleOp {name}" for name in many]
    reads = [f"Identity {name}/read" for name in many]
    assert explained(here, there, verbosity=2) == [
        "the left side: 1 moved, 0 new, 0 gone; 0 ops placed as in the right side",
        "moved:",
        f"  18 ops: /gpu:0 -> /cpu:0  ({', '.join([*variables, *reads])})",
    ]


def test_a_skipped_comparison_has_a_reason() -> None:
    unplaced = placement(op("a", "Add"), assigned=Missing("no CUDA build here"))
    torn = placement(*OLD.ops.values(), program="outputlog", complete=Missing("2 are torn"))

    assert explained(OLD, unplaced) == [
        "placements cannot be compared: train.py:build: no CUDA build here"
    ]
    assert explained(OLD, torn) == [
        "the left side: nothing that was read has moved: 3 ops placed as in the right side",
        "other changes, on the same devices:",
        "  outputlog: 2 are torn",
    ]


@pytest.mark.parametrize(
    ("left", "right", "op"),
    [(OLD, "text", "=="), (1, 2, "=="), (OLD, NEW, "!="), (OLD, NEW, "is")],
)
def test_other_comparisons_are_not_explained(left: object, right: object, op: str) -> None:
    assert explained(left, right, op) is None


TESTS = """
from placement_checks import Device, Op, Placement, Variable

def placed(device):
    put = Device.parse(f"/job:localhost/replica:0/task:0/{device}")
    return Placement("train.py", {"w": Op("w", "VarHandleOp", assigned=put)},
                     [Variable("w", "float32", ())], assigned=True)

def test_equal():
    assert placed("cpu:0") == placed("cpu:0")
    assert placed("cpu:0") == placed("gpu:0")

def test_on():
    placement = placed("gpu:0")
    assert placement.variables.on("/gpu:0")
    assert placement.variables.on("/cpu:0")
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=" ".join)
def test_pytest_prints_the_explanation(pytester: pytest.Pytester, workers: list[str]) -> None:
    pytester.makepyfile(TESTS)

    result = pytester.runpytest_subprocess(*workers, "-p", "no:cacheprovider")

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E * assert the left side: 1 moved, 0 new, 0 gone; 0 ops placed as in the right side",
            "E * moved:",
            "E *   1 op: /gpu:0 -> /cpu:0  (VarHandleOp w)",
        ]
    )
    result.stdout.fnmatch_lines(
        ["E * assert <1 of 1 variable not on /device:CPU:0: w on /device:GPU:0>"]
    )
