from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.reports import finding

from placement_checks import Finding
from placement_checks.report.common.findings import Group, group_findings


def objects(*findings: Finding) -> Sequence[Sequence[str]]:
    return [[each.object for each in group.findings] for group in group_findings(findings)]


def test_findings_that_differ_in_their_object_are_one_group() -> None:
    assert objects(finding("w"), finding("v"), finding("u")) == [["w", "v", "u"]]


def test_groups_keep_the_order_of_their_first_finding() -> None:
    other = finding("x", group_key="elsewhere")
    assert objects(finding("w"), other, finding("v")) == [["w", "v"], ["x"]]


@pytest.mark.parametrize(
    "more",
    [
        {"fix": "drop it"},
        {"device_line": "a.py:3"},
        {"group_key": "TPU"},
    ],
)
def test_other_differences_split_groups(more: dict[str, Any]) -> None:
    assert objects(finding("w"), finding("v", **more)) == [["w"], ["v"]]


def test_findings_of_equal_keys_are_one_group_despite_their_messages() -> None:
    findings = [finding(name, message=f"{name}: {name}s") for name in ("a", "bb")]
    assert objects(*findings) == [["a", "bb"]]


def group(*frames: str) -> Group:
    return Group(
        [finding(f"v{number}", frames=tuple(each.split())) for number, each in enumerate(frames)]
    )


@pytest.mark.parametrize(
    ("frames", "where", "callers"),
    [
        (["a.py:9 b.py:2"], "b.py:2", ["a.py:9"]),
        # Each finding has its own line; a common caller is not the line of any.
        (["a.py:9 b.py:2", "a.py:9 b.py:3"], "b.py:2", ["a.py:9"]),
        (["a.py:7 a.py:9 b.py:2", "a.py:7 a.py:9 b.py:3"], "b.py:2", ["a.py:9", "a.py:7"]),
        # Several lines call one helper: the line to edit is in the helper.
        (["a.py:7 a.py:8 b.py:2", "a.py:7 a.py:9 b.py:2"], "b.py:2", ["a.py:7"]),
        (["a.py:7", "b.py:2"], "a.py:7", []),
        (["a.py:7", ""], "a.py:7", []),
        (["", "a.py:9 a.py:7"], "a.py:7", []),
        (["", ""], None, []),
    ],
)
def test_the_line_of_a_group(
    frames: Sequence[str], where: str | None, callers: Sequence[str]
) -> None:
    group_ = group(*frames)
    assert (group_.where, group_.callers) == (where, callers)


def test_the_others_are_named_once_with_a_line_of_their_own() -> None:
    assert group("a.py:1", "a.py:1", "a.py:1").others == [("v1", None), ("v2", None)]
    assert group("a.py:1 b.py:2", "a.py:1 b.py:3").others == [("v1", "b.py:3")]
    twice = Group([finding("w"), finding("w"), finding("v"), finding("v")])
    assert twice.others == [("v", None)]
