from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from support.snapshots import messages
from support.towers import gradient, host, on, program, variable, without_two_towers
from syrupy.assertion import SnapshotAssertion

from placement_checks import Op, Placement, Verdict
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.rules.towers.gradients_averaged import GradientsAveraged

_LINES = {
    "sum/w": "train.py:30",
    "mean/w": "train.py:31",
    **{f"tower_{i}/penalty": f"train.py:{10 + i}" for i in range(4)},
}


def towers(
    count: int,
    share: float,
    *changes: Op,
    values: dict[str, Any] | None = None,
    variables: Sequence[str] = ("w",),
    **more: Any,
) -> Placement:
    """Towers. Their gradients are added up and multiplied by a share."""
    taken = {name: [gradient(i, name) for i in range(count)] for name in variables}
    losses = {f"tower_{i}/loss:0": [gradient(i, name) for name in variables] for i in range(count)}
    return program(
        *changes,
        gpus=range(count),
        variables=variables,
        values={"share": share, **(values or {})},
        step={"gradients": losses, "gradients_by_variable": taken},
        lines=_LINES,
        **more,
    )


def judge(many: Placement, one: Placement | Missing | None = None, **fields: Any) -> Verdict:
    """The verdict on a program; the program for one GPU takes the gradient as it is."""
    single = towers(1, 1.0) if one is None else one
    return GradientsAveraged(**fields).judge(Evidence(many, single_gpu=single))


@pytest.mark.parametrize("count", [2, 3, 12])
def test_a_mean_is_kept(count: int) -> None:
    verdict = judge(towers(count, 1 / count))

    assert verdict.state == "kept"
    assert verdict.note == "1 variable; holds only if all towers have equally many rows"


def test_a_sum_is_broken(snapshot: SnapshotAssertion) -> None:
    verdict = judge(towers(4, 1.0))

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert messages(verdict) == snapshot


def test_a_mean_that_is_divided_again_is_broken(snapshot: SnapshotAssertion) -> None:
    assert messages(judge(towers(2, 0.25))) == snapshot


def test_another_factor_is_broken(snapshot: SnapshotAssertion) -> None:
    assert messages(judge(towers(2, 64.0))) == snapshot


def test_a_declared_scale_is_kept() -> None:
    assert judge(towers(2, 1.0), scale=2.0).state == "kept"
    assert judge(towers(2, 0.5), scale=2.0).state == "broken"


def test_allowed_variables_are_not_judged() -> None:
    assert judge(towers(2, 1.0), allow=("w",)).state == "not-checked"


def test_a_sum_over_rows_is_added_up() -> None:
    many = towers(
        2, 1.0, *(on(i, f"tower_{i}/loss", "Sum", f"tower_{i}/w/MatMul") for i in (0, 1))
    )
    one = towers(1, 1.0, on(0, "tower_0/loss", "Sum", "tower_0/w/MatMul"))

    assert judge(many, one).state == "kept"


@pytest.mark.parametrize(
    ("rows", "state"), [((8, 16), "broken"), ((8, 8), "kept"), ((None, None), "not-checked")]
)
def test_the_mean_of_sums_depends_on_the_number_of_rows(
    rows: tuple[int | None, int | None], state: str
) -> None:
    """Towers split the rows of one GPU, or have as many rows each, or the number is unknown."""
    many = towers(
        2, 0.5, *(on(i, f"tower_{i}/loss", "Sum", f"tower_{i}/w/MatMul") for i in (0, 1))
    )
    one = towers(1, 1.0, on(0, "tower_0/loss", "Sum", "tower_0/w/MatMul"))
    sums: dict[str, tuple[int | None, ...]] = {f"tower_{i}/loss": () for i in (0, 1)}
    for graph, number in ((many, rows[0]), (one, rows[1])):
        shapes = {f"tower_{i}/w/MatMul": (number,) for i in (0, 1)}
        _with_outputs(graph, {**sums, **shapes})

    verdict = judge(many, one)

    assert verdict.state == state
    if state == "broken":
        assert "counts 0.5 times" in verdict.findings[0].message


@pytest.mark.parametrize(("scale", "state"), [(None, "kept"), (0.125, "broken")])
def test_a_sum_over_the_fixed_rows_of_each_gpu_is_added_up(
    scale: float | None, state: str
) -> None:
    """A sum that is divided by its number of rows is a mean, which the towers must average."""

    def summed(count: int) -> Placement:
        ops = [on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul") for i in range(count)]
        ops += [
            on(i, f"tower_{i}/loss", "Identity", f"tower_{i}/sum")
            if scale is None
            else on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/sum", "scale")
            for i in range(count)
        ]
        outputs: dict[str, tuple[int | None, ...]] = {"scale": ()}
        for i in range(count):
            outputs |= {f"tower_{i}/w/MatMul": (8,), f"tower_{i}/sum": (), f"tower_{i}/loss": ()}
        values = {} if scale is None else {"scale": scale}
        return towers(count, 1.0, host("scale", "Const"), *ops, values=values, outputs=outputs)

    assert judge(summed(2), summed(1)).state == state


@pytest.mark.parametrize(("share", "state"), [(0.5, "kept"), (1.0, "broken")])
def test_half_the_sum_of_squares_over_a_static_number_of_rows_is_a_mean(
    share: float, state: str
) -> None:
    def squares(count: int, rows: int) -> dict[str, Any]:
        sums = [on(i, f"tower_{i}/sum", "L2Loss", f"tower_{i}/w/MatMul") for i in range(count)]
        losses = [
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "rows") for i in range(count)
        ]
        shapes = {f"tower_{i}/w/MatMul": (rows, 4) for i in range(count)}
        results = {f"tower_{i}/{name}": () for i in range(count) for name in ("sum", "loss")}
        return {
            "changes": [*sums, *losses, host("rows", "Const")],
            "outputs": {**shapes, **results},
            "values": {"rows": float(rows)},
        }

    def build(count: int, share: float, rows: int) -> Placement:
        made = squares(count, rows)
        changes = made.pop("changes")
        return towers(count, share, *changes, **made)

    assert judge(build(2, share, 8), build(1, 1.0, 16)).state == state


@pytest.mark.parametrize(("share", "state"), [(0.5, "not-checked"), (1.0, "broken")])
def test_the_coefficients_of_a_function_of_means(share: float, state: str) -> None:
    """The mean of the towers' roots is not the root of the mean, but the factor must be right."""

    def rooted(count: int, share: float) -> Placement:
        ops: list[Op] = []
        outputs: dict[str, tuple[int | None, ...]] = {}
        for i in range(count):
            ops += [
                on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
                on(i, f"tower_{i}/loss", "Sqrt", f"tower_{i}/mean"),
            ]
            outputs |= {f"tower_{i}/mean": (), f"tower_{i}/loss": ()}
        return towers(count, share, *ops, outputs=outputs)

    verdict = judge(rooted(2, share), rooted(1, 1.0))

    assert verdict.state == state
    if state == "broken":
        assert "counts 2 times" in verdict.findings[0].message
    else:
        assert "tower_0/loss is a function of means" in (verdict.reason or "")


@pytest.mark.parametrize("kind", ["Sum", "L2Loss", "Einsum"])
@pytest.mark.parametrize("rows", [8, 16])
def test_any_sum_over_a_static_number_of_rows_is_added_up(kind: str, rows: int) -> None:
    """Towers split the rows of one GPU, or each tower has as many rows as one GPU."""

    def summed(count: int, rows: int, share: float) -> Placement:
        sums = (
            on(i, f"tower_{i}/loss", kind, f"tower_{i}/w/MatMul", f"tower_{i}/w/MatMul")
            for i in range(count)
        )
        shapes: dict[str, tuple[int | None, ...]] = {
            **{f"tower_{i}/w/MatMul": (rows, 4) for i in range(count)},
            **{f"tower_{i}/loss": () for i in range(count)},
        }
        return towers(count, share, *sums, outputs=shapes)

    assert judge(summed(2, 8, 1.0), summed(1, rows, 1.0)).state == "kept"
    assert judge(summed(2, 8, 0.25), summed(1, rows, 1.0)).state == "broken"


def test_a_sum_times_a_constant_is_not_checked() -> None:
    """The constant may be the number of rows of a tower, or of all towers."""

    def scaled(count: int) -> list[Op]:
        losses = [on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/sum", "scale") for i in range(count)]
        sums = [on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul") for i in range(count)]
        return [*losses, *sums, host("scale", "Const")]

    values = {"scale": 0.125}

    verdict = judge(
        towers(2, 1.0, *scaled(2), values=values), towers(1, 1.0, *scaled(1), values=values)
    )

    assert verdict.state == "not-checked"
    assert "which the graph does not state" in (verdict.reason or "")


@pytest.mark.parametrize(("share", "state"), [(1.0, "kept"), (0.5, "broken")])
def test_sums_divided_by_the_rows_of_all_towers_are_added_up(share: float, state: str) -> None:
    def dividing(count: int) -> list[Op]:
        losses = [
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "rows") for i in range(count)
        ]
        sums = [on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul") for i in range(count)]
        shape = [host("all", "Placeholder"), host("rows", "Shape", "all")]
        return [*shape, *losses, *sums]

    assert judge(towers(2, share, *dividing(2)), towers(1, 1.0, *dividing(1))).state == state


def test_sums_divided_by_the_rows_of_the_same_part_are_not_compared() -> None:
    """The towers read one part by mistake, or the part is as large as the part of each tower."""

    def dividing(count: int) -> list[Op]:
        losses = [
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "rows") for i in range(count)
        ]
        sums = [on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul") for i in range(count)]
        shape = [host("all", "Placeholder"), host("part", "Split", "axis", "all")]
        return [*shape, host("rows", "Shape", "part"), *losses, *sums]

    verdict = judge(towers(2, 0.5, *dividing(2)), towers(1, 1.0, *dividing(1)))

    assert verdict.state == "not-checked"
    assert "counts rows of a part of the batch" in (verdict.reason or "")


def divided_by_present(count: int, weight: float | None, rows: int | None) -> Placement:
    """Towers that divide their loss by the number of rows with a weight, as tf.losses does.

    The weight of all rows is a constant, or None if it is fed.
    """
    ops: list[Op] = [host("zero", "Const")]
    outputs: dict[str, tuple[int | None, ...]] = {}
    for i in range(count):
        ops += [
            host(f"weight_{i}", "Placeholder" if weight is None else "Const"),
            on(i, f"absent_{i}", "Equal", f"weight_{i}", "zero"),
            on(i, f"zeros_{i}", "ZerosLike", f"weight_{i}"),
            on(i, f"ones_{i}", "OnesLike", f"weight_{i}"),
            on(i, f"present_{i}", "Select", f"absent_{i}", f"zeros_{i}", f"ones_{i}"),
            on(i, f"shape_{i}", "Shape", f"tower_{i}/w/MatMul"),
            on(i, f"filled_{i}", "Fill", f"shape_{i}", "one"),
            on(i, f"product_{i}", "Mul", f"present_{i}", f"filled_{i}"),
            on(i, f"count_{i}", "Sum", f"product_{i}"),
            on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "DivNoNan", f"tower_{i}/sum", f"count_{i}"),
        ]
        outputs |= {f"tower_{i}/w/MatMul": (rows,), f"product_{i}": (rows,), f"count_{i}": ()}
        outputs |= {f"tower_{i}/sum": (), f"tower_{i}/loss": ()}
    ops.append(host("one", "Const"))
    known = {} if weight is None else {f"weight_{i}": weight for i in range(count)}
    values = {"zero": 0.0, "one": 1.0, **known}
    return towers(count, 1 / count, *ops, values=values, outputs=outputs)


@pytest.mark.parametrize("rows", [8, None])
def test_a_loss_that_is_divided_by_the_number_of_its_rows_is_a_mean(rows: int | None) -> None:
    one = divided_by_present(1, 1.0, rows and 2 * rows)

    assert judge(divided_by_present(2, 1.0, rows), one).state == "kept"


def test_a_loss_that_is_divided_by_the_number_of_rows_with_a_fed_weight_is_not_checked() -> None:
    verdict = judge(divided_by_present(2, None, 8), divided_by_present(1, None, 16))

    assert verdict.state == "not-checked"
    assert "count_0 counts rows of one tower and divides its loss" in (verdict.reason or "")


ROWS_OF_SHAPE: dict[str, list[Op]] = {
    "indexed": [host("rows_{i}", "StridedSlice", "shape_{i}", "zeros", "ones", "ones")],
    "unstacked": [host("rows_{i}", "Unpack", "shape_{i}")],
    "gathered": [host("rows_{i}", "GatherV2", "shape_{i}", "zero", "zero")],
    "at least one": [
        host("size_{i}", "GatherV2", "shape_{i}", "zero", "zero"),
        host("rows_{i}", "Maximum", "size_{i}", "one"),
    ],
    "product": [
        host("sizes_{i}", "StridedSlice", "shape_{i}", "zeros", "ones", "ones"),
        host("rows_{i}", "Prod", "sizes_{i}", "zeros"),
    ],
    "sum of halves": [
        host("size_{i}", "GatherV2", "shape_{i}", "zero", "zero"),
        host("half_{i}", "FloorDiv", "size_{i}", "two"),
        host("rest_{i}", "Sub", "size_{i}", "half_{i}"),
        host("rows_{i}", "AddV2", "half_{i}", "rest_{i}"),
    ],
}


def divided_by_shape(count: int, share: float, rows: int, ops: Sequence[Op]) -> Placement:
    """Towers that divide a sum by their number of rows, an element of a constant shape."""
    of_towers = [
        each._replace(
            name=each.name.format(i=i), inputs=tuple(name.format(i=i) for name in each.inputs)
        )
        for i in range(count)
        for each in ops
    ]
    outputs: dict[str, tuple[int | None, ...]] = {}
    for i in range(count):
        of_towers += [
            host(f"shape_{i}", "Const"),
            on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", f"rows_{i}"),
        ]
        outputs |= {f"tower_{i}/w/MatMul": (rows, 1), f"tower_{i}/sum": ()}
        outputs |= {f"{name}_{i}": () for name in ("rows", "size", "half", "rest")}
    constants = {"zero": 0, "one": 1, "two": 2, "zeros": (0,), "ones": (1,)}
    of_towers += [host(name, "Const") for name in constants]
    shapes = {f"shape_{i}": (rows, 1) for i in range(count)}
    values: dict[str, Any] = {**constants, **shapes}
    return towers(count, share, *of_towers, values=values, outputs=outputs)


@pytest.mark.parametrize("rows", ROWS_OF_SHAPE)
@pytest.mark.parametrize(("share", "state"), [(0.5, "kept"), (1.0, "broken")])
def test_a_sum_that_is_divided_by_a_static_size_is_a_mean(
    rows: str, share: float, state: str
) -> None:
    many = divided_by_shape(2, share, 8, ROWS_OF_SHAPE[rows])
    one = divided_by_shape(1, 1.0, 16, ROWS_OF_SHAPE[rows])

    assert judge(many, one).state == state


def test_a_sum_that_is_divided_by_an_unknown_constant_is_not_compared() -> None:
    root = [
        host("size_{i}", "GatherV2", "shape_{i}", "zero", "zero"),
        host("rows_{i}", "Sqrt", "size_{i}"),
    ]

    verdict = judge(divided_by_shape(2, 0.5, 8, root), divided_by_shape(1, 1.0, 16, root))

    assert verdict.state == "not-checked"
    assert "a factor of its gradients is not the same as on one GPU" in (verdict.reason or "")


def test_terms_with_different_factors_are_broken(snapshot: SnapshotAssertion) -> None:
    def auxiliary(i: int, name: str) -> Iterator[Op]:
        yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/square", "Square", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/auxiliary", "Mean", f"tower_{i}/square")
        yield on(i, f"tower_{i}/part", "Mul", f"tower_{i}/auxiliary", name)
        yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/part")
        yield host(name, "Const")

    many = towers(2, 0.5, *auxiliary(0, "a"), *auxiliary(1, "a"), values={"a": 0.8})
    one = towers(1, 1.0, *auxiliary(0, "a"), values={"a": 0.4})

    assert messages(judge(many, one)) == snapshot


def test_a_term_that_one_tower_multiplies_is_named() -> None:
    def auxiliary(i: int, weight: str) -> Iterator[Op]:
        yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/square", "Square", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/auxiliary", "Mean", f"tower_{i}/square")
        yield on(i, f"tower_{i}/part", "Mul", f"tower_{i}/auxiliary", weight)
        yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/part")
        yield host(weight, "Const")

    many = towers(2, 0.5, *auxiliary(0, "a"), *auxiliary(1, "b"), values={"a": 0.1, "b": 0.4})
    one = towers(1, 1.0, *auxiliary(0, "a"), values={"a": 0.1})

    (finding,) = judge(many, one).findings

    assert finding.found == "4 for tower_1/auxiliary and 1 for tower_1/mean"


def divided_by_mask(count: int, share: float, reduction: str = "Sum") -> Placement:
    """Towers that divide a sum over their rows by a number that they compute from a mask."""
    ops: list[Op] = []
    for i in range(count):
        ops += [
            on(i, f"tower_{i}/mask", "Placeholder"),
            on(i, f"tower_{i}/present", reduction, f"tower_{i}/mask"),
            on(i, f"tower_{i}/count", "Maximum", f"tower_{i}/present", "one"),
            on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", f"tower_{i}/count"),
        ]
    names = ("present", "count", "sum", "loss")
    outputs: dict[str, tuple[int | None, ...]] = {
        f"tower_{i}/{name}": () for i in range(count) for name in names
    }
    outputs |= {f"tower_{i}/{name}": (8, 4) for i in range(count) for name in ("mask", "w/MatMul")}
    return towers(count, share, *ops, host("one", "Const"), values={"one": 1.0}, outputs=outputs)


def test_means_over_the_present_rows_of_each_tower_may_differ_from_one_gpu() -> None:
    verdict = judge(divided_by_mask(2, 0.5), divided_by_mask(1, 1.0))

    assert (verdict.state, verdict.reason) == (
        "not-checked",
        "w was not compared: tower_0/count counts rows of one tower and divides its loss, so that "
        "rows count more in towers with fewer of them",
    )


def test_a_sum_of_means_over_the_present_rows_of_each_tower_is_broken() -> None:
    (finding,) = judge(divided_by_mask(2, 1.0), divided_by_mask(1, 1.0)).findings

    assert "the loss counts 2 times in the update of w" in finding.message


@pytest.mark.parametrize("reduction", ["Mean", "Max"])
def test_a_sum_that_is_divided_by_another_number_of_the_rows_is_not_read(reduction: str) -> None:
    many, one = (divided_by_mask(count, 1.0, reduction) for count in (2, 1))

    verdict = judge(many, one)

    assert verdict.state == "not-checked"
    assert "tower_0/count multiplies only some terms of the loss" in (verdict.reason or "")


def test_a_number_of_rows_of_one_part_that_divides_all_losses_is_not_read() -> None:
    def divided(count: int, mask: Op) -> Placement:
        ops = [mask, host("all", "Placeholder"), host("count", "Sum", "mask")]
        outputs: dict[str, tuple[int | None, ...]] = {"all": (16, 4), "mask": (8, 4), "count": ()}
        for i in range(count):
            ops += [
                on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul"),
                on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "count"),
            ]
            outputs |= {f"tower_{i}/sum": (), f"tower_{i}/loss": ()}
        return towers(count, 1.0, *ops, outputs=outputs)

    of_all, of_part = host("mask", "Relu", "all"), host("mask", "Split", "axis", "all")

    assert judge(divided(2, of_all), divided(1, of_all)).state == "kept"
    verdict = judge(divided(2, of_part), divided(1, of_part))
    assert verdict.state == "not-checked"
    assert "count counts rows of a part of the batch" in (verdict.reason or "")


def weighted_task(towers: Sequence[int], weight: Op, *changes: Op) -> Iterator[Op]:
    """In each tower a mean, and another one that is multiplied by the square of a weight."""
    for i in towers:
        yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/square", "Square", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/task", "Mean", f"tower_{i}/square")
        yield on(i, f"tower_{i}/weight", "Square", weight.name)
        yield on(i, f"tower_{i}/part", "Mul", f"tower_{i}/task", f"tower_{i}/weight")
        yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/part")
    yield weight
    yield from changes


WEIGHTS = {
    "learned": [host("annealed", "ReadVariableOp", "s"), variable("s")],
    "annealed": [host("annealed", "ReadVariableOp", "step")],
    "fed": [host("annealed", "Placeholder")],
}
SCALAR = {"annealed": (), **{f"tower_{i}/weight": () for i in (0, 1)}}


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize(("share", "state"), [(0.5, "kept"), (1.0, "broken")])
def test_a_task_with_a_weight_that_is_no_constant(weight: str, share: float, state: str) -> None:
    many = towers(2, share, *weighted_task([0, 1], *WEIGHTS[weight]), outputs=SCALAR)
    one = towers(1, 1.0, *weighted_task([0], *WEIGHTS[weight]), outputs=SCALAR)

    assert judge(many, one).state == state


def test_another_weight_of_a_task_is_not_compared() -> None:
    many = towers(2, 0.5, *weighted_task([0, 1], *WEIGHTS["annealed"]), outputs=SCALAR)
    one = towers(1, 1.0, *weighted_task([0], *WEIGHTS["learned"]), outputs=SCALAR)

    verdict = judge(many, one)

    assert verdict.state == "not-checked"
    assert verdict.reason == "w was not compared: the loss has other terms than on one GPU"


def test_a_random_weight_of_a_task_is_not_compared() -> None:
    random = host("annealed", "RandomUniform")
    many = towers(2, 0.5, *weighted_task([0, 1], random), outputs=SCALAR)
    one = towers(1, 1.0, *weighted_task([0], random), outputs=SCALAR)

    verdict = judge(many, one)

    assert verdict.state == "not-checked"
    assert "multiplies only some terms of the loss, and is not a constant" in (
        verdict.reason or ""
    )


def test_a_divided_learning_rate_compensates_for_a_sum() -> None:
    rates = {"rate": 0.05}
    many = towers(2, 1.0, host("rate", "Const"), values=rates)
    one = towers(1, 1.0, host("rate", "Const"), values={"rate": 0.1})

    verdict = judge(many, one)

    assert verdict.state == "kept"
    assert "all gradients are 2 times as large as on one GPU" in (verdict.note or "")


def test_another_learning_rate_does_not_compensate() -> None:
    many = towers(2, 1.0, host("rate", "Const"), values={"rate": 0.1})
    one = towers(1, 1.0, host("rate", "Const"), values={"rate": 0.1})

    assert judge(many, one).state == "broken"


def penalized(towers: Sequence[int]) -> Iterator[Op]:
    """A loss with a penalty on w in each of the towers."""
    for i in towers:
        yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read")
        yield on(i, f"tower_{i}/penalty", "Mul", f"tower_{i}/l2", "decay")
        yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/penalty")
    yield host("decay", "Const")


def test_averaged_penalties_are_kept() -> None:
    one = towers(1, 1.0, *penalized([0]), values={"decay": 0.01})

    assert judge(towers(2, 0.5, *penalized([0, 1]), values={"decay": 0.01}), one).state == "kept"


def test_a_penalty_in_one_tower_counts_half(snapshot: SnapshotAssertion) -> None:
    one = towers(1, 1.0, *penalized([0]), values={"decay": 0.01})
    many = towers(2, 0.5, *penalized([0]), values={"decay": 0.01})

    assert messages(judge(many, one)) == snapshot


def test_a_penalty_that_all_towers_lack_is_missing() -> None:
    one = towers(1, 1.0, *penalized([0]), values={"decay": 0.01})

    (finding,) = judge(towers(2, 0.5), one).findings

    assert "has the coefficient 0 in all towers together, and 0.01 on one GPU" in finding.message


def test_summed_losses_with_a_penalty_each_double_it(snapshot: SnapshotAssertion) -> None:
    half = [on(i, f"tower_{i}/half", "Mul", f"tower_{i}/mean", "share") for i in (0, 1)]
    added = [
        on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/half", f"tower_{i}/penalty") for i in (0, 1)
    ]
    penalties = [each for each in penalized([0, 1]) if not each.name.endswith("loss")]
    total = host("mean/w", "Identity", "sum/w")
    many = towers(2, 0.5, *penalties, *half, *added, total, values={"decay": 0.01})
    one = towers(1, 1.0, *penalized([0]), values={"decay": 0.01})

    assert messages(judge(many, one)) == snapshot


def test_a_sum_with_half_of_the_penalty_in_each_tower_is_right_but_for_the_losses(
    snapshot: SnapshotAssertion,
) -> None:
    one = towers(1, 1.0, *penalized([0]), values={"decay": 0.01})
    many = towers(2, 1.0, *penalized([0, 1]), values={"decay": 0.005})

    assert messages(judge(many, one)) == snapshot


def test_losses_that_are_divided_again_apart_from_their_penalties(
    snapshot: SnapshotAssertion,
) -> None:
    half = [on(i, f"tower_{i}/half", "Mul", f"tower_{i}/mean", "share") for i in (0, 1)]
    added = [
        on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/half", f"tower_{i}/penalty") for i in (0, 1)
    ]
    penalties = [each for each in penalized([0, 1]) if not each.name.endswith("loss")]
    one = towers(1, 1.0, *penalized([0]), values={"decay": 0.01})
    many = towers(2, 0.5, *penalties, *half, *added, values={"decay": 0.01})

    assert messages(judge(many, one)) == snapshot


def test_penalties_with_fed_weights_of_their_own_are_not_compared() -> None:
    own = [on(i, f"tower_{i}/penalty", "Mul", f"tower_{i}/l2", f"decay_{i}") for i in (0, 1)]
    fed = [host(f"decay_{i}", "Placeholder") for i in (0, 1)]
    penalties = [each for each in penalized([0, 1]) if not each.name.endswith("penalty")]
    outputs = {f"decay_{i}": () for i in (0, 1)}
    one = towers(1, 1.0, *penalties[:3], own[0], fed[0], outputs=outputs)
    many = towers(2, 0.5, *penalties, *own, *fed, outputs=outputs)

    verdict = judge(many, one)

    assert verdict.state == "not-checked"
    assert "decay_0 multiplies only some terms of the loss" in (verdict.reason or "")


def test_a_term_that_one_tower_lacks_is_broken(snapshot: SnapshotAssertion) -> None:
    def auxiliary(i: int) -> Iterator[Op]:
        yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/square", "Square", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/auxiliary", "Mean", f"tower_{i}/square")
        yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/auxiliary")

    one = towers(1, 1.0, *auxiliary(0))

    assert judge(towers(2, 0.5, *auxiliary(0), *auxiliary(1)), one).state == "kept"
    assert messages(judge(towers(2, 0.5, *auxiliary(0)), one)) == snapshot
    assert messages(judge(towers(2, 0.5, *auxiliary(1)), towers(1, 1.0))) == snapshot


def weighted(*weights: float) -> Placement:
    """Towers with gradients that are multiplied by weights before they are added up."""
    names = [f"weighted_{i}" for i in range(len(weights))]
    return towers(
        len(weights),
        1.0,
        *(host(name, "Mul", gradient(i), f"weight_{i}") for i, name in enumerate(names)),
        *(host(f"weight_{i}", "Const") for i in range(len(weights))),
        host("sum/w", "AddN", *names),
        values={f"weight_{i}": weight for i, weight in enumerate(weights)},
    )


def test_uneven_weights_of_equal_towers_are_broken(snapshot: SnapshotAssertion) -> None:
    assert messages(judge(weighted(0.75, 0.25))) == snapshot


def test_towers_with_different_signs_are_broken(snapshot: SnapshotAssertion) -> None:
    assert messages(judge(weighted(0.5, -0.5))) == snapshot


def test_weights_by_declared_shares_are_kept() -> None:
    assert judge(weighted(0.75, 0.25), shares=(3, 1)).state == "kept"
    assert judge(weighted(0.5, 0.5), shares=(3, 1)).state == "broken"


def test_weights_by_static_numbers_of_rows_are_kept() -> None:
    rows = {"tower_0/w/MatMul": (12, 4), "tower_1/w/MatMul": (4, 4)}
    many = weighted(0.75, 0.25)
    many = many.with_fields(details=_with_outputs(many, rows))

    verdict = judge(many)

    assert (verdict.state, verdict.note) == ("kept", "1 variable")


def weighted_by(rows: Sequence[str], *changes: Op, **values: float) -> Placement:
    """Towers whose gradients are weighted by numbers of rows, divided by `total`."""
    weights = [host(f"weight_{i}", "RealDiv", rows[i], "total") for i in (0, 1)]
    scaled = [host(f"scaled_{i}", "MulNoNan", gradient(i), f"weight_{i}") for i in (0, 1)]
    shapes = [host(f"shape_{i}", "Shape", f"tower_{i}/x") for i in (0, 1)]
    sizes = [host(f"rows_{i}", "StridedSlice", f"shape_{i}", "zero", "one", "one") for i in (0, 1)]
    return towers(
        2,
        1.0,
        *(*changes, *weights, *scaled, *shapes, *sizes),
        *(host(name, "Const") for name in ("zero", "one")),
        host("sum/w", "AddN", "scaled_0", "scaled_1"),
        values={"zero": 0, "one": 1, **values},
    )


_SIZES = ["rows_0", "rows_1"]
_SUM = host("total", "AddN", *_SIZES)
_BATCH = [
    host("batch", "Placeholder"),
    host("batch/shape", "Shape", "batch"),
    host("batch/rows", "StridedSlice", "batch/shape", "zero", "one", "one"),
    host("total", "Cast", "batch/rows"),
]
_ROWS_OF_WEIGHTS = [
    *(on(i, f"tower_{i}/w/read", "Identity", "weights") for i in (0, 1)),
    host("weights", "ReadVariableOp", "w"),
    host("weights/shape", "Shape", "weights"),
    host("total", "StridedSlice", "weights/shape", "zero", "one", "one"),
]
_MIDDLE = [host("middle", "Minimum", "batch/rows", "most"), host("most", "Const")]
_STRIDED_SLICES = [
    *(*_BATCH, *_MIDDLE),
    host("bounds", "Pack", "middle"),
    host("ends", "Pack", "batch/rows"),
    on(0, "tower_0/x", "StridedSlice", "batch", "zero", "bounds", "one"),
    on(1, "tower_1/x", "StridedSlice", "batch", "bounds", "ends", "one"),
    host("until", "Sub", "middle", "zero"),
    host("from", "Sub", "batch/rows", "middle"),
]
_SLICES = [
    *(*_BATCH, *_MIDDLE),
    host("sizes_0", "Pack", "middle"),
    host("sizes_1", "Pack", "others"),
    host("others", "Sub", "batch/rows", "middle"),
    on(0, "tower_0/x", "Slice", "batch", "zero", "sizes_0"),
    on(1, "tower_1/x", "Slice", "batch", "sizes_0", "sizes_1"),
]


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        (_SIZES, [_SUM]),
        (
            _SIZES,
            [host("total", "AddV2", "first", "rows_1"), host("first", "Add", "zero", "rows_0")],
        ),
        (["until", "from"], _STRIDED_SLICES),
        (["middle", "from"], _STRIDED_SLICES),
        (["middle", "others"], _SLICES),
    ],
    ids=["sum", "nested sum", "strided slices", "end as size", "slices"],
)
def test_weights_by_the_rows_of_each_tower_are_kept(rows: list[str], changes: list[Op]) -> None:
    verdict = judge(weighted_by(rows, *changes))

    assert (verdict.state, verdict.note) == ("kept", "1 variable")


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        (["rows_1", "rows_0"], [_SUM]),
        (["rows_0", "rows_0"], [host("total", "AddN", "rows_0", "rows_0")]),
        (_SIZES, [host("total", "AddN", "rows_0", "rows_0")]),
        (_SIZES, [host("total", "Maximum", *_SIZES)]),
        (["from", "until"], _STRIDED_SLICES),
        (_SIZES, _ROWS_OF_WEIGHTS),
    ],
    ids=["swapped", "of one tower", "sum of one tower", "maximum", "swapped slices", "weights"],
)
def test_weights_that_are_no_shares_of_rows_are_not_kept(
    rows: list[str], changes: list[Op]
) -> None:
    assert judge(weighted_by(rows, *changes)).state != "kept"


def test_shares_of_rows_that_are_halved_are_broken() -> None:
    twice = [host("total", "Mul", "both", "two"), host("both", "AddN", *_SIZES)]

    verdict = judge(weighted_by(_SIZES, *twice, host("two", "Const"), two=2.0))

    assert verdict.state == "broken"
    assert (
        "counts 0.5 times in the update of w, compared with one GPU" in verdict.findings[0].message
    )


def test_penalties_with_the_share_of_each_tower_are_kept() -> None:
    one = towers(1, 1.0, *penalized([0]), values={"decay": 0.01})
    all_towers = weighted_by(_SIZES, _SUM, *penalized([0, 1]), decay=0.01)
    first_tower = weighted_by(_SIZES, _SUM, *penalized([0]), decay=0.01)

    assert judge(all_towers, one).state == "kept"
    assert (
        "some towers multiply the penalty (L2Loss) by their share of the rows, and others do not"
        in (judge(first_tower, one).reason or "")
    )


def _with_outputs(graph: Placement, outputs: Mapping[str, tuple[int | None, ...]]) -> Any:
    graph.details.shapes = {**graph.details.shapes, **outputs}  # type: ignore[attr-defined]
    return graph.details


def test_a_scale_that_all_terms_share_is_left_out() -> None:
    scale = host("scaled", "Mul", "mean/w", "norm")
    update = host("update/w", "ResourceApplyGradientDescent", "w", "rate", "scaled")

    verdict = judge(towers(2, 0.5, scale, host("norm", "Sqrt"), update))

    assert verdict.state == "kept"


def test_a_scale_of_one_tower_is_not_checked() -> None:
    scaled = host("scaled", "Mul", gradient(1), "norm")
    total = host("sum/w", "AddN", gradient(0), "scaled")

    verdict = judge(towers(2, 0.5, scaled, host("norm", "Sqrt"), total))

    assert verdict.state == "not-checked"
    assert "norm multiplies only some terms of the loss, and is not a constant" in (
        verdict.reason or ""
    )


def test_weight_decay_that_towers_add_to_their_gradients_is_not_checked() -> None:
    decays = [on(i, f"tower_{i}/decay", "Mul", f"tower_{i}/w/read", "rate") for i in (0, 1)]
    total = host("sum/w", "AddN", *(gradient(i) for i in (0, 1)), *(op.name for op in decays))

    verdict = judge(towers(2, 0.5, *decays, total))

    assert verdict.state == "not-checked"
    assert "tower_0/decay is added to the gradient of a tower, and comes from no loss" in (
        verdict.reason or ""
    )


def test_weight_decay_that_is_added_to_the_mean_is_left_out() -> None:
    decayed = host("decayed", "AddN", "mean/w", "decay")
    update = host("update/w", "ResourceApplyGradientDescent", "w", "rate", "decayed")

    verdict = judge(towers(2, 0.5, host("decay", "Mul", "w", "rate"), decayed, update))

    assert verdict.state == "kept"


def written_out(count: int, share: float, *normalizing: Op) -> Placement:
    """Towers with an optimizer that is written out; `normalizing` computes its direction."""
    update = [
        host("decayed", "Mul", "old", "beta"),
        host("part", "Mul", "rest", "mean/w"),
        host("moment", "AddV2", "decayed", "part"),
        host("square", "Square", "mean/w"),
        host("second", "AddV2", "old_second", "square"),
        host("keep", "AssignVariableOp", "m", "moment"),
        host("keep_second", "AssignVariableOp", "v", "second"),
        host("scaled", "Mul", "direction", "rate"),
        host("moved", "Sub", "w/value", "scaled"),
        host("update/w", "AssignVariableOp", "w", "moved", "^keep", "^keep_second"),
        host("w/value", "ReadVariableOp", "w"),
        host("old", "ReadVariableOp", "m"),
        host("old_second", "ReadVariableOp", "v"),
        *(variable(name) for name in ("m", "v")),
        *(host(name, "Const") for name in ("beta", "rest", "rate")),
    ]
    values = {"beta": 0.9, "rest": 0.1, "rate": 0.01}
    return towers(count, share, *update, *normalizing, values=values)


_BY_ROOT = (host("root", "Sqrt", "second"), host("direction", "RealDiv", "moment", "root"))
_TIMES_RECIPROCAL = (host("root", "Rsqrt", "second"), host("direction", "Mul", "moment", "root"))


@pytest.mark.parametrize("normalizing", [_BY_ROOT, _TIMES_RECIPROCAL], ids=["quotient", "product"])
@pytest.mark.parametrize(("share", "state"), [(0.5, "kept"), (1.0, "broken")])
def test_an_adaptive_optimizer_that_is_written_out_is_no_part_of_the_objective(
    normalizing: Sequence[Op], share: float, state: str
) -> None:
    single = towers(1, 1.0)  # with an op for gradient descent

    assert judge(written_out(2, share, *normalizing), single).state == state


def test_momentum_that_is_written_out_is_compared_with_its_rate() -> None:
    """Without a quotient, the learning rate and the decay are factors of the objective."""
    momentum = host("direction", "Identity", "moment")

    assert judge(written_out(2, 0.5, momentum), written_out(1, 1.0, momentum)).state == "kept"
    assert judge(written_out(2, 1.0, momentum), written_out(1, 1.0, momentum)).state == "broken"


def test_momentum_on_the_gpu_of_a_tower_is_no_part_of_its_gradient() -> None:
    on_gpu = (on(0, "moment", "AddV2", "decayed", "part"), host("direction", "Identity", "moment"))

    assert judge(written_out(2, 0.5, *on_gpu), written_out(1, 1.0, *on_gpu)).state == "kept"


def test_a_quotient_of_the_gradients_of_different_towers_is_not_read() -> None:
    quotient = host("direction", "RealDiv", gradient(0), gradient(1))

    assert judge(written_out(2, 0.5, quotient)).state == "not-checked"


def test_the_gradient_of_another_variable_is_broken(snapshot: SnapshotAssertion) -> None:
    variables = ("w", "u")
    one = towers(1, 1.0, variables=variables)
    swapped = [
        host(f"sum/{name}", "AddN", gradient(0, other), gradient(1, other))
        for name, other in (("w", "u"), ("u", "w"))
    ]
    many = towers(2, 0.5, *swapped, variables=variables)

    assert messages(judge(many, one)) == snapshot


def test_the_gradient_of_the_value_of_a_variable_is_its_own() -> None:
    many = towers(2, 0.5)
    taken = {f"tower_{i}/w/read": [gradient(i)] for i in (0, 1)}

    step = many.step._replace(gradients_by_variable=taken)
    assert judge(many.with_fields(step=step)).state == "kept"


def test_one_op_may_yield_the_gradients_of_several_mirrored_variables() -> None:
    """As in batch normalization: its gradient op yields the gradients of scale and offset."""

    def normalized(count: int, share: float) -> Placement:
        both = [gradient(i, "scale") for i in range(count)]
        offsets = host("sum/offset", "AddN", *(f"{op}:1" for op in both))
        taken = {f"v{i}/{name}": [both[i]] for i in range(count) for name in ("scale", "offset")}
        return program(
            offsets,
            gpus=range(count),
            variables=("scale", "offset"),
            mirrored=True,
            values={"share": share},
            step={
                "gradients": {f"tower_{i}/loss:0": [both[i]] for i in range(count)},
                "gradients_by_variable": taken,
            },
        )

    assert judge(normalized(2, 0.5), normalized(1, 1.0)).note == (
        "2 variables; holds only if all towers have equally many rows"
    )


def test_a_tower_left_out_is_reported_by_every_tower_counts() -> None:
    verdict = judge(towers(2, 1.0, host("sum/w", "AddN", gradient(0))))

    assert verdict.state == "not-checked"
    assert "takes gradients of the tower on /device:GPU:0 only" in (verdict.reason or "")


def test_a_loss_that_is_no_sum_over_rows_is_not_checked() -> None:
    roots = [on(i, f"tower_{i}/loss", "Sqrt", f"tower_{i}/w/MatMul") for i in (0, 1)]

    verdict = judge(towers(2, 0.5, *roots))

    assert verdict.state == "not-checked"
    assert "is a loss, but no sum or mean over rows" in (verdict.reason or "")


@pytest.mark.parametrize("reduction", ["Sum", "Mean"])
def test_losses_that_are_chosen_before_they_are_reduced_are_not_checked(reduction: str) -> None:
    """As by tf.boolean_mask, which leaves out losses that are NaN."""

    def chosen(count: int) -> list[Op]:
        losses = [f"tower_{i}/loss" for i in range(count)]
        stack = host("stack", "Pack", *losses)
        return [stack, host("chosen", "GatherV2", "stack"), host("joint", reduction, "chosen")]

    def program_of(count: int) -> Placement:
        graph = towers(
            count, 1.0, *chosen(count), outputs={f"tower_{i}/loss": () for i in range(count)}
        )
        gradients = {"joint:0": [gradient(i) for i in range(count)]}
        return graph.with_fields(
            step=graph.step._replace(gradients=gradients, objectives=("joint:0",))
        )

    verdict = judge(program_of(2), program_of(1))

    assert verdict.state == "not-checked"
    assert "joint is a loss, but no sum or mean over rows" in (verdict.reason or "")


def test_the_reference_comes_before_the_program_for_one_gpu() -> None:
    evidence = Evidence(towers(2, 0.5), single_gpu=towers(1, 0.5), reference=towers(1, 1.0))

    assert GradientsAveraged().judge(evidence).state == "kept"
    assert judge(towers(2, 0.5), towers(1, 0.5)).state == "broken"


def test_without_a_program_for_one_gpu() -> None:
    verdict = judge(towers(2, 0.5), Missing("the builder has no argument num_gpus"))

    assert verdict.state == "not-checked"
    assert verdict.reason == (
        "the program cannot be compared with its build for one GPU: the builder has no argument "
        "num_gpus"
    )


@without_two_towers
def test_without_two_towers(graph: Placement, reason: str) -> None:
    assert GradientsAveraged().judge(graph).reason == reason


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"scale": 0.0}, "leaves no gradient"), ({"shares": (1, 0)}, "no rows")],
)
def test_bad_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GradientsAveraged(**fields)


def test_the_figures_have_the_objectives_of_both_programs() -> None:
    verdict = judge(towers(2, 0.5, variables=["w", "v"]), towers(1, 1.0, variables=["w", "v"]))

    assert verdict.figures == [
        {
            "variables": ["w", "v"],
            "objective": "1/2 mean on each of 2 towers",
            "expected": "mean",
        }
    ]
