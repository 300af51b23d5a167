from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from support.graphs import op, placement
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
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL
from placement_checks.rules.towers.names_portable import NamesPortable


def objects(graph: Evidence | Placement, **parameters: Any) -> list[str]:
    return objects_of(NamesPortable(**parameters), graph)


def read_in(variables: Sequence[str], *scopes: Sequence[str], **more: Any) -> Placement:
    """A tower on each GPU, which reads the variables in the scopes of one item of `scopes`."""
    ops = [variable(name) for name in variables]
    for i, names in enumerate(scopes):
        for name, scope in zip(variables, names, strict=True):
            ops += [
                on(i, f"{scope}/read_{i}", "ReadVariableOp", name),
                on(i, f"{scope}/MatMul_{i}", "MatMul", "x", f"{scope}/read_{i}"),
            ]
    return program(*ops, gpus=(), machine=f"gpu*{len(scopes)}", **more)


@pytest.mark.parametrize("count", [2, 3, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = NamesPortable().judge(program(gpus=range(count)))

    assert verdict == Verdict("names-portable", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


def test_broken(snapshot: SnapshotAssertion) -> None:
    graph = program(variables=["tower_0/w"], lines={"tower_0/w": "main.py:30 net.py:7"})

    verdict = NamesPortable().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="tower_0/w",
            op="VarHandleOp",
            evidence="requested",
            expected="a name without the scope of a tower",
            found="the scope of the tower on /device:GPU:0",
            frames=("main.py:30", "net.py:7"),
            at="net.py:7",
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_variables_of_every_tower(count: int) -> None:
    """Each tower has its own variable; variables-shared reports it too."""
    names = [f"tower_{i}/own" for i in range(count)]

    graph = program(*(variable(name) for name in names), gpus=range(count))

    assert objects(graph) == names


@pytest.mark.parametrize(
    "scopes",
    [
        ("tower_0", "tower_1"),
        ("clone_0", "clone_1"),
        ("gpu0", "gpu1"),
        ("GPU-0", "GPU-1"),
        ("replica_3", "replica_7"),
        ("0", "1"),
        ("model/tower_0", "model/tower_1"),
        ("model/tower_0/net", "model/tower_1/net"),
    ],
)
def test_scopes_of_every_name(scopes: tuple[str, str]) -> None:
    name = f"{scopes[0]}/w"

    assert objects(read_in([name], *([f"{scope}/w"] for scope in scopes))) == [name]


def test_the_scope_that_tensorflow_gives_a_second_tower() -> None:
    """clone and clone_1: only the second variable's scope has a number."""
    graph = read_in(["clone/w", "clone_1/w"], ["clone/w", "clone/v"], ["clone_1/w", "clone_1/v"])

    assert objects(graph) == ["clone_1/w"]


@pytest.mark.parametrize(
    ("variables", "scopes"),
    [
        pytest.param(["conv1/w"], (["tower_0/conv1"], ["tower_1/conv1"]), id="layers in towers"),
        pytest.param(["conv1/w"], (["conv1"], ["conv1_1"]), id="a layer that is built again"),
        pytest.param(
            ["conv1/w", "conv2/w"],
            (["conv1", "conv2"], ["conv1_1", "conv2_1"]),
            id="conv1 and conv2 of one model",
        ),
        pytest.param(
            ["fc/w", "fc_1/w"],
            (["fc", "fc_1"], ["fc_2", "fc_1_1"]),
            id="fc and fc_1 of one model, without scopes for towers",
        ),
        pytest.param(
            ["block_0/w", "block_1/w"],
            (["tower_0/block_0", "tower_0/block_1"], ["tower_1/block_0", "tower_1/block_1"]),
            id="numbered blocks in towers",
        ),
        pytest.param(
            ["stage_0/w"], (["stage_0"], ["stage_0"]), id="a scope that all towers share"
        ),
        pytest.param(
            ["stage_0/w", "v"],
            (["stage_0", "stage_1"], ["stage_0", "stage_2"]),
            id="a scope that all towers share next to one of each",
        ),
        pytest.param(
            ["model/tower_0/w"],
            (["model/tower_0"], ["tower_1"]),
            id="the other tower has a scope of that name elsewhere",
        ),
        pytest.param(["head/w"], (["head"], ["body"]), id="a name without a number"),
        pytest.param(["tower_0/w"], (["a"], ["b"]), id="no op is in the scope"),
        pytest.param(
            ["tower_0/w"], (["tower_0"], ["other"]), id="the other tower has no such scope"
        ),
        pytest.param(["tower_0"], (["tower_0"], ["tower_1"]), id="the variable itself"),
        pytest.param(["w/tower_0"], (["tower_0"], ["tower_1"]), id="the last part of the name"),
    ],
)
def test_silent(variables: Sequence[str], scopes: tuple[Sequence[str], Sequence[str]]) -> None:
    verdict = NamesPortable().judge(read_in(variables, *scopes))

    assert verdict.state == "kept"


def test_one_model_on_two_gpus_is_one_tower(snapshot: SnapshotAssertion) -> None:
    """Its numbered layers are on different GPUs."""
    graph = program(
        variable("layer_0/w"),
        variable("layer_1/w"),
        on(0, "layer_0/MatMul", "MatMul", "x", "layer_0/w"),
        on(1, "layer_1/MatMul", "MatMul", "layer_0/MatMul", "layer_1/w"),
        gpus=(),
        machine="gpu*2",
    )

    verdict = NamesPortable().judge(graph)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_ops_of_the_host_in_a_towers_scope_are_not_the_towers() -> None:
    graph = program(
        variable("batch_0/w"),
        *(host(f"batch_{i}/cut", "Slice", "images") for i in (0, 1)),
    )

    assert objects(graph) == []


def test_the_gradients_of_a_tower_are_in_no_scope_of_it() -> None:
    """The scopes gradients and gradients_1 contain no variables."""
    graph = program(
        variable("gradients_1/w"),
        *(
            on(i, f"gradients_{i}/tower_{i}/w/MatMul_grad/MatMul_1", "MatMul", f"tower_{i}/x")
            for i in (0, 1)
        ),
    )

    assert objects(graph) == []


def test_slots_are_not_reported_separately(snapshot: SnapshotAssertion) -> None:
    graph = program(
        variable("tower_0/w/Adam"), variable("tower_0/w/Adam_1"), variables=["tower_0/w"]
    )

    verdict = NamesPortable().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["tower_0/w"]
    assert messages(verdict) == snapshot


def test_every_variable_in_a_towers_scope_is_a_finding() -> None:
    names = ["tower_0/conv/w", "tower_0/conv/b", "tower_0/fc/w", "shared/w"]

    assert objects(program(variables=names)) == names[:3]


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), ["tower_0/a", "tower_0/b"]),
        (("tower_0/a",), ["tower_0/b"]),
        (("tower_*",), []),
        (("Tower_*", "a"), ["tower_0/a", "tower_0/b"]),
    ],
)
def test_variables_that_are_named_so_on_purpose(allow: Sequence[str], left: Sequence[str]) -> None:
    assert objects(program(variables=["tower_0/a", "tower_0/b"]), allow=allow) == left


def test_a_slot_of_a_variable_that_is_kept_is_kept_by_its_own_name() -> None:
    graph = program(variable("tower_0/w/Adam"), variables=["tower_0/w"])

    assert objects(graph, allow=("tower_0/w",)) == ["tower_0/w/Adam"]
    assert objects(graph, allow=("tower_0/w", "tower_0/w/*")) == []


def test_needs_no_placer_and_no_train_op() -> None:
    graph = program(
        variables=["tower_0/w"], placer=None, assigned=Missing("no wheel"), step={"train_op": ()}
    )

    assert objects(graph) == ["tower_0/w"]


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert NamesPortable().judge(graph) == Verdict("names-portable", "not-checked", None, reason)


# With a reference.


def reference(
    *ops: Op, variables: Sequence[str] = ("w",), saved: Sequence[str] | None = None, **more: Any
) -> Placement:
    """The program for one GPU: its variables, and the names that it saves."""
    collections = {} if saved is None else {"variables": saved}
    return program(
        *ops,
        gpus=[0],
        variables=variables,
        program="train.py:single",
        collections=collections,
        **more,
    )


def beside(other: Placement, *ops: Op, trained: Sequence[str] = (), **more: Any) -> Evidence:
    collections = {"trainable_variables": trained}
    return Evidence(program(*ops, collections=collections, **more), reference=other)


@pytest.mark.parametrize("gpus", [(0,), (0, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize("saved", [None, (), ("w", "step")])
def test_named_as_in_the_reference(
    gpus: Sequence[int], saved: Sequence[str] | None, snapshot: SnapshotAssertion
) -> None:
    graph = beside(reference(saved=saved), gpus=gpus, trained=["w"])

    verdict = NamesPortable().judge(graph)

    assert verdict == Verdict("names-portable", "kept", "requested", findings=[], note=ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True)])
def test_checkpoints_of_objects_do_not_ask_for_names(here: bool, there: bool) -> None:
    """Optimizers of Keras 2 use other slot names under a strategy."""
    other = reference(variables=["fc/weights"], step={"traced": there})
    graph = beside(other, variables=["weights"], step={"traced": here})

    assert NamesPortable().judge(graph).state == ("kept" if here and there else "broken")


def test_a_name_that_the_towers_do_not_have(snapshot: SnapshotAssertion) -> None:
    other = reference(
        variables=["fc/weights"], lines={"fc/weights": "single.py:3 net.py:9", "w": "x.py:1"}
    )
    graph = beside(other, variables=["model/weights"])

    verdict = NamesPortable().judge(graph)

    assert verdict.state == "broken"
    assert verdict.findings == [
        Finding(
            object="fc/weights",
            op="VarHandleOp",
            evidence="requested",
            expected="the name fc/weights",
            found="model/weights",
            frames=("single.py:3", "net.py:9"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_a_missing_name_without_similar_names() -> None:
    (finding,) = NamesPortable().judge(beside(reference(variables=["fc"]))).findings

    assert (finding.object, finding.found) == ("fc", "no such variable")


def test_a_similar_name_that_the_reference_has_too_is_another_variable() -> None:
    (finding,) = NamesPortable().judge(beside(reference(variables=["w", "w1"]))).findings

    assert (finding.object, finding.found) == ("w1", "no such variable")


def test_a_name_that_the_reference_does_not_have(snapshot: SnapshotAssertion) -> None:
    other = reference(lines={"w": "single.py:3"})
    graph = beside(
        other, variables=["w", "v"], trained=["v", "w"], lines={"v": "main.py:8 net.py:2"}
    )

    (finding,) = NamesPortable().judge(graph).findings

    assert finding == Finding(
        object="v",
        op="VarHandleOp",
        evidence="requested",
        expected="a name that train.py:single has",
        found="v",
        frames=("main.py:8", "net.py:2"),
        message=ANY,
        consequence=ANY,
        fix=ANY,
    )
    assert messages(finding) == snapshot


def test_untrained_variables_need_not_be_in_the_reference() -> None:
    """Queues, counters of towers, moving averages: the reference need not have them."""
    assert objects(beside(reference(), variables=["w", "v"], trained=["w"])) == []


def test_broken_by_another_shape(snapshot: SnapshotAssertion) -> None:
    other = reference(shapes={"w": (3, 4)})
    graph = beside(other, shapes={"w": (4, 3)}, lines={"w": "main.py:8"})

    (finding,) = NamesPortable().judge(graph).findings

    assert finding == Finding(
        object="w",
        op="VarHandleOp",
        evidence="requested",
        expected="(3, 4)",
        found="(4, 3)",
        frames=("main.py:8",),
        message=ANY,
        consequence=ANY,
        fix=ANY,
    )
    assert messages(finding) == snapshot


def test_another_shape_counts_whether_it_is_saved_or_not() -> None:
    graph = beside(reference(shapes={"w": (3, 4)}, saved=["step"]))

    assert objects(graph) == ["w"]


def test_only_saved_variables_of_the_reference_are_expected() -> None:
    variables = ["w", "local/total", "fc"]

    assert objects(beside(reference(variables=variables, saved=["w", "fc"]))) == ["fc"]
    assert objects(beside(reference(variables=variables))) == ["local/total", "fc"]


def test_slots_of_missing_variables_are_not_reported_separately() -> None:
    other = reference(variable("fc/Adam"), variable("w/Adam"), variables=["w", "fc"])

    assert objects(beside(other)) == ["fc", "w/Adam"]


def test_variables_of_the_reference_that_are_kept() -> None:
    graph = beside(
        reference(variables=["old/a", "w"], shapes={"w": (1,)}),
        variables=["w", "v"],
        trained=["v"],
    )

    assert objects(graph) == ["old/a", "w", "v"]
    assert objects(graph, allow=("old/*",)) == ["w", "v"]
    assert objects(graph, allow=("old/a", "v")) == ["w"]
    assert objects(graph, allow=("?", "old/?")) == []


def test_a_tower_in_a_name_comes_before_a_name_that_the_reference_lacks(
    snapshot: SnapshotAssertion,
) -> None:
    """There is one finding per variable, and one for the missing name."""
    graph = beside(reference(), variables=["tower_0/w"], trained=["tower_0/w"])

    verdict = NamesPortable().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["tower_0/w", "w"]
    assert messages(verdict) == snapshot


def test_one_tower_is_judged_by_the_reference() -> None:
    graph = beside(reference(variables=["fc"]), gpus=[0], variables=["tower_0/w"])

    assert objects(graph) == ["fc"]


def test_many_missing_names_are_a_finding_each() -> None:
    names = [f"layer_{n}/w" for n in range(12)]

    assert objects(beside(reference(variables=names), variables=["x"])) == names


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (None, (3, 4), []),
        ((3, 4), None, []),
        ((None, 4), (3, 4), []),
        ((3, 4), (3, None), []),
        ((3, 4), (3, 5), ["w"]),
        ((None, 4), (3, 5), ["w"]),
        ((3, 4), (3,), ["w"]),
        ((3,), (3, 4), ["w"]),
    ],
)
def test_an_unknown_dimension_equals_any(
    ours: Sequence[int | None] | None, theirs: Sequence[int | None] | None, found: Sequence[str]
) -> None:
    assert objects(beside(reference(shapes={"w": theirs}), shapes={"w": ours})) == found


def test_a_variable_named_after_a_tower_that_is_not_there_is_no_towers() -> None:
    """It was restored from a program with more towers, and all towers read it."""
    assert objects(read_in(["tower_9/w"], ["tower_0"], ["tower_1"])) == []


def test_scopes_of_towers_may_be_nested_deeply() -> None:
    name = "net/a/tower_1/w"

    assert objects(read_in([name], ["net/a/tower_0"], ["net/a/tower_1"])) == [name]
    assert objects(read_in([name], ["net/b/tower_0"], ["net/a/tower_1"])) == []


def test_not_checked_where_there_is_no_variable_to_name() -> None:
    nothing = placement(host("a", "NoOp"))

    verdict = NamesPortable().judge(Evidence(nothing, reference=nothing))

    assert (verdict.state, verdict.reason) == (
        "not-checked",
        "neither the graph nor its reference has variables",
    )


def test_the_line_and_the_fix_of_get_variable_are_the_scopes(snapshot: SnapshotAssertion) -> None:
    """Any scope renames a tf.Variable, and the line to edit creates it."""
    graph = program(
        op("tower_0/w/Initializer/zeros", "Const"),
        variables=["tower_0/w", "tower_0/b"],
        lines={
            "tower_0/w": "main.py:20 net.py:7",
            "tower_0/b": "main.py:20 net.py:8",
            "loss": "main.py:30",
        },
    )

    one, other = NamesPortable().judge(graph).findings

    assert (one.where, other.where) == ("main.py:20", "net.py:8")
    assert one.alike != other.alike
    assert messages(one) == snapshot


def test_variables_of_all_towers_are_alike() -> None:
    names = ["tower_0/w", "tower_0/b"]

    assert (
        len(
            {finding.alike for finding in NamesPortable().judge(program(variables=names)).findings}
        )
        == 1
    )


# Mirrored variables, and local ones.


@pytest.mark.parametrize("count", [2, 4])
def test_copies_are_named_after_towers(count: int) -> None:
    copies = [on(i, f"v{i}/w/read", "ReadVariableOp", f"v{i}/w") for i in range(count)]
    reads = [on(i, f"v{i}/MatMul", "MatMul", f"v{i}/w/read") for i in range(count)]

    assert objects(program(*copies, *reads, mirrored=True, gpus=range(count))) == []


def test_local_variables_are_in_no_checkpoint() -> None:
    names = [f"tower_{i}/images" for i in (0, 1)]
    scopes = [[f"tower_{i}"] * 2 for i in (0, 1)]

    assert objects(read_in(names, *scopes)) == names
    assert objects(read_in(names, *scopes, collections={GLOBAL: ["w"]})) == []
    assert objects(read_in(names, *scopes, collections={GLOBAL: names})) == names


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        (["v0/w"], []),
        (["v1/w"], []),
        (["w"], ["w", "v0/w"]),
    ],
)
def test_with_a_reference_one_copy_counts(theirs: Sequence[str], found: Sequence[str]) -> None:
    graph = beside(reference(variables=theirs), mirrored=True, trained=["v0/w", "v1/w"])

    assert objects(graph) == found
