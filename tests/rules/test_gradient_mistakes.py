from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.towers import gradient, host, on, program

from placement_checks import Device, Op, Placement
from placement_checks.core.mistakes import Diagnosis
from placement_checks.core.strategies import Strategy
from placement_checks.rules.gradient_mistakes import locate_mistake, loss_scalings

GPUS = [Device(type="GPU", index=i) for i in (0, 1)]


class Anywhere(dict[str, str]):
    """A line for every op, by default main.py:1."""

    def get(self, op: str, _: Any = None) -> str:
        return super().get(op) or "main.py:1"


def built(*ops: Op, **more: Any) -> Placement:
    lines = Anywhere({"train": "main.py:30", **more.pop("lines", {})})
    return program(*ops, lines=lines, **more)


def found(graph: Placement, mistake: str, **more: Any) -> list[str]:
    return [*locate_mistake(graph, "w", Diagnosis("", "", mistake=mistake, **more)).ops]


def test_a_sum_is_located_at_the_op_that_adds_gradients() -> None:
    assert found(built(), "sum") == ["sum/w"]


@pytest.mark.parametrize(("reduction", "at"), [("Sum", "sum/w"), ("Max", "stack")])
def test_a_sum_of_stacked_gradients_is_located_at_the_reduction(reduction: str, at: str) -> None:
    stack = host("stack", "Pack", gradient(0), gradient(1))
    graph = built(stack, host("axis", "Const"), host("sum/w", reduction, "stack", "axis"))

    assert found(graph, "sum") == [at]


def test_a_sum_of_a_strategy_is_located_at_the_losses() -> None:
    graph = built(lines={"tower_0/loss": "main.py:9"}, strategy=Strategy("MirroredStrategy", GPUS))

    assert found(graph, "sum") == ["tower_0/loss", "tower_1/loss"]


def test_other_mistakes_are_not_located() -> None:
    assert found(built(), "paired") == found(built(), "") == []


def test_ops_of_a_library_are_not_located() -> None:
    assert locate_mistake(program(), "w", Diagnosis("", "", mistake="sum")).ops == ()


def scaled(kind: str, value: float | str, **more: Any) -> Placement:
    """Towers with losses that are multiplied or divided."""
    return built(
        host("factor", "Const" if isinstance(value, float) else "Placeholder"),
        *(on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul") for i in (0, 1)),
        *(on(i, f"tower_{i}/loss", kind, f"tower_{i}/mean", "factor") for i in (0, 1)),
        values={"factor": value} if isinstance(value, float) else {},
        **more,
    )


LOSSES = ["tower_0/loss", "tower_1/loss"]


@pytest.mark.parametrize(
    ("kind", "value"), [("RealDiv", 2.0), ("Mul", 0.5), ("RealDiv", 4.0), ("Mul", 0.25)]
)
def test_the_division_of_a_loss_precedes_the_mean(kind: str, value: float) -> None:
    assert found(scaled(kind, value), "divided", ratio=0.5000001) == LOSSES


@pytest.mark.parametrize(("kind", "value"), [("RealDiv", 0.5), ("Mul", 2.0), ("Mul", "fed")])
def test_without_a_divided_loss_it_is_the_mean(kind: str, value: float | str) -> None:
    assert found(scaled(kind, value), "divided", ratio=0.5) == ["sum/w"]


@pytest.mark.parametrize("named", ["objectives", "losses"])
def test_a_loss_scale_is_found(named: str) -> None:
    step = {"objectives": (), "losses": (), named: ("tower_0/loss:0", "tower_1/loss")}
    graph = scaled("Mul", 128.0, step=step)

    assert [graph.by_number[op].name for op in loss_scalings(graph, 128.0)] == LOSSES


LINES = {gradient(0): "main.py:8", gradient(1): "main.py:8"}


def test_wrong_weights_are_located_at_the_call_of_the_helper() -> None:
    graph = built(lines={**LINES, "sum/w": "main.py:9 net.py:36"})

    place = locate_mistake(graph, "w", Diagnosis("", "", mistake="weights"))

    assert (place.ops, place.frames) == (["sum/w"], ("main.py:9",))


def test_weights_that_are_constants_are_shown() -> None:
    graph = built(
        host("one", "Const"),
        host("none", "Const"),
        host("own", "Mul", gradient(0), "one"),
        host("other", "Mul", gradient(1), "none"),
        host("sum/w", "AddN", "own", "other"),
        lines={"other": "net.py:42"},
        values={"one": 1.0, "none": 0.0},
    )

    assert locate_mistake(graph, "w", Diagnosis("", "", mistake="weights")).path == (
        "1 x in own (Mul) main.py:1",
        "0 x in other (Mul) net.py:42",
    )


@pytest.mark.parametrize("mistake", ["changed", "changed in towers"])
def test_a_change_of_gradients_is_located_at_its_call(mistake: str) -> None:
    norms = [on(i, f"norm_{i}", "Sqrt", gradient(i)) for i in (0, 1)]
    clipped = [on(i, f"clip_{i}", "Mul", gradient(i), f"norm_{i}") for i in (0, 1)]
    total = host("sum/w", "AddN", "clip_0", "clip_1")
    lines = {**LINES, "clip_0": "main.py:9 net.py:36", "clip_1": "main.py:9 net.py:36"}
    graph = built(*norms, *clipped, total, lines=lines)

    place = locate_mistake(graph, "w", Diagnosis("", "", mistake=mistake))

    assert (place.ops, place.frames) == (["clip_0"], ("main.py:9",))


def test_gradients_that_no_tower_changes() -> None:
    assert found(built(), "changed") == []


def test_a_penalty_is_a_term_of_the_loss_without_examples() -> None:
    def tower(i: int) -> Iterator[Op]:
        yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/penalty", "L2Loss", f"tower_{i}/w/read")
        yield on(i, f"tower_{i}/sum", "AddV2", f"tower_{i}/mean", f"tower_{i}/penalty")
        yield on(i, f"tower_{i}/plus", "AddV2", f"tower_{i}/sum", "none")
        yield on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/plus", "share")

    graph = built(host("none", "Const"), *tower(0), *tower(1))

    assert sorted(found(graph, "repeated penalty")) == ["tower_0/penalty", "tower_1/penalty"]


def normalized(outputs: Mapping[str, tuple[int | None, ...]], kind: str = "Mean") -> Placement:
    """Towers that subtract a statistic of their rows from the rows."""

    def tower(i: int) -> Iterator[Op]:
        yield on(i, f"tower_{i}/moment", kind, f"tower_{i}/w/MatMul", "axis")
        yield on(i, f"tower_{i}/squeezed", "Squeeze", f"tower_{i}/moment")
        yield on(i, f"tower_{i}/centered", "Sub", f"tower_{i}/w/MatMul", f"tower_{i}/squeezed")
        yield on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/centered")

    ends = {"w/MatMul": (None, 4), "centered": (None, 4), "loss": (), **outputs}
    shapes = {f"tower_{i}/{name}": shape for i in (0, 1) for name, shape in ends.items()}
    return built(host("axis", "Const"), *tower(0), *tower(1), outputs=shapes)


@pytest.mark.parametrize("kind", ["Mean", "Sum"])
def test_statistics_reduce_rows_and_are_used_by_rows(kind: str) -> None:
    moments = {"moment": (1, 4), "squeezed": (4,)}

    assert found(normalized(moments, kind), "statistics") == ["tower_0/moment", "tower_1/moment"]


def test_a_mean_of_each_row_is_no_statistic() -> None:
    graph = normalized({"moment": (None, 1), "squeezed": (None,)})

    assert found(graph, "statistics") == []


def test_batch_normalization_is_one_op() -> None:
    graph = normalized({"moment": (None, 4), "squeezed": (None, 4)}, "FusedBatchNormV3")

    assert found(graph, "statistics") == ["tower_0/moment", "tower_1/moment"]


def masked(*mask: Op) -> Placement:
    """Towers that multiply the variable by a mask before they compute with it."""
    return built(
        *mask,
        *(on(i, f"tower_{i}/masked", "Mul", "mask", f"tower_{i}/w/read") for i in (0, 1)),
        *(
            on(i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/x", f"tower_{i}/masked")
            for i in (0, 1)
        ),
    )


def test_a_frozen_variable_is_located_at_its_mask() -> None:
    graph = masked(host("mask", "Cast", "less"), host("less", "Less", "share", "share"))

    assert found(graph, "frozen", towers=(1,)) == ["mask"]


@pytest.mark.parametrize(
    "mask", [host("mask", "Sum", "tower_1/x"), host("mask", "ReadVariableOp", "step")]
)
def test_a_factor_of_examples_or_variables_is_no_mask(mask: Op) -> None:
    assert found(masked(mask), "frozen", towers=(1,)) == ["tower_1/masked"]


def test_without_a_mask_it_is_located_at_the_reads() -> None:
    assert found(built(), "frozen", towers=(1,)) == ["tower_1/w/MatMul"]


def test_moved_rows_are_located_at_the_op_that_reorders_them() -> None:
    graph = built(
        host("tower_0/x", "Placeholder"),
        host("part", "StridedSlice", "tower_0/x", "share", "share"),
        host("rolled", "Roll", "part", "share"),
        on(0, "tower_0/w/MatMul", "MatMul", "rolled", "tower_0/w/read"),
        step={"inputs": (("tower_0/x:0",), ("tower_1/x:0",))},
    )

    assert found(graph, "moved") == ["rolled"]


def test_an_embedding_moves_no_rows() -> None:
    """Nor is what looks up a table at its rows one of the input's."""
    table = on(0, "tower_0/w/MatMul", "GatherV2", "tower_0/w/read", "tower_0/x")

    assert found(built(table), "moved") == []


def test_a_slice_of_features_is_no_slice_of_the_batch() -> None:
    first = on(0, "first", "StridedSlice", "part_0", "begin", "begin", "begin")
    model = on(0, "tower_0/w/MatMul", "MatMul", "first", "tower_0/w/read")

    assert found(cut(first, model), "moved") == ["part_0", "part_1"]


@pytest.mark.parametrize("inputs", [(("x:0",),), ()])
def test_without_a_reordering_op_it_is_the_slice(inputs: Any) -> None:
    assert found(cut(step={"inputs": inputs}), "moved") == ["part_0", "part_1"]


def cut(*changes: Op, end: str = "begin", **more: Any) -> Placement:
    """Towers that compute with parts of one batch; the second's ends at `end`."""
    return built(
        host("x", "Placeholder"),
        host("begin", "Const"),
        host("part_0", "StridedSlice", "x", "begin", "begin", "begin"),
        host("part_1", "StridedSlice", "x", "begin", end, "begin"),
        *(
            on(i, f"tower_{i}/w/MatMul", "MatMul", f"part_{i}", f"tower_{i}/w/read")
            for i in (0, 1)
        ),
        *changes,
        **more,
    )


def test_a_dropped_tail_is_located_at_the_end_of_the_last_slice() -> None:
    ends = [host("rows", "Mul", "begin", "share"), host("stack", "Pack", "rows")]

    assert found(cut(*ends, end="stack"), "tail") == ["rows"]


def test_a_dropped_tail_is_located_at_the_sizes_of_a_split() -> None:
    sizes = host("sizes", "Mul", "begin", "share")
    split = host("part_1", "SplitV", "x", "sizes", "begin")

    assert found(cut(sizes, split), "tail") == ["sizes"]


def test_a_dropped_tail_is_located_at_a_slice_of_fixed_size() -> None:
    assert found(cut(), "tail") == ["part_1"]


def test_a_batch_without_slices_has_no_tail() -> None:
    assert found(built(), "tail") == []
