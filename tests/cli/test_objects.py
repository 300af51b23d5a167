"""Names of ops and devices on the command line."""

from __future__ import annotations

import pytest
from support.graphs import op, placement
from support.towers import program

from placement_checks import Device
from placement_checks.cli.explain import object_named
from placement_checks.core.errors import UsageError
from placement_checks.core.placement import Op


@pytest.mark.parametrize("text", ["w", "w:0", "^w"])
def test_an_op_in_the_spelling_of_tensorflow(text: str) -> None:
    found = object_named(program(), text)

    assert isinstance(found, Op)
    assert found.name == "w"


@pytest.mark.parametrize("text", ["/gpu:1", "GPU:1", "/device:GPU:1"])
def test_a_device_in_any_spelling(text: str) -> None:
    assert object_named(program(), text) == Device.parse("/gpu:1")


def test_an_op_comes_before_a_device_of_the_same_name() -> None:
    assert isinstance(object_named(placement(op("gpu", "Sin")), "gpu:1"), Op)


def test_a_device_that_only_an_op_requests() -> None:
    graph = placement(op("a", "Sin", "/gpu:5"))

    assert object_named(graph, "/gpu:5") == Device.parse("/gpu:5")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("tower_1/v", "did you mean 'tower_1/x' or 'tower_0/x' or 'tower_1/loss'?"),
        ("read", "did you mean 'tower_0/w/read' or 'tower_1/w/read'?"),
        ("step_", "did you mean 'step'?"),
        ("qqqqqqqqqqq", "placement-checks place TARGET lists them"),
        ("gpu", "placement-checks place TARGET lists them"),
    ],
)
def test_an_unknown_name(text: str, fix: str) -> None:
    with pytest.raises(UsageError) as raised:
        object_named(program(), text)

    assert str(raised.value) == f"{text!r} is not an op or device of train.py:build; {fix}"


def test_a_device_without_ops_and_requests() -> None:
    with pytest.raises(UsageError) as raised:
        object_named(program(), "/gpu:7")

    assert str(raised.value) == (
        "'/gpu:7' is not a device of train.py:build; "
        "it has /device:CPU:0, /device:GPU:0 and /device:GPU:1"
    )
