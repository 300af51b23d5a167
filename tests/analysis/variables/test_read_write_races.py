"""Reads and updates in no defined order: towers that train w, and averages of w."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from support.towers import gradient, host, on, program, variable

from placement_checks import Op
from placement_checks.analysis.variables.read_write_races import races

KINDS = ("VarHandleOp", "VariableV2")
both_kinds = pytest.mark.parametrize("kind", KINDS, ids=["resource", "reference"])


def found(*ops: Op, kind: str = "VarHandleOp", train: str = "^a/update") -> Mapping[str, str]:
    """The races of two towers that train a variable; the step also runs ``train``."""
    names = [name for name in train.split() if name]
    return races(
        program(
            *of_kind(kind, "w", *(f"tower_{i}/w/read" for i in range(2))),
            *ops,
            host("train", "NoOp", "^update/w", "^step/add", *names),
        )
    )


def of_kind(kind: str, name: str, *reads: str) -> Iterator[Op]:
    """A variable and the ops that read it, on towers if there are any."""
    yield variable(name, kind)
    for read in reads:
        yield reading(kind, name, read)


def reading(kind: str, name: str, read: str, *waits_for: str) -> Op:
    """An op that returns the value of a variable."""
    type = "Identity" if kind == "VariableV2" else "ReadVariableOp"
    if read.startswith("tower_"):
        return on(int(read[6]), read, type, name, *waits_for)
    return host(read, type, name, *waits_for)


def average(kind: str, of: str, name: str = "a", *waits_for: str, value: str = "") -> Iterator[Op]:
    """A moving average as TensorFlow builds it, with control inputs for all its ops."""
    yield from of_kind(kind, name, f"{name}/own")
    yield reading(kind, of, f"{name}/taken", *waits_for)
    yield host(f"{name}/sub", "Sub", f"{name}/own", value or f"{name}/taken", *waits_for)
    yield host(f"{name}/mul", "Mul", f"{name}/sub", "share", *waits_for)
    yield host(f"{name}/update", "AssignSub", name, f"{name}/mul", *waits_for)


@both_kinds
def test_averages_that_are_grouped_with_the_update(kind: str) -> None:
    assert found(*average(kind, "w"), kind=kind) == {"a": "w"}


@both_kinds
def test_averages_after_the_update(kind: str) -> None:
    assert found(*average(kind, "w", "a", "^update/w"), kind=kind) == {}


@both_kinds
@pytest.mark.parametrize("waits_for", ["^a/update", "^a/sub"])
def test_averages_before_the_update(kind: str, waits_for: str) -> None:
    update = host("update/w", "ApplyGradientDescent", "w", "share", "mean/w", waits_for)

    assert found(*average(kind, "w"), update, kind=kind) == {}


@pytest.mark.parametrize(("kind", "raced"), [*zip(KINDS, [{}, {"a": "w"}], strict=True)])
def test_the_consumers_of_a_reference_read_it(kind: str, raced: object) -> None:
    update = host("update/w", "ApplyGradientDescent", "w", "share", "mean/w", "^a/taken")

    assert found(*average(kind, "w"), update, kind=kind) == raced


@pytest.mark.parametrize(("kind", "raced"), [*zip(KINDS, [{"a": "w"}, {}], strict=True)])
def test_a_reference_that_is_read_after_the_update(kind: str, raced: object) -> None:
    """Under control_dependencies the variable still uses its first read op."""
    ordered = host("a/sub", "Sub", "a/own", "a/taken", "^update/w")

    assert found(*average(kind, "w"), ordered, kind=kind) == raced


@both_kinds
@pytest.mark.parametrize(
    "type", ["Identity", "StopGradient", "Reshape", "Merge", "Switch", "IdentityN"]
)
def test_a_value_that_is_passed_on(kind: str, type: str) -> None:
    """A reference is read after this op, so control inputs of this op have no effect."""
    passed_on = [
        reading(kind, "w", "w/first"),
        host("w/passed", type, "w/first"),
        host("w/again", type, "w/passed"),
    ]
    update = host("update/w", "ApplyGradientDescent", "w", "share", "mean/w", "^w/again")
    ops = [*passed_on, *average(kind, "w", value="w/again")]

    assert found(*ops, kind=kind) == {"a": "w"}
    assert found(*ops, update, kind=kind) == ({"a": "w"} if kind == "VariableV2" else {})


@both_kinds
@pytest.mark.parametrize("type", ["Transpose", "Mul"])
def test_a_value_that_is_computed_before_the_update(kind: str, type: str) -> None:
    computed = [reading(kind, "w", "w/first"), host("w/second", type, "w/first")]
    update = host("update/w", "ApplyGradientDescent", "w", "share", "mean/w", "^w/second")

    assert found(*computed, update, *average(kind, "w", value="w/second"), kind=kind) == {}


@both_kinds
def test_a_copy_that_is_assigned(kind: str) -> None:
    copy = [
        variable("a", kind),
        reading(kind, "w", "taken"),
        host("a/update", "Assign", "a", "taken"),
    ]

    assert found(*copy, kind=kind) == {"a": "w"}


@both_kinds
def test_values_computed_from_a_race_depend_on_it(kind: str) -> None:
    """Averages of averages, although these are ordered, and values computed with both."""
    again = average(kind, "a", "b", "^a/update")

    assert found(*average(kind, "w"), *again, kind=kind, train="^b/update") == {"a": "w", "b": "w"}
    assert found(*average(kind, "w", "a", "^update/w"), *again, kind=kind, train="^b/update") == {}


@both_kinds
def test_the_result_of_an_update_depends_on_the_race(kind: str) -> None:
    copy = [variable("b", kind), host("b/update", "Assign", "b", "a/update")]

    assert found(*average(kind, "w"), *copy, kind=kind, train="^b/update") == {"a": "w", "b": "w"}


@both_kinds
@pytest.mark.parametrize("taken", [("w/first", "a/own"), ("a/own", "w/first")])
def test_an_op_that_reads_two_variables(kind: str, taken: tuple[str, str]) -> None:
    both = [reading(kind, "w", "w/first"), host("a/sub", "Sub", *taken)]

    assert found(*average(kind, "w"), *both, kind=kind) == {"a": "w"}


@both_kinds
def test_averages_of_averages_in_no_order(kind: str) -> None:
    averages = [*average(kind, "w", "a", "^update/w"), *average(kind, "a", "b")]

    assert found(*averages, kind=kind, train="^a/update ^b/update") == {"b": "a"}


@both_kinds
def test_slots_and_powers_of_adam(kind: str) -> None:
    """The op that updates a variable updates its slots, and has read its inputs before."""
    slots = [op for name in ("m", "v", "power") for op in of_kind(kind, name, f"{name}/read")]
    update = host("update/w", "ApplyAdam", "w", "m", "v", "power/read", "share", "mean/w")
    powers = [
        host("power/next", "Mul", "power/read", "share", "^update/w"),
        host("power/update", "Assign", "power", "power/next"),
    ]

    assert found(*slots, update, *powers, kind=kind, train="^power/update") == {}


@both_kinds
def test_statistics_of_a_tower(kind: str) -> None:
    """They depend on w, and the gradient waits for them."""
    statistics = [
        *of_kind(kind, "a", "a/own"),
        on(0, "batch/mean", "Mean", "tower_0/w/MatMul"),
        host("a/sub", "Sub", "a/own", "batch/mean"),
        host("a/update", "AssignSub", "a", "a/sub"),
    ]
    hidden = on(0, gradient(0), "MatMul", "tower_0/x", "tower_0/w/MatMul")

    assert found(*statistics, hidden, kind=kind) == {}


@both_kinds
def test_the_average_of_a_loss_with_a_penalty(kind: str) -> None:
    """The gradient of the penalty depends on w, and not on the penalty."""
    penalty = [
        reading(kind, "w", "penalty/read"),
        host("penalty", "L2Loss", "penalty/read"),
        host("loss", "AddN", "tower_0/loss", "tower_1/loss", "penalty"),
    ]
    mean = [variable("a", kind), host("a/update", "AssignAdd", "a", "loss")]

    assert found(*mean, kind=kind) == {}
    assert found(*penalty, *mean, kind=kind) == {"a": "w"}


@both_kinds
@pytest.mark.parametrize(
    ("waits_for", "raced"), [((), {"w": "step"}), (("^update/w",), {})], ids=["grouped", "after"]
)
def test_a_rate_of_the_step_that_is_counted(
    kind: str, waits_for: tuple[str, ...], raced: object
) -> None:
    rate = [
        variable("step", kind),
        reading(kind, "step", "step/read"),
        host("rate/of_step", "Cast", "step/read"),
        host("update/w", "ApplyGradientDescent", "w", "rate/of_step", "mean/w"),
        host("step/add", "AssignAdd", "step", "step/one", *waits_for),
    ]

    assert found(*rate, kind=kind, train="") == raced


@both_kinds
def test_towers_that_update_each_by_itself(kind: str) -> None:
    """The mistake shows in the values."""
    updates = [
        host(f"update/w{i or ''}", "ApplyGradientDescent", "w", "share", gradient(i))
        for i in range(2)
    ]

    assert found(*updates, kind=kind, train="^update/w1") == {}


@both_kinds
@pytest.mark.parametrize("type", ["AssignAdd", "ScatterSub"])
def test_an_average_of_a_variable_with_two_updates(kind: str, type: str) -> None:
    """A read after one of the updates is ordered."""
    again = host("w/more", type, "w", "share", "^update/w")

    for waits_for, raced in (("^update/w", {}), ("^w/more", {}), ("^loss", {"a": "w"})):
        ops = [*average(kind, "w", "a", waits_for), again]
        assert found(*ops, kind=kind, train="^a/update ^w/more") == raced


@both_kinds
@pytest.mark.parametrize("type", ["Shape", "ZerosLike", "VarIsInitializedOp"])
def test_ops_that_do_not_read_a_value(kind: str, type: str) -> None:
    shape = host("a/shape", type, "w")

    assert found(*average(kind, "w", value="a/shape"), shape, kind=kind) == {}


@both_kinds
def test_ops_outside_the_step_and_variables_without_updates(kind: str) -> None:
    assert found(*average(kind, "w"), kind=kind, train="") == {}
    assert found(variable("u", kind), *average(kind, "u"), kind=kind) == {}


def test_an_unknown_step_has_no_races() -> None:
    ops = [
        *average("VarHandleOp", "w"),
        host("a/update", "ResourceApplyGradientDescent", "a", "share", "a/sub"),
    ]
    trains = ("train", "a/update")

    assert races(program(*ops, step={"train_op": (), "train_ops": trains})) == {}
    assert races(program(*ops, step={"train_op": trains})) == {"a": "w"}


@pytest.mark.parametrize(
    ("waits_for", "raced"), [((), {"a": "w"}), (("^update/w",), {})], ids=["grouped", "after"]
)
def test_averages_in_a_function(waits_for: tuple[str, ...], raced: object) -> None:
    body = [
        host(name, type, *inputs, caller="call")
        for name, type, *inputs in (
            ("call/taken", "ReadVariableOp", "w"),
            ("call/update", "AssignSubVariableOp", "a", "call/taken"),
        )
    ]
    call = host("call", "StatefulPartitionedCall", "w", "a", *waits_for)

    assert found(variable("a"), *body, call, train="^call") == raced


@pytest.mark.parametrize(
    ("waits_for", "raced"), [((), {"a": "w"}), (("^update/w",), {})], ids=["grouped", "after"]
)
def test_an_update_in_a_function(waits_for: tuple[str, ...], raced: object) -> None:
    """Passing the handle to a call is not a read."""
    update = [
        host("update/w", "StatefulPartitionedCall", "w", "mean/w"),
        host("update/w/add", "AssignAddVariableOp", "w", "mean/w", caller="update/w"),
    ]

    assert found(*average("VarHandleOp", "w", "a", *waits_for), *update) == raced
    assert found(*update, variable("a"), host("a/update", "Assign", "a", "update/w")) == {}


def test_a_handle_that_is_given_to_a_function_is_not_read() -> None:
    asked = [
        host("call", "StatefulPartitionedCall", "w"),
        host("call/shape", "VariableShape", "w", caller="call"),
    ]

    assert found(*asked, variable("a"), host("a/update", "Assign", "a", "call")) == {}
