from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.towers import GPUS, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.towers.randomness_apart import RandomnessApart


def noisy(i: int, kind: str, *inputs: str) -> list[Op]:
    """Noise in tower i, added to its input."""
    return [
        on(i, f"tower_{i}/noise", kind, "shape", *inputs),
        on(i, f"tower_{i}/noisy", "AddV2", f"tower_{i}/x", f"tower_{i}/noise"),
        on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/noisy", f"tower_{i}/w/read"),
    ]


def seeded_towers(*seeds: tuple[int, int], kind: str = "RandomUniform", **more: Any) -> Placement:
    """Towers with stateful random ops, by their two seeds."""
    return program(
        *(op for i in range(len(seeds)) for op in noisy(i, kind)),
        gpus=range(len(seeds)),
        attributes={
            f"tower_{i}/noise": {"seed": one, "seed2": other}
            for i, (one, other) in enumerate(seeds)
        },
        **more,
    )


def seeded(
    *ops: Op, kind: str = "StatelessRandomUniform", count: int = 2, **more: Any
) -> Placement:
    """Towers with stateless random ops; `ops` yield their seeds, tower_0/seed and so on."""
    return program(
        *(op for i in range(count) for op in noisy(i, kind, f"tower_{i}/seed")),
        *ops,
        gpus=range(count),
        **more,
    )


STATELESS = (
    "StatelessRandomUniform",
    "StatelessRandomUniformV2",
    "StatelessRandomNormal",
    "StatelessTruncatedNormal",
    "StatelessShuffle",
)


def before_the_loop(
    *ops: Op,
    shape: tuple[int | None, ...] = (32, 8),
    draw: Op | None = None,
    using: str = "Mul",
    **more: Any,
) -> Placement:
    """Towers that multiply their rows by one draw, made before the loop over towers."""
    changes = {op.name: op for op in ops}
    seeded_towers = draw or host("noise", "RandomUniform", "shape")
    used = {
        f"tower_{i}/noisy": on(i, f"tower_{i}/noisy", using, f"tower_{i}/x", "noise")
        for i in (0, 1)
    }
    read = [
        on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/noisy", f"tower_{i}/w/read")
        for i in (0, 1)
    ]
    outputs = {"noise": shape, "tower_0/noisy": (32, 8), "tower_1/noisy": (32, 8)}
    every = {seeded_towers.name: seeded_towers, **used, **{op.name: op for op in read}, **changes}
    return program(*every.values(), outputs=outputs, **more)


def constant_seeds(first: int, second: int, *before: str, kind: str) -> Placement:
    """Towers with stateless random ops, by their constant seeds and the inputs before them."""
    return program(
        *(host(name, "Placeholder") for name in before),
        *(op for i in (0, 1) for op in noisy(i, kind, *before, f"tower_{i}/seed")),
        *(on(i, f"tower_{i}/seed", "Const") for i in (0, 1)),
        values={"tower_0/seed": first, "tower_1/seed": second},
    )


def of_one_tensor(kind: str) -> Placement:
    return program(
        host("seed", "Placeholder"), *[op for i in (0, 1) for op in noisy(i, kind, "seed")]
    )


def folded(*numbers: int) -> Placement:
    """The seed of each tower is one seed and the tower's number."""
    ops = [
        each
        for i in (0, 1)
        for each in (
            on(i, f"tower_{i}/number", "Const"),
            on(i, f"tower_{i}/seed", "Pack", "base", f"tower_{i}/number"),
        )
    ]
    values = {f"tower_{i}/number": number for i, number in enumerate(numbers)}
    return seeded(*ops, host("base", "Placeholder"), values=values)


def of_step(kind: str, read: str) -> Placement:
    """The seed of each tower is the step counter."""
    return seeded(
        variable("step", kind),
        host("step/add", "AssignAdd", "step", "step/one"),
        *(host(f"tower_{i}/step", read, "step") for i in (0, 1)),
        *(host(f"tower_{i}/seed", "Pack", f"tower_{i}/step", "step/one") for i in (0, 1)),
    )


def waiting(*seeds: int) -> Placement:
    """Random ops with a control edge before their shape and seed."""
    values = {f"tower_{i}/seed": seed for i, seed in enumerate(seeds)}
    return seeded(
        *(host(name, "Const") for name in values),
        *(
            on(
                i,
                f"tower_{i}/noise",
                "StatelessRandomUniform",
                "^step",
                "shape",
                f"tower_{i}/seed",
            )
            for i in (0, 1)
        ),
        values=values,
    )


def built_backward(graph: Placement) -> Placement:
    """The second tower comes before the first."""
    second = {name: op for name, op in graph.ops.items() if name.startswith("tower_1/")}
    return replace(graph, ops={"w": graph.ops["w"], **second, **graph.ops})


def copies(*, in_sync: bool) -> Placement:
    """The seeds are copies of a variable."""
    copies = {f"v{i}/seed": Copy("v0/seed", i, in_sync) for i in (0, 1)}
    return seeded(
        *(variable(f"v{i}/seed", at=f"GPU:{i}") for i in (0, 1)),
        *(on(i, f"tower_{i}/seed", "ReadVariableOp", f"v{i}/seed") for i in (0, 1)),
        strategy=Strategy("MirroredStrategy", GPUS, copies),
    )


def weights_masked(kind: str) -> Placement:
    """Towers that draw the same numbers for their weights."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/noise", "RandomUniform", "shape"),
            on(i, f"tower_{i}/mask", "Floor", f"tower_{i}/noise"),
            on(i, f"tower_{i}/masked", kind, f"tower_{i}/w/read", f"tower_{i}/mask"),
            on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/masked"),
        ]
    return program(*ops, attributes={f"tower_{i}/noise": SEED for i in (0, 1)})


def projected(rows: str, matrix: str, **attributes: bool) -> Placement:
    """Towers that draw the same numbers, and multiply matrices."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/noise", "RandomUniform", "shape"),
            on(i, f"tower_{i}/product", "MatMul", f"tower_{i}/{rows}", f"tower_{i}/{matrix}"),
            on(i, f"tower_{i}/w/MatMul", "Mul", f"tower_{i}/product", f"tower_{i}/w/read"),
        ]
    drawn = {f"tower_{i}/noise": SEED for i in (0, 1)}
    products = {f"tower_{i}/product": attributes for i in (0, 1)}
    return program(*ops, attributes=drawn | products)


def seeds_in_functions() -> Placement:
    """Each tower makes a seed on one line, and calls a function that draws on another line."""
    made = [f"tower_{i}/seed" for i in (0, 1)]
    draws = [f"tower_{i}/noise" for i in (0, 1)]
    return seeded(
        *(on(i, name, "Pack", "base", "base") for i, name in enumerate(made)),
        host("base", "Const"),
        values={"base": 1},
        lines={
            **dict.fromkeys(made, "main.py:8"),
            **dict.fromkeys(draws, "main.py:9 net.py:3"),
        },
    )


SEED = {"seed": 7, "seed2": 3}
EQUAL = seeded_towers(*[(7, 3)] * 3)


CASES = {
    **{
        f"{count} towers with different seeds": kept(
            seeded_towers(*((1, i) for i in range(count)))
        )
        for count in (2, 12)
    },
    "two towers with equal seeds": broken(
        seeded_towers(
            (7, 3),
            (7, 3),
            lines={"tower_0/noise": "net.py:3", "tower_1/noise": "main.py:9 net.py:3"},
        )
    ),
    "four towers with equal seeds": broken(seeded_towers(*[(7, 3)] * 4)),
    "12 towers with equal seeds": broken(seeded_towers(*[(7, 3)] * 12)),
    "two towers with equal seeds, in a traced step": broken(
        seeded_towers((7, 3), (7, 3), step={"traced": True})
    ),
    "two replicas with equal seeds": broken(
        seeded_towers((7, 3), (7, 3), strategy=Strategy("MirroredStrategy", GPUS, {}))
    ),
    "two later towers with equal seeds": broken(seeded_towers((1, 1), (2, 2), (2, 2))),
    **{
        f"seeds {seeds}": kept(seeded_towers(*seeds))
        for seeds in (((0, 0), (0, 0)), ((7, 1), (7, 2)), ((1, 7), (2, 7)))
    },
    **{
        f"seeds {seeds}": broken(seeded_towers(*seeds))
        for seeds in (((7, 0), (7, 0)), ((0, 7), (0, 7)))
    },
    "an op with unknown seeds": kept(program(*noisy(0, "RandomUniform"))),
    **{
        f"{kind} with equal seeds": broken(seeded_towers((7, 3), (7, 3), kind=kind))
        for kind in (
            *("RandomUniformInt", "RandomStandardNormal", "RandomGamma", "RandomPoissonV2"),
            *("RandomShuffle", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial"),
            "SampleDistortedBoundingBoxV2",
        )
    },
    "ops of different types with equal seeds": kept(
        program(
            *noisy(0, "RandomUniform"),
            *noisy(1, "TruncatedNormal"),
            attributes={f"tower_{i}/noise": SEED for i in (0, 1)},
        )
    ),
    "two ops of one tower with equal seeds": kept(
        program(
            *noisy(0, "RandomUniform"),
            on(0, "tower_0/more", "RandomUniform", "shape"),
            attributes={"tower_0/noise": SEED, "tower_0/more": SEED},
        )
    ),
    **{
        f"{kind} with equal constants as seeds": broken(constant_seeds(5, 5, kind=kind))
        for kind in STATELESS
    },
    **{
        f"{kind} with different constants as seeds": kept(constant_seeds(5, 6, kind=kind))
        for kind in STATELESS
    },
    # Their seed is not the second input.
    **{
        f"{kind} with seeds {seeds}": expected(constant_seeds(*seeds, *before, kind=kind))
        for kind, before in (
            ("StatelessMultinomial", ["count"]),
            ("StatelessSampleDistortedBoundingBox", ["box", "least"]),
        )
        for seeds, expected in (((5, 6), kept), ((5, 5), broken))
    },
    **{f"{kind} with one tensor as seed": broken(of_one_tensor(kind)) for kind in STATELESS},
    "a seed with the tower's number": kept(folded(0, 1)),
    "a seed with the number 0 in both towers": broken(folded(0, 0)),
    "a key and a counter from one seed": broken(
        seeded(
            host("seed", "Const"),
            *(on(i, f"tower_{i}/seed", "StatelessRandomGetKeyCounter", "seed") for i in (0, 1)),
            kind="StatelessRandomUniformV2",
        )
    ),
    # Keras 3's Dropout in a graph.
    "one state of a generator that all towers read": broken(
        seeded(
            variable("generator_state"),
            *(on(i, f"tower_{i}/state", "ReadVariableOp", "generator_state") for i in (0, 1)),
            *(on(i, f"tower_{i}/seed", "Cast", f"tower_{i}/state") for i in (0, 1)),
        )
    ),
    "the step counter as seed": broken(of_step("VarHandleOp", "ReadVariableOp")),
    "the step counter as seed, by reference": broken(of_step("VariableV2", "Identity")),
    "a state for each tower": kept(
        seeded(
            *(variable(f"generator_state_{i}") for i in (0, 1)),
            *(on(i, f"tower_{i}/seed", "ReadVariableOp", f"generator_state_{i}") for i in (0, 1)),
        )
    ),
    # tf.random.Generator changes its state with each read.
    "a state that each read changes": kept(
        seeded(
            variable("state"),
            host("alg", "Const"),
            host("delta", "Const"),
            *(host(f"tower_{i}/read", "RngReadAndSkip", "state", "alg", "delta") for i in (0, 1)),
            *(on(i, f"tower_{i}/seed", "Cast", f"tower_{i}/read") for i in (0, 1)),
            kind="StatelessRandomUniformV2",
            values={"alg": 1, "delta": 256},
        )
    ),
    "seeds that are drawn at random": kept(
        seeded(*(host(f"tower_{i}/seed", "RandomUniformInt", "two") for i in (0, 1)))
    ),
    "a control edge, and different seeds": kept(waiting(1, 2)),
    "a control edge, and equal seeds": broken(waiting(1, 1)),
    # Initializers of variables in a tower's scope.
    "random ops outside of the step": not_checked(
        program(
            *(on(i, f"initial_{i}", "TruncatedNormal", "shape") for i in (0, 1)),
            attributes={f"initial_{i}": SEED for i in (0, 1)},
        )
    ),
    # Distortions of the input, which towers cut different slices from.
    "random ops on the host": not_checked(
        program(
            *(host(f"noise_{i}", "RandomUniform", "shape") for i in (0, 1)),
            *(on(i, f"tower_{i}/x", "AddV2", "images", f"noise_{i}") for i in (0, 1)),
            attributes={f"noise_{i}": SEED for i in (0, 1)},
        )
    ),
    "all random ops are allowed": kept(EQUAL, allow=("*/noise",)),
    **{
        f"equal seeds, allowed: {allow}": broken(EQUAL, allow=allow)
        for allow in ((), ("tower_1/noise",), ("tower_0/noise", "noise"))
    },
    "without a placer and a train op": broken(
        seeded_towers(
            (7, 3), (7, 3), placer=None, assigned=Missing("no wheel"), step={"train_op": ()}
        )
    ),
    # tf.compat.v1.train.export_meta_graph(strip_default_attrs=True).
    "a saved graph without default attributes": kept(
        program(*noisy(0, "RandomUniform"), *noisy(1, "RandomUniform"))
    ),
    **{
        f"a saved graph with only a {name}": broken(
            program(
                *noisy(0, "RandomUniform"),
                *noisy(1, "RandomUniform"),
                attributes={f"tower_{i}/noise": {name: 7} for i in (0, 1)},
            )
        )
        for name in ("seed", "seed2")
    },
    "the later tower was built first": broken(built_backward(seeded_towers((1, 1), (1, 1)))),
    "one draw for all towers, on the host": broken(before_the_loop()),
    "one draw for all towers, on a GPU": broken(
        before_the_loop(draw=on(0, "noise", "RandomUniform", "shape"))
    ),
    "one draw for all towers, which is subtracted": broken(before_the_loop(using="Sub")),
    "one draw for all towers, through another op": broken(
        before_the_loop(
            host("uniform", "RandomUniform", "shape"), draw=host("noise", "Floor", "uniform")
        )
    ),
    "a shared draw, each has its part": not_checked(
        before_the_loop(
            host("all", "RandomUniform", "shape"),
            host("noise", "Split", "axis", "all"),
            *(
                on(i, f"tower_{i}/noisy", "Mul", f"tower_{i}/x", f"noise:{i}" if i else "noise")
                for i in (0, 1)
            ),
        )
    ),
    "a shared draw, a scalar": not_checked(before_the_loop(shape=())),
    "a shared draw, a mask of features": not_checked(before_the_loop(shape=(8,))),
    "a shared draw, one row for all": not_checked(before_the_loop(shape=(1, 8))),
    "a shared draw, noise of weights": not_checked(
        before_the_loop(
            *(on(i, f"tower_{i}/noisy", "Mul", f"tower_{i}/w/read", "noise") for i in (0, 1)),
            *(
                on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/noisy")
                for i in (0, 1)
            ),
        )
    ),
    "a shared draw, a mask of weights": not_checked(
        before_the_loop(
            *(on(i, f"tower_{i}/mask", "Floor", "noise") for i in (0, 1)),
            *(
                on(i, f"tower_{i}/noisy", "Mul", f"tower_{i}/w/read", f"tower_{i}/mask")
                for i in (0, 1)
            ),
            *(
                on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/noisy")
                for i in (0, 1)
            ),
        )
    ),
    # Each tower makes its mask from the shared numbers.
    "a shared draw, a mask of rows": broken(
        before_the_loop(
            *(on(i, f"tower_{i}/mask", "Floor", "noise") for i in (0, 1)),
            *(on(i, f"tower_{i}/noisy", "Mul", f"tower_{i}/x", f"tower_{i}/mask") for i in (0, 1)),
        )
    ),
    # The input of a generator.
    "a shared draw, which is multiplied by the weights": broken(
        before_the_loop(
            *(on(i, f"tower_{i}/w/MatMul", "MatMul", "noise", f"tower_{i}/w/read") for i in (0, 1))
        )
    ),
    # DropConnect.
    "equal seeds of masks of weights": kept(weights_masked("Mul")),
    "equal seeds of dropped weights": kept(weights_masked("SelectV2")),
    "equal seeds of noise of weights": kept(weights_masked("AddV2")),
    "a shared draw, no loss depends on it": not_checked(
        before_the_loop(
            *(
                on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/w/read")
                for i in (0, 1)
            )
        )
    ),
    "a shared draw, one tower takes it": not_checked(
        before_the_loop(on(1, "tower_1/noisy", "Tanh", "tower_1/x"))
    ),
    "a shared draw is allowed": kept(before_the_loop(), allow=("noise",)),
    "equal seeds of a projection of the rows": kept(projected("x", "noise")),
    "equal seeds of a projection of transposed rows": broken(
        projected("x", "noise", transpose_a=True)
    ),
    "equal seeds of rows of a projection": broken(projected("noise", "w/read")),
    "equal seeds, which each tower makes": broken(seeds_in_functions()),
    "copies of a seed that a strategy combines when they are read": kept(copies(in_sync=False)),
    "copies of a seed that a strategy keeps equal": broken(copies(in_sync=True)),
}

test_verdicts = verdicts(RandomnessApart, CASES)
