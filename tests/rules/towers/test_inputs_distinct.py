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
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Body
from placement_checks.rules.towers.inputs_distinct import InputsDistinct


def objects(graph: Placement, **parameters: Any) -> list[str]:
    return objects_of(InputsDistinct(**parameters), graph)


def fed(*sources: str, ops: Sequence[Op] = (), **more: Any) -> Placement:
    """Towers that compute with these tensors, which `ops` yield."""
    reads = [
        on(i, f"tower_{i}/w/MatMul", "MatMul", source, f"tower_{i}/w/read")
        for i, source in enumerate(sources)
    ]
    return program(*ops, *reads, gpus=range(len(sources)), **more)


def sliced(*begins: int, kind: str = "StridedSlice", **more: Any) -> Placement:
    """Towers that cut slices from one placeholder, each from its own first row."""
    ops = [host("images", "Placeholder"), host("size", "Const")]
    for i in range(len(begins)):
        ops += [
            host(f"tower_{i}/begin", "Const"),
            on(i, f"tower_{i}/slice", kind, "images", f"tower_{i}/begin", "size"),
        ]
    values = {f"tower_{i}/begin": begin for i, begin in enumerate(begins)}
    return fed(
        *(f"tower_{i}/slice" for i in range(len(begins))),
        ops=ops,
        values={"size": 4, **values},
        **more,
    )


def iterators(
    *datasets: str,
    at: str = "/cpu:0",
    kind: str = "IteratorV2",
    ops: Sequence[Op] = (),
    **more: Any,
) -> Placement:
    """An iterator and a dataset for each tower."""
    made = []
    for i, dataset in enumerate(datasets):
        made += [
            op(f"iterator_{i}", kind, at, "CPU:0"),
            host(f"make_{i}", "MakeIterator", dataset, f"iterator_{i}"),
            on(i, f"tower_{i}/next", "IteratorGetNext", f"iterator_{i}"),
        ]
    return fed(*(f"tower_{i}/next" for i in range(len(datasets))), ops=[*ops, *made], **more)


@pytest.mark.parametrize("count", [2, 3, 12])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    verdict = InputsDistinct().judge(program(gpus=range(count)))

    assert verdict == Verdict(
        "inputs-distinct",
        "kept",
        "requested",
        findings=[],
        note=ANY,
    )
    assert messages(verdict) == snapshot


def test_inputs_of_train_on_batch_are_one_finding(snapshot: SnapshotAssertion) -> None:
    inputs = [host(name, "Placeholder") for name in ("data", "data_1")]
    labels = [on(i, f"tower_{i}/labels", "Square", "data_1") for i in (0, 1)]
    losses = [on(i, f"tower_{i}/w/more", "Mul", f"tower_{i}/labels") for i in (0, 1)]
    graph = fed(
        *("data", "data"),
        ops=[*inputs, *labels, *losses],
        keras_parts=dict.fromkeys(("data", "data_1"), "train_on_batch"),
        lines={"data": "main.py:9"},
    )
    verdict = InputsDistinct().judge(graph)

    assert messages(verdict) == snapshot
    assert [finding.known for finding in verdict.findings] == ["Keras 3"]
    assert verdict.findings[0].where is None
    assert objects(graph, allow=("data*",)) == []


def test_broken_by_one_tensor(snapshot: SnapshotAssertion) -> None:
    graph = fed(
        "images", "images", ops=[host("images", "Placeholder")], lines={"images": "main.py:9"}
    )

    verdict = InputsDistinct().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "requested")
    assert verdict.findings == [
        Finding(
            object="images",
            op="Placeholder",
            evidence="requested",
            expected="a separate slice for each tower",
            found="one slice for the towers on /device:GPU:0 and /device:GPU:1",
            frames=("main.py:9",),
            path=("images (Placeholder) main.py:9", "images (Placeholder) main.py:9"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_broken_by_slices_that_are_cut_alike(snapshot: SnapshotAssertion) -> None:
    graph = sliced(0, 0, lines={"tower_1/slice": "main.py:9 net.py:3"})

    verdict = InputsDistinct().judge(graph)

    assert verdict.findings == [
        Finding(
            object="tower_1/slice",
            op="StridedSlice",
            evidence="requested",
            expected="a separate slice for each tower",
            found="one slice for the towers on /device:GPU:0 and /device:GPU:1",
            frames=("main.py:9", "net.py:3"),
            path=("tower_0/slice (StridedSlice)", "tower_1/slice (StridedSlice) net.py:3"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("count", [3, 4, 12])
def test_every_tower_that_cuts_the_first_slice_is_found(count: int) -> None:
    graph = sliced(*[0] * count)

    assert objects(graph) == [f"tower_{i}/slice" for i in range(1, count)]


def parts(
    *slices: tuple[tuple[int, ...], tuple[int, ...]],
    kind: str = "StridedSlice",
    stride: int = 1,
    then: str = "Cast",
    shown: Sequence[Op] = (),
    **masks: int,
) -> Placement:
    """Towers that cut these slices from one placeholder: the begins, and the ends or sizes.

    ``then`` is the type of the op that takes a slice.
    """
    ops = [host("images", "Placeholder"), host("strides", "Const"), *shown]
    values: dict[str, Sequence[int]] = {"strides": (stride,) * len(slices[0][0]), "none": (0,)}
    for i, (begins, ends) in enumerate(slices):
        bounds = [f"tower_{i}/begin", f"tower_{i}/end"]
        values |= dict(zip(bounds, (begins, ends), strict=True))
        strides = ["strides"] * (kind == "StridedSlice")
        ops += [host(each, "Const") for each in bounds]
        ops.append(on(i, f"tower_{i}/slice", kind, "images", *bounds, *strides))
        ops.append(on(i, f"tower_{i}/cast", then, f"tower_{i}/slice"))
    names = [f"tower_{i}/slice" for i in range(len(slices))]
    casts = [f"tower_{i}/cast" for i in range(len(slices))]
    return fed(
        *casts,
        ops=ops,
        values=values,
        attributes=dict.fromkeys(names, masks),
        step={"train_op": ("train", *(op.name for op in shown))},
    )


@pytest.mark.parametrize(("distance", "count"), [(2, 0), (1, 2)])
def test_labels_are_the_next_rows_of_a_sequence(distance: int, count: int) -> None:
    """The labels of a tower are rows that the next tower takes as inputs."""
    ops, values = [host("rows", "Placeholder")], {"size": (2,)}
    for i in (0, 1):
        for name, begin in (("inputs", distance * i), ("labels", distance * i + 1)):
            values[f"tower_{i}/{name}/begin"] = (begin,)
            ops += [
                host(f"tower_{i}/{name}/begin", "Const"),
                on(i, f"tower_{i}/{name}", "Slice", "rows", f"tower_{i}/{name}/begin", "size"),
            ]
        ops.append(on(i, f"tower_{i}/both", "Sub", f"tower_{i}/inputs", f"tower_{i}/labels"))
    graph = fed("tower_0/both", "tower_1/both", ops=[host("size", "Const"), *ops], values=values)

    assert len(InputsDistinct().judge(graph).findings) == count


def test_slices_that_overlap(snapshot: SnapshotAssertion) -> None:
    """As x[i : i + rows] instead of x[i * rows : (i + 1) * rows]."""
    verdict = InputsDistinct().judge(parts(((0,), (4,)), ((1,), (5,)), ((2,), (6,))))

    assert [finding.object for finding in verdict.findings] == ["tower_1/slice", "tower_2/slice"]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        (parts(((0,), (4,)), ((4,), (8,))), False),
        (parts(((0,), (4,)), ((3,), (0,)), end_mask=1), True),
        (parts(((0,), (0,)), ((1,), (0,)), shrink_axis_mask=1), False),
        (parts(((0, 0), (4, 2)), ((0, 2), (4, 4))), False),  # columns
        (parts(((0, 0), (4, 3)), ((0, 2), (4, 4))), False),  # columns of the same rows
        (parts(((0, 0), (4, 2)), ((2, 1), (6, 4))), True),
        (parts(((-8,), (4,)), ((1,), (5,))), False),  # from the end
        (parts(((0,), (8,)), ((1,), (8,)), stride=2), False),  # every other row
        (parts(((0,), (9,)), ((8,), (17,))), False),  # a frame before the first
        (parts(((0,), (8,)), ((1,), (9,)), then="GatherV2"), False),  # a part of the slice
        (parts(((0,), (8,)), ((1,), (9,)), then="Transpose"), True),
        (parts(((0,), (4,)), ((1,), (5,)), new_axis_mask=1), False),
        (parts(((0,), (4,)), ((1,), (4,)), kind="Slice"), True),
        (parts(((0,), (4,)), ((4,), (-1,)), kind="Slice"), False),
        (parts(((0,), (-1,)), ((4,), (-1,)), kind="Slice"), True),
    ],
)
def test_whether_slices_overlap(graph: Placement, found: bool) -> None:
    assert objects(graph) == ["tower_1/slice"] * found


def test_a_summary_may_show_rows_of_another_tower() -> None:
    graph = parts(
        ((0,), (4,)),
        ((4,), (4,)),
        kind="Slice",
        shown=[
            host("none", "Const"),
            on(1, "tower_1/shown", "Slice", "images", "none", "strides"),
            on(1, "tower_1/image", "ImageSummary", "tower_1/shown"),
        ],
    )

    assert objects(graph) == []


def test_one_of_many_slices_is_cut_twice() -> None:
    (finding,) = InputsDistinct().judge(sliced(0, 4, 8, 4)).findings

    assert finding.object == "tower_3/slice"
    assert finding.found == "one slice for the towers on /device:GPU:1 and /device:GPU:3"


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(sliced(0, 4), id="slices"),
        pytest.param(sliced(0, 4, kind="GatherV2"), id="rows gathered"),
        pytest.param(
            fed(
                "split",
                "split:1",
                ops=[host("images", "Placeholder"), host("split", "Split", "axis", "images")],
            ),
            id="a split",
        ),
        pytest.param(
            fed(
                "next_0",
                "next_1",
                ops=[
                    host("iterator", "IteratorV2"),
                    *(host(f"next_{i}", "IteratorGetNext", "iterator") for i in (0, 1)),
                ],
            ),
            id="a get_next each",
        ),
        pytest.param(
            fed(
                "tower_0/next",
                "tower_1/next",
                ops=[
                    host("iterator", "IteratorV2"),
                    *(on(i, f"tower_{i}/next", "IteratorGetNext", "iterator") for i in (0, 1)),
                ],
            ),
            id="a get_next each, in the tower's scope",
        ),
        pytest.param(
            fed(
                "batch_0",
                "batch_1",
                ops=[
                    host("queue", "FIFOQueueV2"),
                    *(host(f"batch_{i}", "QueueDequeueManyV2", "queue", "n") for i in (0, 1)),
                ],
            ),
            id="a batch of a queue each",
        ),
        pytest.param(
            fed("area_0", "area_1", ops=[host(f"area_{i}", "Unstage") for i in (0, 1)]),
            id="a staging area each",
        ),
        pytest.param(
            fed(
                "row_0:1",
                "row_1:1",
                ops=[
                    host("reader", "TextLineReaderV2"),
                    host("files", "FIFOQueueV2"),
                    *(host(f"row_{i}", "ReaderReadV2", "reader", "files") for i in (0, 1)),
                ],
            ),
            id="a row of a reader each",
        ),
    ],
)
def test_silent_on_parts_of_their_own(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = InputsDistinct().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("output", ["split", "split:0", "split:1"])
def test_one_part_of_a_split_for_both(output: str, snapshot: SnapshotAssertion) -> None:
    ops = [host("images", "Placeholder"), host("split", "Split", "axis", "images")]

    (finding,) = InputsDistinct().judge(fed(output, output, ops=ops)).findings

    assert finding.object == "split"
    assert messages(finding) == snapshot


def test_the_line_of_one_part_is_where_towers_take_it() -> None:
    """The lines of the split and of the model are right; the wrong line is in the loop."""
    ops = [host("images", "Placeholder"), host("split", "Split", "axis", "images")]
    lines = {
        "split": "main.py:9",
        **{f"tower_{i}/w/MatMul": "main.py:20 net.py:3" for i in (0, 1)},
        "loss": "main.py:30",
    }

    (finding,) = InputsDistinct().judge(fed("split", "split", ops=ops, lines=lines)).findings

    assert (finding.where, finding.frames) == ("main.py:20", ("main.py:20", "net.py:3"))


def test_the_line_of_one_batch_is_where_it_is_made() -> None:
    ops = [host("iterator", "IteratorV2"), host("batch", "IteratorGetNext", "iterator")]
    lines = {"batch": "main.py:9", "tower_1/w/MatMul": "main.py:20", "loss": "main.py:30"}

    (finding,) = InputsDistinct().judge(fed("batch", "batch", ops=ops, lines=lines)).findings

    assert finding.where == "main.py:9"


@pytest.mark.parametrize(
    ("source", "takes"),
    [("IteratorGetNext", "iterator"), ("QueueDequeueV2", "queue"), ("Unstage", "")],
)
def test_one_batch_of_a_pipeline_for_both(source: str, takes: str) -> None:
    ops = [
        host("iterator", "IteratorV2"),
        host("queue", "FIFOQueueV2"),
        host("batch", source, *filter(None, [takes])),
    ]

    assert objects(fed("batch", "batch", ops=ops)) == ["batch"]


@pytest.mark.parametrize(
    "kind", ["Identity", "Reshape", "ExpandDims", "Squeeze", "Cast", "Transpose"]
)
def test_a_slice_is_followed_through_ops_that_change_its_form(kind: str) -> None:
    """The ops are in the tower's scope; the first op that computes takes another tensor."""
    ops = [host("images", "Placeholder")]
    ops += [on(i, f"tower_{i}/formed", kind, "images") for i in (0, 1)]

    assert objects(fed("tower_0/formed", "tower_1/formed", ops=ops)) == ["tower_1/formed"]


def test_values_that_the_host_computes_from_a_batch_are_the_batch() -> None:
    ops = [
        host("images", "Placeholder"),
        *(host(f"bright_{i}", "Mul", "images", "two") for i in (0, 1)),
        host("two", "Const"),
    ]

    assert objects(fed("bright_0", "bright_1", ops=ops, values={"two": 2.0})) == ["bright_1"]


def test_parts_that_are_cut_from_parts() -> None:
    """Micro-batches: the towers cut different parts, and then the same slice of these."""
    ops = [
        host("images", "Placeholder"),
        host("split", "Split", "axis", "images"),
        *(on(i, f"tower_{i}/half", "Split", "axis", f"split:{i}") for i in (0, 1)),
    ]

    assert objects(fed("tower_0/half", "tower_1/half", ops=ops)) == []


def divided(shape: tuple[int, ...]) -> Placement:
    """Towers that divide their loss by the sum of the whole mask, which has this shape."""
    ops = [host("mask", "Placeholder")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/positive", "Relu", "mask"),
            on(i, f"tower_{i}/count", "Sum", f"tower_{i}/positive"),
            on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", f"tower_{i}/count"),
        ]
    counts = {f"tower_{i}/count": shape for i in (0, 1)}
    return program(*ops, outputs={"mask": (None, 4), **counts})


def test_a_scalar_that_all_towers_compute_from_the_whole_batch_is_no_example() -> None:
    assert objects(divided(())) == []


def test_the_shape_of_the_whole_batch_is_no_example() -> None:
    """Towers compute from it the rows that they take."""
    ops = [
        host("images", "Placeholder"),
        *(on(i, f"tower_{i}/shape", "Shape", "images") for i in (0, 1)),
        *(host(f"number_{i}", "Const") for i in (0, 1)),
        *(on(i, f"tower_{i}/begin", "Mul", f"tower_{i}/shape", f"number_{i}") for i in (0, 1)),
        *(on(i, f"tower_{i}/slice", "Slice", "images", f"tower_{i}/begin") for i in (0, 1)),
    ]
    numbers = {"number_0": 0, "number_1": 1}

    assert objects(fed("tower_0/slice", "tower_1/slice", ops=ops, values=numbers)) == []


def test_sums_of_columns_that_all_towers_compute_are_examples() -> None:
    assert objects(divided((4,))) == ["mask"]


def test_labels_are_inputs_too(snapshot: SnapshotAssertion) -> None:
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/off", "Sub", f"tower_{i}/w/MatMul", "labels"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/off"),
        ]
    graph = program(host("labels", "Placeholder"), *ops)

    verdict = InputsDistinct().judge(graph)

    assert [finding.object for finding in verdict.findings] == ["labels"]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("shape", "found"),
    [((), []), ((10,), []), ((None,), ["extra"]), ((10, 4), ["extra"]), ((None, 4), ["extra"])],
)
def test_scalars_and_vectors_of_fixed_length_are_no_examples(
    shape: tuple[int | None, ...], found: Sequence[str]
) -> None:
    """All towers are fed the same dropout rate or class weights."""
    ops = [host("extra", "PlaceholderWithDefault", "default")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/scaled", "Mul", f"tower_{i}/w/MatMul", "extra"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/scaled"),
        ]

    assert objects(program(*ops, outputs={"extra": shape})) == found


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ({"ids": (32,), "labels": (32,)}, ["ids", "labels"]),
        ({"ids": (32,), "images": (32, 8)}, ["ids", "images"]),
        ({"weights": (10,), "images": (32, 8)}, ["images"]),
        ({"mean": (3,), "weights": (10,)}, []),
    ],
)
def test_vectors_of_one_entry_for_each_row_are_examples(
    shapes: dict[str, tuple[int, ...]], found: Sequence[str]
) -> None:
    """All replicas of a strategy get the ids of a whole batch of fixed size."""
    ops = [host(name, "Placeholder") for name in shapes]
    for i in (0, 1):
        parts = [
            on(i, f"tower_{i}/{name}/parts", "Mul", f"tower_{i}/w/MatMul", name) for name in shapes
        ]
        sums = [op.name for op in parts]
        ops += [*parts, on(i, f"tower_{i}/loss", "AddN", *sums)]

    graph = program(*ops, outputs={"x": None, **shapes})

    assert sorted(objects(graph)) == found


@pytest.mark.parametrize(("labels", "found"), [((0, 1), []), ((0, 0), ["labels"])])
def test_parts_of_a_vector_of_labels_are_examples(
    labels: tuple[int, int], found: Sequence[str]
) -> None:
    """The batch has a fixed size, and a part of the vector has fewer elements."""
    ops = [
        *(host(name, "Placeholder") for name in ("images", "all_labels")),
        host("parts", "Split", "axis", "images"),
        host("labels", "Split", "axis", "all_labels"),
    ]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/w/MatMul", "MatMul", f"parts:{i}", f"tower_{i}/w/read"),
            on(i, f"tower_{i}/off", "Sub", f"tower_{i}/w/MatMul", f"labels:{labels[i]}"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/off"),
        ]
    shapes = {"images": (32, 8), "parts": (16, 8), "all_labels": (32,), "labels": (16,)}

    assert objects(program(*ops, outputs={"x": None, **shapes})) == found


def test_vectors_that_one_tower_is_given_are_its_examples() -> None:
    """A strategy gives each replica its ids: a vector of fixed length, for a fixed batch."""
    given = [host(f"ids_{i}", "Placeholder") for i in (0, 1)]
    shapes = {f"ids_{i}": (16,) for i in (0, 1)}
    listed = {"inputs": [["ids_0:0"], ["ids_1:0"]]}
    graph = fed("ids_0", "ids_1", ops=given, outputs=shapes, step=listed)
    both = fed("ids_0", "ids_0", ops=given, outputs=shapes, step=listed)

    assert InputsDistinct().judge(graph).state == "kept"
    assert objects(both) == ["ids_0"]


def test_a_vector_next_to_a_pipeline_is_no_example() -> None:
    """Means and deviations of channels; the step reads the pictures itself."""
    ops = [host("iterator", "IteratorV2"), host("mean", "Placeholder"), host("dev", "Placeholder")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/next", "IteratorGetNext", "iterator"),
            on(i, f"tower_{i}/scaled", "Sub", f"tower_{i}/next", "mean"),
            on(
                i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/scaled", "dev", f"tower_{i}/w/read"
            ),
        ]

    assert objects(program(*ops, outputs={"x": None, "mean": (3,), "dev": (3,)})) == []


def test_a_scalar_of_unknown_shape() -> None:
    """keep_prob = tf.compat.v1.placeholder(tf.float32): its shape shows no rows."""
    ops = [host("keep_prob", "Placeholder")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/kept", "Mul", f"tower_{i}/w/MatMul", "keep_prob"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/kept"),
        ]

    assert objects(program(*ops, outputs={"keep_prob": None})) == []


@pytest.mark.parametrize(("shrink_axis_mask", "found"), [(0, ["tower_1/slice"]), (1, [])])
def test_rows_of_a_placeholder_of_unknown_shape_are_examples(
    shrink_axis_mask: int, found: Sequence[str]
) -> None:
    """A single element, such as a height, is not."""
    names = [f"tower_{i}/slice" for i in (0, 1)]
    graph = sliced(
        0,
        0,
        outputs=dict.fromkeys(["images", *names]),
        attributes={name: {"shrink_axis_mask": shrink_axis_mask} for name in names},
    )

    assert [finding.object for finding in InputsDistinct().judge(graph).findings] == found


def test_labels_of_a_pipeline_with_a_fixed_batch_are_examples() -> None:
    ops = [
        host("iterator", "IteratorV2"),
        host("labels", "IteratorGetNext", "iterator"),
    ]

    assert objects(fed("labels", "labels", ops=ops, outputs={"labels": (32,)})) == ["labels"]


def test_a_tensor_that_only_the_backward_pass_takes_is_no_input() -> None:
    graph = program(
        host("mask", "Placeholder"),
        *(
            on(i, f"gradients/tower_{i}/loss_grad/Mul", "Mul", f"tower_{i}/w/MatMul", "mask")
            for i in (0, 1)
        ),
    )

    assert InputsDistinct().judge(graph).state == "kept"


def test_a_tensor_outside_of_the_step_is_no_input() -> None:
    """An evaluation that the training step does not run."""
    graph = program(
        host("pictures", "Placeholder"),
        *(on(i, f"test_{i}", "MatMul", "pictures", f"tower_{i}/w/read") for i in (0, 1)),
    )

    assert InputsDistinct().judge(graph).state == "kept"


def test_towers_that_only_predict() -> None:
    graph = placement(
        host("images", "Placeholder"),
        variable("w"),
        *(on(i, f"predict_{i}", "MatMul", "images", "w") for i in (0, 1)),
    )

    assert objects(graph) == ["images"]


@pytest.mark.parametrize(
    "kind",
    [
        "IteratorV2",
        "OneShotIterator",
        "AnonymousIteratorV3",
        "MultiDeviceIterator",
        "FIFOQueueV2",
        "RandomShuffleQueueV2",
        "TensorSliceDataset",
        "BatchDatasetV2",
        "TextLineReaderV2",
        "DecodeJpeg",
        "DecodePng",
        "ReadFile",
    ],
)
def test_input_ops_on_a_gpu(kind: str, snapshot: SnapshotAssertion) -> None:
    graph = program(on(1, "tower_1/input", kind), lines={"tower_1/input": "main.py:9 net.py:3"})

    (finding,) = InputsDistinct().judge(graph).findings

    assert finding == Finding(
        object="tower_1/input",
        op=kind,
        evidence="requested",
        expected="/device:CPU:0",
        found="/device:GPU:1",
        frames=("main.py:9", "net.py:3"),
        message=ANY,
        consequence=ANY,
        fix=ANY,
    )
    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    "input",
    [
        pytest.param(host("input", "IteratorV2"), id="the host's"),
        pytest.param(op("input", "IteratorV2", "", "CPU:0"), id="nobody's"),
        pytest.param(on(0, "input", "Placeholder"), id="a placeholder"),
        pytest.param(on(0, "input", "DecodeRaw"), id="bytes that are numbers"),
        pytest.param(on(0, "input", "DecodePaddedRaw"), id="bytes that are padded numbers"),
        pytest.param(on(0, "input", "InitializeTableFromDataset", "t", "d"), id="a table"),
        pytest.param(on(0, "input", "QueueDequeueV2", "queue"), id="a batch of a queue"),
        pytest.param(on(0, "input", "IteratorGetNext", "iterator"), id="a batch of an iterator"),
    ],
)
def test_silent_on_inputs_where_they_belong(input: Op) -> None:
    assert objects(program(input)) == []


def test_input_ops_in_a_function_body_are_no_separate_findings() -> None:
    graph = program(
        on(0, "map", "PartitionedCall"), on(0, "map/DecodeJpeg", "DecodeJpeg", caller="map")
    )

    assert objects(graph) == []


def test_broken_by_a_pipeline_for_each_tower(snapshot: SnapshotAssertion) -> None:
    ops = [
        host("files", "Const"),
        *(host(f"dataset_{i}", "TextLineDataset", "files") for i in (0, 1)),
    ]
    graph = iterators(
        "dataset_0",
        "dataset_1",
        ops=ops,
        lines={"iterator_1": "main.py:9 net.py:3", "loss": "main.py:30"},
    )

    verdict = InputsDistinct().judge(graph)

    assert verdict.findings == [
        Finding(
            object="iterator_1",
            op="IteratorV2",
            evidence="requested",
            expected="one input pipeline for all towers",
            found="a separate pipeline for the tower on /device:GPU:1",
            frames=("main.py:9", "net.py:3"),
            at="main.py:9",
            path=("iterator_0 (IteratorV2)", "iterator_1 (IteratorV2) net.py:3"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot


def test_a_repeated_shard_names_the_line_of_the_shard(snapshot: SnapshotAssertion) -> None:
    ops = [host("files", "Const"), host("two", "Const"), host("zero", "Const")]
    for i in (0, 1):
        ops += [
            host(f"all_{i}", "TextLineDataset", "files"),
            host(f"shard_{i}", "ShardDataset", f"all_{i}", "two", "zero"),
            host(f"batch_{i}", "BatchDatasetV2", f"shard_{i}", "two"),
        ]
    lines = {"iterator_1": "main.py:9", "shard_1": "main.py:8", "loss": "main.py:30"}
    graph = iterators("batch_0", "batch_1", ops=ops, lines=lines)

    (finding,) = InputsDistinct().judge(graph).findings

    assert (finding.object, finding.where) == ("iterator_1", "main.py:8")
    assert messages(finding) == snapshot


@pytest.mark.parametrize("count", [3, 12])
def test_a_pipeline_for_each_of_many_towers(count: int) -> None:
    ops = [host("files", "Const")]
    ops += [host(f"dataset_{i}", "TextLineDataset", "files") for i in range(count)]
    graph = iterators(*(f"dataset_{i}" for i in range(count)), ops=ops)

    assert objects(graph) == [f"iterator_{i}" for i in range(1, count)]


@pytest.mark.parametrize("kind", ["IteratorV2", "AnonymousIteratorV3"])
@pytest.mark.parametrize(("parts", "found"), [((0, 1), []), ((1, 1), ["iterator_1"])])
def test_pipelines_that_read_a_part_each(
    kind: str, parts: tuple[int, int], found: Sequence[str]
) -> None:
    ops = [host("files", "Const"), host("all", "Const")]
    for i in (0, 1):
        ops += [
            host(f"lines_{i}", "TextLineDataset", "files"),
            host(f"part_{i}", "Const"),
            host(f"dataset_{i}", "ShardDataset", f"lines_{i}", "all", f"part_{i}"),
        ]
    values = {f"part_{i}": part for i, part in enumerate(parts)}

    assert objects(iterators("dataset_0", "dataset_1", kind=kind, ops=ops, values=values)) == found


@pytest.mark.parametrize(("other", "found"), [("one", ["iterator_1"]), ("two", [])])
def test_pipelines_with_different_functions(other: str, found: Sequence[str]) -> None:
    ops = [
        host("files", "Const"),
        *(host(f"lines_{i}", "TextLineDataset", "files") for i in (0, 1)),
        *(host(f"dataset_{i}", "MapDataset", f"lines_{i}") for i in (0, 1)),
    ]
    attributes = {"dataset_0": {"f": Body("one")}, "dataset_1": {"f": Body(other)}}
    graph = iterators("dataset_0", "dataset_1", ops=ops, attributes=attributes)

    assert objects(graph) == found


@pytest.mark.parametrize(("other", "found"), [("one", ["iterator_1"]), ("two", [])])
def test_one_shot_iterators_are_their_datasets(other: str, found: Sequence[str]) -> None:
    ops = []
    for i in (0, 1):
        ops += [
            host(f"iterator_{i}", "OneShotIterator"),
            on(i, f"tower_{i}/next", "IteratorGetNext", f"iterator_{i}"),
        ]
    attributes = {
        "iterator_0": {"dataset_factory": Body("one"), "shared_name": b""},
        "iterator_1": {"dataset_factory": Body(other), "shared_name": b"x"},
    }
    graph = fed("tower_0/next", "tower_1/next", ops=ops, attributes=attributes)

    assert objects(graph) == found


@pytest.mark.parametrize(("files", "found"), [(("a", "a"), ["queue_1"]), (("a", "b"), [])])
def test_queues_with_equal_elements_are_equal(
    files: tuple[str, str], found: Sequence[str]
) -> None:
    ops = [host("a", "Const"), host("b", "Const")]
    for i, name in enumerate(files):
        ops += [
            host(f"queue_{i}", "FIFOQueueV2"),
            host(f"put_{i}", "QueueEnqueueManyV2", f"queue_{i}", name),
            host(f"batch_{i}", "QueueDequeueManyV2", f"queue_{i}", "n"),
        ]

    assert objects(fed("batch_0", "batch_1", ops=ops)) == found


def test_a_pipeline_that_feeds_all_towers_is_made_once() -> None:
    ops = [
        host("files", "Const"),
        host("dataset", "TextLineDataset", "files"),
        host("iterator_0", "IteratorV2"),
        host("make_0", "MakeIterator", "dataset", "iterator_0"),
        *(host(f"next_{i}", "IteratorGetNext", "iterator_0") for i in (0, 1)),
    ]

    assert objects(fed("next_0", "next_1", ops=ops)) == []


def test_one_finding_an_object() -> None:
    """An iterator is on a GPU and built again; only the first finding is reported."""
    ops = [
        host("files", "Const"),
        *(host(f"dataset_{i}", "TextLineDataset", "files") for i in (0, 1)),
    ]
    graph = iterators("dataset_0", "dataset_1", at="/gpu:0", ops=ops)

    findings = InputsDistinct().judge(graph).findings

    assert [finding.object for finding in findings] == ["iterator_0", "iterator_1"]
    assert {finding.expected for finding in findings} == {"/device:CPU:0"}


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        ((), ["images", "labels", "tower_0/queue"]),
        (("images",), ["labels", "tower_0/queue"]),
        (("images", "l*"), ["tower_0/queue"]),
        (("tower_?/*",), ["images", "labels"]),
        (("*",), []),
        (("Images", "queue"), ["images", "labels", "tower_0/queue"]),
    ],
)
def test_inputs_that_all_towers_read_whole_on_purpose(
    allow: Sequence[str], left: Sequence[str]
) -> None:
    ops = [host("images", "Placeholder"), host("labels", "Placeholder")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/off", "Sub", f"tower_{i}/w/MatMul", "labels"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/off"),
        ]
    graph = fed("images", "images", ops=[*ops, on(0, "tower_0/queue", "FIFOQueueV2")])

    assert objects(graph, allow=allow) == left


def test_needs_no_placer_and_no_train_op() -> None:
    graph = sliced(0, 0, placer=None, assigned=Missing("no wheel"), step={"train_op": ()})

    assert objects(graph) == ["tower_1/slice"]


def test_an_input_op_on_a_gpu_is_found_though_no_tower_reads_examples() -> None:
    graph = program(on(0, "queue", "FIFOQueueV2"), outputs={"tower_0/x": (), "tower_1/x": ()})

    assert objects(graph) == ["queue"]


@without_two_towers
def test_not_checked_without_two_towers(graph: Placement, reason: str) -> None:
    assert InputsDistinct().judge(graph) == Verdict("inputs-distinct", "not-checked", None, reason)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(fed("numbers", "numbers", ops=[host("numbers", "Const")]), id="a constant"),
        pytest.param(
            program(outputs={"tower_0/x": (), "tower_1/x": ()}), id="scalars that are fed"
        ),
    ],
)
def test_not_checked_without_examples(graph: Placement, snapshot: SnapshotAssertion) -> None:
    verdict = InputsDistinct().judge(graph)

    assert verdict == Verdict("inputs-distinct", "not-checked", None, ANY)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(("source", "found"), [("GeneratorDataset", []), ("RangeDataset", [0, 1])])
def test_ops_that_prefetch_batches_belong_on_the_gpu(source: str, found: Sequence[int]) -> None:
    """As with MultiDeviceIterator and prefetch_to_device, a generator calls the CPU's pipeline."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"generated_{i}", source),
            on(i, f"ahead_{i}", "PrefetchDataset", f"generated_{i}"),
        ]

    names = [f"{name}_{i}" for i in found for name in ("generated", "ahead")]
    assert sorted(objects(program(*ops))) == sorted(names)


def test_a_control_edge_takes_no_example(snapshot: SnapshotAssertion) -> None:
    graph = program(on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_0/x"))

    verdict = InputsDistinct().judge(graph)

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "kind",
    [
        "StridedSlice",
        "Slice",
        "Split",
        "SplitV",
        "Unpack",
        "GatherV2",
        "Gather",
        "DynamicPartition",
        "Identity",
        "Reshape",
        "ExpandDims",
        "Squeeze",
        "Cast",
        "Transpose",
    ],
)
def test_an_op_on_the_towers_gpu_that_takes_a_part_yields_its_input(kind: str) -> None:
    """The input is the part, not the whole batch that all towers cut."""
    graph = program(
        host("images", "Placeholder"),
        *(on(i, f"tower_{i}/x", kind, "images", f"tower_{i}/begin") for i in (0, 1)),
        *(host(f"tower_{i}/begin", "Const") for i in (0, 1)),
        values={"tower_0/begin": 0, "tower_1/begin": 4},
    )

    assert objects(graph) == []


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("GeneratorDataset", []),
        ("PrefetchDataset", []),
        ("OptionsDataset", []),
        ("ModelDataset", []),
        ("MaxIntraOpParallelismDataset", []),
        ("IteratorV2", []),
        ("AnonymousIteratorV3", []),
        ("MapDataset", ["extra"]),
        ("DecodeJpeg", ["extra"]),
    ],
)
def test_iterators_that_prefetch_belong_on_the_gpu_and_pipelines_do_not(
    kind: str, found: Sequence[str]
) -> None:
    graph = program(on(1, "fetch", "GeneratorDataset"), on(1, "extra", kind))

    assert objects(graph) == found


def test_queues_that_are_filled_alike_and_drawn_from_by_one_tower_each() -> None:
    ops = [host("files", "ReadFile"), host("n", "Const")]
    for i in (0, 1):
        ops += [
            host(f"queue_{i}", "FIFOQueueV2"),
            host(f"put_{i}", "QueueEnqueueV2", f"queue_{i}", "files"),
            host(f"batch_{i}", "QueueDequeueManyV2", f"queue_{i}", "n"),
        ]

    assert objects(fed("batch_0", "batch_1", ops=ops)) == ["queue_1"]


@pytest.mark.parametrize(
    "kind",
    [
        "Placeholder",
        "IteratorGetNext",
        "MultiDeviceIteratorGetNextFromShard",
        "QueueDequeueManyV2",
        "Unstage",
        "MapUnstage",
        "BarrierTakeMany",
        "ReaderReadV2",
    ],
)
def test_a_batch_that_two_towers_compute_with_whatever_yields_it(kind: str) -> None:
    assert objects(fed("batch", "batch", ops=[host("batch", kind)])) == ["batch"]


@pytest.mark.parametrize(("kind", "found"), [("IteratorGetNext", ["batch"]), ("Placeholder", [])])
def test_any_shape_from_a_pipeline_is_an_example_but_a_fed_scalar_is_not(
    kind: str, found: Sequence[str]
) -> None:
    graph = fed("batch", "batch", ops=[host("batch", kind)], outputs={"batch": None})

    assert [finding.object for finding in InputsDistinct().judge(graph).findings] == found
