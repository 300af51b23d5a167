from __future__ import annotations

import pytest
from support.towers import gradient, host, on, program

from placement_checks import Op, Placement
from placement_checks.analysis.objective.gradient_weights import Unread
from placement_checks.analysis.objective.objective import objective


def towers(*changes: Op, share: float = 0.5, **values: float) -> Placement:
    """Two towers. Their gradients are added up and multiplied by a share."""
    gradients = {f"tower_{i}/loss:0": [gradient(i)] for i in (0, 1)}
    return program(*changes, values={"share": share, **values}, step={"gradients": gradients})


def penalized(i: int) -> list[Op]:
    """The loss of a tower with a penalty."""
    return [
        on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul"),
        on(i, f"tower_{i}/l2", "L2Loss", f"tower_{i}/w/read"),
        on(i, f"tower_{i}/penalty", "Mul", f"tower_{i}/l2", "decay"),
        on(i, f"tower_{i}/loss", "AddN", f"tower_{i}/mean", f"tower_{i}/penalty"),
    ]


@pytest.mark.parametrize(
    ("share", "weight"),
    [(0.5, "1/2 "), (1.0, ""), (1 / 3, "1/3 "), (0.123, "0.123 "), (2.0, "2 ")],
)
def test_the_text_of_weights(share: float, weight: str) -> None:
    text = objective(towers(share=share)).text("w")

    assert text == f"{weight}mean(tower_0/loss) + {weight}mean(tower_1/loss)"


@pytest.mark.parametrize(
    ("kind", "dtype", "weight"),
    [
        ("FloorDiv", "int32", "1/3 "),
        ("TruncateDiv", "int32", "1/3 "),
        ("Div", "int32", "1/3 "),
        ("Div", "float32", "2/7 "),
        ("RealDiv", "float32", "2/7 "),
    ],
)
def test_a_quotient_of_integers_is_an_integer(kind: str, dtype: str, weight: str) -> None:
    ops = [
        host("share", "RealDiv", "one", "rows"),
        host("rows", "Cast", "quotient"),
        host("quotient", kind, "seven", "two"),
        *(host(name, "Const") for name in ("one", "seven", "two")),
    ]
    graph = program(
        *ops,
        values={"one": 1.0, "seven": 7, "two": 2},
        dtypes={"quotient": dtype},
        step={"gradients": {f"tower_{i}/loss:0": [gradient(i)] for i in (0, 1)}},
    )

    assert objective(graph).text("w") == f"{weight}mean(tower_0/loss) + {weight}mean(tower_1/loss)"


def test_penalties_are_terms_of_their_own() -> None:
    graph = towers(*penalized(0), *penalized(1), host("decay", "Const"), decay=0.25)

    assert set(objective(graph).text("w").split(" + ")) == {
        "1/2 mean(tower_0/mean)",
        "0.125 penalty(tower_0/l2)",
        "1/2 mean(tower_1/mean)",
        "0.125 penalty(tower_1/l2)",
    }


@pytest.mark.parametrize(
    ("shares", "summary"),
    [
        ((0.5, 0.5), "1/2 mean on each of 2 towers"),
        ((0.75, 0.25), "3/4 mean on tower 0 + 1/4 mean on tower 1"),
        ((1.0, 0.0), "mean on tower 0 + 0 mean on tower 1"),
    ],
)
def test_a_summary_joins_equal_terms_of_towers(shares: tuple[float, float], summary: str) -> None:
    scaled = [host(f"part{i}", "Mul", gradient(i), f"share{i}") for i in (0, 1)]
    graph = towers(
        *scaled,
        *(host(f"share{i}", "Const") for i in (0, 1)),
        host("sum/w", "AddN", "part0", "part1"),
        share=1.0,
        **{f"share{i}": share for i, share in enumerate(shares)},
    )

    found = objective(graph)
    assert found.summary("w") == summary
    is_even = len({*shares}) == 1
    assert found.summary("w", portable=True) == ("average of means" if is_even else summary)


def test_a_summary_adds_up_penalties() -> None:
    graph = towers(*penalized(0), *penalized(1), host("decay", "Const"), decay=0.25)

    assert objective(graph).summary("w") == "1/2 mean on each of 2 towers + 0.25 L2Loss(variable)"


def test_a_portable_summary_has_no_penalties_without_weight() -> None:
    graph = towers(*penalized(0), *penalized(1), host("decay", "Const"), decay=0.0)

    assert objective(graph).summary("w") == "1/2 mean on each of 2 towers + 0 L2Loss(variable)"
    assert objective(graph).summary("w", portable=True) == "average of means"


@pytest.mark.parametrize(
    ("portable", "text"),
    [
        (False, "norm^-1 (1/2 mean on each of 2 towers + 0.25 L2Loss(variable))"),
        (True, "scalar^-1 (average of means + 0.25 L2Loss(variable))"),
    ],
)
def test_a_summary_puts_common_factors_first(portable: bool, text: str) -> None:
    scaled = host("scaled", "RealDiv", "mean/w", "norm")
    update = host("update/w", "ResourceApplyGradientDescent", "w", "rate", "scaled")
    graph = towers(
        *penalized(0),
        *penalized(1),
        scaled,
        update,
        host("norm", "Sqrt"),
        host("decay", "Const"),
        decay=0.25,
    )

    assert objective(graph).summary("w", portable=portable) == text


@pytest.mark.parametrize(
    ("share", "summary"),
    [(0.5, "average of means"), (1.0, "sum of means"), (0.25, "1/2 average of means")],
)
def test_a_portable_summary_does_not_count_towers(share: float, summary: str) -> None:
    assert objective(towers(share=share)).summary("w", portable=True) == summary


def test_a_portable_summary_of_one_tower_is_an_average() -> None:
    gradients = {"tower_0/loss:0": [gradient(0)]}
    graph = program(gpus=[0], values={"share": 1.0}, step={"gradients": gradients})

    assert objective(graph).summary("w", portable=True) == "average of means"


def test_an_unread_objective_has_no_summary() -> None:
    assert objective(program(values={"share": 0.5})).summary("w") == ""


def test_symbolic_factors_are_named() -> None:
    scaled = host("scaled", "RealDiv", "mean/w", "norm")
    update = host("update/w", "ResourceApplyGradientDescent", "w", "rate", "scaled")

    text = objective(towers(scaled, host("norm", "Sqrt"), update)).text("w")

    assert text == "1/2 norm^-1 mean(tower_0/loss) + 1/2 norm^-1 mean(tower_1/loss)"


def test_a_scale_and_its_inverse_cancel() -> None:
    scales = [on(i, f"tower_{i}/loss", "Mul", f"tower_{i}/mean", "scale") for i in (0, 1)]
    means = [on(i, f"tower_{i}/mean", "Mean", f"tower_{i}/w/MatMul") for i in (0, 1)]
    undone = host("undone", "RealDiv", "mean/w", "scale")
    update = host("update/w", "ResourceApplyGradientDescent", "w", "rate", "undone")

    text = objective(towers(*scales, *means, host("scale", "Sqrt"), undone, update)).text("w")

    assert text == "1/2 mean(tower_0/mean) + 1/2 mean(tower_1/mean)"


def test_a_sum_divided_by_its_static_rows_is_a_mean() -> None:
    losses = [on(i, f"tower_{i}/loss", "RealDiv", f"tower_{i}/sum", "rows") for i in (0, 1)]
    sums = [on(i, f"tower_{i}/sum", "Sum", f"tower_{i}/w/MatMul") for i in (0, 1)]
    gradients = {f"tower_{i}/loss:0": [gradient(i)] for i in (0, 1)}
    graph = program(
        *losses,
        *sums,
        host("rows", "Const"),
        values={"share": 0.5, "rows": 8.0},
        outputs={
            f"tower_{i}/{name}": shape
            for i in (0, 1)
            for name, shape in (("sum", ()), ("w/MatMul", (8,)))
        },
        step={"gradients": gradients},
    )

    assert objective(graph).text("w") == "1/2 mean(tower_0/sum) + 1/2 mean(tower_1/sum)"


def test_gradients_with_given_weights_are_not_read() -> None:
    given = on(0, "gradients/grad_ys_0", "Identity", "weight")

    formula = objective(towers(given)).formulas["w"]

    assert formula == ("gradients/grad_ys_0", "multiplies the gradients of losses (grad_ys)")


def test_an_untrained_variable_has_no_objective() -> None:
    assert objective(towers()).text("step") == ""


def test_a_gradient_of_an_unknown_loss_is_not_read() -> None:
    formula = objective(program(values={"share": 0.5})).formulas["w"]

    assert formula == Unread(gradient(0), "is the gradient of an unknown loss")


def reduced_twice(inner: str, outer: str, axes: int | None, rows: int | None) -> Placement:
    """Towers whose loss reduces tensors of rows and 4 columns, first along ``axes``."""
    losses = [on(i, f"tower_{i}/loss", outer, f"tower_{i}/inner", "all") for i in (0, 1)]
    inners = [on(i, f"tower_{i}/inner", inner, f"tower_{i}/w/MatMul", "axes") for i in (0, 1)]
    left = {0: (4,), 1: (rows,), None: (None,)}[axes]
    shapes: dict[str, tuple[int | None, ...]] = {}
    for i in (0, 1):
        shapes |= {
            f"tower_{i}/w/MatMul": (rows, 4),
            f"tower_{i}/inner": left,
            f"tower_{i}/loss": (),
        }
    gradients = {f"tower_{i}/loss:0": [gradient(i)] for i in (0, 1)}
    return program(
        *losses,
        *inners,
        host("axes", "Const"),
        host("all", "Const"),
        values={"share": 0.5, **({} if axes is None else {"axes": axes})},
        outputs=shapes,
        step={"gradients": gradients},
    )


@pytest.mark.parametrize(
    ("inner", "outer", "axes", "rows", "text"),
    [
        ("Sum", "Mean", 1, None, "1/2 mean(tower_0/loss)"),
        ("Mean", "Sum", 1, None, "1/2 sum(tower_0/loss)"),
        ("Sum", "Mean", 0, None, "1/2 sum(tower_0/inner)"),
        ("Mean", "Sum", 0, None, "1/2 mean(tower_0/inner)"),
        ("Sum", "Mean", 0, 8, "4 mean(tower_0/inner)"),
        ("Sum", "Mean", None, None, "1/2 other(tower_0/loss)"),
    ],
)
def test_the_reduction_of_axis_0_decides(
    inner: str, outer: str, axes: int | None, rows: int | None, text: str
) -> None:
    found = objective(reduced_twice(inner, outer, axes, rows)).text("w")

    assert found == f"{text} + {text.replace('tower_0', 'tower_1')}"


def test_factors_below_a_sum_count() -> None:
    losses = [on(i, f"tower_{i}/loss", "Sum", f"tower_{i}/scaled") for i in (0, 1)]
    scaled = [
        on(i, f"tower_{i}/scaled", "RealDiv", f"tower_{i}/w/MatMul", "batch") for i in (0, 1)
    ]
    gradients = {f"tower_{i}/loss:0": [gradient(i)] for i in (0, 1)}
    graph = program(
        *losses,
        *scaled,
        host("batch", "Const"),
        values={"share": 1.0, "batch": 8.0},
        outputs={"batch": ()},
        step={"gradients": gradients},
    )

    assert objective(graph).text("w") == "1/8 sum(tower_0/loss) + 1/8 sum(tower_1/loss)"


FUNCTIONS: dict[str, tuple[str, list[Op]]] = {
    "the root of a mean": (
        "function",
        [on(0, "mean", "Mean", "tower_0/w/MatMul"), on(0, "loss", "Sqrt", "mean")],
    ),
    "the logarithm of a mean and a constant": (
        "function",
        [
            on(0, "mean", "Mean", "tower_0/w/MatMul"),
            on(0, "sum", "AddV2", "mean", "small"),
            on(0, "loss", "Log", "sum"),
        ],
    ),
    "a ratio of sums": (
        "function",
        [
            on(0, "square", "Square", "tower_0/w/MatMul"),
            on(0, "one", "Sum", "tower_0/w/MatMul"),
            on(0, "other", "Sum", "square"),
            on(0, "loss", "RealDiv", "one", "other"),
        ],
    ),
    "the mean over columns of a ratio of sums": (
        "function",
        [
            on(0, "square", "Square", "tower_0/w/MatMul"),
            on(0, "columns", "Sum", "tower_0/w/MatMul", "rows"),
            on(0, "others", "Sum", "square", "rows"),
            on(0, "ratios", "RealDiv", "columns", "others"),
            on(0, "loss", "Mean", "ratios"),
        ],
    ),
    "one of two means": (
        "function",
        [
            on(0, "square", "Square", "tower_0/w/MatMul"),
            on(0, "one", "Mean", "tower_0/w/MatMul"),
            on(0, "other", "Mean", "square"),
            on(0, "loss", "Merge", "one", "other"),
        ],
    ),
    "the root of a sum": (
        "other",
        [on(0, "one", "Sum", "tower_0/w/MatMul"), on(0, "loss", "Sqrt", "one")],
    ),
    "the logarithm of a sum": (
        "other",
        [on(0, "one", "Sum", "tower_0/w/MatMul"), on(0, "loss", "Log", "one")],
    ),
    "a sum and a mean in a root": (
        "other",
        [
            on(0, "one", "Sum", "tower_0/w/MatMul"),
            on(0, "other", "Mean", "tower_0/w/MatMul"),
            on(0, "both", "Maximum", "one", "other"),
            on(0, "loss", "Sqrt", "both"),
        ],
    ),
    "a function of single rows": ("other", [on(0, "loss", "Sqrt", "tower_0/w/MatMul")]),
    "a loop": (
        "other",
        [
            on(0, "loss", "Merge", "mean", "next"),
            on(0, "mean", "Mean", "tower_0/w/MatMul"),
            on(0, "next", "Sqrt", "loss"),
        ],
    ),
    "a sum of products": ("sum", [on(0, "loss", "Einsum", "tower_0/w/MatMul", "tower_0/x")]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_means(name: str) -> None:
    """Only a function that does not grow with the number of rows is read."""
    kind, ops = FUNCTIONS[name]
    shapes: dict[str, tuple[int | None, ...]] = {
        **dict.fromkeys(("tower_0/w/MatMul", "square"), (None, 3)),
        **dict.fromkeys(("columns", "others", "ratios"), (3,)),
        **dict.fromkeys(("mean", "sum", "small", "one", "other", "both", "next", "loss"), ()),
    }
    graph = program(
        *ops,
        *(host(each, "Const") for each in ("small", "rows")),
        gpus=[0],
        values={"small": 1e-6, "rows": (0,)},
        outputs=shapes,
        step={"gradients": {"loss:0": [gradient(0)]}},
    )

    ((term, _),) = objective(graph).terms.terms("loss")

    assert term.kind == kind
