from __future__ import annotations

from support.steps import Program, add_n, apply, mean, split, square, total
from support.towers import gradient, host, joint, mixed_losses, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.missing import Missing
from placement_checks.rules.towers.losses_apart import LossesApart


def collected(count: int) -> Placement:
    """Every tower adds up all losses built so far."""
    ops = []
    for i in range(count):
        ops.append(on(i, f"tower_{i}/own", "Mean", f"tower_{i}/w/MatMul"))
        ops.append(on(i, f"tower_{i}/loss", "AddN", *(f"tower_{k}/own" for k in range(i + 1))))
    return program(*ops, gpus=range(count))


def penalized(i: int, penalty: str) -> list[Op]:
    """A tower that adds a penalty to its loss."""
    return [
        on(i, f"tower_{i}/data", "Mean", f"tower_{i}/w/MatMul"),
        on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/data", penalty),
    ]


TWO_LOSSES = [f"tower_{i}/{name}:0" for i in (0, 1) for name in ("loss", "fake")]


def with_moments(count: int) -> Placement:
    """The loss of each tower depends on moments of all towers."""
    outputs = [f"tower_{i}/w/MatMul" for i in range(count)]
    losses = [
        on(i, f"tower_{i}/loss", "SquaredDifference", output, "moments")
        for i, output in enumerate(outputs)
    ]
    moments = [host("sum", "AddN", *outputs), host("moments", "Mul", "sum", "share")]
    return program(*moments, *losses, gpus=range(count), values={"share": 1 / count})


def with_statistics(*awaited: str) -> Placement:
    """Each tower updates a moving mean, and the second tower's loss waits for updates."""
    updates = [
        on(i, f"tower_{i}/update", "AssignSubVariableOp", "mean", f"tower_{i}/w/MatMul")
        for i in (0, 1)
    ]
    return program(
        variable("mean"),
        *updates,
        on(0, "tower_0/loss", "Mean", "tower_0/w/MatMul", "^tower_0/update"),
        on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", *awaited),
    )


def weighted(*weights: float) -> Placement:
    """Losses with a weight for each tower, and a penalty that is computed once."""
    made = Program()
    w = made.variable("w", (3,))
    penalty = apply("L2Loss", w.read())
    losses = []
    for i, x in enumerate(split(made.placeholder("x", (None, 3)), len(weights))):
        with made.tower(i):
            losses.append((mean(square(total(x * w.read(), 1))) + penalty) * weights[i])
    made.train(w.descend(0.1, add_n([made.gradient(loss, w) for loss in losses])))
    return made.placement()


WITHOUT_INPUTS = program(*(on(i, f"tower_{i}/w/MatMul", "ReadVariableOp", "w") for i in (0, 1)))

CASES = {
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (2, 12)},
    "the second tower adds the first tower's loss": broken(
        mixed_losses(lines={"tower_1/loss": "main.py:30 net.py:7", "tower_0/loss": "net.py:5"})
    ),
    "the line adds the other tower's loss": broken(
        program(
            on(1, "tower_1/own", "Mean", "tower_1/w/MatMul"),
            on(1, "tower_1/sum", "AddN", "tower_0/loss", "tower_1/own"),
            on(1, "tower_1/loss", "Mul", "tower_1/sum", "scale"),
            lines={
                "tower_1/loss": "main.py:31",
                "tower_1/sum": "main.py:30",
                "tower_0/loss": "net.py:5",
            },
        )
    ),
    # The part serves no loss of the other tower, so nothing is mixed.
    "a part of the tower on the GPU of another": broken(
        program(
            on(1, "tower_0/v/read", "ReadVariableOp", "v"),
            on(1, "tower_0/v/MatMul", "MatMul", "tower_0/w/MatMul", "tower_0/v/read"),
            on(0, "gradients/tower_0/v/MatMul_grad/MatMul_1", "MatMul", "tower_0/v/read"),
            variables=["w", "v"],
            lines={"tower_0/v/MatMul": "main.py:9 net.py:4"},
            device_lines={"tower_0/v/MatMul": "net.py:3"},
        )
    ),
    **{
        f"{count} towers, each adds the losses so far": broken(collected(count))
        for count in (2, 12)
    },
    "the first tower's loss contains results of the second tower": broken(
        program(
            on(0, "tower_0/loss", "AddN", "tower_1/w/MatMul", "tower_0/w/MatMul"), gpus=[0, 1, 2]
        )
    ),
    # It depends on both towers, so it does not identify a tower by itself.
    "a loss on the host belongs to the tower without a loss": broken(
        program(
            host("total", "AddN", "tower_0/loss", "tower_1/loss"),
            step={"objectives": ("tower_0/loss:0", "total:0")},
        )
    ),
    "one of two losses of a tower": broken(
        program(
            on(1, "tower_1/fake", "AddN", "tower_1/w/MatMul", "tower_0/w/MatMul"),
            on(0, "tower_0/fake", "AddN", "tower_0/w/MatMul"),
            step={"objectives": TWO_LOSSES},
        )
    ),
    "each tower computes a penalty": kept(
        program(
            *(on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read") for i in (0, 1)),
            *penalized(0, "tower_0/l2"),
            *penalized(1, "tower_1/l2"),
        )
    ),
    "the host computes a penalty for both towers": kept(
        program(host("w/l2", "L2Loss", "w"), *penalized(0, "w/l2"), *penalized(1, "w/l2"))
    ),
    # Each tower builds it, and the second adds both: weights decay more with every tower.
    "a loss with the same penalty of two towers": broken(
        program(
            *(on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read") for i in (0, 1)),
            *(on(i, f"tower_{i}/data", "Mean", f"tower_{i}/w/MatMul") for i in (0, 1)),
            on(0, "tower_0/loss", "AddN", "tower_0/data", "tower_0/l2"),
            on(1, "tower_1/loss", "AddN", "tower_1/data", "tower_0/l2", "tower_1/l2"),
        )
    ),
    # A frozen network without a copy in each tower.
    "a layer that one GPU computes for all": kept(
        program(
            variable("table"),
            host("words", "Placeholder"),
            on(0, "embedded", "ResourceGather", "table", "words"),
            *(on(i, f"tower_{i}/sum", "AddV2", f"tower_{i}/x", "embedded") for i in (0, 1)),
            on(0, "tower_0/w/MatMul", "MatMul", "tower_0/sum", "tower_0/w/read"),
            on(1, "tower_1/w/MatMul", "MatMul", "tower_1/sum", "tower_1/w/read"),
        )
    ),
    "a shape of another tower": kept(
        program(
            on(1, "tower_1/shape", "Shape", "tower_0/w/MatMul"),
            on(1, "tower_1/reshaped", "Reshape", "tower_1/w/MatMul", "tower_1/shape"),
            on(1, "tower_1/loss", "Mean", "tower_1/reshaped"),
        )
    ),
    "a tower waits for another tower": kept(
        program(on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_0/loss"))
    ),
    # A collection of updates, read without naming the scope of the tower.
    "a tower waits for statistics of another tower": broken(
        with_statistics("^tower_0/update", "^tower_1/update")
    ),
    "a tower waits for statistics of another tower, allowed": kept(
        with_statistics("^tower_0/update"), allow=("tower_1/loss",)
    ),
    "each tower waits for its own statistics": kept(with_statistics("^tower_1/update")),
    "a tower waits for an update by a gradient of another tower": kept(
        program(
            on(0, "update/w", "ResourceApplyGradientDescent", "w", "rate", gradient(0)),
            on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^update/w"),
            host("train", "NoOp", "^update/w", "^step/add", "^tower_1/loss"),
        )
    ),
    "weights of towers multiply a penalty, too": kept(weighted(0.25, 0.75)),
    "towers without inputs": not_checked(WITHOUT_INPUTS),
    "a constant that is too large to be read": kept(
        program(
            host("embeddings", "Const"),
            *(
                on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/w/MatMul", "embeddings")
                for i in (0, 1)
            ),
        )
    ),
    "an op without its inputs": not_checked(
        program(on(1, "tower_1/loss", "Mul", "tower_1/w/MatMul", "not_in_the_graph"))
    ),
    **{f"one loss of {count} towers": kept(joint(range(count))) for count in (2, 12)},
    "reported losses, without gradients": broken(
        mixed_losses(step={"objectives": (), "losses": ("tower_0/loss:0", "tower_1/loss:0")})
    ),
    "without a placer and a train op": broken(
        mixed_losses(placer=None, assigned=Missing("no wheel for this"), step={"train_op": ()})
    ),
    **{
        f"{loss} is allowed": kept(mixed_losses(), allow=(loss,))
        for loss in ("tower_1/loss", "tower_*/loss")
    },
    "another loss is allowed": broken(mixed_losses(), allow=("another",)),
    # The other tower depends on this one, too, but this loss has no result of its own tower.
    "a loss of the other tower alone": broken(
        program(
            on(0, "tower_0/odd", "Square", "tower_1/w/MatMul"),
            on(1, "tower_1/both", "Mul", "tower_1/w/MatMul", "tower_0/w/MatMul"),
            on(1, "tower_1/loss", "Mean", "tower_1/both"),
            step={"objectives": ("tower_0/loss", "tower_0/odd", "tower_1/loss")},
        )
    ),
    "the other tower's loss goes through the host": broken(
        program(
            host("sum", "AddN", "tower_0/loss"),
            on(2, "tower_2/loss", "AddN", "tower_2/w/MatMul", "sum"),
            gpus=[0, 1, 2],
        )
    ),
    "the host computes a value from a shared variable": broken(
        program(*mixed_losses().ops.values(), host("norm", "L2Loss", "w"))
    ),
    **{f"{count} towers share moments": kept(with_moments(count)) for count in (2, 12)},
}

test_verdicts = verdicts(LossesApart, CASES)
