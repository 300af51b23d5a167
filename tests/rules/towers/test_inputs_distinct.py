from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.graphs import op, placement
from support.steps import Program, add_n, mean, square, total
from support.steps import split as cut_in
from support.towers import MIRRORED, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Body
from placement_checks.rules.towers.inputs_distinct import InputsDistinct


def fed(*sources: str, ops: Sequence[Op] = (), **more: Any) -> Placement:
    """Towers that compute with these tensors, which `ops` yield."""
    reads = [
        on(i, f"tower_{i}/w/MatMul", "MatMul", source, f"tower_{i}/w/read")
        for i, source in enumerate(sources)
    ]
    return program(*ops, *reads, gpus=range(len(sources)), **more)


def sliced(*begins: int, kind: str = "StridedSlice", **more: Any) -> Placement:
    """Towers that cut slices from one placeholder, each from its own first row."""
    ops = [host("images", "Placeholder"), host("one", "Const"), host("axis", "Const")]
    for i in range(len(begins)):
        bounds = [f"tower_{i}/begin", f"tower_{i}/end"]
        others = [bounds[0], "axis"] if kind == "GatherV2" else [*bounds, "one"]
        ops += [
            *(host(bound, "Const") for bound in bounds),
            on(i, f"tower_{i}/slice", kind, "images", *others),
        ]
    values = {f"tower_{i}/begin": (begin,) for i, begin in enumerate(begins)}
    values |= {f"tower_{i}/end": (begin + 4,) for i, begin in enumerate(begins)}
    return fed(
        *(f"tower_{i}/slice" for i in range(len(begins))),
        ops=ops,
        values={"one": (1,), "axis": 0, **values},
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
    others = {"GatherV2": ["rows", "axis"], "Transpose": ["order"]}.get(then, [])
    ops = [
        host("images", "Placeholder"),
        *(host(name, "Const") for name in ("strides", "rows", "axis", "order")),
        *shown,
    ]
    values: dict[str, int | Sequence[int]] = {
        "strides": (stride,) * len(slices[0][0]),
        "none": (0, 0),
        "size": (4, 8),
        "rows": (2, 0),
        "axis": 0,
        "order": (1, 0),
    }
    for i, (begins, ends) in enumerate(slices):
        bounds = [f"tower_{i}/begin", f"tower_{i}/end"]
        values |= dict(zip(bounds, (begins, ends), strict=True))
        strides = ["strides"] * (kind == "StridedSlice")
        ops += [host(each, "Const") for each in bounds]
        ops.append(on(i, f"tower_{i}/slice", kind, "images", *bounds, *strides))
        ops.append(on(i, f"tower_{i}/cast", then, f"tower_{i}/slice", *others))
    names = [f"tower_{i}/slice" for i in range(len(slices))]
    casts = [f"tower_{i}/cast" for i in range(len(slices))]
    return fed(
        *casts,
        ops=ops,
        values=values,
        outputs={"images": (None, 8)},
        attributes=dict.fromkeys(names, masks),
        step={"train_op": ("train", *(op.name for op in shown))},
    )


def divided(shape: tuple[int, ...]) -> Placement:
    """Towers that divide their loss by the sum of the whole mask, which has this shape."""
    ops = [host("mask", "Placeholder"), host("axes", "Const")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/positive", "Relu", "mask"),
            on(i, f"tower_{i}/count", "Sum", f"tower_{i}/positive", "axes"),
            on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul"),
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", f"tower_{i}/count"),
        ]
    counts = {f"tower_{i}/count": shape for i in (0, 1)}
    values = {"axes": (0,) if shape else (0, 1)}
    return program(*ops, outputs={"mask": (None, 4), **counts}, values=values)


def sequences(distance: int) -> Placement:
    """Towers that predict the next row of their part of a sequence.

    The first rows of the parts are ``distance`` apart.
    """
    ops = [host("rows", "Placeholder"), host("size", "Const")]
    values: dict[str, Sequence[int]] = {"size": (2,)}
    for i in (0, 1):
        for name, begin in (("inputs", distance * i), ("labels", distance * i + 1)):
            values[f"tower_{i}/{name}/begin"] = (begin,)
            ops += [
                host(f"tower_{i}/{name}/begin", "Const"),
                on(i, f"tower_{i}/{name}", "Slice", "rows", f"tower_{i}/{name}/begin", "size"),
            ]
        ops.append(on(i, f"tower_{i}/both", "Sub", f"tower_{i}/inputs", f"tower_{i}/labels"))
    return fed("tower_0/both", "tower_1/both", ops=ops, values=values)


SPLIT = [
    host("axis", "Const"),
    host("images", "Placeholder"),
    host("split", "Split", "axis", "images"),
]
IN_TWO: dict[str, Any] = {"values": {"axis": 0}, "attributes": {"split": {"num_split": 2}}}


def cut_differently(*sources: str) -> Placement:
    """Towers that take parts of one batch, which is split into halves and into quarters."""
    return fed(
        *sources,
        ops=[
            host("images", "Placeholder"),
            host("axis", "Const"),
            host("half", "Split", "axis", "images"),
            host("quarter", "Split", "axis", "images"),
            host("half_of_half", "Split", "axis", "half"),
        ],
        values={"axis": 0},
        attributes={
            name: {"num_split": count}
            for name, count in (("half", 2), ("quarter", 4), ("half_of_half", 2))
        },
    )


def gathered(kind: str) -> Placement:
    """Towers with rows of their own, which compare them with the labels of all towers."""
    labels = [f"labels_{i}" for i in (0, 1)]
    ops = [host(name, "Placeholder") for name in labels]
    if kind == "ConcatV2":
        ops += [host("axis", "Const"), host("gathered", kind, *labels, "axis")]
    for i in (0, 1):
        if kind != "ConcatV2":
            ops.append(on(i, f"gathered_{i}", kind, labels[i]))
        source = "gathered" if kind == "ConcatV2" else f"gathered_{i}"
        ops += [
            on(i, f"tower_{i}/off", "Sub", f"tower_{i}/w/MatMul", source),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/off"),
        ]
    shapes = dict.fromkeys(labels, (None, 4))
    return program(*ops, outputs=shapes, values={"axis": 0})


def from_host(kind: str, other: str, shape: tuple[int | None, ...] = (None, 4)) -> Placement:
    """Towers that take parts of what an op of the host makes of an input."""
    return fed(
        "split",
        other,
        ops=[
            host("fed", "Placeholder"),
            host("made", kind, "fed"),
            host("axis", "Const"),
            host("split", "Split", "axis", "made"),
        ],
        outputs={"fed": shape, "made": (None, 4)},
        **IN_TWO,
    )


def joined() -> Placement:
    """Two batches of a pipeline, which are joined for all towers."""
    return fed(
        "both",
        "both",
        ops=[
            host("iterator", "IteratorV2"),
            *(host(f"next_{i}", "IteratorGetNext", "iterator") for i in (0, 1)),
            host("axis", "Const"),
            host("both", "ConcatV2", "next_0", "next_1", "axis"),
        ],
        values={"axis": 0},
    )


def combined(kind: str, source: str, *extra: Op, **more: Any) -> Placement:
    """Towers that combine their results with a tensor of the host."""
    ops = []
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/combined", kind, f"tower_{i}/w/MatMul", source),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/combined"),
        ]
    return program(*extra, *ops, **more)


def with_extra(shape: tuple[int | None, ...]) -> Placement:
    """All towers are fed the same tensor, such as a dropout rate or class weights."""
    extra = host("extra", "PlaceholderWithDefault", "default")
    return combined("Mul", "extra", extra, host("default", "Const"), outputs={"extra": shape})


def with_inputs(**shapes: tuple[int, ...]) -> Placement:
    """Towers that all take tensors of these shapes."""
    ops = [host(name, "Placeholder") for name in shapes]
    for i in (0, 1):
        parts = [
            on(i, f"tower_{i}/{name}/parts", "Mul", f"tower_{i}/w/MatMul", name) for name in shapes
        ]
        ops += [*parts, on(i, f"tower_{i}/loss", "AddN", *(op.name for op in parts))]
    return program(*ops, outputs={"x": None, **shapes})


def with_labels(*parts: int) -> Placement:
    """Towers that take parts of a batch of fixed size, and these parts of a vector of labels."""
    ops = [
        *(host(name, "Placeholder") for name in ("images", "all_labels")),
        host("axis", "Const"),
        host("parts", "Split", "axis", "images"),
        host("labels", "Split", "axis", "all_labels"),
    ]
    for i, part in enumerate(parts):
        ops += [
            on(i, f"tower_{i}/w/MatMul", "MatMul", f"parts:{i}", f"tower_{i}/w/read"),
            on(i, f"tower_{i}/off", "Sub", f"tower_{i}/w/MatMul", f"labels:{part}"),
            on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/off"),
        ]
    shapes = {"images": (32, 8), "parts": (16, 8), "all_labels": (32,), "labels": (16,)}
    return program(
        *ops,
        outputs={"x": None, **shapes},
        values={"axis": 0},
        attributes={name: {"num_split": 2} for name in ("parts", "labels")},
    )


def exchanged() -> Placement:
    """Each tower takes its part of the features, and the other tower's part of the labels."""
    made = Program()
    x, y = made.placeholder("x", (None, 2)), made.placeholder("y", (None,))
    w, gradients = made.variable("w", (2,)), []
    parts = zip(cut_in(x, 2), cut_in(y, 2)[::-1], strict=True)
    for i, (features, labels) in enumerate(parts):
        with made.tower(i):
            loss = mean(square(total(features * w.read(), 1) - labels))
            gradients.append(made.gradient(loss, w))
    made.train(w.descend(0.1, add_n(gradients) / 2.0))
    return made.placement()


def given(*names: str) -> Placement:
    """A strategy gives each replica its ids: a vector of fixed length, for a fixed batch."""
    return fed(
        *names,
        ops=[host(f"ids_{i}", "Placeholder") for i in (0, 1)],
        outputs={f"ids_{i}": (16,) for i in (0, 1)},
        step={"inputs": [["ids_0:0"], ["ids_1:0"]]},
    )


def normalized() -> Placement:
    """Towers that normalize the pictures of a pipeline by vectors that are fed."""
    ops = [host("iterator", "IteratorV2"), host("mean", "Placeholder"), host("dev", "Placeholder")]
    for i in (0, 1):
        ops += [
            on(i, f"tower_{i}/next", "IteratorGetNext", "iterator"),
            on(i, f"tower_{i}/scaled", "Sub", f"tower_{i}/next", "mean"),
            on(
                i, f"tower_{i}/w/MatMul", "MatMul", f"tower_{i}/scaled", "dev", f"tower_{i}/w/read"
            ),
        ]
    return program(*ops, outputs={"x": None, "mean": (3,), "dev": (3,)})


def unshaped(mask: int) -> Placement:
    """Towers that cut equal slices of a tensor of unknown shape."""
    names = [f"tower_{i}/slice" for i in (0, 1)]
    return sliced(
        0,
        0,
        outputs=dict.fromkeys(["images", *names]),
        attributes={name: {"shrink_axis_mask": mask} for name in names},
    )


def repeated_shards() -> Placement:
    """Two pipelines that read the same shard."""
    ops = [host("files", "Const"), host("two", "Const"), host("zero", "Const")]
    for i in (0, 1):
        ops += [
            host(f"all_{i}", "TextLineDataset", "files"),
            host(f"shard_{i}", "ShardDataset", f"all_{i}", "two", "zero"),
            host(f"batch_{i}", "BatchDatasetV2", f"shard_{i}", "two"),
        ]
    lines = {"iterator_1": "main.py:9", "shard_1": "main.py:8", "loss": "main.py:30"}
    return iterators("batch_0", "batch_1", ops=ops, lines=lines)


def pipelines(count: int, **more: Any) -> Placement:
    """Each tower has its own pipeline of the same files."""
    datasets = [f"dataset_{i}" for i in range(count)]
    ops = [host("files", "Const"), *(host(name, "TextLineDataset", "files") for name in datasets)]
    return iterators(*datasets, ops=ops, **more)


def shards(*parts: int, kind: str = "IteratorV2") -> Placement:
    """Pipelines that read these parts of the files."""
    ops = [host("files", "Const"), host("all", "Const")]
    for i in (0, 1):
        ops += [
            host(f"lines_{i}", "TextLineDataset", "files"),
            host(f"part_{i}", "Const"),
            host(f"dataset_{i}", "ShardDataset", f"lines_{i}", "all", f"part_{i}"),
        ]
    values = {f"part_{i}": part for i, part in enumerate(parts)}
    return iterators("dataset_0", "dataset_1", kind=kind, ops=ops, values=values)


def mapped(other: str) -> Placement:
    return iterators(
        "dataset_0",
        "dataset_1",
        ops=[
            host("files", "Const"),
            *(host(f"lines_{i}", "TextLineDataset", "files") for i in (0, 1)),
            *(host(f"dataset_{i}", "MapDataset", f"lines_{i}") for i in (0, 1)),
        ],
        attributes={"dataset_0": {"f": Body("one")}, "dataset_1": {"f": Body(other)}},
    )


def one_shot(other: str) -> Placement:
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
    return fed("tower_0/next", "tower_1/next", ops=ops, attributes=attributes)


def queues(*files: str, put: str = "QueueEnqueueManyV2", kind: str = "FIFOQueueV2") -> Placement:
    """Each tower draws from its own queue, which holds a file."""
    ops = [host("a", "Const"), host("b", "Const"), host("read", "ReadFile"), host("n", "Const")]
    for i, name in enumerate(files):
        ops += [
            host(f"queue_{i}", kind),
            host(f"put_{i}", put, f"queue_{i}", name),
            host(f"batch_{i}", "QueueDequeueManyV2", f"queue_{i}", "n"),
        ]
    return fed("batch_0", "batch_1", ops=ops)


def prefetched(source: str) -> Placement:
    """Each tower has a pipeline on its GPU, which prefetches."""
    return program(
        *(on(i, f"generated_{i}", source) for i in (0, 1)),
        *(on(i, f"ahead_{i}", "PrefetchDataset", f"generated_{i}") for i in (0, 1)),
    )


def cut_on_gpu(kind: str) -> Placement:
    return program(
        host("images", "Placeholder"),
        *(on(i, f"tower_{i}/x", kind, *_INPUTS[kind].format(i=i).split()) for i in (0, 1)),
        *(host(f"tower_{i}/begin", "Const") for i in (0, 1)),
        *(host(f"tower_{i}/end", "Const") for i in (0, 1)),
        *(host(f"part_{i}", "Const") for i in (0, 1)),
        host("one", "Const"),
        host("axis", "Const"),
        values={
            **{f"tower_{i}/begin": (4 * i,) for i in (0, 1)},
            **{f"tower_{i}/end": (4 * i + 4,) for i in (0, 1)},
            **IN_TWO["values"],
            **{f"part_{i}": i for i in (0, 1)},
            "one": (1,),
        },
    )


# The inputs of ops that take a part of the images, for the tower i.
_INPUTS = {
    "StridedSlice": "images tower_{i}/begin tower_{i}/end one",
    "Slice": "images tower_{i}/begin tower_{i}/end",
    "GatherV2": "images tower_{i}/begin axis",
    "Gather": "images tower_{i}/begin",
    "DynamicPartition": "images part_{i}",
}


ON_BATCH = fed(
    "data",
    "data",
    ops=[
        *(host(name, "Placeholder") for name in ("data", "data_1")),
        *(on(i, f"tower_{i}/labels", "Square", "data_1") for i in (0, 1)),
        *(on(i, f"tower_{i}/w/more", "Mul", f"tower_{i}/labels") for i in (0, 1)),
    ],
    keras_parts=dict.fromkeys(("data", "data_1"), "train_on_batch"),
    lines={"data": "main.py:9"},
)
# All towers read all images and labels; a queue is on a GPU.
WHOLE = fed(
    "images",
    "images",
    ops=[
        host("images", "Placeholder"),
        host("labels", "Placeholder"),
        *(on(i, f"tower_{i}/off", "Sub", f"tower_{i}/w/MatMul", "labels") for i in (0, 1)),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/off") for i in (0, 1)),
        on(0, "tower_0/queue", "FIFOQueueV2"),
    ],
)


CASES = {
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (2, 12)},
    "train_on_batch gives all replicas the batch": broken(ON_BATCH),
    "train_on_batch gives all replicas the batch, which is allowed": kept(
        ON_BATCH, allow=("data*",)
    ),
    "both towers take the whole batch": broken(
        fed("images", "images", ops=[host("images", "Placeholder")], lines={"images": "main.py:9"})
    ),
    "both replicas take the whole batch": broken(
        program(
            host("x", "Placeholder"),
            *(on(i, f"tower_{i}/w/MatMul", "MatMul", "x", f"v{i}/w") for i in (0, 1)),
            mirrored=True,
            strategy=MIRRORED,
        )
    ),
    "both towers cut the first slice": broken(
        sliced(0, 0, lines={"tower_1/slice": "main.py:9 net.py:3"})
    ),
    **{
        f"each of {count} towers cuts the first slice": broken(sliced(*[0] * count))
        for count in (2, 12)
    },
    # The labels of a tower are rows that the next tower takes as inputs.
    "parts of a sequence, and the labels are the next rows": kept(sequences(2)),
    "parts of a sequence that overlap": broken(sequences(1)),
    # As x[i : i + rows] instead of x[i * rows : (i + 1) * rows].
    "slices that overlap": broken(parts(((0,), (4,)), ((1,), (5,)), ((2,), (6,)))),
    "slices next to each other": kept(parts(((0,), (4,)), ((4,), (8,)))),
    "slices that overlap to the end": broken(parts(((0,), (4,)), ((3,), (0,)), end_mask=1)),
    "single rows": kept(parts(((0,), (0,)), ((1,), (0,)), shrink_axis_mask=1)),
    "slices of columns": kept(parts(((0, 0), (4, 2)), ((0, 2), (4, 4)))),
    "slices of columns that overlap": kept(parts(((0, 0), (4, 3)), ((0, 2), (4, 4)))),
    "slices that overlap in rows and columns": broken(parts(((0, 0), (4, 2)), ((2, 1), (6, 4)))),
    "a slice from the end": not_checked(parts(((-8,), (4,)), ((1,), (5,)))),
    "every second row": kept(parts(((0,), (8,)), ((1,), (8,)), stride=2)),
    "slices that share one of nine rows": kept(parts(((0,), (9,)), ((8,), (17,)))),
    "slices that overlap, of rows to look up": kept(
        parts(((0,), (8,)), ((1,), (9,)), then="GatherV2")
    ),
    "slices that overlap, and are transposed": broken(
        parts(((0,), (8,)), ((1,), (9,)), then="Transpose")
    ),
    # x[tf.newaxis] is the whole batch, whatever the bounds are.
    "a new axis": broken(parts(((0,), (4,)), ((1,), (5,)), new_axis_mask=1)),
    "slices by size that overlap": broken(parts(((0,), (4,)), ((1,), (4,)), kind="Slice")),
    "slices by size, the last to the end": kept(parts(((0,), (4,)), ((4,), (-1,)), kind="Slice")),
    "slices by size that overlap to the end": broken(
        parts(((0,), (-1,)), ((4,), (-1,)), kind="Slice")
    ),
    "a summary of another tower's rows": kept(
        parts(
            ((0,), (4,)),
            ((4,), (4,)),
            kind="Slice",
            shown=[
                host("none", "Const"),
                host("size", "Const"),
                on(1, "tower_1/shown", "Slice", "images", "none", "size"),
                on(1, "tower_1/image", "ImageSummary", "tower_1/shown"),
            ],
        )
    ),
    "two of four towers cut one slice": broken(sliced(0, 4, 8, 4)),
    "a slice for each tower": kept(sliced(0, 4)),
    "rows for each tower": kept(sliced(0, 4, kind="GatherV2")),
    "a part of a split for each tower": kept(fed("split", "split:1", ops=SPLIT, **IN_TWO)),
    "a get_next for each tower": kept(
        fed(
            "next_0",
            "next_1",
            ops=[
                host("iterator", "IteratorV2"),
                *(host(f"next_{i}", "IteratorGetNext", "iterator") for i in (0, 1)),
            ],
        )
    ),
    "a get_next in each tower": kept(
        fed(
            "tower_0/next",
            "tower_1/next",
            ops=[
                host("iterator", "IteratorV2"),
                *(on(i, f"tower_{i}/next", "IteratorGetNext", "iterator") for i in (0, 1)),
            ],
        )
    ),
    "a batch of a queue for each tower": kept(
        fed(
            "batch_0",
            "batch_1",
            ops=[
                host("queue", "FIFOQueueV2"),
                *(host(f"batch_{i}", "QueueDequeueManyV2", "queue", "n") for i in (0, 1)),
            ],
        )
    ),
    "a staging area for each tower": kept(
        fed("area_0", "area_1", ops=[host(f"area_{i}", "Unstage") for i in (0, 1)])
    ),
    "a row of a reader for each tower": kept(
        fed(
            "row_0:1",
            "row_1:1",
            ops=[
                host("reader", "TextLineReaderV2"),
                host("files", "FIFOQueueV2"),
                *(host(f"row_{i}", "ReaderReadV2", "reader", "files") for i in (0, 1)),
            ],
        )
    ),
    **{
        f"both towers take {output}": broken(fed(output, output, ops=SPLIT, **IN_TWO))
        for output in ("split", "split:0", "split:1")
    },
    # The lines of the split and of the model are right; the wrong line is in the loop.
    "one part for both towers, taken on one line": broken(
        fed(
            "split",
            "split",
            ops=SPLIT,
            **IN_TWO,
            lines={
                "split": "main.py:9",
                **{f"tower_{i}/w/MatMul": "main.py:20 net.py:3" for i in (0, 1)},
                "loss": "main.py:30",
            },
        )
    ),
    "one batch for both towers, made on one line": broken(
        fed(
            "batch",
            "batch",
            ops=[host("iterator", "IteratorV2"), host("batch", "IteratorGetNext", "iterator")],
            lines={"batch": "main.py:9", "tower_1/w/MatMul": "main.py:20", "loss": "main.py:30"},
        )
    ),
    **{
        f"both towers take one batch of {source}": broken(
            fed(
                "batch",
                "batch",
                ops=[
                    host("iterator", "IteratorV2"),
                    host("queue", "FIFOQueueV2"),
                    host("batch", source, *takes),
                ],
            )
        )
        for source, takes in (
            ("IteratorGetNext", ["iterator"]),
            ("QueueDequeueV2", ["queue"]),
            ("Unstage", []),
        )
    },
    # The ops are in the scope of the tower; the first op that computes takes another tensor.
    **{
        f"each tower takes the batch through a {kind}": broken(
            fed(
                "tower_0/formed",
                "tower_1/formed",
                ops=[
                    host("images", "Placeholder"),
                    host("form", "Const"),
                    *(
                        on(i, f"tower_{i}/formed", kind, "images", *["form"] * has_form)
                        for i in (0, 1)
                    ),
                ],
                values={"form": form},
            )
        )
        for kind, form in (
            *(("Identity", None), ("Reshape", (-1, 4)), ("ExpandDims", 1)),
            *(("Squeeze", None), ("Cast", None), ("Transpose", (1, 0))),
        )
        for has_form in [form is not None]
    },
    "values that the host computes from the batch": broken(
        fed(
            "bright_0",
            "bright_1",
            ops=[
                host("images", "Placeholder"),
                *(host(f"bright_{i}", "Mul", "images", "two") for i in (0, 1)),
                host("two", "Const"),
            ],
            values={"two": 2.0},
        )
    ),
    # Each tower's part is cut in another way.
    "halves of different cuts": kept(cut_differently("half", "half:1")),
    "a half, and a quarter of it": broken(cut_differently("half", "quarter:1")),
    "a half, and a quarter of the other half": kept(cut_differently("half", "quarter:2")),
    "a quarter, cut in two ways": broken(cut_differently("quarter", "half_of_half")),
    "a quarter, and another half of a half": kept(cut_differently("quarter", "half_of_half:1")),
    "the whole batch, and a part of it": broken(cut_differently("images", "half:1")),
    **{
        f"rows of their own, and the labels of all towers by {kind}": kept(gathered(kind))
        for kind in ("ConcatV2", "CollectiveGatherV2")
    },
    "all rows of several batches": broken(joined()),
    # An op that calls Python is an input of its own.
    "a part for each tower, of the result of Python": kept(from_host("PyFunc", "split:1")),
    "one part of the result of Python": broken(from_host("PyFunc", "split")),
    "rows in a string, a part for each tower": kept(from_host("DecodeRaw", "split:1", shape=())),
    "rows in a string, one part for both towers": broken(
        from_host("DecodeRaw", "split", shape=())
    ),
    # Micro-batches: the towers cut different parts, and then the same slice of these.
    "the same part of different parts": kept(
        fed(
            "tower_0/half",
            "tower_1/half",
            ops=[
                *SPLIT,
                *(on(i, f"tower_{i}/half", "Split", "axis", f"split:{i}") for i in (0, 1)),
            ],
            values={"axis": 0},
            attributes={
                name: {"num_split": 2} for name in ("split", "tower_0/half", "tower_1/half")
            },
        )
    ),
    "all towers compute a scalar from the whole batch": kept(divided(())),
    # Towers compute from it the rows that they take.
    "all towers take the shape of the whole batch": kept(
        fed(
            "tower_0/slice",
            "tower_1/slice",
            ops=[
                host("images", "Placeholder"),
                *(on(i, f"tower_{i}/shape", "Shape", "images") for i in (0, 1)),
                *(host(f"number_{i}", "Const") for i in (0, 1)),
                *(
                    on(i, f"tower_{i}/begin", "Mul", f"tower_{i}/shape", f"number_{i}")
                    for i in (0, 1)
                ),
                host("half", "Const"),
                *(on(i, f"tower_{i}/size", "Mul", f"tower_{i}/shape", "half") for i in (0, 1)),
                *(
                    on(
                        *(i, f"tower_{i}/slice", "Slice", "images"),
                        *(f"tower_{i}/begin", f"tower_{i}/size"),
                    )
                    for i in (0, 1)
                ),
            ],
            values={"number_0": 0.0, "number_1": 0.5, "half": 0.5},
        )
    ),
    "all towers compute sums of columns from the whole batch": kept(divided((4,))),
    "both towers take all labels": broken(
        combined("Sub", "labels", host("labels", "Placeholder"))
    ),
    "all towers are fed a scalar": kept(with_extra(())),
    "all towers are fed a vector of fixed length": kept(with_extra((10,))),
    "all towers are fed a vector": broken(with_extra((None,))),
    "all towers are fed a matrix of fixed size": broken(with_extra((10, 4))),
    "all towers are fed a matrix": broken(with_extra((None, 4))),
    # All replicas of a strategy get the ids of a whole batch of fixed size.
    "two vectors of one length": broken(with_inputs(ids=(32,), labels=(32,))),
    "a vector as long as a batch": broken(with_inputs(ids=(32,), images=(32, 8))),
    "a vector of another length than the batch": broken(
        with_inputs(weights=(10,), images=(32, 8))
    ),
    "two vectors of different lengths": kept(with_inputs(mean=(3,), weights=(10,))),
    "each tower takes its part of the labels": kept(with_labels(0, 1)),
    "both towers take one part of the labels": broken(with_labels(0, 0)),
    "each tower takes the labels of the other tower": broken(exchanged()),
    "each tower takes its ids": kept(given("ids_0", "ids_1")),
    "both towers take the first tower's ids": broken(given("ids_0", "ids_0")),
    # Means and deviations of channels; the step reads the pictures itself.
    "a vector next to a pipeline": kept(normalized()),
    # keep_prob = tf.compat.v1.placeholder(tf.float32): its shape shows no rows.
    "a scalar of unknown shape": kept(
        combined("Mul", "keep_prob", host("keep_prob", "Placeholder"), outputs={"keep_prob": None})
    ),
    "equal rows of a tensor of unknown shape": broken(unshaped(0)),
    # Such as a height.
    "equal elements of a tensor of unknown shape": not_checked(unshaped(1)),
    "both towers take the labels of a pipeline": broken(
        fed(
            "labels",
            "labels",
            ops=[host("iterator", "IteratorV2"), host("labels", "IteratorGetNext", "iterator")],
            outputs={"labels": (32,)},
        )
    ),
    "a tensor that only the backward pass takes": kept(
        program(
            host("mask", "Placeholder"),
            *(
                on(i, f"gradients/tower_{i}/loss_grad/Mul", "Mul", f"tower_{i}/w/MatMul", "mask")
                for i in (0, 1)
            ),
        )
    ),
    # An evaluation that the training step does not run.
    "a tensor outside of the step": kept(
        program(
            host("pictures", "Placeholder"),
            *(on(i, f"test_{i}", "MatMul", "pictures", f"tower_{i}/w/read") for i in (0, 1)),
        )
    ),
    "towers that only predict": broken(
        placement(
            host("images", "Placeholder"),
            variable("w"),
            *(on(i, f"predict_{i}", "MatMul", "images", "w") for i in (0, 1)),
        )
    ),
    **{
        f"a {kind} on a GPU": broken(
            program(on(1, "tower_1/input", kind), lines={"tower_1/input": "main.py:9 net.py:3"})
        )
        for kind in (
            *("IteratorV2", "OneShotIterator", "AnonymousIteratorV3", "MultiDeviceIterator"),
            *("FIFOQueueV2", "RandomShuffleQueueV2", "TensorSliceDataset", "BatchDatasetV2"),
            *("TextLineReaderV2", "DecodeJpeg", "DecodePng", "ReadFile"),
        )
    },
    "an iterator on the host": kept(program(host("input", "IteratorV2"))),
    "an iterator without a request": kept(program(op("input", "IteratorV2", "", "CPU:0"))),
    "a placeholder on a GPU": kept(program(on(0, "input", "Placeholder"))),
    "bytes that are numbers, on a GPU": kept(program(on(0, "input", "DecodeRaw"))),
    "bytes that are padded numbers, on a GPU": kept(program(on(0, "input", "DecodePaddedRaw"))),
    "a table on a GPU": kept(program(on(0, "input", "InitializeTableFromDataset", "t", "d"))),
    "a batch of a queue, on a GPU": kept(
        program(host("queue", "FIFOQueueV2"), on(0, "input", "QueueDequeueV2", "queue"))
    ),
    "a batch of an iterator, on a GPU": kept(
        program(host("iterator", "IteratorV2"), on(0, "input", "IteratorGetNext", "iterator"))
    ),
    "an input op in a function body": kept(
        program(
            on(0, "map", "PartitionedCall"), on(0, "map/DecodeJpeg", "DecodeJpeg", caller="map")
        )
    ),
    "a pipeline for each tower": broken(
        pipelines(2, lines={"iterator_1": "main.py:9 net.py:3", "loss": "main.py:30"})
    ),
    "one shard for both towers": broken(repeated_shards()),
    "a pipeline for each of 12 towers": broken(pipelines(12)),
    **{
        f"{what} through {kind}": expected(shards(*parts, kind=kind))
        for kind in ("IteratorV2", "AnonymousIteratorV3")
        for what, parts, expected in (
            ("a part for each tower", (0, 1), kept),
            ("one part for both towers", (1, 1), broken),
        )
    },
    "pipelines with different functions": kept(mapped("two")),
    "pipelines with equal functions": broken(mapped("one")),
    "one-shot iterators of different datasets": kept(one_shot("two")),
    "one-shot iterators of equal datasets": broken(one_shot("one")),
    "queues of different files": kept(queues("a", "b")),
    "queues of one file": broken(queues("a", "a")),
    "shuffling queues of one file": broken(queues("a", "a", kind="RandomShuffleQueueV2")),
    "queues of what is read from one file": broken(queues("read", "read", put="QueueEnqueueV2")),
    "a pipeline for all towers": kept(
        fed(
            "next_0",
            "next_1",
            ops=[
                host("files", "Const"),
                host("dataset", "TextLineDataset", "files"),
                host("iterator_0", "IteratorV2"),
                host("make_0", "MakeIterator", "dataset", "iterator_0"),
                *(host(f"next_{i}", "IteratorGetNext", "iterator_0") for i in (0, 1)),
            ],
        )
    ),
    # The iterators are on a GPU, and one is built again: one finding for each.
    "a pipeline for each tower, on a GPU": broken(pipelines(2, at="/gpu:0")),
    "all whole inputs are allowed": kept(WHOLE, allow=("*",)),
    **{
        f"whole images and labels, and a queue on a GPU, allowed: {allow}": broken(
            WHOLE, allow=allow
        )
        for allow in ((), ("images",), ("images", "l*"), ("tower_?/*",), ("Images", "queue"))
    },
    "without a placer and a train op": broken(
        sliced(0, 0, placer=None, assigned=Missing("no wheel"), step={"train_op": ()})
    ),
    "an input op on a GPU, and no tower reads examples": broken(
        program(on(0, "queue", "FIFOQueueV2"), outputs={"tower_0/x": (), "tower_1/x": ()})
    ),
    "all towers take a constant": not_checked(
        fed("numbers", "numbers", ops=[host("numbers", "Const")])
    ),
    "each tower is fed a scalar": not_checked(program(outputs={"tower_0/x": (), "tower_1/x": ()})),
    # As with MultiDeviceIterator and prefetch_to_device, a generator calls the CPU's pipeline.
    "batches of the host that are prefetched on a GPU": kept(prefetched("GeneratorDataset")),
    "a pipeline on a GPU that prefetches": broken(prefetched("RangeDataset")),
    "a tower waits for examples of the other": kept(
        program(on(1, "tower_1/loss", "Mean", "tower_1/w/MatMul", "^tower_0/x"))
    ),
    # The input is the part, not the whole batch that all towers cut.
    **{
        f"a {kind} on the GPU takes a part": kept(cut_on_gpu(kind))
        for kind in _INPUTS
        if kind != "DynamicPartition"
    },
    "a choice of rows by ids of their own": not_checked(cut_on_gpu("DynamicPartition")),
    **{
        f"a generator and a {kind} on a GPU": kept(
            program(on(1, "fetch", "GeneratorDataset"), on(1, "extra", kind))
        )
        for kind in (
            *("GeneratorDataset", "PrefetchDataset", "OptionsDataset", "ModelDataset"),
            *("MaxIntraOpParallelismDataset", "IteratorV2", "AnonymousIteratorV3"),
        )
    },
    **{
        f"a generator and a {kind} on a GPU": broken(
            program(on(1, "fetch", "GeneratorDataset"), on(1, "extra", kind))
        )
        for kind in ("MapDataset", "DecodeJpeg")
    },
    **{
        f"both towers take a batch of {kind}": broken(
            fed("batch", "batch", ops=[host("batch", kind)])
        )
        for kind in (
            *("Placeholder", "MultiDeviceIteratorGetNextFromShard", "QueueDequeueManyV2"),
            *("MapUnstage", "BarrierTakeMany", "ReaderReadV2"),
        )
    },
    "a batch of unknown shape from a pipeline": broken(
        fed("batch", "batch", ops=[host("batch", "IteratorGetNext")], outputs={"batch": None})
    ),
    "a batch of unknown shape that is fed": not_checked(
        fed("batch", "batch", ops=[host("batch", "Placeholder")], outputs={"batch": None})
    ),
}

test_verdicts = verdicts(InputsDistinct, CASES)
