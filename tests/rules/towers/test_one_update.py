from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support.graphs import op, placement
from support.towers import MIRRORED, gradient, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.missing import Missing
from placement_checks.core.variables import Variables
from placement_checks.rules.towers.one_update import OneUpdate

TRAIN = ["^update/w", "^step/add"]


def apply(name: str, *gradients: str, to: str = "w", **more: Any) -> Op:
    return host(name, "ResourceApplyGradientDescent", to, "rate", *gradients, **more)


def several(count: int, *ops: Op, train: tuple[Any, ...] = (), **more: Any) -> Placement:
    """Each tower applies its own gradients."""
    names = ["update/w", *(f"update/w_{i}" for i in range(1, count))]
    return program(
        *(apply(name, gradient(i)) for i, name in enumerate(names)),
        *ops,
        host("train", "NoOp", *(f"^{name}" for name in names), *train),
        gpus=range(count),
        **more,
    )


def counted(*ops: Op, train: Sequence[str] = (), **more: Any) -> Placement:
    """Towers, and ops that may update the step counter."""
    return program(*ops, host("train", "NoOp", "^update/w", *train), **more)


def branches(*names: str, call: str = "if") -> list[Op]:
    """Updates in the bodies of functions; a branching op calls only one of them."""
    return [apply(name, "mean/w", caller=call) for name in names]


def powers(*assigns: str, **step: Any) -> Placement:
    """Adam's power of beta: the update of w reads it, and `assigns` update it."""
    return program(
        variable("beta1_power"),
        host("beta1_power/read", "ReadVariableOp", "beta1_power"),
        host("update/w", "ResourceApplyAdam", "w", "m", "v", "beta1_power/read", "mean/w"),
        host("power", "Mul", "beta1_power/read", "beta1"),
        *(host(name, "AssignVariableOp", "beta1_power", "power") for name in assigns),
        host("train", "NoOp", *TRAIN, *(f"^{name}" for name in assigns)),
        shapes={"beta1_power": ()},
        step=step,
    )


def kept_count(*ops: Op, dtype: str = "int64", first: object = 0) -> Placement:
    """A scalar with an initializer that the step reads; no collection has it."""
    graph = program(
        variable("count"),
        host("zero", "Const"),
        host("count/Assign", "AssignVariableOp", "count", "zero"),
        host("rate", "Pow", "decay", "count"),
        *ops,
        values={"zero": first},
        shapes={"count": ()},
    )
    counted = (
        each._replace(dtype=dtype) if each.name == "count" else each for each in graph.variables
    )
    return replace(graph, variables=Variables(counted))


TWICE = [apply("update/w_1", gradient(1)), host("train", "NoOp", "^update/w", "^update/w_1")]


def moved(*ops: Op, train: Sequence[str], shape: Sequence[int] = (), by: int = 1) -> Placement:
    """A counter in no collection."""
    return program(
        variable("seen"),
        host("by", "Const"),
        *ops,
        host("train", "NoOp", "^update/w", *train),
        shapes={"seen": shape},
        values={"by": by},
        step={"counters": ()},
    )


def adds(*names: str, **more: Any) -> list[Op]:
    return [host(name, "AssignAddVariableOp", "seen", "by", **more) for name in names]


def whole(graph: Placement) -> Placement:
    """The same program with integer variables."""
    variables = [each._replace(dtype="int64") for each in graph.variables]
    return replace(graph, variables=Variables(variables))


def state(
    *ops: Op, train: Sequence[str] = ("set_0", "set_1"), shape: Sequence[int] = (4,)
) -> Placement:
    """Towers, and a variable that the step updates once per tower."""
    return program(
        variable("state"),
        host("read", "ReadVariableOp", "state"),
        host("decayed", "Mul", "read", "decay"),
        host("decay", "Const"),
        *ops,
        host("train", "NoOp", "^update/w", "^step/add", *(f"^{name}" for name in train)),
        shapes={"state": shape},
    )


def moved_by(*values: str, kind: str = "AssignVariableOp") -> list[Op]:
    """An op for each value: it sets the state to a part of the old state plus the value."""
    return [
        each
        for i, value in enumerate(values)
        for each in (
            host(f"new_{i}", "AddV2", "decayed", value),
            host(f"set_{i}", kind, "state", f"new_{i}"),
        )
    ]


def in_turn(
    *, waits: bool = True, first: Sequence[int] = (0, 1), count: Sequence[str] = ()
) -> Placement:
    """Two updates of w by the towers' gradients; the second gradients follow the first update.

    `count` are the ops that add 1 to a counter of calls.
    """
    again = []
    for i in (0, 1):
        read = f"tower_{i}/again/read"
        control = ["^first"] if waits else []
        of_loss = f"gradients/again/{i}/Mul"
        again += [
            on(i, read, "ReadVariableOp", "w", *control),
            on(i, f"tower_{i}/again/MatMul", "MatMul", f"tower_{i}/x", read),
            on(i, f"tower_{i}/again/loss", "Mean", f"tower_{i}/again/MatMul"),
            on(i, of_loss, "Mul", f"tower_{i}/again/MatMul", f"tower_{i}/again/loss"),
            on(i, f"gradients/again/{i}/MatMul", "MatMul", f"tower_{i}/x", of_loss),
        ]
    return program(
        host("sum/first", "AddN", *(gradient(i) for i in first)),
        host("first", "AssignAddVariableOp", "w", "sum/first"),
        *again,
        host("sum/again", "AddN", *(f"gradients/again/{i}/MatMul" for i in (0, 1))),
        host("update/w", "AssignSubVariableOp", "w", "sum/again"),
        variable("seen"),
        host("by", "Const"),
        *adds(*count),
        host("train", "NoOp", "^first", "^update/w", "^step/add", *(f"^{name}" for name in count)),
        shapes={"seen": ()},
        values={"by": 1},
        step={
            "objectives": [
                *(f"tower_{i}/loss:0" for i in (0, 1)),
                *(f"tower_{i}/again/loss:0" for i in (0, 1)),
            ]
        },
    )


def added(kind: str, *more: str, takes: Sequence[int] = (0, 1), waits: bool = True) -> Placement:
    """An update of w for each tower. With `waits`, they follow the reads of all towers."""
    reads = [f"^tower_{i}/w/read" for i in (0, 1) if waits]
    names = ["update/w", "update/w_1"]
    return program(
        *(
            host(name, kind, "w", *more, gradient(i), *reads)
            for name, i in zip(names, takes, strict=True)
        ),
        host("train", "NoOp", *(f"^{name}" for name in names), "^step/add"),
    )


def session(*runs: Sequence[str]) -> Placement:
    return counted(
        apply("again", "mean/w"),
        *(apply(f"again_in_tower_{i}", gradient(i)) for i in (0, 1)),
        host("step/add_1", "AssignAddVariableOp", "step", "step/one"),
        train=["^again", "^step/add"],
        step={"train_op": [name for run in runs for name in run], "runs": runs},
    )


RUNS = (["update/w", "step/add"], ["update/w_1"])


def branched(*names: str) -> Placement:
    return program(
        host("if", "If", "finite", "w", "mean/w"), *branches(*names), host("train", "NoOp", "^if")
    )


def two_optimizers(*train_ops: str) -> Placement:
    """A GAN with two optimizers, which have different variables."""
    return program(
        host("discriminator", "NoOp", "^update/a"),
        host("generator", "NoOp", "^update/b"),
        host("train", "NoOp"),
        variables=["a", "b"],
        step={"train_op": (), "train_ops": train_ops},
    )


def without_gpu(*waits: str) -> Placement:
    return placement(
        op("w", "VarHandleOp"),
        *(
            each
            for name, control in (("one", []), ("two", waits))
            for each in (
                op(f"read_{name}", "ReadVariableOp", "", "", "w", *control),
                op(f"predict_{name}", "MatMul", "", "", "x", f"read_{name}"),
                op(f"gradients/{name}/MatMul", "MatMul", "", "", "x", f"predict_{name}"),
                op(name, "AssignSubVariableOp", "", "", "w", f"gradients/{name}/MatMul"),
            )
        ),
        op("train", "NoOp", "", "", "^one", "^two"),
        step=program(step={"objectives": ("predict_one", "predict_two"), "losses": ()}).step,
    )


def unbiased(*averages: str) -> Placement:
    """Each tower can update an average, and counts the updates; the step runs these updates."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"rows_{i}", "Mean", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "Sub", f"tower_{i}/w/MatMul", f"rows_{i}"),
            host(f"count_{i}", "AssignAdd", "count", "step/one"),
            host(f"factor_{i}", "Pow", "decay", f"count_{i}"),
            host(f"unbiased_{i}", "RealDiv", f"rows_{i}", f"factor_{i}"),
            host(f"average_{i}", "Assign", "average", f"unbiased_{i}"),
        ]
    return program(
        variable("count", "VariableV2"),
        variable("average", "VariableV2"),
        host("decay", "Const"),
        *ops,
        host(
            "train",
            "NoOp",
            "^update/w",
            "^step/add",
            "^count_0",
            "^count_1",
            *(f"^{name}" for name in averages),
        ),
        shapes={"count": ()},
    )


REPEATED = program(
    *(apply(f"update/{name}_1", gradient(1, name), to=name) for name in "ab"),
    host("train", "NoOp", *(f"^update/{n}" for n in ("a", "b", "a_1", "b_1")), "^step/add"),
    variables=["a", "b"],
    values={"step/one": 2},
)
SEPARATE = counted(host("rate", "Pow", "decay", "step"))
TWO_SEPARATE = counted(
    variable("epoch"),
    host("epoch/add", "AssignAddVariableOp", "epoch", "step/one"),
    host("rate", "Pow", "step", "epoch"),
    step={"counters": ("step", "epoch")},
)


CASES = {
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (1, 2, 12)},
    "the step does not increment the counter": kept(counted()),
    "an update for each tower": broken(
        several(2, lines={"update/w": "main.py:40", "update/w_1": "main.py:41 net.py:3"})
    ),
    **{f"an update for each of {count} towers": broken(several(count)) for count in (3, 12)},
    # For example, a program trains a loss and a penalty in turns, each on all towers.
    "a run for each update": kept(session(["update/w", "step/add"], ["again"])),
    "a run for each update, and each increments the counter": kept(
        session(["update/w", "step/add"], ["again", "step/add_1"])
    ),
    "one run increments the counter twice": broken(
        session(["update/w", "step/add", "step/add_1"], ["again"])
    ),
    "one run updates twice": broken(session(["update/w", "again"], ["step/add"])),
    "two runs of one update": broken(session(["update/w"], ["train"])),
    "the second run updates by one tower": broken(
        session(["update/w"], ["again_in_tower_1", "step/add"])
    ),
    # A program may run it in place of the first, for a short batch.
    "the second run updates by the first tower": not_checked(
        session(["update/w", "step/add"], ["again_in_tower_0", "step/add"])
    ),
    "the second run updates by the first tower, as allowed": kept(
        session(["update/w", "step/add"], ["again_in_tower_0", "step/add"]), allow=("w",)
    ),
    "a run for each tower's update": broken(
        several(2, step={"train_op": [*RUNS[0], *RUNS[1]], "runs": RUNS})
    ),
    "one tower applies its gradients twice": broken(
        program(
            apply("update/w_1", gradient(0)),
            host("train", "NoOp", "^update/w", "^update/w_1"),
            gpus=[0],
        )
    ),
    "a program without a GPU": broken(
        placement(
            op("w", "VarHandleOp"),
            op("predict", "MatMul", "", "", "x", "w"),
            op("gradients/predict_grad/MatMul", "MatMul", "", "", "x", "predict"),
            op("one", "ResourceApplyAdam", "", "", "w", "gradients/predict_grad/MatMul"),
            op("two", "ResourceApplyAdam", "", "", "w", "gradients/predict_grad/MatMul"),
            op("train", "NoOp", "", "", "^one", "^two"),
            step=program(step={"objectives": ("predict",), "losses": ()}).step,
        )
    ),
    "one of three variables is updated twice": broken(
        program(
            apply("update/b_1", gradient(1, "b"), to="b"),
            host("train", "NoOp", "^update/a", "^update/b", "^update/b_1", "^update/c"),
            variables=["a", "b", "c"],
        )
    ),
    **{
        f"a second update by {kind}": broken(
            program(
                host("again", kind, "w", *rows, gradient(1)),
                host("train", "NoOp", *TRAIN, "^again"),
            )
        )
        for kind, rows in (
            ("ApplyAdam", []),
            ("SparseApplyAdagrad", []),
            ("ResourceScatterSub", ["rows"]),
            ("AssignSubVariableOp", []),
        )
    },
    "a second update, clipped weights": kept(
        program(
            host("clipped", "ClipByValue", "w", "low", "high", "^update/w"),
            host("again", "AssignVariableOp", "w", "clipped"),
            host("train", "NoOp", *TRAIN, "^again"),
        )
    ),
    "a second update, a decay": kept(
        program(
            host("decayed", "Mul", "w", "rate"),
            host("again", "AssignSubVariableOp", "w", "decayed"),
            host("train", "NoOp", *TRAIN, "^again"),
        )
    ),
    "a second update, weights that are fed": kept(
        program(
            host("again", "AssignVariableOp", "w", "loaded"),
            host("train", "NoOp", *TRAIN, "^again"),
        )
    ),
    # The step runs one of two optimizers.
    "an update outside of the step": kept(
        program(apply("other", "mean/w"), step={"train_ops": ("train", "other")})
    ),
    "accumulated gradients": kept(
        program(
            variable("total"),
            *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
            apply("update/w", "total"),
            host("train", "NoOp", *TRAIN, "^add_0", "^add_1"),
        )
    ),
    "an update in each of two branches": kept(branched("if/then/update", "if/else/update")),
    "an update in each of three branches": kept(
        branched(*(f"if/branch{i}/update" for i in range(3)))
    ),
    "two updates in one branch": broken(
        branched("if/then/update", "if/then/update_1", "if/else/update")
    ),
    "two updates in a call": broken(branched("if/update", "if/update_1")),
    "an update in each branch and one outside": broken(
        program(
            host("if", "If", "finite", "w", "mean/w"),
            *branches("if/then/update", "if/else/update"),
            host("train", "NoOp", "^if", "^update/w"),
        )
    ),
    "an update in each of nested branches": kept(
        program(
            host("if", "If", "finite", "w", "mean/w"),
            host("if/else/if", "If", "large", "w", "mean/w", caller="if"),
            *branches("if/then/update"),
            *branches("if/else/if/then/update", "if/else/if/else/update", call="if/else/if"),
            host("train", "NoOp", "^if"),
        )
    ),
    # tf.cond before TensorFlow 2, and since then without control flow v2.
    "an update in each branch of switches": kept(
        program(
            host("cond/pivot_t", "Identity", "cond/Switch:1"),
            host("cond/pivot_f", "Identity", "cond/Switch"),
            host("cond/Switch", "Switch", "finite", "finite"),
            host("cond/w/Switch", "Switch", "w", "finite"),
            apply("cond/one", "mean/w", "^cond/pivot_t", to="cond/w/Switch:1"),
            apply("cond/two", "mean/w", "^cond/pivot_f", to="cond/w/Switch"),
            host("cond/taken", "Identity", "cond/pivot_t", "^cond/one"),
            host("cond/not_taken", "Identity", "cond/pivot_f", "^cond/two"),
            host("cond/Merge", "Merge", "cond/not_taken", "cond/taken"),
            host("train", "NoOp", "^cond/Merge"),
        )
    ),
    # The optimizer was applied to two groups of variables.
    "scalars of the optimizer are updated twice": broken(powers("move", "move_1")),
    "scalars of the optimizer are updated once": kept(powers("move")),
    "scalars of the optimizer are updated once in each of two runs": kept(
        powers(
            *("move", "move_1"),
            train_op=["update/w", "step/add", "move", "move_1"],
            runs=(["update/w", "step/add", "move"], ["move_1"]),
        )
    ),
    "scalars of the optimizer are updated twice, by reference": broken(
        program(
            variable("beta1_power", "VariableV2"),
            host("beta1_power/read", "Identity", "beta1_power"),
            host("power", "Mul", "beta1_power/read", "beta1"),
            host("update/w", "ApplyAdam", "w", "m", "v", "beta1_power/read", "mean/w"),
            *(host(name, "Assign", "beta1_power", "power") for name in ("move", "move_1")),
            host("train", "NoOp", *TRAIN, "^move", "^move_1"),
            shapes={"beta1_power": ()},
        )
    ),
    "scalars of the optimizer are updated as often as the weights": kept(
        program(
            variable("beta1_power"),
            host("first/read", "ReadVariableOp", "beta1_power"),
            host("first", "ResourceApplyAdam", "w", "m", "v", "first/read", "mean/w"),
            host("first/power", "Mul", "first/read", "beta1"),
            host("first/move", "AssignVariableOp", "beta1_power", "first/power", "^first"),
            *(on(i, f"again/{i}/read", "ReadVariableOp", "w", "^first") for i in (0, 1)),
            *(
                on(i, f"gradients/again/{i}/MatMul", "MatMul", f"tower_{i}/x", f"again/{i}/read")
                for i in (0, 1)
            ),
            host("again/mean", "AddN", *(f"gradients/again/{i}/MatMul" for i in (0, 1))),
            host("again/power/read", "ReadVariableOp", "beta1_power", "^first/move"),
            host("update/w", "ResourceApplyAdam", "w", "m", "v", "again/power/read", "again/mean"),
            host("again/power", "Mul", "again/power/read", "beta1"),
            host("again/move", "AssignVariableOp", "beta1_power", "again/power"),
            host("train", "NoOp", *TRAIN, "^first", "^first/move", "^again/move"),
            shapes={"beta1_power": ()},
        )
    ),
    "a scalar that the gradient is multiplied by decays twice": broken(
        program(
            variable("scale"),
            host("scale/read", "ReadVariableOp", "scale"),
            host("scaled", "Mul", "mean/w", "scale/read"),
            host("update/w", "AssignSubVariableOp", "w", "scaled"),
            host("less", "Mul", "scale/read", "decay"),
            *(host(name, "AssignVariableOp", "scale", "less") for name in ("one", "two", "three")),
            host("train", "NoOp", *TRAIN, "^one", "^two", "^three"),
            shapes={"scale": ()},
        )
    ),
    "the rate is set twice": kept(
        program(
            variable("kept_rate"),
            host("kept_rate/read", "ReadVariableOp", "kept_rate"),
            apply("update/w", "mean/w", to="w"),
            host("rate", "Identity", "kept_rate/read"),
            *(host(name, "AssignVariableOp", "kept_rate", "share") for name in ("one", "two")),
            host("train", "NoOp", *TRAIN, "^one", "^two"),
            shapes={"kept_rate": ()},
        )
    ),
    # A metric counts rows.
    "every tower updates a scalar that no optimizer reads": kept(
        program(
            variable("count"),
            *(host(f"count_{i}", "AssignAddVariableOp", "count", "rows") for i in (0, 1)),
            host("train", "NoOp", *TRAIN, "^count_0", "^count_1"),
            shapes={"count": ()},
        )
    ),
    # Each tower assigns its own moments.
    "every tower updates statistics": kept(
        program(
            variable("mean"),
            *(host(f"mean_{i}", "AssignSubVariableOp", "mean", f"tower_{i}/x") for i in (0, 1)),
            host("train", "NoOp", *TRAIN, "^mean_0", "^mean_1"),
        )
    ),
    "the step counter is incremented twice": broken(
        counted(
            host("step/again", "AssignAddVariableOp", "step", "step/one"),
            train=["^step/add", "^step/again"],
            lines={"step/add": "main.py:40", "step/again": "main.py:41 net.py:3"},
        )
    ),
    "the step counter of a decaying rate is incremented twice": broken(
        whole(
            counted(
                host("rate", "Pow", "decay", "step"),
                host("step/again", "AssignAddVariableOp", "step", "step/one"),
                train=["^step/add", "^step/again"],
                shapes={"step": ()},
            )
        )
    ),
    **{
        f"the step counter is incremented by {by}": broken(
            program(values={"step/one": by}, lines={"step/add": "main.py:40"})
        )
        for by in (0, 2, 12)
    },
    "the step counter of a decaying rate is never incremented": broken(
        counted(
            host("rate", "Pow", "decay", "step"),
            host("step/add", "NoOp"),
            lines={"step": "main.py:7"},
        )
    ),
    "the step counter of a decaying rate is only initialized": broken(
        counted(
            host("rate", "Pow", "decay", "step"),
            host("step/add", "AssignVariableOp", "step", "step/one"),
        )
    ),
    "the step counter is never incremented, and the line of the update is known": broken(
        counted(
            host("rate", "Pow", "decay", "step"),
            host("step/add", "NoOp"),
            lines={"step": "main.py:7", "update/w": "main.py:40"},
        )
    ),
    "two variables are updated twice": broken(
        program(
            *[
                host(
                    f"update/{name}_1",
                    "ResourceApplyGradientDescent",
                    name,
                    "rate",
                    f"mean/{name}",
                )
                for name in ("w", "b")
            ],
            host("train", "NoOp", "^update/w", "^update/w_1", "^update/b", "^update/b_1"),
            variables=["w", "b"],
        )
    ),
    # The program fetches the increment together with the step, or forgot it.
    "a counter that a separate op increments": not_checked(SEPARATE),
    "an allowed counter that a separate op increments": kept(SEPARATE, allow=("step",)),
    "two counters that separate ops increment, and one is allowed": not_checked(
        TWO_SEPARATE, allow=("step",)
    ),
    "two allowed counters that separate ops increment": kept(
        TWO_SEPARATE, allow=("step", "epoch")
    ),
    "a repeated update under a strategy, which has no loop over towers": broken(
        counted(
            host("update/again", "ResourceApplyGradientDescent", "w", "rate", "mean/w"),
            train=["^update/again"],
            strategy=MIRRORED,
        )
    ),
    "a repeated update, and a separate counter": broken(
        counted(
            host("update/again", "ResourceApplyGradientDescent", "w", "rate", "mean/w"),
            host("rate", "Pow", "decay", "step"),
            train=["^update/again"],
        )
    ),
    "a counter in no collection": broken(kept_count()),
    "a scalar that is restored": broken(
        kept_count(
            host("saved", "RestoreV2"),
            host("same", "Identity", "saved"),
            host("count/restore", "AssignVariableOp", "count", "same"),
        )
    ),
    "a scalar that is compared": broken(kept_count(host("count/late", "Less", "count", "zero"))),
    "a scalar that is given to a call": kept(kept_count(host("count/if", "If", "count", "zero"))),
    "a fraction": broken(kept_count(dtype="float32")),
    "a fraction that another op moves": kept(
        kept_count(host("count/add", "AssignAdd", "count", "step/one"), dtype="float32")
    ),
    "a fraction that the program sets": kept(
        kept_count(
            host("new", "Placeholder"),
            host("count/set", "AssignVariableOp", "count", "new"),
            dtype="float32",
        )
    ),
    "a scalar that is the rate": kept(
        kept_count(
            host("count/read", "ReadVariableOp", "count"),
            host("rate", "Identity", "count/read"),
            dtype="float32",
        )
    ),
    "a scalar that is a factor of the rate": kept(
        kept_count(host("rate", "Mul", "tenth", "count"), dtype="float32")
    ),
    "a factor of the loss and of the rate": kept(
        kept_count(on(0, "tower_0/loss", "Mul", "tower_0/w/MatMul", "count"), dtype="float32")
    ),
    "a fraction that no update depends on": kept(
        kept_count(
            host("rate", "Const"),
            host("shown", "Pow", "count", "zero"),
            host("train", "NoOp", *TRAIN, "^shown"),
            dtype="float32",
        )
    ),
    "a scalar that starts at 7": kept(kept_count(first=7)),
    "a scalar that another op moves": kept(
        kept_count(host("count/add", "AssignAddVariableOp", "count", "step/one"))
    ),
    "a scalar that the program sets": kept(
        kept_count(
            host("new", "Placeholder"), host("count/set", "AssignVariableOp", "count", "new")
        )
    ),
    "a scalar that the step does not read": kept(kept_count(host("rate", "Const"))),
    "the step counter is incremented by one": kept(
        counted(train=["^step/add"], values={"five": 5})
    ),
    "nothing updates or reads the step counter": kept(counted(train=[], values={"five": 5})),
    "only a summary reads the step counter": kept(
        counted(host("shown", "ScalarSummary", "tag", "step"), train=[], values={"five": 5})
    ),
    "the step counter is incremented after the update": kept(
        counted(
            host("step/add", "AssignAddVariableOp", "step", "step/one", "^update/w"),
            train=["^step/add"],
            values={"five": 5},
        )
    ),
    "the step counter is assigned a sum": kept(
        counted(
            host("step/next", "AddV2", "step", "step/one"),
            host("step/set", "AssignVariableOp", "step", "step/next"),
            train=["^step/set"],
            values={"five": 5},
        )
    ),
    "the step counter is set to a number": not_checked(
        counted(
            host("five", "Const"),
            host("step/set", "AssignVariableOp", "step", "five"),
            train=["^step/set"],
            values={"five": 5},
        )
    ),
    "an allowed step counter is incremented by a computed value": kept(
        counted(
            host("by", "Size", "batch"),
            host("step/add", "AssignAddVariableOp", "step", "by"),
            train=["^step/add"],
        ),
        allow=("step",),
    ),
    "the step counter is assigned a sum with two": broken(
        counted(
            host("two", "Const"),
            host("step/next", "AddV2", "step", "two"),
            host("step/set", "AssignVariableOp", "step", "step/next"),
            train=["^step/set"],
            values={"two": 2},
        )
    ),
    "the step counter is incremented twice, and decremented": kept(
        counted(
            host("step/again", "AssignAddVariableOp", "step", "step/one"),
            host("step/back", "AssignSubVariableOp", "step", "step/one"),
            train=["^step/add", "^step/again", "^step/back"],
        )
    ),
    # For example, rank 0 broadcasts its counter to the others.
    "the step counter is incremented, and set by another op": not_checked(
        counted(
            variable("other"),
            host("other/read", "ReadVariableOp", "other"),
            host("step/set", "AssignVariableOp", "step", "other/read"),
            train=["^step/add", "^step/set"],
        )
    ),
    "the step counter is incremented twice, and set by another op": not_checked(
        counted(
            variable("other"),
            host("step/again", "AssignAddVariableOp", "step", "step/one"),
            host("other/read", "ReadVariableOp", "other"),
            host("step/set", "AssignVariableOp", "step", "other/read"),
            train=["^step/add", "^step/again", "^step/set"],
        )
    ),
    "the step counter is incremented if gradients are finite": kept(
        counted(
            host("finite", "IsFinite", "share"),
            host("by", "Cast", "finite"),
            host("step/add", "AssignAddVariableOp", "step", "by"),
            train=["^step/add"],
            dtypes={"finite": "bool", "by": "int64"},
            outputs={"finite": (), "by": ()},
        )
    ),
    "the step counter is chosen between two values": kept(
        counted(
            host("step/next", "AddV2", "step", "step/one"),
            host("step/chosen", "SelectV2", "finite", "step/next", "step"),
            host("step/set", "AssignVariableOp", "step", "step/chosen"),
            train=["^step/set"],
        )
    ),
    "the step counter is incremented by a computed value": not_checked(
        counted(
            host("by", "Size", "batch"),
            host("step/add", "AssignAddVariableOp", "step", "by"),
            train=["^step/add"],
            values={"five": 5},
        )
    ),
    # Steps with infinite gradients do not count.
    "the step counter is incremented in one of two branches": kept(
        program(
            host("if", "If", "finite", "step"),
            *(
                host(f"if/{branch}/add", "AssignAddVariableOp", "step", "step/one", caller="if")
                for branch in ("then", "else")
            ),
            host("train", "NoOp", "^if", "^update/w"),
        )
    ),
    "a counter that is not in the graph": kept(program(step={"counters": ("gone",)})),
    "a counter that is not declared is incremented by 2": kept(
        program(values={"step/one": 2}, step={"counters": ()})
    ),
    "all repeated updates are allowed": kept(REPEATED, allow=("step", "[ab]")),
    **{
        f"repeated updates of two variables and the counter, allowed: {allow}": broken(
            REPEATED, allow=allow
        )
        for allow in ((), ("a",), ("?",), ("A", "w*"))
    },
    "without a placer": broken(
        several(2, placer=None, assigned=Missing("no wheel for this"), machine=None)
    ),
    "no repeated updates, and the step is unknown": kept(program(step={"train_op": ()})),
    "two optimizers": kept(two_optimizers("discriminator", "generator")),
    "two optimizers, and one is known": kept(two_optimizers("generator")),
    # The optimizer's train op is in a group that the program runs.
    "a train op in a group": broken(
        several(
            2,
            host("all", "NoOp", "^train", "^averages"),
            host("averages", "NoOp"),
            step={"train_op": (), "train_ops": ("train",)},
        )
    ),
    "two declared train ops": broken(
        program(
            apply("other", gradient(1)),
            host("train", "NoOp", "^update/w"),
            step={"train_op": ("train", "other")},
        )
    ),
    "two updates, no train op": not_checked(program(*TWICE, step={"train_op": ()})),
    "two updates, two train ops": not_checked(
        program(
            *TWICE,
            host("other", "NoOp", "^update/w"),
            step={"train_op": (), "train_ops": ("train", "other")},
        )
    ),
    "no update, no train op": not_checked(
        placement(variable("w"), on(0, "predict", "MatMul", "x", "w"))
    ),
    "no update": not_checked(program(host("train", "NoOp"))),
    "a step adds one to a scalar": kept(moved(*adds("one"), train=["^one"])),
    "a step adds one to a whole number twice": broken(
        whole(moved(*adds("one", "two"), train=["^one", "^two"]))
    ),
    "a step adds one to a fraction twice, as metrics do": kept(
        moved(*adds("one", "two"), train=["^one", "^two"])
    ),
    "a step runs one of two additions": kept(moved(*adds("one", "two"), train=["^one"])),
    "a step adds one to a vector twice": kept(
        moved(*adds("one", "two"), train=["^one", "^two"], shape=(3,))
    ),
    "a step adds two to a scalar twice": kept(
        moved(*adds("one", "two"), train=["^one", "^two"], by=2)
    ),
    "a step adds one to a scalar in each of two branches": kept(
        moved(
            host("if", "If", "finite", "seen"),
            *adds("if/then/one", "if/else/two", caller="if"),
            train=["^if"],
        )
    ),
    # Subtractions apply a penalty to a variable that no tower reads.
    "two updates by gradients of the host": broken(
        program(
            variable("v"),
            host("penalty", "L2Loss", "v"),
            host("gradients/penalty_grad/Mul", "Mul", "penalty", "two"),
            *(
                host(name, "AssignSubVariableOp", "v", "gradients/penalty_grad/Mul")
                for name in ("one", "other")
            ),
            host("train", "NoOp", "^update/w", "^one", "^other"),
            step={"objectives": ("tower_0/loss", "tower_1/loss", "penalty")},
        )
    ),
    "state that is updated for each tower, by gradients": broken(
        state(*moved_by(gradient(0), gradient(1)))
    ),
    "an average follows each of two updates": kept(
        state(
            host("update/w", "ResourceApplyGradientDescent", "w", "share", "mean/w"),
            host("w/after", "ReadVariableOp", "w", "^update/w"),
            host("moved", "Sub", "w/after", "decay"),
            host("again", "AssignVariableOp", "w", "moved"),
            host("w/again", "ReadVariableOp", "w", "^again"),
            *moved_by("w/after", "w/again"),
            train=("set_0", "set_1", "again"),
        )
    ),
    "state that is updated for each tower, by losses": broken(
        state(*moved_by("tower_0/loss", "tower_1/loss"))
    ),
    "state that is updated for each tower, by the same value, for each tower": broken(
        state(*moved_by("w", "w"))
    ),
    "state that is updated for each tower, subtracted": broken(
        state(*moved_by(gradient(0), gradient(1), kind="AssignSubVariableOp"))
    ),
    "state that each tower overwrites": broken(
        state(
            *(on(i, f"tower_{i}/next", "Tanh", "state/read") for i in (0, 1)),
            *(host(f"set_{i}", "AssignVariableOp", "state", f"tower_{i}/next") for i in (0, 1)),
            host("state/read", "ReadVariableOp", "state"),
        )
    ),
    "state that is updated by the mean": kept(state(*moved_by("mean/w"), train=["set_0"])),
    "state that one of two ops updates": kept(
        state(*moved_by(gradient(0), gradient(1)), train=["set_0"])
    ),
    "state that one of three ops updates by the mean": kept(
        state(*moved_by("mean/w", "mean/w", "mean/w"), train=["set_0"])
    ),
    "state to which each tower adds": kept(
        state(
            *(host(f"set_{i}", "AssignAddVariableOp", "state", f"tower_{i}/loss") for i in (0, 1))
        )
    ),
    "state to which each tower adds by assignments": kept(
        state(
            *(
                each
                for i in (0, 1)
                for each in (
                    host(f"new_{i}", "AddV2", "read", f"tower_{i}/loss"),
                    host(f"set_{i}", "AssignVariableOp", "state", f"new_{i}"),
                )
            )
        )
    ),
    "state that holds statistics of normalization": kept(
        state(
            *(
                each
                for i in (0, 1)
                for each in (
                    on(i, f"rows_{i}", "Mean", f"tower_{i}/w/MatMul"),
                    on(i, f"tower_{i}/loss", "Sub", f"tower_{i}/w/MatMul", f"rows_{i}"),
                )
            ),
            *moved_by("rows_0", "rows_1"),
        )
    ),
    # The sum of both changes does not depend on their order.
    "two updates add the gradients of the towers": kept(added("AssignSubVariableOp")),
    "two gradient descents add the gradients of the towers": kept(
        added("ResourceApplyGradientDescent", "share")
    ),
    "two updates add the gradients of the towers, and may come before the reads": broken(
        added("AssignSubVariableOp", waits=False)
    ),
    "two updates add the same gradients": broken(added("AssignSubVariableOp", takes=(1, 1))),
    "two updates by an optimizer with a momentum": broken(
        added("ResourceApplyMomentum", "m", "rate")
    ),
    "two updates in sequence": kept(in_turn()),
    "a count of two updates in sequence": kept(whole(in_turn(count=["count_0", "count_1"]))),
    "a count of three updates, and two are in sequence": broken(
        whole(in_turn(count=["count_0", "count_1", "count_2"]))
    ),
    "two updates without a GPU, and the second follows": kept(without_gpu("^one")),
    "two updates without a GPU": broken(without_gpu()),
    "two updates that do not wait": broken(in_turn(waits=False)),
    "two updates in sequence, and the first takes one tower": broken(in_turn(first=(0,))),
    # Each tower updates an average without bias by its first value.
    "a count and an average are updated for each tower": kept(unbiased("average_0", "average_1")),
    "a count is updated more often than its average": broken(unbiased("average_0")),
}

test_verdicts = verdicts(OneUpdate, CASES)
