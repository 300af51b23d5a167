from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op
from support.snapshots import messages
from support.towers import (
    gradient,
    host,
    objects_of,
    on,
    program,
    variable,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.missing import Missing
from placement_checks.rules.devices.slots_with_variables import SlotsWithVariables


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(SlotsWithVariables(**parameters), graph)


def momentum(at: str = "CPU:0", **more: Any) -> Placement:
    """The slot of an optimizer of TensorFlow."""
    return program(
        variable("w/Momentum", at=at),
        host("update/w", "ResourceApplyMomentum", "w", "w/Momentum", "rate", "mean/w", "momentum"),
        **more,
    )


def velocity(at: str = "CPU:0", **more: Any) -> Placement:
    """Momentum written out op by op."""
    return program(
        variable("velocity", at=at),
        host("velocity/read", "ReadVariableOp", "velocity"),
        host("velocity/slower", "Mul", "velocity/read", "momentum"),
        host("velocity/new", "AddV2", "velocity/slower", "mean/w"),
        host("velocity/set", "AssignVariableOp", "velocity", "velocity/new"),
        host("change", "Mul", "velocity/new", "rate"),
        host("update/w", "AssignSubVariableOp", "w", "change"),
        host("train", "NoOp", "^update/w", "^velocity/set"),
        **more,
    )


def average(at: str = "CPU:0", kind: str = "ReadVariableOp", **more: Any) -> Placement:
    """A moving average of w."""
    return program(
        variable("w/average", at=at),
        host("average/read", kind, "w/average"),
        host("average/w", kind, "w", "^update/w"),
        host("average/away", "Sub", "average/read", "average/w"),
        host("average/step", "Mul", "average/away", "decay"),
        host("average/set", "AssignSubVariableOp", "w/average", "average/step"),
        host("train", "NoOp", "^update/w", "^average/set"),
        **more,
    )


WAYS = pytest.mark.parametrize(
    ("made", "slot"),
    [(momentum, "w/Momentum"), (velocity, "velocity"), (average, "w/average")],
    ids=["an optimizer's slot", "momentum by hand", "a moving average"],
)


@WAYS
def test_kept(made: Callable[..., Placement], slot: str, snapshot: SnapshotAssertion) -> None:
    verdict = SlotsWithVariables().judge(made())

    assert verdict == Verdict("slots-with-variables", "kept", "assigned", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    lines = {"w/Momentum": "main.py:50 net.py:3"}
    graph = momentum("GPU:0", lines=lines, device_lines={"w/Momentum": "main.py:4"})

    verdict = SlotsWithVariables().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "assigned")
    assert verdict.findings == [
        Finding(
            object="w/Momentum",
            op="VarHandleOp",
            evidence="assigned",
            expected="/device:CPU:0",
            found="/device:GPU:0",
            frames=("main.py:50", "net.py:3"),
            device_line="main.py:4",
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@WAYS
def test_all_types_of_slots_are_found(made: Callable[..., Placement], slot: str) -> None:
    (finding,) = SlotsWithVariables().judge(made("GPU:1")).findings

    assert (finding.object, finding.expected, finding.found) == (
        slot,
        "/device:CPU:0",
        "/device:GPU:1",
    )


@pytest.mark.parametrize("count", [1, 3, 12])
def test_slots_of_any_number_of_towers(count: int) -> None:
    assert objects(momentum(gpus=range(count))) == []
    assert objects(momentum("GPU:0", gpus=range(count))) == ["w/Momentum"]


def test_a_slot_on_the_host_of_a_variable_on_a_gpu() -> None:
    graph = program(
        variable("w", at="GPU:0"),
        variable("w/Momentum"),
        host("update/w", "ResourceApplyMomentum", "w", "w/Momentum", "rate", "mean/w", "momentum"),
    )

    (finding,) = SlotsWithVariables().judge(graph).findings

    assert (finding.object, finding.expected, finding.found) == (
        "w/Momentum",
        "/device:GPU:0",
        "/device:CPU:0",
    )


def test_a_slot_is_recognized_by_its_colocation() -> None:
    """No update takes it: the program only restores it."""
    graph = program(variable("w/slot", at="GPU:0", colocated=["w"]))

    assert objects(graph) == ["w/slot"]


def test_all_slots_of_all_variables_are_counted(snapshot: SnapshotAssertion) -> None:
    names = [f"{name}/{slot}" for name in "ab" for slot in ("m", "v")]
    graph = program(
        *(variable(name) for name in names),
        *(
            host(f"update/{n}", "ResourceApplyAdam", n, f"{n}/m", f"{n}/v", f"mean/{n}")
            for n in "ab"
        ),
        variables=["a", "b"],
    )

    verdict = SlotsWithVariables().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_slots_by_reference_are_known() -> None:
    graph = program(
        variable("w", "VariableV2"),
        variable("w/Momentum", "VariableV2", at="GPU:0"),
        host("update/w", "ApplyMomentum", "w", "w/Momentum", "rate", "mean/w", "momentum"),
    )

    assert objects(graph) == ["w/Momentum"]


def test_averages_by_reference_are_known() -> None:
    graph = average("GPU:0", kind="Identity")

    assert objects(graph) == ["w/average"]


@pytest.mark.parametrize(
    "reader",
    [
        host("shown", "HistogramSummary", "tag", "average/read"),
        host("evaluated", "MatMul", "pictures", "average/read"),
        op("evaluated", "MatMul", "", "CPU:0", "pictures", "average/read"),
    ],
    ids=["a summary", "an evaluation on the host", "an evaluation anywhere"],
)
def test_an_average_may_be_read_outside_towers(reader: Op) -> None:
    graph = average("GPU:0")
    graph = program(*graph.ops.values(), reader)

    assert objects(graph) == ["w/average"]


def test_slots_of_an_optimizer_are_known_without_a_train_op() -> None:
    assert objects(momentum("GPU:0", step={"train_op": ()})) == ["w/Momentum"]


def test_a_slot_on_the_variables_own_server() -> None:
    server = "/job:ps/replica:0/task:1/cpu:0"
    graph = program(
        op("w", "VariableV2", server, server),
        op("near", "VariableV2", server, server),
        op("far", "VariableV2", "/job:ps/task:0", "/job:ps/replica:0/task:0/cpu:0"),
        host("update/w", "ApplyAdam", "w", "near", "far", "mean/w"),
        machine="ps*2; worker*1: gpu*2",
    )

    (finding,) = SlotsWithVariables().judge(graph).findings

    assert (finding.object, finding.expected, finding.found) == (
        "far",
        "/job:ps/replica:0/task:1/device:CPU:0",
        "/job:ps/replica:0/task:0/device:CPU:0",
    )


def copied(*ops: Op, **more: Any) -> Placement:
    """Towers with another variable on a GPU, and a step with these ops on it."""
    return program(
        variable("other", at="GPU:0"),
        *ops,
        host("train", "NoOp", "^update/w", "^copy"),
        **more,
    )


READ = host("w/value", "ReadVariableOp", "w", "^update/w")
COPY = host("copy", "AssignVariableOp", "other", "w/value")


def test_a_copy_of_a_trained_variable_is_found_as_its_average() -> None:
    assert objects(copied(READ, COPY)) == ["other"]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(copied(READ, COPY, shapes={"other": (9,)}), id="another shape"),
        pytest.param(
            copied(READ, COPY, on(0, "tower_0/aside", "MatMul", "tower_0/x", "other")),
            id="a tower reads it",
        ),
        pytest.param(
            copied(host("copy", "AssignVariableOp", "other", "tower_0/x")),
            id="computed with something else",
        ),
        pytest.param(
            program(variable("other", at="GPU:0"), READ, COPY),
            id="no part of the step",
        ),
        pytest.param(
            copied(
                READ,
                host("copy", "AssignVariableOp", "other", "size"),
                host("size", "Shape", "w/value"),
            ),
            id="computed with the shape alone",
        ),
    ],
)
def test_not_checked_without_slots(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = SlotsWithVariables().judge(graph)

    assert messages(verdict) == snapshot


def test_the_scalars_of_an_optimizer_are_no_slots_of_a_larger_variable(
    snapshot: SnapshotAssertion,
) -> None:
    """Powers of beta may be anywhere; they are read and written on their own."""
    graph = program(
        variable("w/m"),
        variable("power", at="GPU:0"),
        host("update/w", "ResourceApplyAdam", "w", "w/m", "power/read", "mean/w"),
        host("power/read", "ReadVariableOp", "power"),
        host("power/new", "Mul", "power/read", "beta"),
        host("power/set", "AssignVariableOp", "power", "power/new"),
        host("train", "NoOp", "^update/w", "^power/set"),
        shapes={"power": ()},
    )

    verdict = SlotsWithVariables().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_a_scalar_that_the_update_takes_by_reference_is_no_slot() -> None:
    graph = program(
        variable("power", "VariableV2", at="GPU:0"),
        variable("w/m", "VariableV2"),
        variable("w", "VariableV2"),
        host("update/w", "ApplyAdam", "w", "w/m", "power", "mean/w"),
        shapes={"power": ()},
    )

    assert objects(graph) == []


def test_trained_variables_with_mutual_updates_are_no_slots() -> None:
    """Weights that are kept orthogonal to others of one shape, written out op by op."""
    graph = program(
        variable("b", at="GPU:0"),
        variable("b/m", at="GPU:0"),
        host("b/value", "ReadVariableOp", "b"),
        host("apart", "AddV2", "mean/a", "b/value"),
        host("update/a", "AssignSubVariableOp", "a", "apart"),
        host("moved", "ResourceApplyMomentum", "b", "b/m", "rate", "mean/b"),
        host("train", "NoOp", "^update/a", "^moved"),
        variables=["a", "b"],
    )

    assert objects(graph) == []


def test_an_accumulator_of_gradients_is_a_slot() -> None:
    """By the update written out; its shape and use are a slot's."""
    graph = program(
        variable("total", at="GPU:0"),
        host("total/add", "AssignAddVariableOp", "total", "mean/w"),
        host("total/read", "ReadVariableOp", "total"),
        host("update/w", "AssignSubVariableOp", "w", "total/read"),
        host("train", "NoOp", "^update/w", "^total/add"),
    )

    assert objects(graph) == ["total"]


def test_a_variable_that_is_only_fed_into_the_update_is_no_slot() -> None:
    """A mask of weights to prune is read and never written."""
    graph = program(
        variable("mask", at="GPU:0"),
        host("mask/read", "ReadVariableOp", "mask"),
        host("masked", "Mul", "mean/w", "mask/read"),
        host("update/w", "AssignSubVariableOp", "w", "masked"),
    )

    assert SlotsWithVariables().judge(graph).state == "not-checked"


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), ["a/slow", "b/slow"]),
        (("a/slow",), ["b/slow"]),
        (("*/slow",), []),
        (("*/Slow", "a", "slow"), ["a/slow", "b/slow"]),
    ],
)
def test_allowed_slots_may_sit_anywhere(allow: Sequence[str], left: Sequence[str]) -> None:
    graph = program(
        *(variable(f"{name}/slow", at="GPU:0") for name in "ab"),
        *(host(f"update/{n}", "ResourceApplyMomentum", n, f"{n}/slow", f"mean/{n}") for n in "ab"),
        variables=["a", "b"],
    )

    assert objects(graph, allow=allow) == left


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(momentum(placer=None), id="no placer"),
        pytest.param(momentum(assigned=Missing("it died")), id="unplaced"),
        pytest.param(momentum(requested=Missing("a log lacks requested devices")), id="log"),
        pytest.param(momentum(placer="log", machine="cpu*1"), id="log of a machine without GPUs"),
        pytest.param(program(), id="plain gradient descent"),
        pytest.param(average(step={"train_op": ()}), id="no train op"),
        pytest.param(
            program(host("update/w", "ResourceApplyGradientDescent", "w", gradient(0))),
            id="gradients alone",
        ),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = SlotsWithVariables().judge(graph)
    assert verdict == Verdict("slots-with-variables", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_a_variable_bound_to_another_op_is_no_slot() -> None:
    graph = momentum()
    ops = {**graph.ops, "w": graph.ops["w"]._replace(colocated=["step/one", "gone"])}

    assert objects(replace(graph, ops=ops)) == []


def test_a_scale_of_the_loss_is_no_slot_of_a_scalar_variable() -> None:
    """It is updated in the step and has a part in the gradient, as a velocity has."""
    graph = program(
        variable("scale", at="GPU:0"),
        host("scale/read", "ReadVariableOp", "scale"),
        host("unscaled", "RealDiv", "mean/w", "scale/read"),
        host("update/w", "ResourceApplyGradientDescent", "w", "rate", "unscaled"),
        host("scale/grow", "AssignAddVariableOp", "scale", "growth"),
        host("train", "NoOp", "^update/w", "^scale/grow"),
        shapes={"w": (), "scale": ()},
    )

    assert SlotsWithVariables().judge(graph).state == "not-checked"


@pytest.mark.parametrize(("slot", "primary"), [("", "CPU:0"), ("CPU:0", "")])
def test_a_slot_or_variable_that_was_not_placed(slot: str, primary: str) -> None:
    graph = program(
        variable("w", at=primary),
        variable("w/Momentum", at=slot),
        host("update/w", "ResourceApplyMomentum", "w", "w/Momentum", "rate", "mean/w", "momentum"),
    )

    (finding,) = SlotsWithVariables().judge(graph).findings

    assert finding.expected == ("/device:CPU:0" if primary else "no device")
    assert finding.found == ("/device:CPU:0" if slot else "no device")


@pytest.mark.parametrize(("at", "found"), [("GPU:0", []), ("GPU:1", []), ("GPU:2", ["v0/w/m"])])
def test_a_slot_of_several_copies_sits_with_one_of_them(at: str, found: list[str]) -> None:
    """Each GPU keeps the optimizer state of a part of the variables, for all copies."""
    graph = program(
        variable("v0/w/m", at=at),
        *(
            on(i, f"update/v{i}/w", "ResourceApplyMomentum", f"v{i}/w", "v0/w/m", "rate", "mean/w")
            for i in (0, 1)
        ),
        mirrored=True,
        machine="gpu*3",
    )

    assert objects(graph) == found
