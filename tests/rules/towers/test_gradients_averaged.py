from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from support.towers import gradient, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
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


def compared(many: Placement, one: Placement | Missing | None = None) -> Evidence:
    """A program, and the program for one GPU, which by default takes the gradient as it is."""
    return Evidence(many, single_gpu=towers(1, 1.0) if one is None else one)


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


def penalized(towers: Sequence[int]) -> Iterator[Op]:
    """A loss with a penalty on w in each of the towers."""
    for i in towers:
        yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
        yield on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read")
        yield on(i, f"tower_{i}/penalty", "Mul", f"tower_{i}/l2", "decay")
        yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/penalty")
    yield host("decay", "Const")


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


def _with_outputs(graph: Placement, outputs: Mapping[str, tuple[int | None, ...]]) -> Any:
    graph.details.shapes = {**graph.details.shapes, **outputs}  # type: ignore[attr-defined]
    return graph.details


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


def sums(many: int | None, one: int | None) -> Evidence:
    """Towers that average sums over their rows, and one GPU, with these numbers of rows."""

    def build(count: int, share: float, rows: int | None) -> Placement:
        losses = (on(i, f"tower_{i}/loss", "Sum", f"tower_{i}/w/MatMul") for i in range(count))
        shapes: dict[str, tuple[int | None, ...]] = {
            **{f"tower_{i}/w/MatMul": (rows,) for i in range(count)},
            **{f"tower_{i}/loss": () for i in range(count)},
        }
        return towers(count, share, *losses, outputs=shapes)

    return compared(build(2, 0.5, many), build(1, 1.0, one))


def sums_of_fixed_rows(scale: float | None) -> Evidence:
    """Towers that add up sums over eight rows, which they may multiply by a constant."""

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

    return compared(summed(2), summed(1))


def squares(share: float) -> Evidence:
    """Half the sum of squares over a static number of rows, divided by this number."""

    def build(count: int, share: float, rows: int) -> Placement:
        sums = [on(i, f"tower_{i}/sum", "L2Loss", f"tower_{i}/w/MatMul") for i in range(count)]
        losses = [
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "rows") for i in range(count)
        ]
        shapes: dict[str, tuple[int | None, ...]] = {
            **{f"tower_{i}/w/MatMul": (rows, 4) for i in range(count)},
            **{f"tower_{i}/{name}": () for i in range(count) for name in ("sum", "loss")},
        }
        ops = [*sums, *losses, host("rows", "Const")]
        return towers(count, share, *ops, outputs=shapes, values={"rows": float(rows)})

    return compared(build(2, share, 8), build(1, 1.0, 16))


def roots(share: float) -> Evidence:
    """The loss of each tower is the root of a mean."""

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

    return compared(rooted(2, share), rooted(1, 1.0))


def static_sums(kind: str, rows: int, share: float) -> Evidence:
    """Towers with sums over eight rows, and one GPU with a sum over these rows."""

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

    return compared(summed(2, 8, share), summed(1, rows, 1.0))


def times_constant() -> Evidence:
    def scaled(count: int) -> list[Op]:
        losses = [on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/sum", "scale") for i in range(count)]
        sums = [on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul") for i in range(count)]
        return [*losses, *sums, host("scale", "Const")]

    values = {"scale": 0.125}
    return compared(
        towers(2, 1.0, *scaled(2), values=values), towers(1, 1.0, *scaled(1), values=values)
    )


def divided_by_rows(share: float, *rows: Op) -> Evidence:
    """Towers that divide sums by one number of rows, which `rows` compute."""

    def dividing(count: int) -> list[Op]:
        losses = [
            on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "rows") for i in range(count)
        ]
        sums = [on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul") for i in range(count)]
        return [host("all", "Placeholder"), *rows, *losses, *sums]

    return compared(towers(2, share, *dividing(2)), towers(1, 1.0, *dividing(1)))


ROOT = [
    host("size_{i}", "GatherV2", "shape_{i}", "zero", "zero"),
    host("rows_{i}", "Sqrt", "size_{i}"),
]


def auxiliary(i: int, weight: str) -> Iterator[Op]:
    """A tower with a second term in its loss, which a constant multiplies."""
    yield on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul")
    yield on(i, f"tower_{i}/square", "Square", f"tower_{i}/w/MatMul")
    yield on(i, f"tower_{i}/auxiliary", "Mean", f"tower_{i}/square")
    yield on(i, f"tower_{i}/part", "Mul", f"tower_{i}/auxiliary", weight)
    yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/part")
    yield host(weight, "Const")


def with_terms(**weights: float) -> Evidence:
    """The second term has these weights in the towers, and the weight `one` on one GPU."""
    names = [name for name in weights if name != "one"]
    many = (each for i in (0, 1) for each in auxiliary(i, names[i % len(names)]))
    return compared(
        towers(2, 0.5, *many, values=weights), towers(1, 1.0, *auxiliary(0, "one"), values=weights)
    )


def with_term(*in_towers: int, on_one: bool) -> Evidence:
    """The second term is in the losses of these towers."""

    def term(i: int) -> Iterator[Op]:
        for each in auxiliary(i, "unused"):
            if each.name.endswith(("mean", "square", "auxiliary")):
                yield each
        yield on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/auxiliary")

    one = towers(1, 1.0, *term(0)) if on_one else towers(1, 1.0)
    return compared(towers(2, 0.5, *(each for i in in_towers for each in term(i))), one)


def divided_by_count(mask: Op) -> Evidence:
    """Towers that divide sums by the number of rows of one mask."""

    def divided(count: int) -> Placement:
        ops = [mask, host("all", "Placeholder"), host("count", "Sum", "mask")]
        outputs: dict[str, tuple[int | None, ...]] = {"all": (16, 4), "mask": (8, 4), "count": ()}
        for i in range(count):
            ops += [
                on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul"),
                on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "count"),
            ]
            outputs |= {f"tower_{i}/sum": (), f"tower_{i}/loss": ()}
        return towers(count, 1.0, *ops, outputs=outputs)

    return compared(divided(2), divided(1))


def with_task(many: Sequence[Op], one: Sequence[Op], share: float = 0.5) -> Evidence:
    """A second task, with a weight that these ops compute."""
    return compared(
        towers(2, share, *weighted_task([0, 1], *many), outputs=SCALAR),
        towers(1, 1.0, *weighted_task([0], *one), outputs=SCALAR),
    )


RANDOM = [host("annealed", "RandomUniform")]


def fed_penalties() -> Evidence:
    """Each tower has a penalty with its own weight, which is fed."""
    own = [on(i, f"tower_{i}/penalty", "Mul", f"tower_{i}/l2", f"decay_{i}") for i in (0, 1)]
    fed = [host(f"decay_{i}", "Placeholder") for i in (0, 1)]
    penalties = [each for each in penalized([0, 1]) if not each.name.endswith("penalty")]
    outputs = {f"decay_{i}": () for i in (0, 1)}
    one = towers(1, 1.0, *penalties[:3], own[0], fed[0], outputs=outputs)
    many = towers(2, 0.5, *penalties, *own, *fed, outputs=outputs)
    return compared(many, one)


def weighted_by_static_rows() -> Evidence:
    """Towers with 12 and 4 rows, which weight their gradients."""
    rows = {"tower_0/w/MatMul": (12, 4), "tower_1/w/MatMul": (4, 4)}
    many = weighted(0.75, 0.25)
    many = many.with_fields(details=_with_outputs(many, rows))
    return compared(many)


def decayed_in_towers() -> Evidence:
    """Each tower adds a decay of the weights to its gradient."""
    decays = [on(i, f"tower_{i}/decay", "Mul", f"tower_{i}/w/read", "rate") for i in (0, 1)]
    total = host("sum/w", "AddN", *(gradient(i) for i in (0, 1)), *(op.name for op in decays))
    return compared(towers(2, 0.5, *decays, total))


MOMENTUM = host("direction", "Identity", "moment")


ON_GPU = (on(0, "moment", "AddV2", "decayed", "part"), MOMENTUM)


def normalized() -> Evidence:
    """One op yields the gradients of scale and offset, as in batch normalization."""

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

    return compared(normalized(2, 0.5), normalized(1, 1.0))


def chosen(reduction: str) -> Evidence:
    """Losses of towers are chosen, as tf.boolean_mask does, and then reduced."""

    def reduced(count: int) -> list[Op]:
        losses = [f"tower_{i}/loss" for i in range(count)]
        stack = host("stack", "Pack", *losses)
        return [stack, host("chosen", "GatherV2", "stack"), host("joint", reduction, "chosen")]

    def program_of(count: int) -> Placement:
        graph = towers(
            count, 1.0, *reduced(count), outputs={f"tower_{i}/loss": () for i in range(count)}
        )
        gradients = {"joint:0": [gradient(i) for i in range(count)]}
        return graph.with_fields(
            step=graph.step._replace(gradients=gradients, objectives=("joint:0",))
        )

    return compared(program_of(2), program_of(1))


RATE = host("rate", "Const")
ONE_RATE = towers(1, 1.0, RATE, values={"rate": 0.1})
DECAY = {"decay": 0.01}
ONE_PENALTY = towers(1, 1.0, *penalized([0]), values=DECAY)
# Towers that multiply their losses by the share before they add the penalties.
HALVED = [
    *(each for each in penalized([0, 1]) if not each.name.endswith("loss")),
    *(on(i, f"tower_{i}/half", "Mul", f"tower_{i}/mean", "share") for i in (0, 1)),
    *(on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/half", f"tower_{i}/penalty") for i in (0, 1)),
]


CASES = {
    **{f"a mean of {count} towers": kept(compared(towers(count, 1 / count))) for count in (2, 12)},
    "a sum of four towers": broken(compared(towers(4, 1.0))),
    "a mean that is divided again": broken(compared(towers(2, 0.25))),
    "another factor": broken(compared(towers(2, 64.0))),
    "a sum, and a scale of 2 is declared": kept(compared(towers(2, 1.0)), scale=2.0),
    "a mean, and a scale of 2 is declared": broken(compared(towers(2, 0.5)), scale=2.0),
    "a sum that is allowed": not_checked(compared(towers(2, 1.0)), allow=("w",)),
    "a sum of sums over rows": kept(
        compared(
            towers(
                2, 1.0, *(on(i, f"tower_{i}/loss", "Sum", f"tower_{i}/w/MatMul") for i in (0, 1))
            ),
            towers(1, 1.0, on(0, "tower_0/loss", "Sum", "tower_0/w/MatMul")),
        )
    ),
    # Towers have as many rows as one GPU, or split its rows, or the number is unknown.
    "a mean of sums over as many rows": kept(sums(8, 8)),
    "a mean of sums over a part of the rows": broken(sums(8, 16)),
    "a mean of sums over unknown numbers of rows": not_checked(sums(None, None)),
    "a sum of sums over fixed rows": kept(sums_of_fixed_rows(None)),
    # A sum that is divided by its number of rows is a mean, which the towers must average.
    "a sum of means over fixed rows": broken(sums_of_fixed_rows(0.125)),
    "a mean of squares that are divided by the rows": kept(squares(0.5)),
    "a sum of squares that are divided by the rows": broken(squares(1.0)),
    # The mean of the towers' roots is not the root of the mean, but the factor must be right.
    "a sum of roots of means": broken(roots(1.0)),
    "a mean of roots of means": not_checked(roots(0.5)),
    # Towers split the rows of one GPU, or each tower has as many rows as one GPU.
    **{
        f"{kind} over 8 rows of each tower, times {share}, and {rows} rows of one GPU": expected(
            static_sums(kind, rows, share)
        )
        for share, expected in ((1.0, kept), (0.25, broken))
        for rows in (8, 16)
        for kind in ("Sum", "L2Loss", "Einsum")
    },
    # The constant may be the number of rows of a tower, or of all towers.
    "a sum times a constant": not_checked(times_constant()),
    "a sum of sums, divided by all rows": kept(divided_by_rows(1.0, host("rows", "Shape", "all"))),
    "a mean of sums, divided by all rows": broken(
        divided_by_rows(0.5, host("rows", "Shape", "all"))
    ),
    # The towers read one part by mistake, or the part is as large as the part of each tower.
    "a mean of sums, divided by the rows of one part": not_checked(
        divided_by_rows(0.5, host("part", "Split", "axis", "all"), host("rows", "Shape", "part"))
    ),
    "a loss that is divided by the number of its rows": kept(
        compared(divided_by_present(2, 1.0, 8), divided_by_present(1, 1.0, 16))
    ),
    "a loss that is divided by the unknown number of its rows": kept(
        compared(divided_by_present(2, 1.0, None), divided_by_present(1, 1.0, None))
    ),
    "a loss that is divided by the number of rows with a fed weight": not_checked(
        compared(divided_by_present(2, None, 8), divided_by_present(1, None, 16))
    ),
    "a sum that is divided by an unknown constant": not_checked(
        compared(divided_by_shape(2, 0.5, 8, ROOT), divided_by_shape(1, 1.0, 16, ROOT))
    ),
    **{
        f"sums divided by a static size ({how}), times {share}": expected(
            compared(divided_by_shape(2, share, 8, ops), divided_by_shape(1, 1.0, 16, ops))
        )
        for how, ops in ROWS_OF_SHAPE.items()
        for share, expected in ((0.5, kept), (1.0, broken))
    },
    "a term with another factor in all towers": broken(with_terms(a=0.8, one=0.4)),
    "a term with another factor in one tower": broken(with_terms(a=0.1, b=0.4, one=0.1)),
    "a mean of means over the present rows of each tower": not_checked(
        compared(divided_by_mask(2, 0.5), divided_by_mask(1, 1.0))
    ),
    "a sum of means over the present rows of each tower": broken(
        compared(divided_by_mask(2, 1.0), divided_by_mask(1, 1.0))
    ),
    **{
        f"sums divided by the {reduction} of a mask": not_checked(
            compared(divided_by_mask(2, 1.0, reduction), divided_by_mask(1, 1.0, reduction))
        )
        for reduction in ("Mean", "Max")
    },
    "sums divided by the number of all rows": kept(divided_by_count(host("mask", "Relu", "all"))),
    "sums divided by the number of rows of one part": not_checked(
        divided_by_count(host("mask", "Split", "axis", "all"))
    ),
    "another weight of a task": not_checked(with_task(WEIGHTS["annealed"], WEIGHTS["learned"])),
    "a random weight of a task": not_checked(with_task(RANDOM, RANDOM)),
    **{
        f"a task with a {how} weight, times {share}": expected(with_task(weight, weight, share))
        for how, weight in WEIGHTS.items()
        for share, expected in ((0.5, kept), (1.0, broken))
    },
    "a sum, and the learning rate is halved": kept(
        compared(towers(2, 1.0, RATE, values={"rate": 0.05}), ONE_RATE)
    ),
    "a sum, and the learning rate is the same": broken(
        compared(towers(2, 1.0, RATE, values={"rate": 0.1}), ONE_RATE)
    ),
    "penalties in both towers": kept(
        compared(towers(2, 0.5, *penalized([0, 1]), values=DECAY), ONE_PENALTY)
    ),
    "a penalty in one tower": broken(
        compared(towers(2, 0.5, *penalized([0]), values=DECAY), ONE_PENALTY)
    ),
    "no penalty in the towers": broken(compared(towers(2, 0.5), ONE_PENALTY)),
    "summed losses with a penalty each": broken(
        compared(
            towers(2, 0.5, *HALVED, host("mean/w", "Identity", "sum/w"), values=DECAY), ONE_PENALTY
        )
    ),
    "a sum with half of the penalty in each tower": broken(
        compared(towers(2, 1.0, *penalized([0, 1]), values={"decay": 0.005}), ONE_PENALTY)
    ),
    "losses that are divided again, and penalties that are not": broken(
        compared(towers(2, 0.5, *HALVED, values=DECAY), ONE_PENALTY)
    ),
    "penalties with fed weights in both towers": not_checked(fed_penalties()),
    "a second term in both towers": kept(with_term(0, 1, on_one=True)),
    "a second term in the first tower": broken(with_term(0, on_one=True)),
    "a second term in the second tower that one GPU lacks": broken(with_term(1, on_one=False)),
    "uneven weights of equal towers": broken(compared(weighted(0.75, 0.25))),
    "towers with different signs": broken(compared(weighted(0.5, -0.5))),
    "weights of 3 to 1, and these shares are declared": kept(
        compared(weighted(0.75, 0.25)), shares=(3, 1)
    ),
    "equal weights, and shares of 3 to 1 are declared": broken(
        compared(weighted(0.5, 0.5)), shares=(3, 1)
    ),
    "weights by static numbers of rows": kept(weighted_by_static_rows()),
    "weights by the rows of each tower, sum": kept(compared(weighted_by(_SIZES, _SUM))),
    "weights by the rows of each tower, nested sum": kept(
        compared(
            weighted_by(
                _SIZES,
                host("total", "AddV2", "first", "rows_1"),
                host("first", "Add", "zero", "rows_0"),
            )
        )
    ),
    "weights by the rows of each tower, strided slices": kept(
        compared(weighted_by(["until", "from"], *_STRIDED_SLICES))
    ),
    "weights by the rows of each tower, end as size": kept(
        compared(weighted_by(["middle", "from"], *_STRIDED_SLICES))
    ),
    "weights by the rows of each tower, slices": kept(
        compared(weighted_by(["middle", "others"], *_SLICES))
    ),
    "weights that are no shares of rows, swapped": not_checked(
        compared(weighted_by(["rows_1", "rows_0"], _SUM))
    ),
    "weights that are no shares of rows, of one tower": broken(
        compared(weighted_by(["rows_0", "rows_0"], host("total", "AddN", "rows_0", "rows_0")))
    ),
    "weights that are no shares of rows, sum of one tower": not_checked(
        compared(weighted_by(_SIZES, host("total", "AddN", "rows_0", "rows_0")))
    ),
    "weights that are no shares of rows, maximum": not_checked(
        compared(weighted_by(_SIZES, host("total", "Maximum", *_SIZES)))
    ),
    "weights that are no shares of rows, swapped slices": not_checked(
        compared(weighted_by(["from", "until"], *_STRIDED_SLICES))
    ),
    "weights that are no shares of rows, weights": not_checked(
        compared(weighted_by(_SIZES, *_ROWS_OF_WEIGHTS))
    ),
    "shares of rows that are halved": broken(
        compared(
            weighted_by(
                _SIZES,
                host("total", "Mul", "both", "two"),
                host("both", "AddN", *_SIZES),
                host("two", "Const"),
                two=2.0,
            )
        )
    ),
    "penalties with the share of each tower": kept(
        compared(weighted_by(_SIZES, _SUM, *penalized([0, 1]), decay=0.01), ONE_PENALTY)
    ),
    "a penalty with the share of one tower": not_checked(
        compared(weighted_by(_SIZES, _SUM, *penalized([0]), decay=0.01), ONE_PENALTY)
    ),
    "a scale of all terms": kept(
        compared(
            towers(
                2,
                0.5,
                host("scaled", "Mul", "mean/w", "norm"),
                host("norm", "Sqrt"),
                host("update/w", "ResourceApplyGradientDescent", "w", "rate", "scaled"),
            )
        )
    ),
    "a scale of one tower": not_checked(
        compared(
            towers(
                2,
                0.5,
                host("scaled", "Mul", gradient(1), "norm"),
                host("norm", "Sqrt"),
                host("sum/w", "AddN", gradient(0), "scaled"),
            )
        )
    ),
    "weight decay that towers add to their gradients": not_checked(decayed_in_towers()),
    "weight decay that is added to the mean": kept(
        compared(
            towers(
                2,
                0.5,
                host("decay", "Mul", "w", "rate"),
                host("decayed", "AddN", "mean/w", "decay"),
                host("update/w", "ResourceApplyGradientDescent", "w", "rate", "decayed"),
            )
        )
    ),
    **{
        f"an adaptive optimizer that is written out as a {how}, times {share}": expected(
            compared(written_out(2, share, *ops), towers(1, 1.0))
        )
        for how, ops in (("quotient", _BY_ROOT), ("product", _TIMES_RECIPROCAL))
        for share, expected in ((0.5, kept), (1.0, broken))
    },
    # Without a quotient, the weight of the gradient in the momentum is a factor of the objective.
    "momentum that is written out": kept(
        compared(written_out(2, 0.5, MOMENTUM), written_out(1, 1.0, MOMENTUM))
    ),
    "momentum that is written out, and a sum": broken(
        compared(written_out(2, 1.0, MOMENTUM), written_out(1, 1.0, MOMENTUM))
    ),
    "momentum on the GPU of a tower": kept(
        compared(written_out(2, 0.5, *ON_GPU), written_out(1, 1.0, *ON_GPU))
    ),
    "a quotient of the gradients of two towers": not_checked(
        compared(written_out(2, 0.5, host("direction", "RealDiv", gradient(0), gradient(1))))
    ),
    "the gradient of another variable": broken(
        compared(
            towers(
                2,
                0.5,
                *(
                    host(f"sum/{name}", "AddN", gradient(0, other), gradient(1, other))
                    for name, other in (("w", "u"), ("u", "w"))
                ),
                variables=("w", "u"),
            ),
            towers(1, 1.0, variables=("w", "u")),
        )
    ),
    "the gradient of the value of a variable": kept(
        compared(
            towers(2, 0.5).with_fields(
                step=towers(2, 0.5).step._replace(
                    gradients_by_variable={f"tower_{i}/w/read": [gradient(i)] for i in (0, 1)}
                )
            )
        )
    ),
    "one op yields the gradients of two variables": kept(normalized()),
    "the sum lacks a tower": not_checked(
        compared(towers(2, 1.0, host("sum/w", "AddN", gradient(0))))
    ),
    "roots instead of means": not_checked(
        compared(
            towers(
                2, 0.5, *(on(i, f"tower_{i}/loss", "Sqrt", f"tower_{i}/w/MatMul") for i in (0, 1))
            )
        )
    ),
    **{
        f"a {reduction} of chosen losses": not_checked(chosen(reduction))
        for reduction in ("Sum", "Mean")
    },
    "a reference, and a program for one GPU with another scale": kept(
        Evidence(towers(2, 0.5), single_gpu=towers(1, 0.5), reference=towers(1, 1.0))
    ),
    "a program for one GPU with another scale": broken(compared(towers(2, 0.5), towers(1, 0.5))),
    "no program for one GPU": not_checked(
        compared(towers(2, 0.5), Missing("the builder has no argument num_gpus"))
    ),
    "two variables": kept(
        compared(towers(2, 0.5, variables=["w", "v"]), towers(1, 1.0, variables=["w", "v"]))
    ),
}

test_verdicts = verdicts(GradientsAveraged, CASES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"scale": 0.0}, "leaves no gradient"), ({"shares": (1, 0)}, "no rows")],
)
def test_bad_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GradientsAveraged(**fields)
