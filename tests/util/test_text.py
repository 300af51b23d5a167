from __future__ import annotations

import pytest

from placement_checks.util.text import (
    close_matches,
    did_you_mean,
    file_size,
    join_and,
    listed,
    nearest,
    plural,
    range_text,
)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 ops"), (1, "1 op"), (2, "2 ops"), (1000, "1,000 ops")]
)
def test_counted(number: int, text: str) -> None:
    assert plural(number, "op") == text


@pytest.mark.parametrize(
    ("things", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), ((1, 2, 3), "1, 2 and 3")],
)
def test_join_and(things: list[object], text: str) -> None:
    assert join_and(things) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(1499, "1 kB"), (999_499, "999 kB"), (1_250_000, "1.2 MB"), (33_550_000_000, "33.5 GB")],
)
def test_sizes_of_files(size: int, text: str) -> None:
    assert file_size(size) == text


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("gpu", "did you mean 'gpus'?"),
        ("polices", "did you mean 'policy'?"),
        ("gpus", "did you mean 'gpus'?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_did_you_mean(word: str, text: str) -> None:
    assert did_you_mean(word, {"gpus": 2, "machine": "", "policy": {}}) == text


def test_nothing_is_suggested_without_words() -> None:
    assert did_you_mean("gpu", iter(())) == ""


@pytest.mark.parametrize(("cutoff", "found"), [(0.8, ["round"]), (0.9, [])])
def test_a_word_is_a_match_from_the_cutoff_on(cutoff: float, found: list[str]) -> None:
    assert close_matches("rond5", ["around", "round"], cutoff=cutoff) == found


@pytest.mark.parametrize(
    ("name", "text"),
    [("w", "tower_0/w"), ("tower_1/w", "tower_0/w"), ("bias1", "bias"), ("zzz", None)],
)
def test_nearest_is_in_another_scope_or_spelled_alike(name: str, text: str | None) -> None:
    assert nearest(name, ["bias", "tower_0/w"]) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((0,), "/gpu:0"),
        ((0, 1, 2), "/gpu:0, /gpu:1 and /gpu:2"),
        ((1, 2, 3, 4), "/gpu:1 to /gpu:4"),
        ((0, 8, 9, 10, 11), "/gpu:0 and /gpu:8 to /gpu:11"),
        ((0, 1, 2, 3, 5, 6), "/gpu:0 to /gpu:3, /gpu:5 and /gpu:6"),
    ],
)
def test_numbered_names_are_shown_as_a_range(numbers: tuple[int, ...], text: str) -> None:
    assert range_text(f"/gpu:{number}" for number in numbers) == text


def test_numbered_names_have_one_stem() -> None:
    names = ["a", "/gpu:0", "/cpu:1", "/gpu:2", "/gpu:3", "b"]

    assert range_text(names) == "a, /gpu:0, /cpu:1, /gpu:2, /gpu:3 and b"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        ([*range(2000)], "0, 1, 2 and 1,997 more"),
    ],
)
def test_listed(names: list[object], text: str) -> None:
    assert listed(names) == text
