from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.towers import GPUS, gradient, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Device, Op, Placement
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


def own_gradients(count: int = 2) -> list[Op]:
    return [
        on(i, f"update/v{i}/w", "ResourceApplyGradientDescent", f"v{i}/w", "rate", gradient(i))
        for i in range(count)
    ]


def making_in_step(by: str) -> Placement:
    """A step with a sum; its first call creates m."""
    sums = [on(i, f"sum_{i}", by, gradient(i), "size", "group", "key") for i in (0, 1)]
    return replicas(
        *(host(name, "Const") for name in ("size", "group", "key")),
        *sums,
        *assigned("m", "sum_0", "sum_1"),
        stepping("m"),
        more=("m",),
        strategy=replace(strategy("m"), made_in_step=("v0/m", "v1/m")),
    )


def averages_of_keras() -> Placement:
    """Replicas with six layers of Keras, each with a moving average."""
    names = [f"bn{i}/moving_mean" for i in range(6)]
    return replicas(
        *(each for name in names for each in assigned(name, "tower_0/x", "tower_1/x")),
        stepping(*names),
        more=tuple(names),
        keras_parts={f"v0/{name}": "BatchNormalization" for name in names},
        lines={"v0/bn0/moving_mean": "model.py:9"},
    )


def keyed(part: str = "") -> Placement:
    """Sums with a key that the caller gives."""
    return replicas(
        *(host(name, "Const") for name in ("size", "group")),
        *(on(i, f"key_{i}", "Placeholder") for i in (0, 1)),
        *(
            on(i, f"sum_{i}", "CollectiveReduceV2", gradient(i), "size", "group", f"key_{i}")
            for i in (0, 1)
        ),
        *assigned("c", "sum_0", "sum_1"),
        stepping("c"),
        more=("c",),
        keras_parts={"sum_0": part} if part else {},
    )


def noisy(seeds: tuple[int, int], kind: str) -> Placement:
    return replicas(
        *(on(i, f"noise/{i}", kind) for i in (0, 1)),
        *assigned("m", "noise/0", "noise/1"),
        stepping("m"),
        more=("m",),
        attributes={f"noise/{i}": {"seed": seed} for i, seed in enumerate(seeds)},
    )


def adding_to_sum(*terms: str) -> Placement:
    """Copies of c take a sum over the replicas, plus a term."""
    return replicas(
        host("sum", "AddN", gradient(0), gradient(1)),
        *(on(i, f"rows_{i}", "Shape", f"tower_{i}/x") for i in (0, 1)),
        *(on(i, f"total_{i}", "AddV2", "sum", term) for i, term in enumerate(terms)),
        *assigned("c", "total_0", "total_1"),
        stepping("c"),
        more=("c",),
    )


def collecting(*, sums_up: bool) -> Placement:
    return replicas(
        *(on(i, f"read/{i}", "ReadVariableOp", f"v{i}/g") for i in (0, 1)),
        host("total", "AddN", "read/0", "read/1"),
        *assigned("g", gradient(0), gradient(1), by=_ADD),
        *assigned("c", *(("total", "total") if sums_up else ("read/0", "read/1")), by=_ADD),
        stepping("g", "c"),
        more=("g", "c"),
    )


CASES = {
    **{f"{count} copies take the same sum": kept(replicas(count=count)) for count in (2, 12)},
    **{
        f"{count} copies take their own gradients": broken(
            replicas(*own_gradients(count), count=count)
        )
        for count in (2, 12)
    },
    "copies take their own gradients, and a line is known": broken(
        replicas(*own_gradients(), lines={"update/v0/w": "train.py:9"})
    ),
    "one copy is not updated": broken(
        replicas(host("train", "NoOp", "^update/v0/w", "^step/add"))
    ),
    "the third copy takes its own gradients": broken(
        replicas(
            on(2, "update/v2/w", "ResourceApplyGradientDescent", "v2/w", "rate", gradient(2)),
            count=3,
        )
    ),
    "each copy takes its own examples": broken(
        replicas(*assigned("mean", "tower_0/x", "tower_1/x"), stepping("mean"), more=("mean",))
    ),
    "a user's layer with a moving average": broken(
        replicas(
            *assigned("bn/moving_mean", "tower_0/x", "tower_1/x"),
            stepping("bn/moving_mean"),
            more=("bn/moving_mean",),
        )
    ),
    "a trained variable of batch normalization": broken(
        replicas(*own_gradients(), keras_parts={"v0/w": "BatchNormalization"})
    ),
    "sums without a key, in a step of Keras": broken(keyed("fit")),
    "sums without a key": broken(keyed()),
    **{
        f"copies add {value}": kept(
            replicas(*assigned("c", value, value, by=_ADD), stepping("c"), more=("c",))
        )
        for value in ("step/one", "tower_0/x")
    },
    "copies add their own gradients to the sum": broken(adding_to_sum(gradient(0), gradient(1))),
    "copies add their numbers of rows to the sum": kept(adding_to_sum("rows_0", "rows_1")),
    "copies take their own values": kept(
        replicas(
            *(on(i, f"read/{i}", "ReadVariableOp", f"v{i}/c") for i in (0, 1)),
            *assigned("c", "read/0", "read/1"),
            stepping("c"),
            more=("c",),
        )
    ),
    "copies take the values of copies that differ": broken(
        replicas(
            *(on(i, f"read/{i}", "ReadVariableOp", f"v{i}/m") for i in (0, 1)),
            *assigned("m", gradient(0), gradient(1)),
            *assigned("c", "read/0", "read/1", by=_ADD),
            stepping("m", "c"),
            more=("m", "c"),
        )
    ),
    # Averages of a generator that computes pictures from noise, not from examples.
    **{
        f"copies take numbers of {kind} with seeds {seeds}": expected(noisy(seeds, kind))
        for seeds, kind, expected in (
            ((1, 1), "RandomStandardNormal", kept),
            ((0, 0), "StatelessRandomNormalV2", kept),
            ((0, 0), "RandomStandardNormal", broken),
            ((1, 2), "RandomStandardNormal", broken),
            ((0, 0), "StatefulStandardNormalV2", broken),
        )
    },
    "copies take the same sum, and noise of their own": broken(
        replicas(
            host("total", "AddN", gradient(0), gradient(1)),
            *(on(i, f"noise/{i}", "RandomStandardNormal") for i in (0, 1)),
            *(on(i, f"noisy/{i}", "AddV2", "total", f"noise/{i}") for i in (0, 1)),
            *(
                on(
                    i,
                    f"update/v{i}/w",
                    "ResourceApplyGradientDescent",
                    *(f"v{i}/w", "rate", f"noisy/{i}"),
                )
                for i in (0, 1)
            ),
            lines={"noise/0": "train.py:9", "update/v0/w": "train.py:10"},
        )
    ),
    "copies that are combined when they are read": kept(
        replicas(
            *assigned("n", "tower_0/x", "tower_1/x", by=_ADD),
            stepping("n"),
            more=("n",),
            strategy=strategy("n", in_sync=False, own="n"),
        )
    ),
    "copies take each replica's own count": broken(
        replicas(
            *(on(i, f"read/{i}", "ReadVariableOp", f"v{i}/n") for i in (0, 1)),
            *assigned("c", "read/0", "read/1"),
            stepping("c"),
            more=("n", "c"),
            strategy=strategy("n", "c", in_sync=False, own="n"),
        )
    ),
    "copies collect gradients, and are added up": kept(collecting(sums_up=True)),
    "copies collect gradients, and are used as they are": broken(collecting(sums_up=False)),
    "copies that losses read take examples": broken(
        replicas(
            *(on(i, f"read/{i}", "ReadVariableOp", f"v{i}/mean") for i in (0, 1)),
            *(
                on(
                    i,
                    f"tower_{i}/w/MatMul",
                    "MatMul",
                    f"tower_{i}/x",
                    f"tower_{i}/w/read",
                    f"read/{i}",
                )
                for i in (0, 1)
            ),
            *assigned("mean", "tower_0/x", "tower_1/x"),
            stepping("mean"),
            more=("mean",),
        )
    ),
    "tokens that order sums": kept(
        replicas(
            *(on(i, f"token_{i}", "Placeholder") for i in (0, 1)),
            *(
                on(i, f"mean/{i}", "CollectiveReduceV2", gradient(i), "step/one", f"token_{i}")
                for i in (0, 1)
            ),
            *(
                on(
                    i,
                    f"update/v{i}/w",
                    "ResourceApplyGradientDescent",
                    f"v{i}/w",
                    "rate",
                    f"mean/{i}",
                )
                for i in (0, 1)
            ),
            dtypes={"token_0": "resource", "token_1": "resource"},
        )
    ),
    "a strategy without copies": not_checked(
        replicas(strategy=Strategy("CentralStorageStrategy", GPUS))
    ),
    "moving averages of Keras": broken(averages_of_keras()),
    "moving averages of Keras are allowed": kept(averages_of_keras(), allow=("*/moving_*",)),
    "sums in a first step that creates variables": broken(making_in_step("CollectiveReduceV2")),
    "sums without a key in a step that creates variables": kept(making_in_step("NcclAllReduce")),
    "variables that the first step creates are allowed": kept(
        making_in_step("CollectiveReduceV2"), allow=("*/m",)
    ),
}

test_verdicts = verdicts(ReplicasInSync, CASES)
