from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support import towers
from support.graphs import op, placement
from support.towers import gradient, host, on
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE, StepOps
from placement_checks.rules.towers.variables_shared import VariablesShared


def variables(*names: str, **more: Any) -> list[Op]:
    return [op(name, "VarHandleOp", "/cpu:0", "CPU:0", **more) for name in names]


def tower(number: int, *reads: str, after: str = "images") -> list[Op]:
    """A MatMul with each variable on one GPU; the last op is named after the tower's number."""
    gpu = f"/gpu:{number}"
    ops = []
    for depth, variable in enumerate(reads):
        name = f"matmul{number}_{depth}"
        ops += [
            op(f"read{number}_{depth}", "ReadVariableOp", gpu, gpu, variable),
            op(name, "MatMul", gpu, gpu, after, f"read{number}_{depth}"),
        ]
        after = name
    return ops


def collections(
    trainable: str | Sequence[str], slots: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    return {TRAINABLE: tuple(trainable), GLOBAL: (*trainable, *slots)}


NOT_BUILT = Missing("the program was not also built for one GPU")


def program(*ops: Op, single_gpu: Placement | Missing = NOT_BUILT, **more: Any) -> Evidence:
    """Evidence on a program, and on its build for one GPU if there is one."""
    return Evidence(placement(*ops, **more), single_gpu=single_gpu)


def alone(*ops: Op, trainable: Sequence[str] = ("w",), slots: tuple[Any, ...] = ()) -> Placement:
    """The same program with one tower, by default with the variable w only."""
    return placement(
        *(ops or (*variables("w"), *tower(0, "w"))),
        machine="gpu*1",
        collections=collections(trainable, slots),
    )


def split(*, single_gpu: Placement | Missing = NOT_BUILT) -> Evidence:
    """Two towers of two GPUs each, with separate variables."""
    return program(
        *variables("a", "b", "a_1", "b_1"),
        *tower(0, "a"),
        *tower(1, "b", after="matmul0_0"),
        *tower(2, "a_1"),
        *tower(3, "b_1", after="matmul2_0"),
        collections=collections(["a", "b", "a_1", "b_1"]),
        machine="gpu*4",
        single_gpu=single_gpu,
    )


def named(*names: str, **more: Any) -> Evidence:
    """Two towers that each have half of the variables; get_variable makes some of them."""
    half = len(names) // 2
    lines = dict.fromkeys(names, "main.py:20 net.py:5 net.py:1")
    return program(
        *variables(*names, "shared"),
        *(op(f"{name}/Initializer/zeros", "Const") for name in names if "/" in name),
        *tower(0, *names[:half], "shared"),
        *tower(1, *names[half:], "shared"),
        lines={**lines, "shared": "main.py:10"},
        **more,
    )


def own_gradient(i: int) -> Op:
    name = f"v{i}/w"
    return on(i, f"update/{name}", "ResourceApplyGradientDescent", name, "rate", gradient(i))


def joined(second: Sequence[str], **more: Any) -> Placement:
    """Copies whose updates take the halves of the mean, which each GPU joins."""
    orders = ["halves", "halves:1"], second
    return towers.program(
        *(towers.variable(f"m{i}", at=f"GPU:{i}") for i in (0, 1)),
        host("axis", "Const"),
        host("halves", "Split", "axis", "mean/w"),
        *(on(i, f"whole_{i}", "ConcatV2", *order, "axis") for i, order in enumerate(orders)),
        *(
            on(
                i,
                f"update/v{i}/w",
                "ResourceApplyMomentum",
                f"v{i}/w",
                f"m{i}",
                "rate",
                f"whole_{i}",
            )
            for i in (0, 1)
        ),
        mirrored=True,
        values={"axis": 0},
        outputs=dict.fromkeys((gradient(0), gradient(1), "sum/w", "mean/w"), (4,))
        | {"axis": (), "halves": (2,), "whole_0": (4,), "whole_1": (4,)},
        attributes={"halves": {"num_split": 2}},
        **more,
    )


def between(*ops: Op) -> Evidence:
    """Two towers with separate variables, and ops that may connect them."""
    return program(
        *variables("shared", "w", "w_1"),
        *tower(0, "w", "shared"),
        *ops,
        *tower(1, "w_1", "shared", after="batch"),
    )


def metrics(*, is_average: bool) -> Evidence:
    """Each tower adds to its own metric, or moves it towards a value."""
    moves = [
        each
        for i in (0, 1)
        if is_average
        for each in (
            on(i, f"tower_{i}/apart", "Sub", f"shown{i}", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/moved", "Mul", f"tower_{i}/apart", "share"),
            on(i, f"tower_{i}/add", "AssignSubVariableOp", f"shown{i}", f"tower_{i}/moved"),
        )
    ]
    collected = collections(["w"], ["shown0", "shown1"])
    return Evidence(towers.accumulating(*moves, collections=collected), single_gpu=alone())


def with_slot(*towers: Op, slot: Sequence[Op]) -> Evidence:
    """Towers with a slot, and a program for one GPU without its variable."""
    return program(
        *variables("w", "w_1"),
        *slot,
        *towers,
        collections=collections(["w", "w_1"], ["slot"]),
        single_gpu=alone(),
    )


def other_optimizer(*updates: Op) -> Evidence:
    """Towers whose optimizer has a slot, and one GPU with an optimizer without slots."""
    ops = [towers.variable("w/m"), *updates]
    several = collections(["w"], ["w/m", "step"])
    one = towers.program(gpus=[0], collections=collections(["w"], ["step"]))
    return Evidence(towers.program(*ops, collections=several), single_gpu=one)


SLOTS = {
    "that the update takes": [
        *variables("slot"),
        op("step", "ResourceApplyAdam", "/cpu:0", "CPU:0", "w_1", "slot", "gradient"),
    ],
    "that is colocated": variables("slot", colocated=["w_1"]),
}


def two_variables(*, informed: bool) -> Evidence:
    """Towers with two variables each, found by data flow or by the build for one GPU."""
    names = ["bn/mean", "w"]
    both = [f"tower_{number}/{name}" for number in (0, 1) for name in names]
    single = alone(*variables(*both[:2]), *tower(0, *both[:2]), trainable=both[:2])
    return program(
        *variables(*both),
        *tower(0, *both[:2]),
        *tower(1, *(both[:2] if informed else both[2:])),
        collections=collections(both),
        single_gpu=single if informed else NOT_BUILT,
    )


def unchanged(*ops: Op, **more: Any) -> Evidence:
    """A builder that takes num_gpus and ignores it."""
    return program(*ops, single_gpu=placement(*ops, **more), **more)


ONE_TOWER = [*variables("w"), *tower(0, "w")]
TWO_TOWERS = [*variables("w", "w_1"), *tower(0, "w"), *tower(1, "w_1")]


def with_more(machine: str | None) -> Evidence:
    """A variable that all towers use, and that one GPU lacks."""
    return program(
        *variables("w", "more"),
        *tower(0, "w", "more"),
        *tower(1, "w", "more"),
        collections=collections(["w", "more"]),
        single_gpu=placement(
            *variables("w"), *tower(0, "w"), collections=collections(["w"]), machine="gpu*1"
        ),
        machine=machine,
    )


def copied(count: int, *, collected: bool) -> Evidence:
    """Copies that take one sum; if not ``collected``, only the first copy is global."""
    names = [f"v{i}/w" for i in range(count)]
    graph = towers.program(
        mirrored=True,
        gpus=range(count),
        collections=collections(names) if collected else {TRAINABLE: names, GLOBAL: names[:1]},
    )
    single = placement(*variables("v0/w"), *tower(0, "v0/w"), collections=collections(["v0/w"]))
    return Evidence(graph, single_gpu=single)


def counted(*, mirrored: bool) -> Evidence:
    """Each GPU counts; no loss depends on the counters."""
    names = ["v0/w", "v1/w"] if mirrored else ["w"]
    graph = towers.program(
        towers.variable("v0/count", at="GPU:0"),
        towers.variable("v1/count", at="GPU:1"),
        mirrored=mirrored,
        collections={TRAINABLE: names, GLOBAL: [*names, "v0/count", "v1/count"]},
    )
    single = placement(
        *variables(names[0], "v0/count"),
        *tower(0, names[0]),
        collections={TRAINABLE: names[:1], GLOBAL: [names[0], "v0/count"]},
    )
    return Evidence(graph, single_gpu=single)


def layers() -> Evidence:
    """A model with a layer on each of two GPUs, and with one layer on one GPU."""
    graph = towers.split(collections=collections("ab", ["a/m", "b/m"]))
    single = placement(
        *variables("a", "a/m"),
        *tower(0, "a"),
        collections=collections("a", ["a/m"]),
        machine="gpu*1",
    )
    return Evidence(graph, single_gpu=single)


CENTRAL = towers.program(
    variables=["w", "v"], collections={TRAINABLE: ["w", "v"], GLOBAL: ["w", "v", "step"]}
)
COPIES = [f"v{i}/{name}" for i in range(3) for name in ("w", "v")]
MIRRORED = towers.program(
    gpus=range(3),
    variables=["w", "v"],
    mirrored=True,
    collections={TRAINABLE: COPIES, GLOBAL: [*COPIES, "step"]},
)


CASES = {
    "a variable that both towers read": kept(
        program(
            *variables("w"),
            *tower(0, "w"),
            *tower(1, "w"),
            single_gpu=Missing("the builder has no argument num_gpus"),
        )
    ),
    "a variable for each tower": broken(
        program(
            *variables("w", "w_1"),
            *tower(0, "w"),
            *tower(1, "w_1"),
            collections=collections(["w", "w_1"]),
            single_gpu=Missing("the builder has no argument num_gpus"),
            lines={"w_1": "main.py:30 net.py:3"},
        )
    ),
    "two variables for each tower, and a shared one": broken(
        program(
            *variables("shared", "a", "b", "a_1", "b_1"),
            *tower(0, "b", "shared", "a"),
            *tower(1, "b_1", "shared", "a_1"),
        )
    ),
    "a variable for each of three towers": broken(
        program(
            *variables("w", "w_1", "w_2"),
            *tower(0, "w"),
            *tower(1, "w_1"),
            *tower(2, "w_2"),
            machine="gpu*3",
        )
    ),
    # The third tower reads the first tower's variable, so its own variable is not a copy.
    "the third tower has an additional variable": broken(
        program(
            *variables("w", "w_1", "extra"),
            *tower(0, "w"),
            *tower(1, "w_1"),
            *tower(2, "w", "extra"),
        )
    ),
    "variables of other shapes": kept(
        placement(*variables("w", "v"), *tower(0, "w"), *tower(1, "v"), shapes={"v": (9,)})
    ),
    "variables of another use": kept(
        placement(
            *variables("w", "bias"),
            *tower(0, "w"),
            op("add", "BiasAdd", "/gpu:1", "GPU:1", "images", "bias"),
        )
    ),
    "one model on two GPUs": kept(
        placement(*variables("w", "v"), *tower(0, "w"), *tower(1, "v", after="matmul0_0"))
    ),
    "one model on two GPUs, the last one first": kept(
        placement(*variables("w", "v"), *tower(1, "w"), *tower(0, "v", after="matmul1_0"))
    ),
    "a variable that is written and not read": kept(
        placement(
            *variables("w", "step"),
            *tower(0, "w"),
            *tower(1, "w"),
            op("add", "AssignAddVariableOp", "/gpu:1", "GPU:1", "step", "one"),
        )
    ),
    "a tower takes a shape and a control edge from the other": broken(
        between(
            op("shape", "Shape", "/gpu:0", "GPU:0", "matmul0_0"),
            op("batch", "Reshape", "/gpu:1", "GPU:1", "images", "shape", "^matmul0_0"),
        )
    ),
    "a tower takes the value of a shared variable from the other": broken(
        between(op("batch", "Mul", "/gpu:0", "GPU:0", "images", "shared"))
    ),
    "the host computes a value of both towers": broken(
        between(
            op("batch", "Identity", "/gpu:1", "GPU:1", "images"),
            op("report", "Mul", "/cpu:0", "CPU:0", "matmul1_0", "w"),
        )
    ),
    "the collections of one GPU": kept(
        program(
            *variables("w"),
            *tower(0, "w"),
            *tower(1, "w"),
            collections=collections(["w"]),
            single_gpu=alone(),
        )
    ),
    "a metric for each tower": kept(metrics(is_average=False)),
    "a moving average for each tower": broken(metrics(is_average=True)),
    # The log's machine does not show for how many GPUs the program was built.
    "the collections of one GPU, and a log of a machine without GPUs": kept(
        program(
            *variables("w"),
            *tower(0, "w"),
            *tower(1, "w"),
            collections=collections(["w"]),
            single_gpu=alone(),
            placer="log",
            machine="cpu*1",
        )
    ),
    # Data flow finds no pair here: another op reads the added variable.
    "one GPU does not need a variable": broken(
        program(
            *variables("w", "gate"),
            *tower(0, "w"),
            *tower(1, "w"),
            op("gated", "Mul", "/gpu:1", "GPU:1", "matmul1_0", "gate"),
            collections=collections(["w"], ["gate"]),
            single_gpu=alone(),
            lines={"gate": "main.py:7"},
        )
    ),
    "one GPU does not need a variable that no tower reads": broken(
        program(
            *variables("w", "best"),
            *tower(0, "w"),
            *tower(1, "w"),
            collections=collections(["w"], ["best"]),
            single_gpu=alone(),
        )
    ),
    "a variable for each tower, and a build for one GPU": broken(
        program(
            *variables("w", "w_1"),
            *tower(0, "w"),
            *tower(1, "w_1"),
            collections=collections(["w", "w_1"]),
            single_gpu=alone(),
        )
    ),
    # The build for one tower shows that w_1 is not a part of the model.
    "a variable for each part, and a build for one GPU": broken(
        program(
            *variables("w", "w_1"),
            *tower(0, "w"),
            *tower(1, "w_1", after="matmul0_0"),
            collections=collections(["w", "w_1"]),
            single_gpu=alone(),
        )
    ),
    **{
        f"layers on two GPUs, and the first alone on one GPU, with losses: {listed}": expected(
            Evidence(
                towers.split(
                    *moments,
                    step=StepOps(train_op=("train",), objectives=losses),
                    collections=collections("ab"),
                ),
                single_gpu=alone(*variables("a"), *tower(0, "a"), trainable="a"),
            )
        )
        for listed, losses, moments, expected in (
            ("second", ("second:0",), (), kept),
            ("first, second", ("first:0", "second:0"), (), kept),
            # Copies that exchange values in the forward pass.
            (
                "of each, which uses the other",
                ("third:0", "second:0"),
                [on(0, "third", "MatMul", "second", "a")],
                broken,
            ),
        )
    },
    # A model of two parts; a single GPU holds both.
    "a variable for each part, and one GPU has both": kept(
        program(
            *variables("w", "v"),
            *tower(0, "w"),
            *tower(1, "v"),
            collections=collections(["w", "v"]),
            single_gpu=alone(*variables("w", "v"), *tower(0, "w", "v"), trainable=["w", "v"]),
        )
    ),
    "another name on one GPU": kept(
        program(
            *variables("tower_0/w"),
            *tower(0, "tower_0/w"),
            *tower(1, "tower_0/w"),
            collections=collections(["tower_0/w"]),
            single_gpu=alone(),
        )
    ),
    "one name on one GPU, and two others": broken(
        program(
            *variables("a", "b"),
            *tower(0, "a", "b"),
            *tower(1, "a", "b"),
            collections=collections(["a", "b"]),
            single_gpu=alone(),
        )
    ),
    "another name and shape on one GPU": broken(
        program(
            *variables("v"),
            *tower(0, "v"),
            *tower(1, "v"),
            shapes={"v": (9,)},
            collections=collections(["v"]),
            single_gpu=alone(),
        )
    ),
    **{
        f"a variable for each tower, and a slot {known}": broken(
            with_slot(*tower(0, "w"), *tower(1, "w_1"), slot=slot)
        )
        for known, slot in SLOTS.items()
    },
    **{
        f"an additional variable of both towers, and a slot {known}": broken(
            with_slot(*tower(0, "w", "w_1"), *tower(1, "w", "w_1"), slot=slot)
        )
        for known, slot in SLOTS.items()
    },
    "a slot that one GPU does not need": broken(
        program(
            *variables("w", "w/Adam"),
            *tower(0, "w"),
            *tower(1, "w"),
            op("step", "ResourceApplyAdam", "/cpu:0", "CPU:0", "w", "w/Adam", "gradient"),
            collections=collections(["w"], ["w/Adam"]),
            single_gpu=alone(),
        )
    ),
    "another optimizer than on one GPU": kept(
        other_optimizer(
            towers.host("update/w", "ResourceApplyMomentum", "w", "w/m", "rate", "mean/w")
        )
    ),
    "another optimizer than on one GPU, of one tower's gradients": broken(
        other_optimizer(
            towers.host(
                "update/w", "ResourceApplyMomentum", "w", "w/m", "rate", towers.gradient(0)
            )
        )
    ),
    **{
        f"two variables {how}, allowed: {allow}": expected(
            two_variables(informed=informed), allow=allow
        )
        for how, informed in (("for each tower", False), ("that one GPU does not need", True))
        for allow, expected in (
            ((), broken),
            (("tower_*/bn/*",), broken),
            (("tower_1/w",), broken),
            (("TOWER_*", "w"), broken),
            (("tower_*",), kept),
        )
    },
    "one tower, and the program was built for one GPU": not_checked(
        program(
            *variables("w"),
            *tower(1, "w"),
            single_gpu=Missing("the program itself was built for one GPU"),
        )
    ),
    "no tower, and no build for one GPU": not_checked(
        program(*variables("w"), single_gpu=Missing("the builder has no argument num_gpus"))
    ),
    "without a placer": broken(
        program(
            *variables("w", "w_1"),
            *tower(0, "w"),
            *tower(1, "w_1"),
            placer=None,
            assigned=Missing("no wheel for this"),
            machine=None,
        )
    ),
    "a build for one GPU with as many towers": broken(unchanged(*TWO_TOWERS)),
    "a build for one GPU with as many towers and collections": broken(
        unchanged(*TWO_TOWERS, collections=collections(["w", "w_1"]))
    ),
    "one tower without collections": not_checked(unchanged(*ONE_TOWER)),
    "one tower with empty collections": not_checked(
        unchanged(*ONE_TOWER, collections=collections([]))
    ),
    "two spellings of one GPU": not_checked(
        program(
            *variables("v", "w"),
            *tower(0, "v"),
            op("other", "MatMul", "/job:localhost/replica:0/task:0/device:GPU:0", "GPU:0", "w"),
        )
    ),
    "two towers of two parts each": broken(
        program(
            *variables(*(f"{tower}/{part}" for tower in ("one", "two") for part in ("a", "b"))),
            *tower(0, "one/a"),
            *tower(1, "one/b", after="matmul0_0"),
            *tower(2, "two/a"),
            *tower(3, "two/b", after="matmul2_0"),
            machine="gpu*4",
        )
    ),
    # One GPU trains, and the other evaluates with the averages.
    "a moving average on another GPU": kept(
        program(
            *variables("w", "w/average"),
            *tower(0, "w"),
            *tower(1, "w/average"),
            collections=collections(["w"], ["w/average"]),
        )
    ),
    # The counters of a metric are local variables.
    "a variable for each tower, in no collection": kept(
        program(
            *variables("w", "metric", "metric_1"),
            *tower(0, "w", "metric"),
            *tower(1, "w", "metric_1"),
            collections=collections(["w"]),
        )
    ),
    "statistics for each tower": broken(
        program(
            *variables("w", "mean", "mean_1"),
            *tower(0, "w", "mean"),
            *tower(1, "w", "mean_1"),
            collections=collections(["w"], ["mean", "mean_1"]),
        )
    ),
    "a trained variable that is not saved": broken(
        program(
            *variables("w", "v"),
            *tower(0, "w", "v"),
            *tower(1, "w", "v"),
            collections={TRAINABLE: ("w", "v", "gone"), GLOBAL: ("v",)},
            lines={"w": "main.py:9 net.py:3"},
        )
    ),
    "one tower, and a trained variable that is not saved": broken(
        program(*variables("w"), *tower(0, "w"), collections={TRAINABLE: ("w",), GLOBAL: ()})
    ),
    "parts of one model on two GPUs": kept(
        program(
            *variables("w", "v"),
            *tower(0, "w"),
            *tower(1, "v", after="matmul0_0"),
            single_gpu=Missing("the builder has no argument num_gpus"),
        )
    ),
    # The new variable does not replace a metric of the program for one GPU.
    "a variable on one GPU that is in no collection": broken(
        program(
            *variables("w", "more"),
            *tower(0, "w"),
            *tower(1, "w"),
            collections=collections(["w", "more"]),
            single_gpu=placement(
                *variables("w", "metric"),
                *tower(0, "w"),
                collections=collections(["w"]),
                machine="gpu*1",
            ),
        )
    ),
    # All weights are frozen.
    "variables that are not trainable": broken(
        program(
            *variables("w", "w_1"),
            *tower(0, "w"),
            *tower(1, "w_1"),
            collections=collections([], slots=["w", "w_1"]),
            single_gpu=placement(
                *variables("w"),
                *tower(0, "w"),
                collections=collections([], ["w"]),
                machine="gpu*1",
            ),
        )
    ),
    "the second tower's variable was created first": broken(
        program(*variables("second", "first"), *tower(0, "first"), *tower(1, "second"))
    ),
    "two towers of two GPUs each": broken(split()),
    "two towers of two GPUs each, and a build for one GPU": broken(
        split(
            single_gpu=placement(
                *variables("a", "b"),
                *tower(0, "a", "b"),
                collections=collections("ab"),
                machine="gpu*1",
            )
        )
    ),
    "a tower of more parts than the first has": broken(
        program(
            *variables("a", "b", "a_1", "b_1"),
            *tower(0, "a", "b"),
            *tower(1, "a_1"),
            *tower(2, "b_1", after="matmul1_0"),
            machine="gpu*3",
        )
    ),
    **{
        f"a variable that one GPU does not need, machine {machine}": broken(with_more(machine))
        for machine in ("gpu*2", "cpu*1", None)
    },
    # The second tower was built on the first tower's GPU.
    "one tower, and one GPU does not need a variable": broken(
        program(
            *variables("w", "w_1"),
            *tower(0, "w", "w_1"),
            collections=collections(["w", "w_1"]),
            single_gpu=placement(
                *variables("w"), *tower(0, "w"), collections=collections(["w"]), machine="gpu*1"
            ),
        )
    ),
    "a tf.Variable for each tower": broken(named("w", "w_1")),
    "a scope for each tower": broken(named("tower_0/w", "tower_1/w")),
    "a layer for each tower": broken(named("net/dense/w", "net/dense_1/w")),
    "one of two layers for each tower": broken(named("net/dense_1/w", "net/dense_3/w")),
    "names without a hint": broken(named("a/b/w", "a/c/v")),
    "two variables in a scope for each tower": broken(
        named(*(f"tower_{i}/{name}" for i in (0, 1) for name in ("w", "b")))
    ),
    "two variables in two scopes for each tower": broken(
        named("a_0/w", "b_0/w", "a_1/w", "b_1/w")
    ),
    "a variable that the step does not update": broken(
        program(
            *variables("w", "w_1"),
            *tower(0, "w"),
            *tower(1, "w_1"),
            op("update", "ResourceApplyGradientDescent", "", "CPU:0", "w", "rate", "matmul0_0"),
            step=StepOps(train_op=("update",)),
        )
    ),
    **{
        f"{count} copies take one sum{where}": kept(copied(count, collected=collected))
        for count in (2, 12)
        for where, collected in (("", True), (", and only the first is global", False))
    },
    # If each GPU has a copy of the model, it may also count its own steps.
    "copies that join the halves of the mean": kept(joined(["halves", "halves:1"])),
    "a copy that joins the halves of the mean in another order": not_checked(
        joined(["halves:1", "halves"])
    ),
    "copies of a strategy, which keeps them equal": kept(
        joined(["halves:1", "halves"], strategy=towers.MIRRORED)
    ),
    "a counter for each GPU, and copies": kept(counted(mirrored=True)),
    "a counter for each GPU, and shared variables": broken(counted(mirrored=False)),
    **{
        f"four copies of two weights, and {what}": broken(
            towers.program(update, mirrored=True, gpus=range(4), variables=["w", "b"])
        )
        for what, update in {
            "the second takes its own gradient": own_gradient(1),
            "the first takes its own gradient": own_gradient(0),
            "the third is not updated": host("update/v2/w", "NoOp"),
            "the fourth takes the sum of another weight": on(
                3, "update/v3/w", "ResourceApplyGradientDescent", "v3/w", "rate", "mean/b"
            ),
        }.items()
    },
    "two copies, and the second takes its own gradient": broken(
        towers.program(own_gradient(1), mirrored=True)
    ),
    "three copies, and the second takes its own gradient on purpose": kept(
        towers.program(own_gradient(1), mirrored=True, gpus=range(3)), allow=("v1/*",)
    ),
    # The layout that the program declares. The step counter is not trainable and needs no copies.
    **{
        f"central variables, declared: {layout or 'no layout'}": kept(CENTRAL, layout=layout)
        for layout in ("central", "")
    },
    **{
        f"copies, declared: {layout or 'no layout'}": kept(MIRRORED, layout=layout)
        for layout in ("mirrored", "")
    },
    "central variables instead of copies": broken(CENTRAL, layout="mirrored"),
    "copies instead of central variables": broken(MIRRORED, layout="central"),
    "an allowed central variable instead of copies": broken(
        CENTRAL, layout="mirrored", allow=("v",)
    ),
    "allowed copies instead of central variables": broken(
        MIRRORED, layout="central", allow=("v*/v",)
    ),
    # A saved graph lacks collections. All towers read the step counter, which is not a weight.
    "a saved graph with central variables instead of copies": broken(
        towers.program(
            *(on(i, f"tower_{i}/rate", "Mul", "step", f"tower_{i}/x") for i in (0, 1)),
            variables=["w", "v"],
        ),
        layout="mirrored",
    ),
    **{
        f"a split model, declared: {layout or 'no layout'}": not_checked(
            towers.split(), layout=layout
        )
        for layout in ("central", "mirrored")
    },
    "a split model": kept(towers.split()),
    # A second GPU holds a second layer.
    "a split model, and one GPU has fewer layers": kept(layers()),
}

test_verdicts = verdicts(VariablesShared, CASES)
