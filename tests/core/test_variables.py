from __future__ import annotations

import pytest
from support.graphs import op, placement

from placement_checks import Device, Evidence
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Placement
from placement_checks.core.variables import Variable, Variables


def variables(**devices: str) -> Placement:
    """A placement of variables only; each is on the device named, or not placed."""
    return placement(*(op(name, "VarHandleOp", "", device) for name, device in devices.items()))


@pytest.mark.parametrize(
    ("devices", "is_so", "answer"),
    [
        (["/cpu:0"], False, "<1 of 3 variables not on /device:CPU:0: c on /device:GPU:1>"),
        (["/gpu:1"], False, "<2 of 3 variables not on /device:GPU:1: a and b on /device:CPU:0>"),
        (["CPU:0", Device.parse("/gpu:*")], True, None),
        (["/job:localhost"], True, "<all 3 variables on /job:localhost>"),
        (["/job:ps/cpu:0"], False, None),
        ([], False, None),
    ],
)
def test_on_names_variables_on_other_devices(
    devices: list[str | Device], is_so: bool, answer: str | None
) -> None:
    on = variables(a="/cpu:0", b="/cpu:0", c="/gpu:1").variables.on(*devices)

    assert bool(on) is is_so
    assert bool(on.elsewhere) is not is_so
    assert len(on.there) + len(on.elsewhere) == 3
    if answer:
        assert repr(on) == answer


def test_an_unplaced_variable_is_on_no_device() -> None:
    on = variables(a="/cpu:0", b="").variables.on("/cpu:0")

    assert not on
    assert repr(on) == "<1 of 2 variables not on /device:CPU:0: b not placed>"


def test_an_unplaced_variable_has_a_reason() -> None:
    graph = placement(op("a", "VarHandleOp", "/cpu:0"), assigned=Missing("no CUDA build here"))

    on = graph.variables.on("/cpu:0")

    assert not on
    assert repr(on) == "<the devices of the variables are unknown: no CUDA build here>"


def test_without_variables_the_result_is_false() -> None:
    on = variables().variables.on("/cpu:0")

    assert not on
    assert repr(on) == "<no variables, so none on /device:CPU:0>"


def test_many_variables_are_counted_and_some_named() -> None:
    graph = variables(**{f"v{number}": "/gpu:0" for number in range(2000)})

    assert repr(graph.variables) == "Variables(2,000 variables: v0, v1, v2, …)"
    assert repr(graph.variables.on("/cpu:0")) == (
        "<2,000 of 2,000 variables not on /device:CPU:0: v0, v1, v2 and 1,997 more on "
        "/device:GPU:0>"
    )


def test_variables_follow_the_ops_of_the_placement() -> None:
    requested = placement(
        op("w", "VarHandleOp", "/cpu:0"), placer=None, assigned=Missing("nobody was asked")
    )

    placed = requested.with_assigned({"w": op("w", "VarHandleOp", "/cpu:0", "/cpu:0")})

    assert not requested.variables.on("/cpu:0")
    assert placed.variables.on("/cpu:0")
    assert Evidence(placed).variables.on("/cpu:0")
    assert placed.variables == requested.variables


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="'gpus:1' is not part of a device name"):
        variables(a="/cpu:0").variables.on("gpus:1")


def test_variables_from_any_sequence() -> None:
    made = Placement("log", {}, Variables([Variable("w", "float32", (4,))]))

    assert made.variables[0].name == "w"
    assert len(made.variables) == 1
