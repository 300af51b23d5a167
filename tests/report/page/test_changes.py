from __future__ import annotations

from typing import Any

from support.baselines import TWO, renamed
from support.graphs import op
from support.pictures import column
from support.towers import host, program

from placement_checks import Placement
from placement_checks.report.common.baseline import headline
from placement_checks.report.page.data import difference_data
from placement_checks.verification.diff import compare

MOVED = op("tower_1/loss", "Mean", "/gpu:1", "CPU:0", "tower_1/w/MatMul")


def changes(old: Placement, new: Placement) -> dict[str, Any]:
    difference = compare(old, new)
    return difference_data(difference, new, headline(difference), old)


def test_changes_have_the_form_of_findings() -> None:
    data = changes(program(program="old.py"), program(MOVED, program="new.py"))

    (finding,) = data["findings"]
    assert (finding["rule"], finding["message"]) == (
        "moved",
        "forward of tower 1, layer w: /gpu:1 -> /cpu:0  (1 op: Mean tower_1/loss)",
    )
    assert [data["ops"]["names"][n] for n in finding["ops"]] == ["tower_1/loss"]
    assert (data["state"], data["program"]) == ("differs", "new.py")
    assert data["headline"].startswith("1 moved, 0 new, 0 gone; ")


def test_old_devices_are_another_view() -> None:
    data = changes(program(), program(MOVED, host("new", "NoOp")))

    labels = [each["label"] for each in data["devices"]]
    assert data["views"] == ["assigned", "before", "requested"]
    assert labels[column(data, "tower_1/loss", "before")] == "GPU:1"
    assert column(data, "new", "before") == -1


def test_notes_are_facts() -> None:
    data = changes(TWO, renamed(TWO, lambda name: f"net/{name}"))

    assert data["facts"] == ["3 variables renamed: w -> net/w, v -> net/v, step -> net/step"]
    assert data["findings"] == []


def test_equal_placements_have_no_changes() -> None:
    data = changes(program(), program())

    assert (data["state"], data["findings"]) == ("placed", [])
    assert data["headline"].startswith("nothing has moved: ")
