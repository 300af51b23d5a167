from __future__ import annotations

from typing import Any

from support.graphs import op
from support.pictures import column, names
from support.towers import host, on, program

from placement_checks import Placement
from placement_checks.report.page.data import changes_data
from placement_checks.verification.diff import compare

MOVED = op("tower_1/loss", "Mean", "/gpu:1", "CPU:0", "tower_1/w/MatMul")


def changes(old: Placement, new: Placement) -> dict[str, Any]:
    return changes_data(compare(old, new), old, new)


def test_moved_ops_are_grouped_by_route() -> None:
    data = changes(program(program="old.py"), program(MOVED, program="new.py"))

    (finding,) = data["findings"]
    assert (finding["rule"], finding["message"]) == (
        "moved",
        "from /device:GPU:1 to /device:CPU:0: tower_1/loss (Mean)",
    )
    assert [names(data["ops"]["names"])[n] for n in finding["ops"]] == ["tower_1/loss"]
    assert (data["state"], data["program"]) == ("differs", "new.py")
    assert data["headline"] == f"1 of {len(program().ops)} ops have moved."


def test_old_devices_are_another_view() -> None:
    data = changes(program(), program(MOVED, host("new", "NoOp")))

    labels = [each["label"] for each in data["devices"]]
    assert data["views"] == ["assigned", "before", "requested"]
    assert labels[column(data, "tower_1/loss", "before")] == "GPU:1"
    assert column(data, "new", "before") == -1


def test_ops_of_one_placement_are_listed_and_highlighted() -> None:
    extra = on(0, "extra", "Tanh", "tower_0/x")
    data = changes(
        program(extra, program="old.py"), program(host("new", "NoOp"), program="new.py")
    )

    findings = {each["rule"]: (each["message"], len(each["ops"])) for each in data["findings"]}
    assert findings == {
        "only in new.py": ("new (NoOp)", 1),
        "only in old.py": ("extra (Tanh)", 0),
    }
    assert data["facts"][0] == "1 only in new.py, 1 only in old.py."


def test_equal_placements_have_no_changes() -> None:
    data = changes(program(), program())

    assert (data["state"], data["findings"]) == ("placed", [])
    assert data["headline"] == f"All {len(program().ops)} ops are where they were."
