"""What all rules have in common: explanations, and the user's line that a finding names."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import op, placement

from placement_checks.core.results import Finding
from placement_checks.rules.base import Rule, exact_pattern, matches_any
from placement_checks.rules.devices.no_fallback import NoFallback
from placement_checks.rules.source_lines import locate


def test_an_explanation_is_the_docstring_and_the_parameters() -> None:
    text = NoFallback.explanation()

    assert text.startswith("No op that requests a GPU is placed on a CPU, or on another GPU")
    assert text.endswith("\n\nParameters and their defaults:\n  no-fallback.allow = ()")


def test_an_explanation_of_a_rule_without_docstring_and_parameters_is_empty() -> None:
    @dataclass(frozen=True)
    class Bare(Rule):
        name = "bare"

    Bare.__doc__ = None

    assert Bare.explanation() == ""


@given(st.text("ab[]*?!/", max_size=6), st.text("ab[]*?!/", max_size=6))
def test_an_exact_pattern_matches_only_its_name(name: str, other: str) -> None:
    assert matches_any(name, [exact_pattern(name)])
    assert matches_any(other, [exact_pattern(name)]) == (name == other)


LINES = {
    "w": "train.py:88 train.py:40 model.py:12 model.py:3",
    "w_1": "train.py:88 train.py:40 model.py:12 model.py:3",
    "b": "train.py:88 train.py:40 model.py:12 model.py:4",
    "out": "train.py:88 train.py:41",
    "other": "eval.py:7",
    "calls": "train.py:88 train.py:40",
}


def at(*ops: str, object: str = "w", placed: str | None = None) -> Finding:
    """A finding with its lines."""
    graph = placement(
        *(op(name, "VarHandleOp") for name in [*LINES, "of_a_library"]),
        op("slot", "VarHandleOp", colocated=("w",)),
        op("around", "Identity", colocated=("around_too",)),
        op("around_too", "Identity", colocated=("around",)),
        lines=LINES,
        device_lines={"w": "train.py:39"},
    )
    finding = Finding(object, "VarHandleOp", "assigned", "", "", ops=ops, placed=placed)
    return locate([finding], graph)[0]


def test_the_innermost_line_of_the_object_itself() -> None:
    finding = at()

    assert finding.where == "model.py:3"
    assert finding.frames == ("train.py:88", "train.py:40", "model.py:12", "model.py:3")
    assert finding.device_line is None


@pytest.mark.parametrize(
    ("ops", "where", "frames"),
    [
        (["w", "w_1"], "model.py:3", 4),
        (["w", "b"], "model.py:3", 4),
        (["b", "w"], "model.py:4", 4),
        (["w", "out"], "train.py:40", 2),
        (["out", "w", "b"], "train.py:41", 2),
        (["w", "of_a_library"], "model.py:3", 4),
        (["w", "calls"], "train.py:40", 2),  # one function built both
        (["out", "other"], "train.py:41", 2),  # none in common
    ],
)
def test_the_line_distinguishes_the_ops(ops: list[str], where: str, frames: int) -> None:
    finding = at(*ops)

    assert (finding.where, len(finding.frames)) == (where, frames)


def test_an_op_of_a_library_has_no_line() -> None:
    finding = at(object="of_a_library", placed="of_a_library")

    assert (finding.where, finding.frames, finding.device_line) == (None, (), None)


@pytest.mark.parametrize("name", ["w", "slot"])
def test_the_scope_that_decided_the_device_of_an_op_or_of_its_colocated_op(name: str) -> None:
    assert at(placed=name).device_line == "train.py:39"


@pytest.mark.parametrize("name", ["b", "around", "gone"])
def test_no_scope_decided(name: str) -> None:
    assert at(placed=name).device_line is None


def test_a_line_on_which_one_function_calls_another_is_named_once() -> None:
    """A lambda, for example."""
    graph = placement(op("a", "MatMul"), lines={"a": "a.py:3 a.py:3 b.py:5"})
    finding = Finding("a", "MatMul", "assigned", "", "")

    assert locate([finding], graph)[0].frames == ("a.py:3", "b.py:5")


def test_lines_that_a_rule_chooses_stay() -> None:
    graph = placement(op("w", "VarHandleOp"), lines=LINES)
    finding = Finding("w", "VarHandleOp", "requested", "", "", frames=("train.py:40",))

    assert locate([finding], graph)[0].where == "train.py:40"
