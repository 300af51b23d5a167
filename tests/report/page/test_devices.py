from __future__ import annotations

from typing import Any

from support.graphs import op, placement
from support.pictures import column, data_of
from support.timings import timeline
from support.towers import program, split

from placement_checks import Placement
from placement_checks.core.evidence import Evidence
from placement_checks.core.trace import Trace


def label(data: dict[str, Any], name: str, view: str) -> str:
    number = column(data, name, view)
    return "" if number < 0 else data["devices"][number]["label"]


def fallen(requested: str) -> Placement:
    return placement(op("a", "MatMul", requested, "CPU:0"))


def test_an_op_has_an_assigned_and_a_requested_device() -> None:
    data = data_of(fallen("/gpu:1"))

    assert (label(data, "a", "assigned"), label(data, "a", "requested")) == ("CPU:0", "GPU:1")
    assert data["views"] == ["assigned", "requested"]


def test_labels_of_partial_requests() -> None:
    assert label(data_of(fallen("")), "a", "requested") == "no device requested"
    assert label(data_of(fallen("/device:GPU:*")), "a", "requested") == "any of /device:GPU:*"


def test_a_device_that_the_machine_lacks_is_marked() -> None:
    data = data_of(fallen("/gpu:7"))

    assert {each["label"]: each["exists"] for each in data["devices"]} == {
        "CPU:0": True,
        "GPU:0": True,
        "GPU:1": True,
        "GPU:7": False,
    }


def test_devices_of_a_cluster_have_their_task() -> None:
    at = "/job:worker/replica:0/task:1/device:GPU:0"

    data = data_of(
        placement(
            op("a", "MatMul", "/job:worker/task:1/gpu:0", at), machine="ps*1; worker*2: gpu*1"
        )
    )

    assert label(data, "a", "assigned") == label(data, "a", "requested") == "worker 1 GPU:0"
    assert [each["task"] for each in data["devices"]][:2] == ["ps 0", "worker 0"]


def test_a_traced_program_has_executed_devices() -> None:
    trace = Trace(8, [timeline({"/gpu:0": [("a", 0.0, 1.0)]})], [])

    data = data_of(Evidence(fallen("/gpu:1"), trace=trace))

    assert (label(data, "a", "executed"), data["views"][-1]) == ("GPU:0", "executed")


def test_a_placement_that_was_only_requested_has_no_assigned_devices() -> None:
    data = data_of(program(placer=None, machine=None))

    assert data["views"] == ["requested"]
    assert all(each["exists"] for each in data["devices"])


def test_the_gpus_of_a_split_model_are_one_tower() -> None:
    data = data_of(split())

    assert [[data["devices"][n]["label"] for n in tower] for tower in data["towers"]] == [
        ["GPU:0", "GPU:1"]
    ]
    assert [each["tower"] for each in data["devices"]] == [-1, 0, 0]
