from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
from support.snapshots import messages
from support.towers import (
    gradient,
    host,
    objects_of,
    on,
    program,
    variable,
)
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Op, Placement, Verdict
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.missing import Missing
from placement_checks.core.variables import Variables
from placement_checks.rules.towers.one_update import OneUpdate, is_read, separate_increment

TRAIN = ["^update/w", "^step/add"]


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(OneUpdate(**parameters), graph)


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


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = OneUpdate().judge(program(gpus=range(count)))

    assert verdict == Verdict("one-update", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_kept_with_one_variable(snapshot: SnapshotAssertion) -> None:
    verdict = OneUpdate().judge(counted())

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = several(2, lines={"update/w": "main.py:40", "update/w_1": "main.py:41 net.py:3"})

    verdict = OneUpdate().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="w",
            op="VarHandleOp",
            evidence="requested",
            expected="1 update per step",
            found="2 updates",
            frames=("main.py:41", "net.py:3"),
            path=(
                "update/w (ResourceApplyGradientDescent) main.py:40",
                "update/w_1 (ResourceApplyGradientDescent) net.py:3",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "count",
    [
        3,
        4,
        12,
    ],
)
def test_an_update_for_each_of_many_towers(count: int, snapshot: SnapshotAssertion) -> None:
    (finding,) = OneUpdate().judge(several(count)).findings

    assert finding.found == f"{count} updates"
    assert messages(finding) == snapshot
    assert len(finding.path) == min(count, 9)


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([["update/w", "step/add"], ["again"]], []),
        ([["update/w", "step/add"], ["again", "step/add_1"]], []),
        ([["update/w", "step/add", "step/add_1"], ["again"]], ["step"]),
        ([["update/w", "again"], ["step/add"]], ["w"]),
        ([["update/w"], ["train"]], ["w"]),
        ([["update/w"], ["again_in_tower_1", "step/add"]], ["w"]),
    ],
)
def test_runs_of_a_session_are_in_sequence(
    runs: Sequence[Sequence[str]], found: list[str]
) -> None:
    """For example, a program trains a loss and a penalty in turns, each on all towers."""
    graph = counted(
        apply("again", "mean/w"),
        apply("again_in_tower_1", gradient(1)),
        host("step/add_1", "AssignAddVariableOp", "step", "step/one"),
        train=["^again", "^step/add"],
        step={"train_op": [name for run in runs for name in run], "runs": runs},
    )

    assert objects(graph) == found


def test_towers_that_apply_their_gradients_in_turns() -> None:
    runs = (["update/w", "step/add"], ["update/w_1"])

    assert objects(several(2, step={"train_op": [*runs[0], *runs[1]], "runs": runs})) == ["w"]


def test_one_tower_that_applies_its_gradients_twice() -> None:
    graph = program(
        apply("update/w_1", gradient(0)),
        host("train", "NoOp", "^update/w", "^update/w_1"),
        gpus=[0],
    )

    assert objects(graph) == ["w"]


def test_a_program_without_a_gpu_is_judged_as_well() -> None:
    graph = placement(
        op("w", "VarHandleOp"),
        op("predict", "MatMul", "", "", "x", "w"),
        op("gradients/predict_grad/MatMul", "MatMul", "", "", "x", "predict"),
        op("one", "ResourceApplyAdam", "", "", "w", "gradients/predict_grad/MatMul"),
        op("two", "ResourceApplyAdam", "", "", "w", "gradients/predict_grad/MatMul"),
        op("train", "NoOp", "", "", "^one", "^two"),
        step=program(step={"objectives": ("predict",), "losses": ()}).step,
    )

    assert objects(graph) == ["w"]


def test_each_variable_is_judged(snapshot: SnapshotAssertion) -> None:
    graph = program(
        apply("update/b_1", gradient(1, "b"), to="b"),
        host("train", "NoOp", "^update/a", "^update/b", "^update/b_1", "^update/c"),
        variables=["a", "b", "c"],
    )

    verdict = OneUpdate().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["b"]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(host("again", "ApplyAdam", "w", gradient(1)), id="a reference"),
        pytest.param(host("again", "SparseApplyAdagrad", "w", gradient(1)), id="sparse"),
        pytest.param(host("again", "ResourceScatterSub", "w", "rows", gradient(1)), id="rows"),
        pytest.param(host("again", "AssignSubVariableOp", "w", gradient(1)), id="written out"),
    ],
)
def test_updates_of_every_kind_count(again: Op) -> None:
    assert objects(program(again, host("train", "NoOp", *TRAIN, "^again"))) == ["w"]


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(
            [
                host("clipped", "ClipByValue", "w", "low", "high", "^update/w"),
                host("again", "AssignVariableOp", "w", "clipped"),
            ],
            id="clipped weights",
        ),
        pytest.param(
            [
                host("decayed", "Mul", "w", "rate"),
                host("again", "AssignSubVariableOp", "w", "decayed"),
            ],
            id="a decay",
        ),
        pytest.param(
            [host("again", "AssignVariableOp", "w", "loaded")], id="weights that are fed"
        ),
    ],
)
def test_updates_without_a_gradient_do_not_count(ops: Sequence[Op]) -> None:
    assert objects(program(*ops, host("train", "NoOp", *TRAIN, "^again"))) == []


def test_an_update_that_is_no_part_of_the_step_does_not_count() -> None:
    """The step runs one of two optimizers."""
    graph = program(apply("other", "mean/w"), step={"train_ops": ("train", "other")})

    assert objects(graph) == []


def test_accumulated_gradients_are_applied_once() -> None:
    graph = program(
        variable("total"),
        *(host(f"add_{i}", "AssignAddVariableOp", "total", gradient(i)) for i in (0, 1)),
        apply("update/w", "total"),
        host("train", "NoOp", *TRAIN, "^add_0", "^add_1"),
    )

    assert objects(graph) == []


def branches(*names: str, call: str = "if") -> list[Op]:
    """Updates in the bodies of functions; a branching op calls only one of them."""
    return [apply(name, "mean/w", caller=call) for name in names]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["if/then/update", "if/else/update"], []),
        (["if/branch0/update", "if/branch1/update", "if/branch2/update"], []),
        (["if/then/update", "if/then/update_1", "if/else/update"], ["2 updates"]),
        (["if/update", "if/update_1"], ["2 updates"]),
    ],
    ids=["if", "case", "one branch with two", "a call"],
)
def test_updates_in_branches_count_once(names: Sequence[str], found: Sequence[str]) -> None:
    graph = program(
        host("if", "If", "finite", "w", "mean/w"),
        *branches(*names),
        host("train", "NoOp", "^if"),
    )

    assert [finding.found for finding in OneUpdate().judge(graph).findings] == found


def test_a_branch_and_an_update_outside_are_two() -> None:
    graph = program(
        host("if", "If", "finite", "w", "mean/w"),
        *branches("if/then/update", "if/else/update"),
        host("train", "NoOp", "^if", "^update/w"),
    )

    (finding,) = OneUpdate().judge(graph).findings

    assert finding.found == "2 updates"


def test_updates_in_nested_branches_count_once() -> None:
    graph = program(
        host("if", "If", "finite", "w", "mean/w"),
        host("if/else/if", "If", "large", "w", "mean/w", caller="if"),
        *branches("if/then/update"),
        *branches("if/else/if/then/update", "if/else/if/else/update", call="if/else/if"),
        host("train", "NoOp", "^if"),
    )

    assert objects(graph) == []


def test_updates_in_branches_by_switches_count_once() -> None:
    """tf.cond before TensorFlow 2, and since then without control flow v2."""
    graph = program(
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

    assert objects(graph) == []


def powers(*assigns: str) -> Placement:
    """Adam's power of beta: the update of w reads it, and `assigns` update it."""
    return program(
        variable("beta1_power"),
        host("beta1_power/read", "ReadVariableOp", "beta1_power"),
        host("update/w", "ResourceApplyAdam", "w", "m", "v", "beta1_power/read", "mean/w"),
        host("power", "Mul", "beta1_power/read", "beta1"),
        *(host(name, "AssignVariableOp", "beta1_power", "power") for name in assigns),
        host("train", "NoOp", *TRAIN, *(f"^{name}" for name in assigns)),
        shapes={"beta1_power": ()},
    )


def test_scalars_of_the_optimizer_are_updated_twice(snapshot: SnapshotAssertion) -> None:
    """The optimizer was applied to two groups of variables."""
    (finding,) = OneUpdate().judge(powers("move", "move_1")).findings

    assert finding.object == "beta1_power"
    assert messages(finding) == snapshot


def test_scalars_of_the_optimizer_are_updated_once() -> None:
    assert objects(powers("move")) == []


def test_a_reference_to_a_scalar_of_the_optimizer_is_followed() -> None:
    graph = program(
        variable("beta1_power", "VariableV2"),
        host("beta1_power/read", "Identity", "beta1_power"),
        host("update/w", "ApplyAdam", "w", "m", "v", "beta1_power/read", "mean/w"),
        *(host(name, "Assign", "beta1_power", "power") for name in ("move", "move_1")),
        host("train", "NoOp", *TRAIN, "^move", "^move_1"),
        shapes={"beta1_power": ()},
    )

    assert objects(graph) == ["beta1_power"]


def test_every_tower_may_update_scalars_that_no_optimizer_reads() -> None:
    """A metric counts rows."""
    graph = program(
        variable("count"),
        *(host(f"count_{i}", "AssignAddVariableOp", "count", "rows") for i in (0, 1)),
        host("train", "NoOp", *TRAIN, "^count_0", "^count_1"),
        shapes={"count": ()},
    )

    assert objects(graph) == []


def test_statistics_may_be_updated_in_every_tower() -> None:
    """Each tower assigns its own moments."""
    graph = program(
        variable("mean"),
        *(host(f"mean_{i}", "AssignSubVariableOp", "mean", f"tower_{i}/x") for i in (0, 1)),
        host("train", "NoOp", *TRAIN, "^mean_0", "^mean_1"),
    )

    assert objects(graph) == []


def test_the_step_counter_is_incremented_twice(snapshot: SnapshotAssertion) -> None:
    graph = counted(
        host("step/again", "AssignAddVariableOp", "step", "step/one"),
        train=["^step/add", "^step/again"],
        lines={"step/add": "main.py:40", "step/again": "main.py:41 net.py:3"},
    )

    verdict = OneUpdate().judge(graph)

    assert verdict.findings == [
        Finding(
            object="step",
            op="VarHandleOp",
            evidence="requested",
            expected="incremented by 1 in each step",
            found="incremented 2 times",
            frames=("main.py:41", "net.py:3"),
            path=(
                "step/add (AssignAddVariableOp) main.py:40",
                "step/again (AssignAddVariableOp) net.py:3",
            ),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("by", [0, 2, 12])
def test_the_step_counter_is_incremented_by_another_number(
    by: int, snapshot: SnapshotAssertion
) -> None:
    graph = program(values={"step/one": by}, lines={"step/add": "main.py:40"})

    (finding,) = OneUpdate().judge(graph).findings

    assert (finding.object, finding.where) == ("step", "main.py:40")
    assert (finding.expected, finding.found) == (
        "incremented by 1 in each step",
        f"incremented by {by}",
    )
    assert messages(finding) == snapshot
    assert finding.path == ("step/add (AssignAddVariableOp) main.py:40",)


def test_the_step_counter_of_a_decaying_rate_is_never_incremented(
    snapshot: SnapshotAssertion,
) -> None:
    graph = counted(
        host("rate", "Pow", "decay", "step"), host("step/add", "NoOp"), lines={"step": "main.py:7"}
    )

    (finding,) = OneUpdate().judge(graph).findings

    assert (finding.object, finding.where, finding.path) == ("step", "main.py:7", ())
    assert (finding.expected, finding.found) == (
        "incremented by 1 in each step",
        "never incremented, though the step reads it",
    )
    assert messages(finding) == snapshot


def test_the_line_is_where_gradients_are_applied_without_the_counter() -> None:
    lines = {"step": "main.py:7", "update/w": "main.py:40"}
    graph = counted(host("rate", "Pow", "decay", "step"), host("step/add", "NoOp"), lines=lines)

    (finding,) = OneUpdate().judge(graph).findings

    assert finding.where == "main.py:40"


def test_variables_that_are_updated_as_often_are_alike() -> None:
    again = [
        host(f"update/{name}_1", "ResourceApplyGradientDescent", name, "rate", f"mean/{name}")
        for name in ("w", "b")
    ]
    train = host("train", "NoOp", "^update/w", "^update/w_1", "^update/b", "^update/b_1")

    one, other = OneUpdate().judge(program(*again, train, variables=["w", "b"])).findings

    assert one.alike is not None
    assert (one.alike, one.fix) == (other.alike, other.fix)


def test_a_counter_that_a_separate_op_increments(snapshot: SnapshotAssertion) -> None:
    """The program fetches it together with the step, or forgot it."""
    graph = counted(host("rate", "Pow", "decay", "step"))

    verdict = OneUpdate().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
    assert OneUpdate(allow=("step",)).judge(graph).state == "kept"


def test_a_separate_counter_after_an_allowed_one() -> None:
    ops = [
        variable("epoch"),
        host("epoch/add", "AssignAddVariableOp", "epoch", "step/one"),
        host("rate", "Pow", "step", "epoch"),
    ]
    graph = counted(*ops, step={"counters": ("step", "epoch")})

    assert "'epoch'" in str(OneUpdate(allow=("step",)).judge(graph).reason)
    assert OneUpdate(allow=("step", "epoch")).judge(graph).state == "kept"


def test_a_repeated_update_is_found_despite_a_separate_counter() -> None:
    again = host("update/again", "ResourceApplyGradientDescent", "w", "rate", "mean/w")
    rate = host("rate", "Pow", "decay", "step")

    assert objects(counted(again, rate, train=["^update/again"])) == ["w"]


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


def test_a_counter_that_no_collection_holds(snapshot: SnapshotAssertion) -> None:
    verdict = OneUpdate().judge(kept_count())

    assert [finding.object for finding in verdict.findings] == ["count"]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        pytest.param(
            kept_count(
                host("saved", "RestoreV2"),
                host("same", "Identity", "saved"),
                host("count/restore", "AssignVariableOp", "count", "same"),
            ),
            ["count"],
            id="restored",
        ),
        pytest.param(
            kept_count(host("count/late", "Less", "count", "zero")), ["count"], id="compared"
        ),
        pytest.param(
            kept_count(host("count/if", "If", "count", "zero")), [], id="that is given to a call"
        ),
        pytest.param(kept_count(dtype="float32"), ["count"], id="a fraction"),
        pytest.param(
            kept_count(host("count/add", "AssignAdd", "count", "step/one"), dtype="float32"),
            [],
            id="a fraction that another op moves",
        ),
        pytest.param(
            kept_count(
                host("new", "Placeholder"),
                host("count/set", "AssignVariableOp", "count", "new"),
                dtype="float32",
            ),
            [],
            id="a fraction that the program sets",
        ),
        pytest.param(
            kept_count(
                host("count/read", "ReadVariableOp", "count"),
                host("rate", "Identity", "count/read"),
                dtype="float32",
            ),
            [],
            id="the rate itself",
        ),
        pytest.param(
            kept_count(host("rate", "Mul", "tenth", "count"), dtype="float32"),
            [],
            id="the rate, times a factor",
        ),
        pytest.param(
            kept_count(on(0, "tower_0/loss", "Mul", "tower_0/w/MatMul", "count"), dtype="float32"),
            [],
            id="a factor of the loss, which the rate depends on too",
        ),
        pytest.param(
            kept_count(
                host("rate", "Const"),
                host("shown", "Pow", "count", "zero"),
                host("train", "NoOp", *TRAIN, "^shown"),
                dtype="float32",
            ),
            [],
            id="a fraction that no update depends on",
        ),
        pytest.param(kept_count(first=7), [], id="a number that is meant to stay"),
        pytest.param(
            kept_count(host("count/add", "AssignAddVariableOp", "count", "step/one")),
            [],
            id="that another op moves",
        ),
        pytest.param(
            kept_count(
                host("new", "Placeholder"), host("count/set", "AssignVariableOp", "count", "new")
            ),
            [],
            id="that the program sets",
        ),
        pytest.param(kept_count(host("rate", "Const")), [], id="that the step does not read"),
    ],
)
def test_a_scalar_is_a_counter_if_it_starts_at_zero_and_nothing_sets_it(
    graph: Placement, found: Sequence[str]
) -> None:
    assert objects(graph) == found


@pytest.mark.parametrize(
    ("ops", "train"),
    [
        pytest.param([], ["^step/add"], id="by one"),
        pytest.param([], [], id="not at all, and nothing reads it"),
        pytest.param(
            [host("shown", "ScalarSummary", "tag", "step")], [], id="read by a summary alone"
        ),
        pytest.param(
            [host("step/add", "AssignAddVariableOp", "step", "step/one", "^update/w")],
            ["^step/add"],
            id="after the update",
        ),
        pytest.param(
            [
                host("step/next", "AddV2", "step", "step/one"),
                host("step/set", "AssignVariableOp", "step", "step/next"),
            ],
            ["^step/set"],
            id="by a sum",
        ),
        pytest.param(
            [
                host("five", "Const"),
                host("step/set", "AssignVariableOp", "step", "five"),
            ],
            ["^step/set"],
            id="set to a number",
        ),
        pytest.param(
            [
                host("by", "Size", "batch"),
                host("step/add", "AssignAddVariableOp", "step", "by"),
            ],
            ["^step/add"],
            id="by a computed value",
        ),
    ],
)
def test_silent_on_step_counters(ops: Sequence[Op], train: Sequence[str]) -> None:
    assert objects(counted(*ops, train=train, values={"five": 5})) == []


def test_the_step_counter_is_incremented_in_one_of_two_branches() -> None:
    """Steps with infinite gradients do not count."""
    graph = program(
        host("if", "If", "finite", "step"),
        *(
            host(f"if/{branch}/add", "AssignAddVariableOp", "step", "step/one", caller="if")
            for branch in ("then", "else")
        ),
        host("train", "NoOp", "^if", "^update/w"),
    )

    assert objects(graph) == []


def test_a_counter_outside_the_graph_is_ignored() -> None:
    assert objects(program(step={"counters": ("gone",)})) == []


def test_an_undeclared_counter_may_change_in_any_way() -> None:
    assert objects(program(values={"step/one": 2}, step={"counters": ()})) == []


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ((), ["a", "b", "step"]),
        (("a",), ["b", "step"]),
        (("?",), ["step"]),
        (("step", "[ab]"), []),
        (("A", "w*"), ["a", "b", "step"]),
    ],
)
def test_variables_that_are_updated_more_often_on_purpose(
    names: Sequence[str], left: Sequence[str]
) -> None:
    graph = program(
        *(apply(f"update/{name}_1", gradient(1, name), to=name) for name in "ab"),
        host("train", "NoOp", *(f"^update/{n}" for n in ("a", "b", "a_1", "b_1")), "^step/add"),
        variables=["a", "b"],
        values={"step/one": 2},
    )

    assert objects(graph, allow=names) == left


def test_needs_no_placer() -> None:
    graph = several(2, placer=None, assigned=Missing("no wheel for this"), machine=None)

    assert objects(graph) == ["w"]


def test_kept_without_repeated_updates_even_if_the_step_is_unknown(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = OneUpdate().judge(program(step={"train_op": ()}))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("ops", [("discriminator", "generator"), ("generator",)])
def test_two_optimizers_of_different_variables(ops: Sequence[str]) -> None:
    """A GAN with two train ops, declared in different ways."""
    graph = program(
        host("discriminator", "NoOp", "^update/a"),
        host("generator", "NoOp", "^update/b"),
        host("train", "NoOp"),
        variables=["a", "b"],
        step={"train_op": (), "train_ops": ops},
    )

    assert OneUpdate().judge(graph).state == "kept"


def test_a_train_op_that_is_part_of_another_one_is_the_same_step() -> None:
    """The optimizer's train op is in a group that the program runs."""
    graph = several(
        2,
        host("all", "NoOp", "^train", "^averages"),
        host("averages", "NoOp"),
        step={"train_op": (), "train_ops": ("train",)},
    )

    assert objects(graph) == ["w"]


def test_the_updates_of_several_declared_train_ops_are_one_step() -> None:
    graph = program(
        apply("other", gradient(1)),
        host("train", "NoOp", "^update/w"),
        step={"train_op": ("train", "other")},
    )

    assert objects(graph) == ["w"]


TWICE = [apply("update/w_1", gradient(1)), host("train", "NoOp", "^update/w", "^update/w_1")]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(program(requested=Missing("a log lacks requested devices")), id="log"),
        pytest.param(program(*TWICE, step={"train_op": ()}), id="two updates, no train op"),
        pytest.param(
            program(
                *TWICE,
                host("other", "NoOp", "^update/w"),
                step={"train_op": (), "train_ops": ("train", "other")},
            ),
            id="two updates, two train ops",
        ),
        pytest.param(
            placement(variable("w"), on(0, "predict", "MatMul", "x", "w")),
            id="no update, no train op",
        ),
        pytest.param(program(host("train", "NoOp")), id="no update"),
    ],
)
def test_not_checked(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = OneUpdate().judge(graph)

    assert verdict == Verdict("one-update", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


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


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        pytest.param(moved(*adds("one"), train=["^one"]), [], id="once"),
        pytest.param(
            whole(moved(*adds("one", "two"), train=["^one", "^two"])), ["seen"], id="twice"
        ),
        pytest.param(
            moved(*adds("one", "two"), train=["^one", "^two"]), [], id="twice, a count of a metric"
        ),
        pytest.param(moved(*adds("one", "two"), train=["^one"]), [], id="twice, once in a step"),
        pytest.param(
            moved(*adds("one", "two"), train=["^one", "^two"], shape=(3,)), [], id="no scalar"
        ),
        pytest.param(
            moved(*adds("one", "two"), train=["^one", "^two"], by=2), [], id="by another number"
        ),
        pytest.param(
            moved(
                host("if", "If", "finite", "seen"),
                *adds("if/then/one", "if/else/two", caller="if"),
                train=["^if"],
            ),
            [],
            id="in one branch or the other",
        ),
    ],
)
def test_a_scalar_to_which_a_step_adds_one_more_than_once_is_a_counter(
    graph: Placement, found: Sequence[str]
) -> None:
    assert objects(graph) == found


def test_updates_by_gradients_that_the_host_computes_are_counted() -> None:
    """Subtractions apply a penalty to a variable that no tower reads."""
    graph = program(
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

    assert objects(graph) == ["v"]


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


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(state(*moved_by(gradient(0), gradient(1))), id="by gradients"),
        pytest.param(state(*moved_by("tower_0/loss", "tower_1/loss")), id="by losses"),
        pytest.param(state(*moved_by("w", "w")), id="by the same value, for each tower"),
        pytest.param(
            state(*moved_by(gradient(0), gradient(1), kind="AssignSubVariableOp")), id="subtracted"
        ),
    ],
)
def test_state_that_is_updated_for_each_tower(graph: Placement) -> None:
    (finding,) = OneUpdate().judge(graph).findings

    assert finding.object == "state"
    assert finding.found == "2 updates"
    assert finding.consequence == (
        "it decays 2 times in a step, and depends on the order of the towers"
    )


def test_state_that_each_tower_overwrites() -> None:
    values = [on(i, f"tower_{i}/next", "Tanh", "state/read") for i in (0, 1)]
    sets = [host(f"set_{i}", "AssignVariableOp", "state", f"tower_{i}/next") for i in (0, 1)]
    moved = [*values, *sets, host("state/read", "ReadVariableOp", "state")]

    (finding,) = OneUpdate().judge(state(*moved)).findings

    assert finding.consequence == "it holds the value of one of 2 towers, the last one that runs"
    assert finding.fix.startswith("create a variable for each tower")


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(state(*moved_by("mean/w"), train=["set_0"]), id="once, by the mean"),
        pytest.param(
            state(*moved_by(gradient(0), gradient(1)), train=["set_0"]), id="once in a step"
        ),
        pytest.param(state(*moved_by("mean/w", "mean/w", "mean/w"), train=["set_0"]), id="others"),
        pytest.param(
            state(
                *(
                    host(f"set_{i}", "AssignAddVariableOp", "state", f"tower_{i}/loss")
                    for i in (0, 1)
                )
            ),
            id="added up",
        ),
        pytest.param(
            state(
                *(
                    each
                    for i in (0, 1)
                    for each in (
                        host(f"new_{i}", "AddV2", "read", f"tower_{i}/loss"),
                        host(f"set_{i}", "AssignVariableOp", "state", f"new_{i}"),
                    )
                )
            ),
            id="added up by assignments",
        ),
        pytest.param(
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
            ),
            id="statistics of normalization",
        ),
    ],
)
def test_state_that_is_updated_as_intended(graph: Placement) -> None:
    verdict = OneUpdate().judge(graph)

    assert verdict.state == "kept"


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


def test_updates_in_sequence_do_not_race() -> None:
    assert OneUpdate().judge(in_turn()).findings == []


@pytest.mark.parametrize(("times", "found"), [(2, []), (3, ["seen"])])
def test_a_count_of_the_updates_in_sequence(times: int, found: Sequence[str]) -> None:
    graph = in_turn(count=[f"count_{i}" for i in range(times)])

    assert objects(whole(graph)) == found


@pytest.mark.parametrize(("waits", "found"), [(["^one"], []), ([], ["w"])])
def test_updates_in_sequence_without_a_gpu(waits: Sequence[str], found: Sequence[str]) -> None:
    graph = placement(
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

    assert objects(graph) == found


@pytest.mark.parametrize(
    ("graph", "consequence"),
    [
        (in_turn(waits=False), "2 unordered updates instead of one"),
        (in_turn(first=(0,)), "2 successive updates instead of one"),
    ],
    ids=["none waits", "the first takes one tower"],
)
def test_updates_that_are_no_sequence_of_all_towers(graph: Placement, consequence: str) -> None:
    (finding,) = OneUpdate().judge(graph).findings

    assert (finding.object, finding.consequence) == ("w", consequence)


@pytest.mark.parametrize(
    ("averages", "found"),
    [(["average_0", "average_1"], []), (["average_0"], ["count"])],
    ids=["as often as the average", "more often"],
)
def test_a_count_of_the_updates_of_an_average(
    averages: Sequence[str], found: Sequence[str]
) -> None:
    """Each tower updates an average without bias by its first value."""
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
    graph = program(
        variable("count", "VariableV2"),
        variable("average", "VariableV2"),
        host("decay", "Const"),
        *ops,
        host(
            "train", "NoOp", "^update/w", "^step/add", "^count_0", "^count_1",
            *(f"^{name}" for name in averages),
        ),
        shapes={"count": ()},
    )  # fmt: skip

    assert objects(graph) == found


def test_the_op_that_adds_to_a_counter_is_found() -> None:
    analysis = analyze(program(host("train", "NoOp", "^update/w")))

    found = separate_increment(analysis, "step")

    assert found is not None
    assert analysis.flow.names[found] == "step/add"
    assert separate_increment(analysis, "w") is None


def test_only_the_step_reads() -> None:
    analysis = analyze(program(host("shown", "ScalarSummary", "tag", "step")))

    assert is_read(analysis, "w")
    assert not is_read(analyze(program(host("train", "NoOp", "^update/w"))), "step")
