from __future__ import annotations

from typing import Any

from support.pictures import data_of
from support.towers import gradient, on, program

from placement_checks.report.page.layout import KINDS


def copies(data: dict[str, Any]) -> dict[tuple[str, str, str], tuple[str, int | None, int]]:
    """The copies with their devices, kind, bytes and bytes for one row."""
    found = data["copies"]
    op_names = data["ops"]["names"]
    columns = (found[key] for key in ("op", "from", "to", "kind", "bytes", "a_row"))
    label = [each["label"] for each in data["devices"]]
    return {
        (op_names[op], label[source], label[to]): (KINDS[kind], size, a_row)
        for op, source, to, kind, size, a_row in zip(*columns, strict=True)
    }


def test_parameters_go_to_towers_and_gradients_come_back() -> None:
    shapes = {"tower_0/w/read": (4, 2), gradient(0): (4, 2), gradient(1): (4, 2)}

    found = copies(data_of(program(outputs=shapes)))

    assert found["tower_0/w/read", "CPU:0", "GPU:0"] == ("parameters", 32, 0)
    assert found[gradient(1), "GPU:1", "CPU:0"] == ("gradients", 32, 0)


def test_sizes_that_depend_on_the_batch_are_given_for_a_row() -> None:
    found = copies(data_of(program(outputs={gradient(0): (None, 3)})))

    assert found[gradient(0), "GPU:0", "CPU:0"] == ("gradients", None, 12)


def test_a_copy_of_unknown_size_is_reported() -> None:
    found = copies(data_of(program()))

    assert found[gradient(0), "GPU:0", "CPU:0"] == ("gradients", None, 0)


def test_a_collective_is_a_copy_from_and_to_each_gpu() -> None:
    sums = [on(i, f"sum{i}", "NcclAllReduce", gradient(i)) for i in (0, 1)]
    rule = "ResourceApplyGradientDescent"
    updates = [on(i, f"update/v{i}/w", rule, f"v{i}/w", "rate", f"sum{i}") for i in (0, 1)]
    sizes = {f"sum{i}": (4, 2) for i in (0, 1)}

    found = copies(data_of(program(*sums, *updates, mirrored=True, outputs=sizes)))

    assert found == {(f"sum{i}", f"GPU:{i}", f"GPU:{i}"): ("all-reduce", 32, 0) for i in (0, 1)}


def test_unplaced_ops_have_no_copies() -> None:
    assert copies(data_of(program(placer=None))) == {}
