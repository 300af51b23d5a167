from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.graphs import op
from support.steps import Program, Value, add_n, apply, mean, square, total
from support.towers import host, joint, on, program, variable
from support.verdicts import broken, doubtful, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL, TRAINABLE, Body
from placement_checks.rules.towers.towers_alike import TowersAlike


def scaled(*factors: float, **more: Any) -> Placement:
    """Towers with losses that are multiplied by constants, the first input of the product."""
    ops = []
    for i in range(len(factors)):
        ops += [
            on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/factor", "Const"),
            on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/factor", f"tower_{i}/mean"),
        ]
    values = {f"tower_{i}/factor": factor for i, factor in enumerate(factors)}
    return program(*ops, gpus=range(len(factors)), values=values, **more)


def penalized_within(*changes: Op, kind: str = "Mul", penalties: int = 1) -> Placement:
    """Towers that scale their losses; the first ``penalties`` towers add a penalty before."""
    ops = []
    for i in (0, 1):
        total = f"tower_{i}/total" if i < penalties else f"tower_{i}/mean"
        ops += [
            on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/penalty", "L2Loss", f"tower_{i}/w/read"),
            on(i, f"tower_{i}/total", "AddV2", f"tower_{i}/penalty", f"tower_{i}/mean"),
            on(i, f"tower_{i}/scaled", kind, total, f"tower_{i}/factor"),
            on(i, f"tower_{i}/factor", "Const"),
            on(i, f"tower_{i}/loss", "Identity", f"tower_{i}/scaled"),
        ]
    return program(*ops, *changes, values={"tower_0/factor": 0.25, "tower_1/factor": 0.75})


def two_networks(taken: Sequence[str], *changes: Op) -> Placement:
    """Towers with a critic v and an actor w, which have a loss each.

    ``taken`` are the losses of which each tower takes the gradient for the actor.
    """
    ops: list[Op] = []
    gradients: dict[str, list[str]] = {}
    by_variable: dict[str, list[str]] = {"v": [], "w": []}
    for i, loss in enumerate(taken):
        ops += [on(i, f"tower_{i}/actor", "Neg", f"tower_{i}/loss")]
        for variable_name, objective in (("v", "loss"), ("w", loss)):
            name = f"gradients/tower_{i}/{objective}_{variable_name}"
            ops += [on(i, name, "Mul", f"tower_{i}/w/MatMul", f"tower_{i}/{objective}")]
            gradients.setdefault(f"tower_{i}/{objective}:0", []).append(name)
            by_variable[variable_name].append(name)
    ops += [host(f"sum/{name}", "AddN", *by_variable[name]) for name in by_variable]
    return program(
        *ops,
        *changes,
        gpus=range(len(taken)),
        variables=("v", "w"),
        step={
            "objectives": tuple(gradients),
            "gradients": gradients,
            "gradients_by_variable": by_variable,
        },
    )


def summed(tower: int, count: int = 2, **more: Any) -> Placement:
    """Towers with the mean of their examples as loss, and one with the sum."""
    loss = on(tower, f"tower_{tower}/loss", "Sum", f"tower_{tower}/w/MatMul")
    return program(loss, gpus=range(count), **more)


def own_variable(tower: int) -> Placement:
    """One tower uses a variable twice, and the other tower uses its own variable too."""
    return program(
        variable("own"),
        on(tower, f"tower_{tower}/b/read", "ReadVariableOp", "a"),
        on(1 - tower, f"tower_{1 - tower}/b/read", "ReadVariableOp", "own"),
        variables=["a", "b"],
    )


def sliced(kind: str) -> Placement:
    ops = [host("batch", "Placeholder"), host("rows", "Shape", "batch")]
    for i, begin in enumerate(["Const", "Mul"]):
        of = [f"tower_{i}/begin", "batch"] if kind == "Split" else ["batch", f"tower_{i}/begin"]
        ops += [host(f"tower_{i}/begin", begin), on(i, f"tower_{i}/x", kind, *of)]
    return program(*ops)


def masked(mask: str) -> Placement:
    """Towers that cut slices, as batch[8:] and batch[:8]."""
    return program(
        host("batch", "Placeholder"),
        *(on(i, f"tower_{i}/x", "StridedSlice", "batch", "begin") for i in (0, 1)),
        attributes={"tower_1/x": {mask: 1}},
    )


def different_before(kind: str) -> Placement:
    ops = []
    for i, source in enumerate(["Relu", "Tanh"]):
        of = ["axis", f"tower_{i}/from"] if kind == "Split" else [f"tower_{i}/from", "begin"]
        ops += [
            host("axis", "Const"),
            host("begin", "Const"),
            on(i, f"tower_{i}/from", source, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/part", kind, *of),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/part"),
        ]
    return program(*ops)


def experts() -> Placement:
    """A different op in each tower chooses the rows of an expert."""
    ops = []
    for i, gate in enumerate(["Relu", "Tanh"]):
        ops += [
            on(i, f"tower_{i}/gate", gate, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/rows", "DynamicPartition", f"tower_{i}/x", f"tower_{i}/gate"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/rows"),
        ]
    return program(*ops)


def two_differences(other_scope: str = "") -> Placement:
    """Towers that differ in two ops."""
    ops = []
    for i, (one, other) in enumerate([("Relu", "Tanh"), ("Elu", "Sigmoid")]):
        ops += [
            on(i, f"tower_{i}/one", one, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/{other_scope}other", other, f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/one", f"tower_{i}/{other_scope}other"),
        ]
    return program(*ops)


def dropped(**rates: float) -> Placement:
    """Towers with a constant factor inside of the loss."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/rate", "Const"),
            on(i, f"tower_{i}/dropped", "Mul", f"tower_{i}/w/MatMul", f"tower_{i}/rate"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/dropped"),
        ]
    return program(*ops, values={f"{tower}/rate": rate for tower, rate in rates.items()})


def penalized(kind: str = "AddV2", source: str = "Placeholder") -> Placement:
    """One tower adds a penalty for all."""
    return program(
        *(on(i, f"tower_{i}/x", source) for i in (0, 1)),
        on(0, "tower_0/mean", "Mean", "tower_0/w/MatMul"),
        on(0, "tower_0/penalty", "L2Loss", "tower_0/w/read"),
        on(0, "tower_0/loss", kind, "tower_0/mean", "tower_0/penalty"),
    )


def cached(**more: Any) -> Placement:
    """Each tower reads examples from a variable, and the first adds a penalty."""
    return program(
        variable("images"),
        variable("pixels"),
        *(
            on(i, f"tower_{i}/w/MatMul", "MatMul", source, f"tower_{i}/w/read")
            for i, source in enumerate(["images", "pixels"])
        ),
        on(0, "tower_0/mean", "Mean", "tower_0/w/MatMul"),
        on(0, "tower_0/penalty", "L2Loss", "tower_0/w/read"),
        on(0, "tower_0/loss", "AddV2", "tower_0/mean", "tower_0/penalty"),
        **more,
    )


def weighted(kind: str) -> Placement:
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/part", "Const"),
            on(i, f"tower_{i}/loss", kind, f"tower_{i}/mean", f"tower_{i}/part"),
        ]
    return program(*ops, values={"tower_0/part": 0.25, "tower_1/part": 0.75})


def fed(kind: str) -> Placement:
    return program(
        host("zeros", "Const"),
        host("more", "Range"),
        on(0, "tower_0/x", kind, "zeros"),
        on(1, "tower_1/x", kind, "more"),
    )


TWO_DIFFERENCES = two_differences("aux/")


def whole_numbers(source: str, shape: tuple[int, ...]) -> Placement:
    """Towers that use whole numbers, which only the second tower adds up."""
    ids = [f"tower_{i}/ids" for i in (0, 1)]
    return program(
        host("rows", "Const"),
        on(0, ids[0], "Cast", "tower_0/x" if source == "tower_1/x" else "rows"),
        on(1, ids[1], "AddV2", source, source),
        *(
            on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/w/read", ids[i])
            for i in (0, 1)
        ),
        outputs=dict.fromkeys(ids, shape),
        dtypes=dict.fromkeys(ids, "int64"),
    )


def exchanged() -> Placement:
    graph = two_networks(["actor", "actor"])
    step = graph.step
    gradients = {
        **step.gradients,
        "tower_1/loss:0": step.gradients["tower_1/actor:0"],
        "tower_1/actor:0": step.gradients["tower_1/loss:0"],
    }
    return graph.with_fields(step=step._replace(gradients=gradients))


def unused_gradient() -> Placement:
    graph = two_networks(["actor", "actor"])
    step = graph.step
    unused = {
        **step.gradients_by_variable,
        "w": ("gradients/tower_1/loss_v", *step.gradients_by_variable["w"]),
    }
    return graph.with_fields(step=step._replace(gradients_by_variable=unused))


def averaged(gradients: Sequence[Value]) -> Value:
    return add_n(gradients) / float(len(gradients))


def decays(
    combine: Callable[[Sequence[Value]], Value] = averaged,
    *,
    penalized: Sequence[int] = (0,),
    share: float = 1.0,
    count: int = 2,
    of_mean: bool = False,
    sliced: bool = False,
) -> Program:
    """Towers, some of which add a penalty on the weights to their losses.

    Args:
        combine: combines the gradients of the towers.
        penalized: the numbers of the towers with a penalty.
        share: a factor of the losses without the penalties.
        count: the number of towers.
        of_mean: whether the gradient of a penalty is added to the combined gradients.
        sliced: whether each tower takes four rows of one batch, and the last one all other rows.
    """
    made = Program()
    w = made.variable("w", (3,))
    whole = [made.placeholder("x", (None, 3)), made.placeholder("y", (None,))] if sliced else []
    gradients = []
    for i in range(count):
        with made.tower(i):
            if sliced:
                x, y = (each[4 * i : 4 * i + 4 if i + 1 < count else None] for each in whole)
            else:
                x, y = made.placeholder("x", (None, 3), i), made.placeholder("y", (None,), i)
            loss = mean(square(total(x * w.read(), 1) - y)) * share
            if i in penalized:
                loss = loss + apply("L2Loss", w.read()) * 0.01
            gradients.append(made.gradient(loss, w))
    combined = combine(gradients)
    if of_mean:
        combined = combined + made.gradient(apply("L2Loss", w.read()) * 0.01, w)
    made.train(w.descend(0.1, combined))
    return made


CASES = {
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (2, 12)},
    "another reduction, built by one call": broken(
        summed(
            1, lines={"tower_0/loss": "main.py:30 net.py:7", "tower_1/loss": "main.py:30 net.py:9"}
        )
    ),
    "another reduction, built by another call": broken(
        summed(1, lines={"tower_0/loss": "main.py:30", "tower_1/loss": "main.py:32"})
    ),
    "another reduction, and the first tower's line is unknown": broken(
        summed(1, lines={"tower_1/loss": "main.py:32"})
    ),
    "another op before the loss": broken(
        program(
            on(1, "tower_1/act", "Tanh", "tower_1/w/MatMul"),
            on(1, "tower_1/loss", "Mean", "tower_1/act"),
            on(0, "tower_0/act", "Relu", "tower_0/w/MatMul"),
            on(0, "tower_0/loss", "Mean", "tower_0/act"),
        )
    ),
    **{
        f"the {which} of {count} towers differs": broken(summed(tower, count))
        for count in (3, 12)
        for which, tower in (("second", 1), ("last", count - 1))
    },
    "the first of three towers differs": broken(summed(0, 3)),
    "two ops that differ, one before the other": broken(
        program(
            on(1, "tower_1/a/MatMul", "BatchMatMulV2", "tower_1/x", "tower_1/a/read"),
            on(1, "tower_1/b/MatMul", "Conv2D", "tower_1/a/MatMul", "tower_1/b/read"),
            variables=["a", "b"],
        )
    ),
    "shared weights in another order": broken(
        program(
            on(1, "tower_1/a/read", "ReadVariableOp", "b"),
            on(1, "tower_1/b/read", "ReadVariableOp", "a"),
            variables=["a", "b"],
        )
    ),
    **{
        f"tower {tower} uses a variable twice, and the other tower its own": kept(
            own_variable(tower)
        )
        for tower in (0, 1)
    },
    **{
        f"an attribute of one tower, {text}": broken(
            program(attributes={"tower_0/w/MatMul": {"of": value}})
        )
        for text, value in {
            "a list": (1, 2, 2, 1),
            "a list of bytes": (b"SAME",),
            "a long list": tuple(range(100)),
            "a fraction": 1 / 3,
            "bytes that are no text": b"\xff",
        }.items()
    },
    "bodies of functions with different names": kept(
        program(attributes={f"tower_{i}/w/MatMul": {"f": Body(f"body of {i}")} for i in (0, 1)})
    ),
    "several attributes of one tower": broken(
        program(attributes={"tower_0/w/MatMul": dict.fromkeys("zyxabc", 1)})
    ),
    **{
        f"towers cut different parts by a {kind}": kept(sliced(kind))
        for kind in ("StridedSlice", "Slice", "SplitV", "Split")
    },
    "a slice from the beginning": kept(masked("begin_mask")),
    "a slice to the end": kept(masked("end_mask")),
    "a slice that loses a dimension": broken(masked("shrink_axis_mask")),
    **{
        f"towers cut different tensors by a {kind}": broken(different_before(kind))
        for kind in ("StridedSlice", "Slice", "SplitV", "Split")
    },
    "different ops choose the rows of an expert": broken(experts()),
    "two differences": broken(two_differences()),
    "another value of an attribute": broken(
        program(
            attributes={
                "tower_0/w/MatMul": {"transpose_a": False, "transpose_b": False},
                "tower_1/w/MatMul": {"transpose_a": False, "transpose_b": True},
            }
        )
    ),
    "an attribute of one tower": broken(
        program(attributes={"tower_0/w/MatMul": {"data_format": b"NHWC"}})
    ),
    "different factors inside of the loss": broken(dropped(tower_0=0.5, tower_1=0.25)),
    "equal factors inside of the loss": kept(dropped(tower_0=0.5, tower_1=0.5)),
    # Integers are the sizes of slices that towers cut.
    "different whole numbers inside of the loss": kept(dropped(tower_0=16, tower_1=32)),
    "the value of the second constant is unknown": kept(dropped(tower_0=0.5)),
    "the value of the first constant is unknown": kept(dropped(tower_1=0.5)),
    "an additional term": broken(
        program(
            on(0, "tower_0/loss", "AddN", "tower_0/w/MatMul"),
            on(1, "tower_1/l2", "L2Loss", "tower_1/w/MatMul"),
            on(1, "tower_1/loss", "AddN", "tower_1/w/MatMul", "tower_1/l2"),
        )
    ),
    "separate variables of different shapes": broken(
        program(
            variable("v"),
            on(1, "tower_1/w/read", "ReadVariableOp", "v"),
            shapes={"w": (8, 4), "v": (8, 5)},
        )
    ),
    "separate variables, and one has any shape": broken(
        program(
            variable("v"),
            on(1, "tower_1/w/read", "ReadVariableOp", "v"),
            shapes={"w": (8, 4), "v": None},
        )
    ),
    "separate variables of one shape": kept(
        program(variable("v"), on(1, "tower_1/w/read", "ReadVariableOp", "v"))
    ),
    **{
        f"different values of {name}": kept(
            program(attributes={f"tower_{i}/w/MatMul": {name: i} for i in (0, 1)})
        )
        for name in (
            *("seed", "seed2", "shared_name", "container", "shape", "debug_name", "frame_name"),
        )
    },
    **{
        f"one tower adds a penalty by {kind}": kept(penalized(kind))
        for kind in ("Add", "AddV2", "AddN", "AccumulateNV2")
    },
    **{
        f"one tower adds a penalty, and reads examples by {source}": kept(penalized(source=source))
        for source in (
            *("PlaceholderWithDefault", "IteratorGetNext", "IteratorGetNextSync"),
            *("MultiDeviceIteratorGetNextFromShard", "QueueDequeueManyV2", "ReaderReadV2"),
            "Unstage",
        )
    },
    "a term of trained variables that may be examples": broken(cached()),
    # Cached examples are variables that are neither trained nor saved.
    "a penalty, and cached examples": kept(
        cached(collections={TRAINABLE: ["w"], GLOBAL: ["w", "step"]})
    ),
    "one tower adds two penalties": kept(
        program(
            on(1, "tower_1/mean", "Mean", "tower_1/w/MatMul"),
            *(on(1, f"tower_1/{name}", "L2Loss", "tower_1/w/read") for name in ("l2", "other")),
            on(1, "tower_1/one", "AddV2", "tower_1/l2", "tower_1/mean"),
            on(1, "tower_1/loss", "AddV2", "tower_1/one", "tower_1/other"),
        )
    ),
    **{
        f"{penalties} towers add a penalty before a {kind}": kept(
            penalized_within(kind=kind, penalties=penalties)
        )
        for penalties in (0, 1, 2)
        for kind in ("Mul", "RealDiv")
    },
    "an inner penalty, and another loss": broken(
        penalized_within(on(1, "tower_1/mean", "Sum", "tower_1/w/MatMul"))
    ),
    "an inner penalty, and another factor": broken(
        penalized_within(on(1, "tower_1/factor", "Sqrt", "share"))
    ),
    "an inner penalty, and another use of the loss": broken(
        penalized_within(on(1, "tower_1/scaled", "Maximum", "tower_1/mean", "tower_1/factor"))
    ),
    "an inner term of examples, which is no penalty": broken(
        penalized_within(on(0, "tower_0/penalty", "Mean", "tower_0/x"))
    ),
    "a second term of examples": broken(
        program(
            on(1, "tower_1/mean", "Mean", "tower_1/w/MatMul"),
            on(1, "tower_1/aux", "Mean", "tower_1/x"),
            on(1, "tower_1/loss", "AddV2", "tower_1/mean", "tower_1/aux"),
        )
    ),
    **{
        f"losses weighted by a {kind}": kept(weighted(kind))
        for kind in ("Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan")
    },
    "factors before the losses": kept(scaled(0.25, 0.5, 0.25)),
    "different ops outside of the losses": kept(
        program(
            on(0, "tower_0/accuracy", "InTopKV2", "tower_0/w/MatMul"),
            on(1, "tower_1/entropy", "Softmax", "tower_1/w/MatMul"),
        )
    ),
    "another device": kept(
        program(op("tower_1/loss", "Mean", "/cpu:0", "CPU:0", "tower_1/w/MatMul"))
    ),
    "one batch for both towers": kept(
        program(
            host("batch", "IteratorGetNext"),
            on(0, "tower_0/x", "Identity", "batch"),
            on(1, "tower_1/x", "Identity", "batch"),
        )
    ),
    "different pipelines": kept(
        program(
            host("files", "IteratorV2"),
            host("more", "OneShotIterator"),
            on(0, "tower_0/x", "IteratorGetNext", "files"),
            on(1, "tower_1/x", "IteratorGetNext", "more"),
        )
    ),
    **{
        f"different values enter the towers by {kind}": kept(fed(kind))
        for kind in (
            *("PlaceholderWithDefault", "IteratorGetNext", "IteratorGetNextSync"),
            *("QueueDequeueManyV2", "ReaderReadV2", "MapUnstage", "Enter", "RefEnter"),
        )
    },
    # Each tower has its second layer on another GPU.
    "towers of two GPUs each": broken(
        program(
            *(
                on(
                    gpu,
                    f"tower_{i}/b/MatMul",
                    "MatMul",
                    f"tower_{i}/a/MatMul",
                    f"tower_{i}/b/read",
                )
                for i, gpu in [(0, 2), (1, 3)]
            ),
            *(on(gpu, f"tower_{i}/b/read", "ReadVariableOp", "b") for i, gpu in [(0, 2), (1, 3)]),
            on(1, "tower_1/loss", "Sum", "tower_1/b/MatMul"),
            variables=["a", "b"],
            machine="gpu*4",
        )
    ),
    **{f"one loss of {count} towers": kept(joint(range(count))) for count in (2, 12)},
    **{
        f"one loss of {count} towers, and a part differs": broken(
            summed(1, count, step={"objectives": ("loss:0",)})
        )
        for count in (2, 12)
    },
    "the second losses of the towers differ": broken(
        program(
            *(
                on(i, f"tower_{i}/fake", kind, f"tower_{i}/w/MatMul")
                for i, kind in enumerate(["Sum", "Max"])
            ),
            step={
                "objectives": [f"tower_{i}/{name}" for name in ("loss", "fake") for i in (0, 1)]
            },
        )
    ),
    "a difference, and a tower with two losses": broken(
        summed(
            1, 3, step={"objectives": (*(f"tower_{i}/loss" for i in range(3)), "tower_2/w/MatMul")}
        )
    ),
    "all differences are allowed": kept(TWO_DIFFERENCES, allow=("tower_1/*",)),
    **{
        f"two differences, allowed: {allow}": broken(TWO_DIFFERENCES, allow=allow)
        for allow in ((), ("tower_1/one",), ("tower_1/aux/*",), ("tower_0/*", "one"))
    },
    "without a placer": broken(summed(1, placer=None, assigned=Missing("no wheel for this"))),
    "without a train op": broken(summed(1, step={"train_op": ()})),
    "reported losses, without gradients": broken(
        summed(1, step={"objectives": (), "losses": ("tower_0/loss:0", "tower_1/loss:0")})
    ),
    "different numbers of losses": not_checked(
        program(step={"objectives": ("tower_0/loss", "tower_0/w/MatMul", "tower_1/loss")})
    ),
    # A tower's first row index is not part of its model; labels are.
    "a whole number": kept(whole_numbers("rows", ())),
    "whole numbers that are no examples": kept(whole_numbers("rows", (4,))),
    "whole numbers that are examples": broken(whole_numbers("tower_1/x", (4,))),
    "each network has its loss": kept(two_networks(["actor", "actor", "actor"])),
    "the loss of another network in one tower": broken(two_networks(["actor", "loss", "actor"])),
    "the losses of networks that are exchanged in one tower": broken(exchanged()),
    "a gradient that no update takes": kept(unused_gradient()),
    "a penalty in one of two towers": doubtful(decays().placement()),
    "a penalty in one of three towers": doubtful(decays(penalized=[2], count=3).placement()),
    **{
        f"a penalty in tower {number}, on slices of one batch": doubtful(
            decays(penalized=[number], sliced=True).placement()
        )
        for number in (0, 1)
    },
    "a penalty in one tower that is allowed": kept(
        decays().placement(), allow=("tower_0/L2Loss*",)
    ),
    "a penalty in one tower, and a program for one GPU": kept(
        Evidence(decays().placement(), single_gpu=decays(count=1).placement())
    ),
    "a penalty in each tower": kept(decays(penalized=[0, 1]).placement()),
    "a penalty in one tower, and a sum of gradients": kept(decays(add_n, share=0.5).placement()),
    "a penalty that is added to the mean": kept(decays(penalized=[], of_mean=True).placement()),
}

test_verdicts = verdicts(TowersAlike, CASES)
