from __future__ import annotations

from typing import Any

import pytest
from support.snapshots import messages
from support.towers import gradient, host, objects_of, on, program, variable
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Op, Placement
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.towers.created_in_scope import CreatedInScope

COPIES = {f"step/{i}": Copy("step/0", i) for i in (0, 1)}


def strategy(*outside: str, count: int = 2, copies: bool = False) -> Strategy:
    gpus = [Device.parse(f"/gpu:{i}") for i in range(count)]
    return Strategy("MirroredStrategy", gpus, COPIES if copies else {}, outside)


def each_updates(variable: str = "w", at: str = "replica_1/") -> list[Op]:
    """Each replica updates a variable by the sum."""
    names = [f"update/{variable}", f"{at}update/{variable}"]
    sums = "sum/w"
    return [
        *(on(i, name, "AssignSubVariableOp", variable, sums) for i, name in enumerate(names)),
        host("train", "NoOp", "^update/w", *(f"^{name}" for name in names)),
    ]


def found(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(CreatedInScope(**parameters), graph)


def test_a_variable_that_each_replica_updates(snapshot: SnapshotAssertion) -> None:
    graph = program(
        variable("w", at="GPU:0"), *each_updates(), strategy=strategy("w"), lines={"w": "net.py:3"}
    )
    verdict = CreatedInScope().judge(graph)

    assert found(graph) == ["w"]
    assert verdict.findings[0].where == "net.py:3"
    assert messages(verdict) == snapshot


def test_all_replicas_may_share_it_on_purpose() -> None:
    graph = program(*each_updates(), strategy=strategy("w"))

    assert found(graph, allow=("w",)) == []


def test_a_variable_on_one_gpu_among_copies_of_the_strategy(snapshot: SnapshotAssertion) -> None:
    on_gpu = variable("w", at="GPU:0")

    assert found(program(on_gpu, strategy=strategy("w"))) == []
    beside = program(on_gpu, strategy=strategy("w", copies=True))
    assert found(beside) == ["w"]
    assert messages(CreatedInScope().judge(beside)) == snapshot


def test_a_variable_on_the_host_that_one_op_updates_is_kept() -> None:
    assert found(program(strategy=strategy("w", copies=True))) == []


def test_one_update_in_a_replica_does_not_race() -> None:
    update = on(1, "replica_1/update/w", "AssignSubVariableOp", "w", "sum/w")
    train = host("train", "NoOp", "^replica_1/update/w")

    assert found(program(update, train, strategy=strategy("w"))) == []


def test_towers_by_hand_are_not_replicas() -> None:
    assert found(program(*each_updates(at="tower_1/"), strategy=strategy("w"))) == []


def test_variables_created_in_the_scope_are_kept(snapshot: SnapshotAssertion) -> None:
    verdict = CreatedInScope().judge(program(*each_updates(), strategy=strategy()))

    assert messages(verdict) == snapshot


@pytest.mark.parametrize("shape", [(4,), ()])
def test_slots_are_created_in_the_scope_too(
    shape: tuple[int, ...], snapshot: SnapshotAssertion
) -> None:
    """A scalar is not a slot: it scales or counts."""
    slot = variable("m", at="GPU:0")
    sets = [
        on(i, f"{at}set/m", "AssignVariableOp", "m", gradient(i))
        for i, at in enumerate(("", "replica_1/"))
    ]
    graph = program(
        slot,
        *sets,
        host("m/read", "ReadVariableOp", "m"),
        host("update/w", "AssignSubVariableOp", "w", "m/read"),
        host("train", "NoOp", "^update/w", "^set/m", "^replica_1/set/m"),
        strategy=strategy("m"),
        shapes={"m": shape},
    )

    assert found(graph) == (["m"] if shape else [])
    assert messages(CreatedInScope().judge(graph)) == snapshot


def test_a_variable_that_updates_do_not_read_is_no_slot() -> None:
    sums = variable("shown", at="GPU:0")
    sets = [
        on(i, f"{at}set/m", "AssignAddVariableOp", "shown", gradient(i))
        for i, at in enumerate(("", "replica_1/"))
    ]
    train = host("train", "NoOp", "^update/w", "^set/m", "^replica_1/set/m")

    assert found(program(sums, *sets, train, strategy=strategy("shown"))) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "no tf.distribute strategy is known"),
        (strategy("w", count=1), "there is one replica, on /device:GPU:0"),
    ],
)
def test_not_checked_without_replicas(given: Strategy | None, reason: str) -> None:
    assert CreatedInScope().judge(program(strategy=given)).reason == reason
