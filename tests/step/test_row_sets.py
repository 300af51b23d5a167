"""The rows that tensors of one program have, without another program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import op, placement

from placement_checks import Op
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.step.parts import LAST_ROW, Cut, Part, in_steps, rows_in
from placement_checks.step.row_sets import RowSet, RowSets, overlapping


def pipelines(*kinds: str, source: str = "ReadFile", of: str = "files") -> list[Op]:
    """Two iterators, each with its own dataset."""
    return [
        op("files", source),
        op("more", source),
        *(
            built
            for name, kind, files in zip(("one", "other"), kinds, ("files", of), strict=True)
            for built in (
                op(f"{name}/data", kind, "", "", files),
                op(name, "IteratorV2"),
                op(f"{name}/make", "MakeIterator", "", "", f"{name}/data", name),
            )
        ),
    ]


@pytest.mark.parametrize(
    ("ops", "equal"),
    [
        pytest.param(pipelines("BatchDataset", "BatchDataset"), True, id="alike"),
        pytest.param(pipelines("BatchDataset", "ShardDataset"), False, id="of another kind"),
        pytest.param(pipelines("ShuffleDataset", "ShuffleDataset"), True, id="shuffled"),
        pytest.param(
            pipelines("BatchDataset", "BatchDataset", of="more"), True, id="of equal sources"
        ),
        *(
            pytest.param(
                pipelines("BatchDataset", "BatchDataset", source=source, of="more"),
                False,
                id=f"of two of {source}",
            )
            for source in ("Placeholder", "PlaceholderWithDefault", "VarHandleOp", "Const")
        ),
    ],
)
def test_data_of_pipelines(ops: Sequence[Op], equal: bool) -> None:
    rows = RowSets(placement(*ops))

    assert (rows.data_of_pipeline("one") == rows.data_of_pipeline("other")) == equal


def rows_of(tensor: str, *ops: Op, **more: Any) -> list[RowSet]:
    return list(RowSets(placement(*ops, **more)).of(tensor))


X = op("x", "Placeholder")
TABLE = {"x": (None, 4)}


def test_an_input_has_all_of_its_rows() -> None:
    (rows,) = rows_of("x", X, outputs=TABLE)

    assert (rows.tensor, rows.part, rows.columns) == ("x:0", (), ())


@pytest.mark.parametrize(
    ("shape", "has_rows"), [((), False), ((3,), False), ((None,), True), ((3, 4), True)]
)
def test_inputs_with_rows(shape: tuple[int | None, ...], has_rows: bool) -> None:
    assert bool(rows_of("x", X, outputs={"x": shape})) == has_rows


def test_a_vector_of_fixed_size_has_rows_if_it_is_split() -> None:
    ops = [X, op("axis", "Const"), op("split", "Split", "", "", "axis", "x")]

    assert "x" in RowSets(placement(*ops, outputs={"x": (4,)}, values={"axis": 0})).inputs


@pytest.mark.parametrize("dtype", ["resource", "variant"])
def test_handles_have_no_rows(dtype: str) -> None:
    assert not rows_of("x", X, outputs={"x": (None,)}, dtypes={"x": dtype})


@pytest.mark.parametrize(
    ("begin", "end", "cut"),
    [
        ((0, 0), (4, 4), Cut("rows", 0, 0, rows=range(4))),
        ((2, 0), (4, 4), Cut("rows", 0, 0, rows=range(2, 4))),
    ],
)
def test_rows_between_constant_indices(
    begin: tuple[int, int], end: tuple[int, int], cut: Cut
) -> None:
    ops = [X, *(op(name, "Const") for name in ("begin", "end", "one"))]
    ops.append(op("slice", "StridedSlice", "", "", "x", "begin", "end", "one"))
    values: Mapping[str, Any] = {"begin": begin, "end": end, "one": (1, 1)}

    (rows,) = rows_of("slice", *ops, outputs=TABLE, values=values)

    assert rows == RowSet(rows.source, (cut,))


def test_columns() -> None:
    ops = [X, *(op(name, "Const") for name in ("begin", "size", "more", "two"))]
    ops += [
        op("slice", "Slice", "", "", "x", "begin", "size"),
        op("inner", "Slice", "", "", "slice", "more", "two"),
    ]
    values = {"begin": (0, 1), "size": (-1, 3), "more": (0, 1), "two": (-1, 2)}

    (rows,) = rows_of("inner", *ops, outputs=TABLE, values=values)

    assert (rows.part, rows.columns) == ((), ((1, 2, 4),))


def test_the_numbers_of_the_rows_are_no_rows_of_an_input() -> None:
    ops = [X, *(op(name, "Const") for name in ("zero", "one", "first", "next"))]
    ops += [
        op("shape", "Shape", "", "", "x"),
        op("count", "StridedSlice", "", "", "shape", "first", "next", "next"),
        op("numbers", "Range", "", "", "zero", "count", "one"),
        op("scaled", "Mul", "", "", "numbers", "y"),
        op("y", "Placeholder"),
    ]
    values = {"zero": 0, "one": 1, "first": (0,), "next": (1,)}
    attributes = {"count": {"shrink_axis_mask": 1}}
    more = {"outputs": {**TABLE, "y": (None,)}, "values": values, "attributes": attributes}

    assert not rows_of("numbers", *ops, **more)
    assert [rows.tensor for rows in rows_of("scaled", *ops, **more)] == ["y:0"]


def test_rows_through_very_many_ops() -> None:
    ops = [
        X,
        *(op(f"tanh_{i}", "Tanh", "", "", f"tanh_{i - 1}" if i else "x") for i in range(5000)),
    ]
    (rows,) = rows_of("tanh_4999", *ops, outputs=TABLE)

    assert rows.tensor == "x:0"


def test_a_reduction_over_the_rows_has_none() -> None:
    ops = [X, op("axis", "Const"), op("most", "Max", "", "", "x", "axis")]
    for axis, count in ((0, 0), (1, 1)):
        shape = (4,) if axis == 0 else (None,)

        found = rows_of("most", *ops, outputs={**TABLE, "most": shape}, values={"axis": (axis,)})

        assert len(found) == count


def by_number(*bounds: tuple[int, int]) -> list[RowSet]:
    return [
        RowSet(("x", 0), (Cut("rows", 0, 0, rows=range(begin, end)),)) for begin, end in bounds
    ]


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        ([(0, 4)], [(4, 8)], False),
        ([(0, 4)], [(2, 6)], True),
        ([(0, 4)], [(3, 7)], False),
        ([(0, 4)], [(0, 4)], False),  # these are equal
        ([(0, 4), (1, 5)], [(4, 8), (5, 9)], False),  # the labels of a row are the next row
        ([(0, 4), (1, 5)], [(2, 6), (3, 7)], True),
    ],
)
def test_overlapping_rows(
    one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]], overlaps: bool
) -> None:
    assert bool(overlapping(by_number(*one), by_number(*other))) == overlaps


PARTS: st.SearchStrategy[Part] = st.lists(
    st.integers(1, 3).flatmap(
        lambda parts: st.builds(Cut, st.just("split"), st.integers(0, parts - 1), st.just(parts))
    ),
    max_size=3,
).map(tuple)


@given(PARTS, PARTS)
def test_overlapping_is_symmetric_and_shared_by_the_whole(one: Part, other: Part) -> None:
    pair = [RowSet(("x", 0), one)], [RowSet(("x", 0), other)]

    assert bool(overlapping(*pair)) == bool(overlapping(*pair[::-1]))

    whole = overlapping(pair[0], [RowSet(("x", 0))])
    assert bool(whole) == any(cut.parts > 1 for cut in one)


def test_all_rows_overlap_with_some_rows_by_their_numbers() -> None:
    rest = Cut("rows", 0, 0, rows=range(3, LAST_ROW))

    assert overlapping([RowSet(("x", 0))], [RowSet(("x", 0), (rest,))])


@pytest.mark.parametrize(
    ("kind", "equal"),
    [
        ("ReadVariableOp", True),
        ("RngReadAndSkip", False),
        ("RandomUniformInt", False),
        ("IteratorGetNext", False),
    ],
)
def test_values_that_change_in_each_run_are_equal_only_to_themselves(
    kind: str, equal: bool
) -> None:
    ops = [op("state", "VarHandleOp"), op("one", kind, "", "", "state")]
    rows = RowSets(placement(*ops, op("other", kind, "", "", "state")))

    assert rows.key("one") == rows.key("one:0")
    assert (rows.key("one") == rows.key("other")) == equal


@pytest.mark.parametrize("in_sync", [True, False])
def test_copies_of_a_variable(in_sync: bool) -> None:
    copies = {f"v{i}/seed": Copy("v0/seed", i, in_sync) for i in (0, 1)}
    ops = [
        *(op(name, "VarHandleOp") for name in copies),
        *(op(f"read_{i}", "ReadVariableOp", "", "", f"v{i}/seed") for i in (0, 1)),
    ]
    rows = RowSets(placement(*ops, strategy=Strategy("MirroredStrategy", [], copies)))

    assert (rows.key("read_0") == rows.key("read_1")) == in_sync


ALL_PARTS: st.SearchStrategy[Part] = st.lists(
    st.one_of(
        st.builds(Cut, st.sampled_from(["split", "stride"]), st.integers(0, 1), st.integers(2, 3)),
        st.builds(
            lambda rows: Cut("rows", 0, 0, rows=in_steps(rows)),
            st.lists(st.integers(0, 40), min_size=1, max_size=9, unique=True),
        ),
    ),
    max_size=2,
).map(tuple)


@given(ALL_PARTS, ALL_PARTS)
def test_parts_overlap_if_half_of_their_rows_are_common(one: Part, other: Part) -> None:
    """NumPy cuts the numbers of the rows."""
    rows = [_cut(np.arange(36), part) for part in (one, other)]
    common = len({*rows[0]} & {*rows[1]})
    expected = {*rows[0]} != {*rows[1]} and common > 0
    expected = expected and 2 * common >= min(len({*each}) for each in rows)

    pair = [[RowSet(("x", 0), each, size=36)] for each in (one, other)]

    assert bool(overlapping(*pair)) == expected
    assert [*rows_in(one, range(36))] == [*rows[0]]


def _cut(rows: Any, part: Part) -> Any:
    for cut in part:
        if cut.family == "rows":
            rows = rows[[number for number in cut.rows if number < len(rows)]]
        elif cut.family == "stride":
            rows = rows[np.arange(len(rows)) % cut.parts == cut.number]
        else:
            size = len(rows) / cut.parts
            rows = rows[int(cut.number * size) : int((cut.number + 1) * size)]
    return rows
