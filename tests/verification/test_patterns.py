"""Few patterns for many names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.verification.declare import patterns_for

LAYERS = [f"fc{layer}/{kind}" for layer in (1, 2) for kind in ("weights", "biases")]
TOWERS = [f"tower_{tower}/{name}" for tower in (0, 1) for name in LAYERS]
SLOTS = [f"{name}/Adam" for name in LAYERS]


@pytest.mark.parametrize(
    ("names", "others", "patterns"),
    [
        (["w"], [], ["w"]),
        (["a/w", "a/b"], [], ["a/w", "a/b"]),
        (TOWERS, ["step"], ["tower_*/*"]),
        (TOWERS[4:], TOWERS[:4], ["tower_1/*"]),
        ([f"tower_1/bn_{i}/mean" for i in range(3)], [*TOWERS, "w"], ["tower_1/bn_*/*"]),
        (SLOTS, LAYERS, ["*/Adam"]),
        ([f"layer_{i}" for i in range(3)], ["layer"], ["layer_*"]),
        ([*LAYERS, "step"], ["fc3/weights"], ["fc1/weights", "fc1/biases"]),
        (["a[0]/w", "b"], [], ["a[[]0]/w", "b"]),
    ],
)
def test_a_pattern_for_many_names(
    names: Sequence[str], others: Sequence[str], patterns: Sequence[str]
) -> None:
    found = patterns_for(names, others)

    assert found[: len(patterns)] == patterns


def test_other_names_may_be_matched_up_to_a_limit() -> None:
    others = [f"tower_1/const_{i}" for i in range(8)]

    assert patterns_for(TOWERS[4:], others) == ["tower_1/fc*/*"]
    assert patterns_for(TOWERS[4:], others, strays=2) == ["tower_1/*"]
    assert patterns_for(TOWERS[4:], [*others, "tower_1/const_8"], 2) == ["tower_1/fc*/*"]


NAMES = st.lists(st.from_regex(r"[ab]_?[01]?(/[cd]_?[01]?){0,2}", fullmatch=True), unique=True)


@given(NAMES, NAMES)
def test_all_names_are_matched_and_no_other(names: list[str], others: list[str]) -> None:
    others = [name for name in others if name not in names]

    patterns = patterns_for(names, others)

    def matched(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    assert all(map(matched, names))
    assert not any(map(matched, others))
    assert len(patterns) <= len(names)
