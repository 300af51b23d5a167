from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.snapshots import messages
from support.towers import (
    host,
    objects_of,
    on,
    program,
    variable,
    without_two_towers,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.core.devices import Device
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.towers.randomness_apart import RandomnessApart


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(RandomnessApart(**parameters), graph)


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


@pytest.mark.parametrize("count", [2, 3, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = RandomnessApart().judge(seeded_towers(*((1, i) for i in range(count))))

    assert verdict == Verdict("randomness-apart", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = seeded_towers(
        (7, 3), (7, 3), lines={"tower_0/noise": "net.py:3", "tower_1/noise": "main.py:9 net.py:3"}
    )

    verdict = RandomnessApart().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="tower_1/noise",
            op="RandomUniform",
            evidence="requested",
            expected="different random numbers for each tower",
            found="the random numbers of tower_0/noise",
            frames=("main.py:9", "net.py:3"),
            path=(
                "tower_0/noise (RandomUniform) net.py:3",
                "tower_1/noise (RandomUniform) net.py:3",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_towers_with_equal_draws_are_alike() -> None:
    findings = RandomnessApart().judge(seeded_towers(*[(7, 3)] * 4)).findings

    assert len({(finding.alike, finding.fix) for finding in findings}) == 1


@pytest.mark.parametrize("count", [2, 3, 12])
def test_every_tower_but_the_first_is_found(count: int) -> None:
    graph = seeded_towers(*[(7, 3)] * count)

    assert objects(graph) == [f"tower_{i}/noise" for i in range(1, count)]


def test_two_later_towers_with_equal_seeds() -> None:
    (finding,) = RandomnessApart().judge(seeded_towers((1, 1), (2, 2), (2, 2))).findings

    assert (finding.object, finding.found) == (
        "tower_2/noise",
        "the random numbers of tower_1/noise",
    )


@pytest.mark.parametrize(
    ("seeds", "alike"),
    [
        (((0, 0), (0, 0)), False),
        (((7, 0), (7, 0)), True),
        (((0, 7), (0, 7)), True),
        (((7, 1), (7, 2)), False),
        (((1, 7), (2, 7)), False),
    ],
)
def test_ops_without_a_seed_draw_different_numbers(
    seeds: tuple[tuple[int, int], tuple[int, int]], alike: bool
) -> None:
    assert objects(seeded_towers(*seeds)) == ["tower_1/noise"] * alike


def test_ops_with_unknown_seeds_draw_different_numbers() -> None:
    assert RandomnessApart().judge(program(*noisy(0, "RandomUniform"))).state == "kept"


@pytest.mark.parametrize(
    "kind",
    [
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "TruncatedNormal",
        "ParameterizedTruncatedNormal",
        "Multinomial",
        "SampleDistortedBoundingBoxV2",
    ],
)
def test_every_op_that_keeps_its_own_state(kind: str) -> None:
    assert objects(seeded_towers((7, 3), (7, 3), kind=kind)) == ["tower_1/noise"]


def test_ops_of_different_types_with_one_seed_draw_different_numbers(
    snapshot: SnapshotAssertion,
) -> None:
    ops = [*noisy(0, "RandomUniform"), *noisy(1, "TruncatedNormal")]
    seed = {"seed": 7, "seed2": 3}
    graph = program(*ops, attributes={"tower_0/noise": seed, "tower_1/noise": seed})

    verdict = RandomnessApart().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_two_layers_of_one_tower_may_have_one_seed() -> None:
    seed = {"seed": 7, "seed2": 3}
    graph = program(
        *noisy(0, "RandomUniform"),
        on(0, "tower_0/more", "RandomUniform", "shape"),
        attributes={"tower_0/noise": seed, "tower_0/more": seed},
    )

    assert objects(graph) == []


STATELESS = pytest.mark.parametrize(
    "kind",
    [
        "StatelessRandomUniform",
        "StatelessRandomUniformV2",
        "StatelessRandomNormal",
        "StatelessTruncatedNormal",
        "StatelessShuffle",
    ],
)


@STATELESS
@pytest.mark.parametrize(
    ("values", "alike"),
    [
        ({"tower_0/seed": 5, "tower_1/seed": 5}, True),
        ({"tower_0/seed": 5, "tower_1/seed": 6}, False),
    ],
    ids=["equal", "different"],
)
def test_stateless_ops_by_their_constant_seeds(
    kind: str, values: Mapping[str, int], alike: bool
) -> None:
    seeds = [on(i, f"tower_{i}/seed", "Const") for i in (0, 1)]

    assert objects(seeded(*seeds, kind=kind, values=values)) == ["tower_1/noise"] * alike


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        ("StatelessMultinomial", ["count"]),
        ("StatelessSampleDistortedBoundingBox", ["box", "least"]),
    ],
)
@pytest.mark.parametrize(("seeds", "alike"), [((5, 5), True), ((5, 6), False)])
def test_a_seed_is_not_always_the_second_input(
    kind: str, before: list[str], seeds: tuple[int, int], alike: bool
) -> None:
    ops = [op for i in (0, 1) for op in noisy(i, kind, *before, f"tower_{i}/seed")]
    ops += [on(i, f"tower_{i}/seed", "Const") for i in (0, 1)]
    graph = program(
        *(host(name, "Placeholder") for name in before),
        *ops,
        values={f"tower_{i}/seed": seeds[i] for i in (0, 1)},
    )

    assert objects(graph) == ["tower_1/noise"] * alike


@STATELESS
def test_stateless_ops_of_one_seed_tensor(kind: str) -> None:
    ops = [op for i in (0, 1) for op in noisy(i, kind, "seed")]

    assert objects(program(host("seed", "Placeholder"), *ops)) == ["tower_1/noise"]


@pytest.mark.parametrize(("number", "alike"), [((0, 1), False), ((0, 0), True)])
def test_the_towers_number_is_folded_into_the_seed(number: tuple[int, int], alike: bool) -> None:
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/number", "Const"),
            on(i, f"tower_{i}/seed", "Pack", "base", f"tower_{i}/number"),
        ]
    values = {f"tower_{i}/number": number[i] for i in (0, 1)}

    assert objects(seeded(*ops, host("base", "Placeholder"), values=values)) == (
        ["tower_1/noise"] * alike
    )


def test_a_key_and_counter_from_one_seed(snapshot: SnapshotAssertion) -> None:
    ops = [host("seed", "Const")]
    for i in (0, 1):
        ops.append(on(i, f"tower_{i}/seed", "StatelessRandomGetKeyCounter", "seed"))

    verdict = RandomnessApart().judge(seeded(*ops, kind="StatelessRandomUniformV2"))

    assert [finding.object for finding in verdict.findings] == ["tower_1/noise"]
    assert messages(verdict) == snapshot


def test_one_state_of_a_generator_that_all_towers_read() -> None:
    """Keras 3's Dropout in a graph."""
    ops = [variable("generator_state")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/state", "ReadVariableOp", "generator_state"),
            on(i, f"tower_{i}/seed", "Cast", f"tower_{i}/state"),
        ]

    assert objects(seeded(*ops)) == ["tower_1/noise"]


@pytest.mark.parametrize(
    ("kind", "read"), [("VarHandleOp", "ReadVariableOp"), ("VariableV2", "Identity")]
)
def test_a_seed_from_the_step_counter_is_equal_in_all_towers(kind: str, read: str) -> None:
    ops = [variable("step", kind), host("step/add", "AssignAdd", "step", "step/one")]
    for i in (0, 1):
        ops += [
            host(f"tower_{i}/step", read, "step"),
            host(f"tower_{i}/seed", "Pack", f"tower_{i}/step", "step/one"),
        ]

    assert objects(seeded(*ops)) == ["tower_1/noise"]


def test_a_state_of_its_own_for_each_tower() -> None:
    ops = []
    for i in (0, 1):
        ops += [
            variable(f"generator_state_{i}"),
            on(i, f"tower_{i}/seed", "ReadVariableOp", f"generator_state_{i}"),
        ]

    assert objects(seeded(*ops)) == []


def test_a_generator_that_changes_its_state_draws_different_numbers() -> None:
    """tf.random.Generator changes its state with each read."""
    ops = [variable("state"), host("alg", "Const"), host("delta", "Const")]
    for i in (0, 1):
        ops += [
            host(f"tower_{i}/read", "RngReadAndSkip", "state", "alg", "delta"),
            on(i, f"tower_{i}/seed", "StridedSlice", f"tower_{i}/read"),
        ]
    graph = seeded(*ops, kind="StatelessRandomUniformV2", values={"alg": 1, "delta": 256})

    assert objects(graph) == []


def test_seeds_that_are_drawn_at_random_are_different() -> None:
    ops = [host(f"tower_{i}/seed", "RandomUniformInt", "two") for i in (0, 1)]

    assert objects(seeded(*ops)) == []


@pytest.mark.parametrize(("seeds", "alike"), [((1, 2), False), ((1, 1), True)])
def test_a_control_edge_is_no_seed(seeds: tuple[int, int], alike: bool) -> None:
    values = {f"tower_{i}/seed": seed for i, seed in enumerate(seeds)}
    ops = [
        on(i, f"tower_{i}/noise", "StatelessRandomUniform", "^step", "shape", f"tower_{i}/seed")
        for i in (0, 1)
    ]
    constants = [host(name, "Const") for name in values]

    assert objects(seeded(*constants, *ops, values=values)) == ["tower_1/noise"] * alike


def test_random_ops_outside_of_the_step_are_ignored(snapshot: SnapshotAssertion) -> None:
    """Initializers of variables in a tower's scope."""
    ops = [on(i, f"initial_{i}", "TruncatedNormal", "shape") for i in (0, 1)]
    seed = {"seed": 7, "seed2": 3}
    graph = program(*ops, attributes={"initial_0": seed, "initial_1": seed})

    verdict = RandomnessApart().judge(graph)

    assert verdict == Verdict("randomness-apart", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_random_ops_of_the_host_are_no_towers(snapshot: SnapshotAssertion) -> None:
    """Distortions of the input, which towers cut different slices from."""
    ops = []
    for i in (0, 1):
        ops += [
            host(f"noise_{i}", "RandomUniform", "shape"),
            on(i, f"tower_{i}/x", "AddV2", "images", f"noise_{i}"),
        ]
    seed = {"seed": 7, "seed2": 3}
    graph = program(*ops, attributes={"noise_0": seed, "noise_1": seed})

    verdict = RandomnessApart().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), ["tower_1/noise", "tower_2/noise"]),
        (("tower_1/noise",), ["tower_2/noise"]),
        (("*/noise",), []),
        (("tower_0/noise", "noise"), ["tower_1/noise", "tower_2/noise"]),
    ],
)
def test_ops_with_equal_draws_on_purpose(allow: Sequence[str], left: Sequence[str]) -> None:
    assert objects(seeded_towers((7, 3), (7, 3), (7, 3)), allow=allow) == left


def test_needs_no_placer_and_no_train_op() -> None:
    graph = seeded_towers(
        (7, 3), (7, 3), placer=None, assigned=Missing("no wheel"), step={"train_op": ()}
    )

    assert objects(graph) == ["tower_1/noise"]


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert RandomnessApart().judge(graph) == Verdict(
        "randomness-apart", "not-checked", None, reason
    )


def test_not_checked_without_random_ops(snapshot: SnapshotAssertion) -> None:
    verdict = RandomnessApart().judge(program())

    assert verdict == Verdict("randomness-apart", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


def test_a_saved_graph_without_default_attributes_has_no_seeds() -> None:
    """tf.compat.v1.train.export_meta_graph(strip_default_attrs=True)."""
    graph = program(*noisy(0, "RandomUniform"), *noisy(1, "RandomUniform"))

    assert objects(graph) == []


@pytest.mark.parametrize("attributes", [{"seed": 7}, {"seed2": 7}])
def test_one_seed_of_the_two_is_enough(attributes: Mapping[str, int]) -> None:
    graph = program(
        *noisy(0, "RandomUniform"),
        *noisy(1, "RandomUniform"),
        attributes={f"tower_{i}/noise": attributes for i in (0, 1)},
    )

    assert objects(graph) == ["tower_1/noise"]


def test_the_later_tower_is_found_though_it_was_built_first() -> None:
    graph = seeded_towers((1, 1), (1, 1))
    second = {name: op for name, op in graph.ops.items() if name.startswith("tower_1/")}
    turned = replace(graph, ops={"w": graph.ops["w"], **second, **graph.ops})

    assert objects(turned) == ["tower_1/noise"]


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


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(before_the_loop(), id="on the host"),
        pytest.param(
            before_the_loop(draw=on(0, "noise", "RandomUniform", "shape")), id="on a GPU"
        ),
        pytest.param(before_the_loop(using="Sub"), id="taken by another op"),
        pytest.param(
            before_the_loop(
                host("uniform", "RandomUniform", "shape"), draw=host("noise", "Floor", "uniform")
            ),
            id="by way of other ops",
        ),
    ],
)
def test_one_draw_for_all_towers(graph: Placement) -> None:
    (finding,) = RandomnessApart().judge(graph).findings

    assert finding.object in ("noise", "uniform")
    assert finding.found == "one draw for the towers on /device:GPU:0 and /device:GPU:1"
    assert "draws them once, and tower_0/noisy and tower_1/noisy use them" in finding.message


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(
            before_the_loop(
                host("all", "RandomUniform", "shape"),
                host("noise", "Split", "axis", "all"),
                *(
                    on(
                        i,
                        f"tower_{i}/noisy",
                        "Mul",
                        f"tower_{i}/x",
                        f"noise:{i}" if i else "noise",
                    )
                    for i in (0, 1)
                ),
            ),
            id="each has its part",
        ),
        pytest.param(before_the_loop(shape=()), id="a scalar"),
        pytest.param(before_the_loop(shape=(8,)), id="a mask of features"),
        pytest.param(before_the_loop(shape=(1, 8)), id="one row for all"),
        pytest.param(
            before_the_loop(
                *(on(i, f"tower_{i}/noisy", "Mul", f"tower_{i}/w/read", "noise") for i in (0, 1)),
                *(
                    on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/noisy")
                    for i in (0, 1)
                ),
            ),
            id="noise of weights",
        ),
        pytest.param(
            before_the_loop(
                *(
                    on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/w/read")
                    for i in (0, 1)
                )
            ),
            id="no loss depends on it",
        ),
        pytest.param(
            before_the_loop(on(1, "tower_1/noisy", "Tanh", "tower_1/x")), id="one tower takes it"
        ),
    ],
)
def test_a_draw_that_towers_may_share(graph: Placement) -> None:
    assert not RandomnessApart().judge(graph).findings


def test_a_shared_draw_may_be_allowed() -> None:
    assert not RandomnessApart(allow=("noise",)).judge(before_the_loop()).findings


@pytest.mark.parametrize("in_sync", [True, False])
def test_copies_of_a_seed_that_a_strategy_keeps_equal(in_sync: bool) -> None:
    copies = {f"v{i}/seed": Copy("v0/seed", i, in_sync) for i in (0, 1)}
    graph = seeded(
        *(variable(f"v{i}/seed", at=f"GPU:{i}") for i in (0, 1)),
        *(on(i, f"tower_{i}/seed", "ReadVariableOp", f"v{i}/seed") for i in (0, 1)),
    )
    gpus = [Device.parse(f"/gpu:{i}") for i in (0, 1)]
    graph = replace(graph, strategy=Strategy("MirroredStrategy", gpus, copies))

    findings = RandomnessApart().judge(graph).findings

    assert [finding.object for finding in findings] == (["tower_1/noise"] if in_sync else [])
    assert all("replica_id_in_sync_group" in finding.fix for finding in findings)
