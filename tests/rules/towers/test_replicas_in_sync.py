from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import placement
from support.snapshots import messages
from support.towers import gradient, host, objects_of, on, program, variable
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Op, Placement, Verdict
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.towers.replicas_in_sync import ReplicasInSync

_ADD, _ASSIGN = "AssignAddVariableOp", "AssignVariableOp"


def strategy(*more: str, count: int = 2, in_sync: bool = True, own: str = "w") -> Strategy:
    """A strategy with a copy of each variable on every GPU, named as in `program`."""
    copies = {
        f"v{i}/{name}": Copy(f"v0/{name}", i, in_sync or name != own)
        for name in ("w", *more)
        for i in range(count)
    }
    gpus = [Device.parse(f"/gpu:{i}") for i in range(count)]
    return Strategy("MirroredStrategy", gpus, copies)


def replicas(*changes: Op, more: tuple[str, ...] = (), count: int = 2, **given: Any) -> Placement:
    """Mirrored towers of a strategy with copies of w and of other variables."""
    own = [variable(f"v{i}/{name}", at=f"GPU:{i}") for name in more for i in range(count)]
    fields = {"strategy": strategy(*more, count=count), **given}
    return program(*own, *changes, mirrored=True, gpus=range(count), **fields)


def assigned(name: str, *values: str, by: str = _ASSIGN) -> list[Op]:
    """Updates of the copies of a variable, each by one of the values."""
    return [on(i, f"set/v{i}/{name}", by, f"v{i}/{name}", value) for i, value in enumerate(values)]


def stepping(*names: str, count: int = 2) -> Op:
    """The train op: it updates the copies of w and of other variables."""
    updates = [f"^update/v{i}/w" for i in range(count)]
    return host(
        "train", "NoOp", *updates, *(f"^set/v{i}/{n}" for n in names for i in range(count))
    )


def found(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(ReplicasInSync(**parameters), graph)


def own_gradients(count: int = 2) -> list[Op]:
    return [
        on(i, f"update/v{i}/w", "ResourceApplyGradientDescent", f"v{i}/w", "rate", gradient(i))
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 12])
def test_copies_that_take_the_same_sum_are_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = ReplicasInSync().judge(replicas(count=count))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3])
def test_copies_that_take_their_own_gradients_drift(count: int) -> None:
    assert found(replicas(*own_gradients(count), count=count)) == ["v0/w"]


def test_the_update_of_a_copy_is_named_with_its_line(snapshot: SnapshotAssertion) -> None:
    graph = replicas(*own_gradients(), lines={"update/v0/w": "train.py:9"})
    verdict = ReplicasInSync().judge(graph)

    assert verdict.findings[0].where == "train.py:9"
    assert messages(verdict) == snapshot


def test_a_copy_that_is_left_out_drifts(snapshot: SnapshotAssertion) -> None:
    assert (
        messages(
            ReplicasInSync().judge(replicas(host("train", "NoOp", "^update/v0/w", "^step/add")))
        )
        == snapshot
    )


def test_a_copy_among_several_that_takes_other_gradients_drifts(
    snapshot: SnapshotAssertion,
) -> None:
    changed = on(2, "update/v2/w", "ResourceApplyGradientDescent", "v2/w", "rate", gradient(2))

    assert messages(ReplicasInSync().judge(replicas(changed, count=3))) == snapshot


def test_copies_that_each_adds_its_own_examples_to_drift(snapshot: SnapshotAssertion) -> None:
    graph = replicas(*assigned("mean", "tower_0/x", "tower_1/x"), stepping("mean"), more=("mean",))

    assert found(graph) == ["v0/mean"]
    assert messages(ReplicasInSync().judge(graph)) == snapshot


def test_moving_averages_of_keras_are_one_finding(snapshot: SnapshotAssertion) -> None:
    names = [f"bn{i}/moving_mean" for i in range(6)]
    graph = replicas(
        *(each for name in names for each in assigned(name, "tower_0/x", "tower_1/x")),
        stepping(*names),
        more=tuple(names),
        keras_parts={f"v0/{name}": "BatchNormalization" for name in names},
        lines={"v0/bn0/moving_mean": "model.py:9"},
    )
    verdict = ReplicasInSync().judge(graph)
    (finding,) = verdict.findings

    assert messages(verdict) == snapshot
    assert [finding.object, *finding.others] == [f"v0/{name}" for name in names]
    assert (finding.known, finding.where) == ("Keras 3", None)
    assert found(graph, allow=("*/moving_*",)) == []


def test_averages_of_another_layer_of_that_name_are_the_users() -> None:
    graph = replicas(
        *assigned("bn/moving_mean", "tower_0/x", "tower_1/x"),
        stepping("bn/moving_mean"),
        more=("bn/moving_mean",),
    )
    (finding,) = ReplicasInSync().judge(graph).findings

    assert finding.known == ""
    assert "aggregation=tf.VariableAggregation.MEAN" in finding.fix


def test_trained_variables_of_batch_normalization_are_no_averages() -> None:
    graph = replicas(*own_gradients(), keras_parts={"v0/w": "BatchNormalization"})
    (finding,) = ReplicasInSync().judge(graph).findings

    assert finding.known == ""
    assert "all_reduce('SUM', gradients)" in finding.fix


def making_in_step(by: str, allow: Sequence[str] = ()) -> Verdict:
    """The verdict on a step with a sum; its first call creates m."""
    sums = [on(i, f"sum_{i}", by, gradient(i), "size", "group", "key") for i in (0, 1)]
    graph = replicas(
        *(host(name, "Const") for name in ("size", "group", "key")),
        *sums,
        *assigned("m", "sum_0", "sum_1"),
        stepping("m"),
        more=("m",),
        strategy=replace(strategy("m"), made_in_step=("v0/m", "v1/m")),
    )
    return ReplicasInSync(tuple(allow)).judge(graph)


def test_sums_in_a_first_step_that_creates_variables_do_not_run(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = making_in_step("CollectiveReduceV2")

    assert messages(verdict) == snapshot
    (finding,) = verdict.findings
    assert (finding.object, finding.others) == ("v0/m", ())
    assert finding.known == "TensorFlow"


def test_sums_without_a_key_run_in_a_step_that_creates_variables() -> None:
    assert making_in_step("NcclAllReduce").state == "kept"


def test_variables_that_the_first_step_creates_can_be_allowed() -> None:
    assert making_in_step("CollectiveReduceV2", allow=["*/m"]).state == "kept"


@pytest.mark.parametrize("part", ["fit", ""])
def test_sums_with_a_missing_key_do_not_run(part: str, snapshot: SnapshotAssertion) -> None:
    keys = [on(i, f"key_{i}", "Placeholder") for i in (0, 1)]
    sums = [
        on(i, f"sum_{i}", "CollectiveReduceV2", gradient(i), "size", "group", f"key_{i}")
        for i in (0, 1)
    ]
    graph = replicas(
        *(host(name, "Const") for name in ("size", "group")),
        *keys,
        *sums,
        *assigned("c", "sum_0", "sum_1"),
        stepping("c"),
        more=("c",),
        keras_parts={"sum_0": part} if part else {},
    )

    verdict = ReplicasInSync().judge(graph)

    assert messages(verdict) == snapshot
    assert [finding.object for finding in verdict.findings] == ["sum_0"]
    assert verdict.findings[0].others == ("sum_1",)


@pytest.mark.parametrize("value", ["step/one", "tower_0/x"])
def test_updates_by_equal_values_keep_copies_equal(value: str) -> None:
    graph = replicas(*assigned("c", value, value, by=_ADD), stepping("c"), more=("c",))

    assert found(graph) == []


def test_copies_that_keep_their_own_value_are_equal_while_each_is_read() -> None:
    reads = [on(i, f"read/{i}", "ReadVariableOp", f"v{i}/c") for i in (0, 1)]
    graph = replicas(*reads, *assigned("c", "read/0", "read/1"), stepping("c"), more=("c",))

    assert found(graph) == []


def test_a_variable_that_depends_on_a_drifting_one_drifts_too() -> None:
    reads = [on(i, f"read/{i}", "ReadVariableOp", f"v{i}/m") for i in (0, 1)]
    graph = replicas(
        *reads,
        *assigned("m", gradient(0), gradient(1)),
        *assigned("c", "read/0", "read/1", by=_ADD),
        stepping("m", "c"),
        more=("m", "c"),
    )

    assert found(graph) == ["v0/m", "v0/c"]


@pytest.mark.parametrize(
    ("seeds", "kind", "drifts"),
    [
        ((0, 0), "RandomStandardNormal", True),
        ((1, 1), "RandomStandardNormal", False),
        ((1, 2), "RandomStandardNormal", True),
        ((0, 0), "StatelessRandomNormalV2", False),
        ((0, 0), "StatefulStandardNormalV2", True),
    ],
)
def test_copies_that_depend_on_each_replicas_random_numbers_drift(
    seeds: tuple[int, int], kind: str, drifts: bool
) -> None:
    """Averages of a generator that computes pictures from noise, not from examples."""
    draws = [on(i, f"noise/{i}", kind) for i in (0, 1)]
    updates = assigned("m", "noise/0", "noise/1")
    graph = replicas(
        *draws,
        *updates,
        stepping("m"),
        more=("m",),
        attributes={f"noise/{i}": {"seed": seed} for i, seed in enumerate(seeds)},
    )

    assert found(graph) == (["v0/m"] if drifts else [])


def test_copies_that_are_combined_when_they_are_read_may_differ() -> None:
    graph = replicas(
        *assigned("n", "tower_0/x", "tower_1/x", by=_ADD),
        stepping("n"),
        more=("n",),
        strategy=strategy("n", in_sync=False, own="n"),
    )

    assert found(graph) == []


def test_copies_that_depend_on_each_replicas_own_count_drift() -> None:
    reads = [on(i, f"read/{i}", "ReadVariableOp", f"v{i}/n") for i in (0, 1)]
    graph = replicas(
        *reads,
        *assigned("c", "read/0", "read/1"),
        stepping("c"),
        more=("n", "c"),
        strategy=strategy("n", "c", in_sync=False, own="n"),
    )

    assert found(graph) == ["v0/c"]


@pytest.mark.parametrize("sums_up", [True, False])
def test_variables_that_collect_gradients_of_a_replica_may_differ(sums_up: bool) -> None:
    reads = [on(i, f"read/{i}", "ReadVariableOp", f"v{i}/g") for i in (0, 1)]
    total = host("total", "AddN", "read/0", "read/1")
    values = ("total", "total") if sums_up else ("read/0", "read/1")
    graph = replicas(
        *reads,
        total,
        *assigned("g", gradient(0), gradient(1), by=_ADD),
        *assigned("c", *values, by=_ADD),
        stepping("g", "c"),
        more=("g", "c"),
    )

    assert found(graph) == ([] if sums_up else ["v0/g", "v0/c"])


def test_a_variable_that_a_loss_reads_collects_no_gradients() -> None:
    reads = [on(i, f"read/{i}", "ReadVariableOp", f"v{i}/mean") for i in (0, 1)]
    shifted = [
        on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/w/read", f"read/{i}")
        for i in (0, 1)
    ]
    graph = replicas(
        *reads,
        *shifted,
        *assigned("mean", "tower_0/x", "tower_1/x"),
        stepping("mean"),
        more=("mean",),
    )

    assert found(graph) == ["v0/mean"]


def test_tokens_that_order_sums_are_no_examples() -> None:
    tokens = [on(i, f"token_{i}", "Placeholder") for i in (0, 1)]
    sums = [
        on(i, f"mean/{i}", "CollectiveReduceV2", gradient(i), "step/one", f"token_{i}")
        for i in (0, 1)
    ]
    updates = [
        on(i, f"update/v{i}/w", "ResourceApplyGradientDescent", f"v{i}/w", "rate", f"mean/{i}")
        for i in (0, 1)
    ]
    graph = replicas(
        *tokens, *sums, *updates, dtypes={"token_0": "resource", "token_1": "resource"}
    )

    assert found(graph) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"strategy": None}, "no tf.distribute strategy is known"),
        ({"strategy": strategy(count=1)}, "there is one replica, on /device:GPU:0"),
        (
            {"strategy": Strategy("CentralStorageStrategy", strategy().replicas)},
            "CentralStorageStrategy keeps no copies of the variables",
        ),
    ],
)
def test_not_checked_without_copies(given: dict[str, Any], reason: str) -> None:
    verdict = ReplicasInSync().judge(replicas(**given))

    assert verdict == Verdict("replicas-in-sync", "not-checked", None, reason)


def test_one_replica_is_one_tower() -> None:
    assert ReplicasInSync().judge(replicas(strategy=strategy(count=1))).one_tower


def test_a_graph_without_variables_is_not_checked() -> None:
    verdict = ReplicasInSync().judge(placement(host("a", "NoOp"), strategy=strategy()))

    assert verdict.reason == "the graph has no variables"
