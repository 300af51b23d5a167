"""The gradient of an update that a program writes out, and the stages that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.towers import gradient, host, program, recorded, variable

from placement_checks import Op
from placement_checks.step.stages import (
    Content,
    Stage,
    WrittenUpdate,
    comparable_stages,
    written_updates,
)

_TOWERS = 2
_RATE = 0.05
_VALUES = {"n": float(_TOWERS), "rate": _RATE, "mu": 0.9}
_CONSTANTS = [host(name, "Const") for name in _VALUES]
_MEAN = [
    host("sum", "AddN", *map(gradient, range(_TOWERS))),
    host("mean", "RealDiv", "sum", "n"),
    *_CONSTANTS,
]
_SLOT = [variable("slot"), host("slot/read", "ReadVariableOp", "slot")]
_W = host("w/value", "ReadVariableOp", "w")


def written(*ops: Op, tensor: str, kind: str = "AssignSubVariableOp", **more: Any) -> Any:
    """The update of w by a tensor that ops compute from the mean of two towers."""
    made = recorded(scalars=[*_VALUES, "speed/read"])
    graph = program(
        *ops,
        host("update/w", kind, "w", tensor),
        values=_VALUES,
        **made | {"shapes": {"w": (3, 3), "slot": (3, 3), "speed": ()}},
        **more,
    )
    return written_updates(graph)("w")


def tensors(read: WrittenUpdate) -> list[str]:
    return [stage.tensor for stage in read.stages]


def test_a_constant_rate_is_a_factor_of_the_last_stage() -> None:
    read = written(*_MEAN, host("step", "Mul", "rate", "mean"), tensor="step")

    assert tensors(read) == ["sum", "mean", "step"]
    assert read.default.tensor == "step"
    assert read.default.constants == pytest.approx((1 / _TOWERS, _RATE))
    assert read.proportional


def test_a_rate_in_a_variable_is_not_part_of_the_gradient() -> None:
    rate = [variable("speed"), host("speed/read", "ReadVariableOp", "speed")]
    read = written(*_MEAN, *rate, host("step", "Mul", "mean", "speed/read"), tensor="step")

    assert (read.default.tensor, tensors(read)[-1]) == ("mean", "step")
    assert read.stages[-1].contains == {Content.RATE}


def test_the_old_value_is_not_part_of_the_gradient() -> None:
    ops = [host("step", "Mul", "rate", "mean"), _W, host("new", "Sub", "w/value", "step")]
    read = written(*_MEAN, *ops, tensor="new", kind="AssignVariableOp")

    assert tensors(read) == ["sum", "mean", "step"]


def test_a_momentum_takes_the_gradient() -> None:
    ops = [
        *_SLOT,
        host("kept", "Mul", "mu", "slot/read"),
        host("velocity", "AddV2", "kept", "mean"),
        host("update/slot", "AssignVariableOp", "slot", "velocity"),
        host("step", "Mul", "rate", "velocity"),
    ]
    read = written(*_MEAN, *ops, tensor="step")

    assert (tensors(read), read.proportional) == (["sum", "mean"], True)


def test_an_adaptive_optimizer_takes_the_gradient() -> None:
    ops = [
        host("square", "Square", "mean"),
        host("size", "Sqrt", "square"),
        host("step", "RealDiv", "mean", "size"),
    ]
    read = written(*_MEAN, *ops, tensor="step")

    assert (tensors(read), read.proportional) == (["sum", "mean"], False)


def test_towers_that_apply_a_momentum_have_no_gradient() -> None:
    ops = [
        *_SLOT,
        *_CONSTANTS,
        host("kept", "Mul", "mu", "slot/read"),
        host("velocity", "AddV2", "kept", gradient(0)),
        host("update/slot", "AssignVariableOp", "slot", "velocity"),
        host("sum", "AddN", "velocity", gradient(1)),
    ]

    assert "with a slot before the gradients are combined" in written(*ops, tensor="sum")


def test_averaged_weights_have_no_gradient() -> None:
    steps = [host(f"new_{i}", "Sub", "w/value", gradient(i)) for i in range(_TOWERS)]
    sums = [host("sum", "AddN", "new_0", "new_1"), host("mean", "RealDiv", "sum", "n")]
    read = written(_W, *steps, *sums, *_CONSTANTS, tensor="mean", kind="AssignVariableOp")

    assert read == "values of the variable are combined, not gradients"


def stages(*constants: float, first: int = 1) -> WrittenUpdate:
    """An update with these constant factors; the first stage has ``first`` of them."""
    lengths = range(first, len(constants) + 1)
    found = [Stage(f"stage_{n}", frozenset(), constants[:n]) for n in lengths]
    return WrittenUpdate(found, "", proportional=True)


@pytest.mark.parametrize(
    ("own", "reference", "expected"),
    [
        pytest.param(stages(0.5, 0.1), stages(1, 0.1), (2, 2), id="mean of two towers"),
        pytest.param(stages(0.1), stages(0.1), (1, 1), id="one rate"),
        pytest.param(stages(0.1, 0.5), stages(0.1, 1), (2, 2), id="divided after the rate"),
        pytest.param(stages(1, 0.05), stages(1, 0.1), (2, 2), id="average in the rate"),
        pytest.param(stages(1, 0.2), stages(1, 0.1), (1, 1), id="rate times two"),
        pytest.param(stages(1, 0.14), stages(1, 0.1), (1, 1), id="other rate"),
        pytest.param(stages(2, 0.1), stages(1, 0.1), (2, 2), id="multiplied by two"),
        pytest.param(stages(0.7, 0.1), stages(1, 0.1), (2, 2), id="share of a tower"),
        pytest.param(stages(0.5, 0.5), stages(1, 0.5), (2, 2), id="rate of one half"),
        pytest.param(stages(0.2, 0.5), stages(1, 0.1), None, id="rate in the towers"),
    ],
)
def test_stages_with_equal_rates_are_compared(
    own: WrittenUpdate, reference: WrittenUpdate, expected: Sequence[int] | None
) -> None:
    chosen = comparable_stages(own, reference, 0.5)

    numbers = None if chosen is None else tuple(len(stage.constants) for stage in chosen)
    assert numbers == expected


def test_the_input_of_an_optimizer_is_compared_without_the_rate() -> None:
    chosen = comparable_stages(stages(0.5, 0.1), None, 0.5)

    assert chosen
    assert chosen[0].tensor == "stage_1"


def test_stages_contain_the_same_parts() -> None:
    in_towers = WrittenUpdate([Stage("sum", frozenset({Content.RATE}), ())], "", proportional=True)
    rate = frozenset({Content.RATE})
    later = WrittenUpdate([Stage("g", frozenset(), ()), Stage("step", rate, ())], "", True)
    decayed = WrittenUpdate([Stage("g", frozenset({Content.DECAY}), ())], "", proportional=True)

    chosen = comparable_stages(in_towers, later, 0.5)
    assert chosen
    assert [stage.tensor for stage in chosen] == ["sum", "step"]
    assert comparable_stages(in_towers, decayed, 0.5) is None


@given(st.lists(st.floats(0.01, 100), max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_factors_does_not_matter(constants: list[float], random: Any) -> None:
    other = random.sample(constants, len(constants))
    chosen = comparable_stages(stages(*constants, first=0), stages(*other, first=0), 0.5)

    last = f"stage_{len(constants)}"
    assert chosen
    assert [stage.tensor for stage in chosen] == [last, last]
