from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.towers import gradient, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Device, Op, Placement
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE
from placement_checks.rules.towers.update_ops_run import UpdateOpsRun


def with_means(
    *runs: int,
    gpus: Sequence[int] = (0, 1),
    collected: bool = True,
    ops: Sequence[Op] = (),
    step: Mapping[str, Sequence[str]] | None = None,
    **more: Any,
) -> Placement:
    """Towers with a moving mean; the step runs the updates of the towers in `runs`."""
    statistics = [variable("mean")]
    for i in range(len(gpus)):
        statistics += [
            on(gpus[i], f"tower_{i}/moments", "Mean", f"tower_{i}/w/MatMul"),
            host(f"tower_{i}/away", "Sub", "mean", f"tower_{i}/moments"),
            host(f"tower_{i}/update", "AssignSubVariableOp", "mean", f"tower_{i}/away"),
        ]
    names = [f"tower_{i}/update" for i in range(len(gpus))]
    return program(
        *statistics,
        host("train", "NoOp", "^update/w", "^step/add", *(f"^{names[i]}" for i in runs)),
        *ops,
        gpus=gpus,
        step={"update_ops": names if collected else (), **(step or {})},
        **more,
    )


def group(name: str, *towers: int) -> Op:
    return host(name, "NoOp", *(f"^tower_{i}/update" for i in towers))


def aside(*ops: Op, **more: Any) -> Placement:
    """A variable outside of the model, and ops that are not part of the step."""
    return program(variable("v"), *ops, **more)


def assigned(*ops: Op, to: str = "v") -> Placement:
    """A variable that an op outside of the step sets to a value that some ops compute."""
    return program(
        variable(to), host("rows", "Placeholder"), *ops, host("set", "AssignVariableOp", to, "new")
    )


def with_evaluation(*runs: str) -> Placement:
    """Towers, and a copy for evaluation on another GPU, with updates that the step may run."""
    return with_means(
        ops=[
            on(2, "held_out", "Placeholder"),
            on(2, "predicted", "MatMul", "held_out", "w"),
            on(2, "eval/moments", "Mean", "predicted"),
            host("eval/away", "Sub", "mean", "eval/moments"),
            host("eval/update", "AssignSubVariableOp", "mean", "eval/away"),
            host("train", "NoOp", "^update/w", "^step/add", *(f"^{name}" for name in runs)),
        ],
        step={"update_ops": ["tower_0/update", "tower_1/update", "eval/update"]},
        machine="gpu*3",
    )


def own_means(tower: int) -> Placement:
    """Each of three towers has its own statistics; the step updates those of one."""
    return with_means(
        tower,
        gpus=range(3),
        ops=[
            op
            for i in range(3)
            for op in (
                variable(f"mean_{i}"),
                host(f"tower_{i}/away", "Sub", f"mean_{i}", f"tower_{i}/moments"),
                host(f"tower_{i}/update", "AssignSubVariableOp", f"mean_{i}", f"tower_{i}/away"),
            )
        ],
    )


def on_worker() -> Placement:
    """Towers on the GPUs of a task of a cluster."""
    worker = Device.parse("/job:worker/task:1")
    graph = with_means()
    ops = {
        name: op._replace(requested=op.requested.over(worker)) for name, op in graph.ops.items()
    }
    return graph.with_fields(ops=ops)


def on_gpus() -> Placement:
    """Updates on the GPUs of the towers; the step runs the last tower's."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/mean", "ReadVariableOp", "mean"),
            on(i, f"tower_{i}/away", "Sub", f"tower_{i}/mean", f"tower_{i}/moments"),
            on(i, f"tower_{i}/update", "AssignSubVariableOp", "mean", f"tower_{i}/away"),
        ]
    return with_means(1, collected=False, ops=ops)


COLLECTED = {"": True, ", in no collection": False}
GROUPS = {"all towers": (0, 1), "the first tower": (0,)}
BOTH = assigned(host("new", "AddN", "tower_0/w/MatMul", "tower_1/w/MatMul"))
EVALUATED = with_evaluation("tower_0/update", "tower_1/update", "eval/update")


CASES = {
    # The collection or the assigned value identifies the updates.
    **{
        f"{count} towers update their statistics{known}": kept(
            with_means(*range(count), gpus=range(count), collected=collected)
        )
        for count in (1, 2, 12)
        for known, collected in COLLECTED.items()
    },
    "the line of the train op is unknown": broken(
        with_means(gpus=[0], lines={"tower_0/update": "main.py:30"})
    ),
    "none of three towers updates its statistics": broken(with_means(gpus=range(3))),
    **{
        f"one tower does not update its statistics{known}": broken(
            with_means(
                gpus=[0],
                collected=collected,
                lines={"tower_0/update": "main.py:30 net.py:7", "train": "main.py:50"},
            )
        )
        for known, collected in COLLECTED.items()
    },
    **{
        f"none of {count} towers updates its statistics": broken(with_means(gpus=range(count)))
        for count in (2, 12)
    },
    # As slim and other libraries do.
    **{
        f"the first of {count} towers updates its statistics": kept(
            with_means(0, gpus=range(count))
        )
        for count in (2, 12)
    },
    # As slim's training of Inception does.
    **{
        f"the last of {count} towers updates its statistics": kept(
            with_means(count - 1, gpus=range(count))
        )
        for count in (2, 12)
    },
    **{
        f"all of {count} towers must update, and the {which} does": broken(
            with_means(tower, gpus=range(count)), tower="all"
        )
        for count in (2, 12)
        for which, tower in (("first", 0), ("last", count - 1))
    },
    "each tower has its own statistics, and the first updates them": kept(own_means(0)),
    # Checkpoints and evaluation use the statistics of the first tower.
    "each tower has its own statistics, and the second updates them": broken(own_means(1)),
    "a tower in the middle alone updates its statistics": kept(with_means(1, gpus=range(3))),
    # A callback of the program may run the group.
    **{
        f"a separate group updates {which}": not_checked(with_means(ops=[group("updates", *of)]))
        for which, of in GROUPS.items()
    },
    **{
        f"a separate group updates {which}, and {tower} must update": broken(
            with_means(ops=[group("updates", *of)]), tower=tower
        )
        for which, of in GROUPS.items()
        for tower in ("all", "/gpu:0")
    },
    "a separate group updates the last tower": broken(with_means(ops=[group("updates", 1)])),
    # The step updates the mean of the first tower and not its variance.
    "the first tower updates half of its statistics": broken(
        with_means(
            0,
            ops=[
                variable("variance"),
                *(
                    host(
                        f"tower_{i}/second",
                        "AssignSubVariableOp",
                        "variance",
                        f"tower_{i}/moments",
                    )
                    for i in (0, 1)
                ),
            ],
            collected=False,
        )
    ),
    **{
        f"{tower or 'any tower'} must update, and towers {runs} do": kept(
            with_means(*runs), tower=tower
        )
        for tower, runs in [
            ("", (1,)),
            ("/gpu:0", (0,)),
            ("GPU:0", (0,)),
            ("/job:localhost/replica:0/task:0/device:GPU:0", (0,)),
            ("/gpu:1", (1,)),
            ("/gpu:0", (0, 1)),
        ]
    },
    **{
        f"{tower or 'any tower'} must update, and towers {runs} do": broken(
            with_means(*runs), tower=tower
        )
        for tower, runs in [("/gpu:0", (1,)), ("/gpu:1", (0,)), ("/gpu:0", ())]
    },
    "an update of no tower": broken(
        with_means(
            0,
            ops=[host("count", "AssignAddVariableOp", "mean", "one")],
            step={"update_ops": ["tower_0/update", "tower_1/update", "count"]},
        ),
        tower="/gpu:0",
    ),
    # A name without a task matches the GPUs of all tasks.
    "a declared GPU of a cluster": broken(on_worker(), tower="/gpu:1"),
    **{
        f"{tower} must update, which is no tower": not_checked(with_means(), tower=tower)
        for tower in ("/gpu:2", "/cpu:0", "/job:worker/gpu:0")
    },
    "a group of updates in the step": kept(
        with_means(
            ops=[
                host("updates", "NoOp", "^tower_0/update", "^tower_1/update"),
                host("train", "NoOp", "^update/w", "^updates"),
            ]
        )
    ),
    "control dependencies of the losses": kept(
        with_means(
            ops=[
                on(0, "tower_0/loss", "Mean", "tower_0/w/MatMul", "^tower_0/update"),
                on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_1/update"),
            ]
        )
    ),
    "control dependencies of the update": kept(
        with_means(
            ops=[
                host(
                    "update/w",
                    "ResourceApplyGradientDescent",
                    "w",
                    "rate",
                    "mean/w",
                    "^tower_0/update",
                    "^tower_1/update",
                )
            ]
        )
    ),
    "an op of the collection that assigns nothing": broken(
        program(host("both", "NoOp", "^tower_0/x", "^tower_1/x"), step={"update_ops": ["both"]})
    ),
    "an op of the collection that the graph lacks": not_checked(
        program(step={"update_ops": ["gone"]})
    ),
    "an update by reference": broken(
        with_means(collected=False, ops=[variable("mean", "VariableV2")])
    ),
    "the variables of a metric": not_checked(
        with_means(collected=False, collections={TRAINABLE: ("w",), GLOBAL: ("w", "step")})
    ),
    "statistics in the collection of variables": broken(
        with_means(
            0, collected=False, collections={TRAINABLE: ("w",), GLOBAL: ("w", "step", "mean")}
        ),
        tower="all",
    ),
    "another assignment, an initializer": not_checked(
        aside(host("set", "AssignVariableOp", "v", "zeros"))
    ),
    "another assignment, a restore": not_checked(
        aside(host("loaded", "RestoreV2"), host("set", "AssignVariableOp", "v", "loaded"))
    ),
    "another assignment, a copy of weights": not_checked(
        aside(host("value", "ReadVariableOp", "w"), host("set", "AssignVariableOp", "v", "value"))
    ),
    "another assignment, a sum of gradients": not_checked(
        aside(host("add", "AssignAddVariableOp", "v", gradient(0)))
    ),
    "another assignment, a sum of averages": not_checked(
        aside(host("add", "AssignAddVariableOp", "v", "mean/w"))
    ),
    "another assignment, a trained variable": not_checked(
        program(host("set", "AssignVariableOp", "w", "tower_0/w/MatMul"))
    ),
    "a counter on a tower's GPU": not_checked(
        aside(
            on(0, "value", "ReadVariableOp", "v"),
            on(0, "next", "AddV2", "value", "one"),
            on(0, "set", "AssignVariableOp", "v", "next"),
        )
    ),
    # The handle of the variable is an argument of a function.
    **{
        f"an assignment with inputs {inputs}, to an unknown variable": not_checked(
            program(host("handle", "Placeholder"), host("set", "AssignVariableOp", *inputs))
        )
        for inputs in (("handle", "tower_0/x"), ("tower_0/x",), ())
    },
    # This batch normalization opens no device scope for the host.
    "updates on the GPUs of the towers": broken(on_gpus(), tower="all"),
    "an update in no collection": broken(
        program(
            variable("v"),
            on(1, "tower_1/spread", "Mean", "tower_1/w/MatMul"),
            host("set", "AssignVariableOp", "v", "tower_1/spread"),
        )
    ),
    "the step is the optimizer's train op": kept(
        with_means(0, 1, step={"train_op": (), "train_ops": ("train",)})
    ),
    # The collection TRAIN_OP has the optimizer's op; the program runs a group around it.
    "the step is a group around the optimizer's train op": kept(
        with_means(
            ops=[host("step_and_updates", "NoOp", "^train", "^tower_0/update", "^tower_1/update")],
            step={"train_op": (), "train_ops": ("train",)},
        )
    ),
    "without a placer": broken(
        with_means(placer=None, assigned=Missing("no wheel"), machine=None)
    ),
    "no tower": not_checked(program(gpus=[])),
    "no train op": not_checked(with_means(step={"train_op": ()})),
    "two train ops": not_checked(
        with_means(
            ops=[host("other", "NoOp", "^update/w")],
            step={"train_op": (), "train_ops": ("train", "other")},
        )
    ),
    **{
        f"{update} is allowed": not_checked(with_means(), allow=(update, "tower_1/*"))
        for update in ("tower_0/update", "*/update")
    },
    "another update is allowed": broken(with_means(), allow=("another", "tower_1/*")),
    "an assignment of weights alone": not_checked(
        assigned(on(0, "new", "L2Loss", "tower_0/w/read"))
    ),
    "an assignment of examples that no tower uses": not_checked(
        assigned(host("new", "Sum", "rows"))
    ),
    "an assignment of gradients and activations": not_checked(
        assigned(
            host("norm", "L2Loss", gradient(0)),
            host("mean", "Mean", "tower_0/w/MatMul"),
            host("new", "RealDiv", "mean", "norm"),
        )
    ),
    "a count of examples on a tower's GPU": not_checked(
        assigned(on(0, "seen", "ReadVariableOp", "v"), on(0, "new", "AddV2", "seen", "rows"))
    ),
    **{
        f"an update by both towers, and {tower} must update": broken(BOTH, tower=tower)
        for tower in ("/gpu:0", "/gpu:1")
    },
    "four train ops": broken(
        with_means(
            gpus=[0],
            ops=[host(f"train_{letter}", "NoOp") for letter in "abcd"],
            step={"train_op": [f"train_{letter}" for letter in "abcd"]},
        )
    ),
    **{
        f"two towers on one GPU, and towers {runs} update": kept(
            with_means(*runs, gpus=(0, 0), machine="gpu*2")
        )
        for runs in ((0,), (0, 1), (1,))
    },
    "two towers on one GPU, and none updates": broken(with_means(gpus=(0, 0), machine="gpu*2")),
    "the step updates statistics of an evaluation": broken(EVALUATED),
    "the step updates allowed statistics of an evaluation": kept(EVALUATED, allow=("eval/*",)),
    "an evaluation outside of the step": kept(with_evaluation("tower_0/update", "tower_1/update")),
}

test_verdicts = verdicts(UpdateOpsRun, CASES)


def test_a_tower_that_is_no_device_is_refused() -> None:
    with pytest.raises(InputError, match="is not part of a device name"):
        UpdateOpsRun(tower="the first")
