"""The fixes of rules for programs with a strategy or a traced function."""

from __future__ import annotations

import pytest
from support.graphs import placement
from support.towers import gradient, host, on, program, variable

from placement_checks import Device, Op, Placement
from placement_checks.core.placement import StepOps
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.registry import RULES

GPUS = [Device.parse(f"/gpu:{i}") for i in (0, 1)]
MIRRORED = Strategy("MirroredStrategy", GPUS, {f"v{i}/w": Copy("v0/w", i) for i in (0, 1)})
ON_GPU = variable("w", at="GPU:0")


def reason(rule: str, graph: Placement) -> str | None:
    return RULES[rule]().judge(graph).reason


def fix(rule: str, graph: Placement) -> str:
    return RULES[rule]().judge(graph).findings[0].fix


def test_no_session_runs_a_traced_function() -> None:
    assert reason("session-memory", program(step={"traced": True})) == (
        "the step is a tf.function, which runs without a session; "
        "tf.config.experimental.set_memory_growth controls its use of GPU memory"
    )
    assert "{'config': config}" in str(reason("session-memory", program()))


@pytest.mark.parametrize("traced", [True, False])
def test_a_tape_cannot_colocate_gradients(*, traced: bool) -> None:
    adrift = Op("gradients/tower_1/w/MatMul_grad/MatMul", "MatMul", inputs=["tower_1/x"])
    placed = adrift._replace(assigned=on(0, "", "NoOp").assigned)
    advice = fix("gradients-colocated", program(placed, step={"traced": traced}))

    assert ("colocate_gradients_with_ops" in advice) is not traced
    assert advice.startswith("compute the gradients inside the tower's `with tf.device(...):`")


@pytest.mark.parametrize("traced", [True, False])
def test_eager_code_has_no_device_function(*, traced: bool) -> None:
    graph = placement(ON_GPU, step=StepOps(traced=traced))

    assert ("a device function" in fix("variables-on-host", graph)) is not traced


@pytest.mark.parametrize(
    ("strategy", "advice"),
    [
        (
            Strategy("CentralStorageStrategy", GPUS),
            "let the strategy keep it there: CentralStorageStrategy(gpus, "
            "parameter_device='/cpu:0')",
        ),
        (MIRRORED, "let the strategy keep it there: MirroredStrategy(gpus)"),
    ],
)
def test_the_fix_for_a_variable_of_a_strategy(strategy: Strategy, advice: str) -> None:
    assert fix("variables-on-host", placement(ON_GPU, strategy=strategy)) == advice


def test_the_fix_for_a_variable_outside_the_scope() -> None:
    outside = Strategy("CentralStorageStrategy", GPUS, {}, ["w"])

    assert "`with tf.device('/cpu:0'):`" in fix(
        "variables-on-host", placement(ON_GPU, strategy=outside)
    )


def test_a_strategy_distributes_the_batch() -> None:
    same = [on(i, f"tower_{i}/w/MatMul", "MatMul", "x", f"v{i}/w") for i in (0, 1)]
    graph = program(host("x", "Placeholder"), *same, mirrored=True, strategy=MIRRORED)

    assert "experimental_distribute_dataset" in fix("inputs-distinct", graph)


def test_a_strategy_reduces_the_loss() -> None:
    assert "strategy.reduce('SUM', loss, axis=None)" in fix(
        "loss-of-all-towers", program(step={"losses": ("tower_1/loss:0",)}, strategy=MIRRORED)
    )


def test_replicas_add_up_their_gradients() -> None:
    first = [
        on(i, f"update/v{i}/w", "ResourceApplyGradientDescent", f"v{i}/w", "rate", gradient(0))
        for i in (0, 1)
    ]
    graph = program(*first, mirrored=True, strategy=MIRRORED)

    assert "get_replica_context().all_reduce" in fix("every-tower-counts", graph)
