from __future__ import annotations

from support.pictures import data_of
from support.reports import broken, finding
from support.towers import program

from placement_checks import Device, Verdict
from placement_checks.core.results import PathStep


def test_rules_have_their_reasons_and_findings() -> None:
    verdicts = [
        Verdict("a", "kept", "assigned", note="3 ops"),
        broken("b", finding("w"), finding("v")),
        Verdict("c", "not-checked", None, "no trace"),
    ]

    assert data_of(program(), *verdicts)["rules"] == [
        {"rule": "b", "state": "broken", "note": "", "findings": 2, "lines": []},
        {"rule": "a", "state": "kept", "note": "3 ops", "findings": 0, "lines": []},
        {
            "rule": "c",
            "state": "not-checked",
            "note": "no trace",
            "findings": 0,
            "lines": [],
        },
    ]


def test_equal_findings_are_grouped_with_all_names() -> None:
    data = data_of(
        program(), broken("b", *(finding(name, group_key="all") for name in ("w", "step")))
    )

    (told,) = data["findings"]
    op_names = data["ops"]["names"]
    assert (told["message"], told["others"]) == ("w is [on a GPU]", ["step"])
    assert [op_names[op] for op in told["objects"]] == ["w", "step"]


def test_a_finding_highlights_object_ops_and_path() -> None:
    found = finding(
        "w",
        ops=("update/w",),
        path=(
            PathStep("sum/w (AddN): /device:CPU:0", "sum/w"),
            PathStep("the tower on /device:GPU:0 reads it: tower_0/w/read", "tower_0/w/read"),
        ),
    )

    data = data_of(program(), broken("b", found))

    (told,) = data["findings"]
    lit = {data["ops"]["names"][op] for op in told["ops"]}
    assert lit == {"w", "update/w", "sum/w", "tower_0/w/read"}


def test_highlighted_devices_are_named_in_the_message() -> None:
    found = finding("w", devices=(Device.parse("/gpu:1"),))
    data = data_of(program(), broken("every-tower-counts", found))

    assert [data["devices"][n]["label"] for n in data["findings"][0]["devices"]] == ["GPU:1"]
    assert data["uncounted"] == data["findings"][0]["devices"]


def test_a_misplaced_op_highlights_its_device() -> None:
    data = data_of(
        program(), broken("some-rule", finding("w"), finding("w", evidence="requested"))
    )

    lit = [[data["devices"][n]["label"] for n in each["devices"]] for each in data["findings"]]
    assert lit == [["CPU:0"]]


def test_a_device_does_not_match_a_longer_index() -> None:
    graph = program(gpus=range(12))

    data = data_of(graph, broken("no-idle-device", finding("/device:GPU:11", message="x")))

    assert [data["devices"][n]["label"] for n in data["findings"][0]["devices"]] == ["GPU:11"]


def test_root_causes_come_before_their_consequences() -> None:
    data = data_of(
        program(), broken("later", finding("w", follows="first")), broken("first", finding("w"))
    )

    assert [(each["rule"], each["follows"]) for each in data["findings"]] == [
        ("first", ""),
        ("later", "first"),
    ]


def test_measurements_are_drawn_with_their_rule() -> None:
    figures = [
        {"variable": "w", "ratio": ratio, "error": ratio, "limit": 1.0, "state": "differs"}
        for ratio in (2.0, 3.0)
    ]

    data = data_of(program(), broken("gradients-equal", finding("w"), figures=figures))

    assert "variable" in data["findings"][0]["figure"][0]
