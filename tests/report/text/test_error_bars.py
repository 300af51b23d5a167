from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from placement_checks.report.text.findings import draw_error_bars

BAR = 24


def figure(variable: str, error: float | None, **more: Any) -> dict[str, Any]:
    """Compared variables, equal up to 32 eps by default."""
    state = "differs" if error is None or error > 32 else "equal"
    values = {"variable": variable, "state": state, "ratio": 1.0, "error": error, "limit": 32.0}
    return {**values, **more}


def bars(*figures: dict[str, Any]) -> list[str]:
    return [line.plain for line in draw_error_bars(figures)]


def names(lines: Sequence[str]) -> list[str]:
    """The names of the shown variables, in order."""
    return [line.split()[0] for line in lines[1:]]


def bar(line: str) -> str:
    """The last columns, up to the note that may follow."""
    return line.removesuffix("  noise")[-BAR:]


def test_a_picture_has_a_bar_for_each_variable() -> None:
    figures = [
        figure("fc1/biases", 0.5),
        figure("fc1/weights", 8388608.0, ratio=2.0),
        figure("a", None, ratio=None),
        figure("bn/bias", 700.0, state="noise", ratio=-1.25, limit=9000.0),
        figure("zero", 0.0, ratio=None, limit=0.0),
    ]

    assert bars(*figures) == [
        "  variable          ratio  error, eps",
        "  a                     -           -  ━━━━┃━━━━━━━━━━━━━━━━━━━",
        "  fc1/weights           2     8.4e+06  ━━━━┃━━━━━━━━━━━━━      ",
        "  bn/bias           -1.25       700.0  ━━━━━━━━   ┃              noise",
        "  fc1/biases            1         0.5      ┃                   ",
        "  zero                  -         0.0  ┃                       ",
    ]


def test_the_worst_come_first() -> None:
    """Different variables come first, whatever the limit of the others."""
    lines = bars(
        figure("little", 1.0),
        figure("noisy", 1e6, state="noise"),
        figure("wrong", 40.0),
        figure("worse", 50.0),
        figure("stray", None),
        figure("more", 2.0),
    )

    assert names(lines) == ["stray", "worse", "wrong", "noisy", "more", "little"]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=12))
def test_no_more_than_eight_are_shown(errors: list[float]) -> None:
    lines = bars(*(figure(f"v{n}", error) for n, error in enumerate(errors)))

    shown = [errors[int(name[1:])] for name in names(lines) if name != "and"]
    assert shown == sorted(errors, reverse=True)[:8]
    more = [line for line in lines if line.startswith("  and ")]
    assert more == (
        [f"  and {len(errors) - 8} more, see --format json"] if len(errors) > 8 else []
    )
    assert len(lines) == 1 + len(shown) + len(more)


sizes = st.floats(0, 6e8)  # up to the last column
ratios = st.floats(1e-9, 1e9) | st.floats(-9000, -0.001)


@given(sizes, sizes, sizes)
def test_larger_errors_have_longer_bars(one: float, other: float, limit: float) -> None:
    assume(one < other)

    longer, shorter = (
        len(bar(line).replace("┃", "━").rstrip()) if limit < error else bar(line).count("━")
        for line, error in zip(
            bars(
                figure("a", other, state="equal", limit=limit),
                figure("b", one, state="equal", limit=limit),
            )[1:],
            (other, one),
            strict=True,
        )
    )

    assert shorter <= longer


@given(sizes, sizes)
def test_the_mark_is_where_the_limit_is(error: float, limit: float) -> None:
    """The bar passes the mark only if the error exceeds the limit."""
    (_, line) = bars(figure("w", error, limit=limit))

    before, after = bar(line).split("┃")
    assert len(bar(line)) == BAR
    assert set(before + after) <= {"━", " "}
    if "━" in after:
        assert error > limit
        assert " " not in before
    if error > 10 * limit + 10:
        assert "━" in after
        assert " " not in before
    if error < limit / 10 - 1:
        assert " " in before + after
        assert "━" not in after


@pytest.mark.parametrize("limit", [1e9, 1e12])
def test_a_limit_beyond_all_errors_has_its_mark(limit: float) -> None:
    """For example, the error of a zero in eps of itself."""
    (_, line) = bars(figure("w", 1e6, state="noise", limit=limit))

    assert bar(line).count("┃") == 1


@given(st.lists(sizes, min_size=1, max_size=8), sizes)
def test_the_limit_has_one_column(errors: list[float], limit: float) -> None:
    _, *lines = bars(*(figure(f"v{n}", error, limit=limit) for n, error in enumerate(errors)))

    assert len({line.index("┃") for line in lines}) == 1


def test_the_scale_is_logarithmic() -> None:
    _, *lines = bars(*(figure(f"v{n}", 10.0**n, limit=0.0) for n in (8, 5, 2)))

    assert [bar(line).count("━") for line in lines] == [20, 12, 4]  # and the mark


def test_a_value_beyond_the_scale_fills_the_bar() -> None:
    _, stray, huge = bars(figure("a", None), figure("b", 1e300))

    assert bar(stray) == bar(huge)
    assert len(bar(stray).rstrip()) == BAR


def test_without_a_limit_the_mark_is_at_zero() -> None:
    (_, line) = bars(figure("step", None, limit=None))

    assert bar(line).startswith("┃━")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (0.0, "0.0"),
        (0.04, "0.0"),
        (31.96, "32.0"),
        (999.9, "999.9"),
        (1000.0, "1.0e+03"),
        (123456.0, "1.2e+05"),
        (None, "-"),
    ],
)
def test_errors_are_short(error: float | None, text: str) -> None:
    (_, line) = bars(figure("w", error))

    assert f" {text}  " in line


@pytest.mark.parametrize(
    ("ratio", "text"), [(None, "-"), (1.0, "1"), (0.333333, "0.3333"), (65536.0, "6.554e+04")]
)
def test_ratios_are_short(ratio: float | None, text: str) -> None:
    (_, line) = bars(figure("w", 1.0, ratio=ratio))

    assert line.split()[1] == text


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.none() | sizes, st.none() | ratios),
        min_size=1,
        max_size=12,
    )
)
def test_columns_are_as_wide_as_the_longest_name_that_is_shown(
    rows: list[tuple[int, float | None, float | None]],
) -> None:
    _, *lines = bars(*(figure("v" * size, error, ratio=ratio) for size, error, ratio in rows))

    lines = [line for line in lines if "see --format json" not in line]
    longest = max(len(line.split()[0]) for line in lines)
    assert {len(line) for line in lines} == {2 + longest + 2 + 10 + 2 + 10 + 2 + BAR}


@pytest.mark.parametrize(
    "ratio",
    [
        65536.0,
        1.234e-7,
        -0.001234,
        -1.234e-7,
        -65536.0,
    ],
)
def test_ratios_of_any_size_leave_the_bars_in_their_column(ratio: float) -> None:
    _, one, other = bars(figure("a", 1.0), figure("b", 40.0, ratio=ratio))

    assert one.index("┃") == other.index("┃")


def test_names_that_are_not_shown_take_no_room() -> None:
    figures = [figure(f"v{n}", 10.0 + n) for n in range(8)]

    assert bars(*figures, figure("v" * 50, 1.0))[:-1] == bars(*figures)


def test_noise_is_named_after_its_bar() -> None:
    lines = bars(*(figure(state, 1.0, state=state) for state in ("noise", "equal", "too-coarse")))

    assert [line.split()[0] for line in lines if line.endswith("  noise")] == ["noise"]


@pytest.mark.parametrize(
    ("state", "style"),
    [("equal", "green"), ("noise", "dim"), ("too-coarse", "yellow"), ("differs", "bold red")],
)
def test_each_state_has_its_color(state: str, style: str) -> None:
    head, line, *_ = draw_error_bars([figure("w", 100.0, state=state)])

    assert head.style == "dim"
    assert {str(span.style) for span in line.spans if span.end > span.start} == {style}


def test_a_value_in_place_of_zero_is_shown() -> None:
    """There is no ratio and no error; the found value is a number."""
    zero = figure("w", math.inf, ratio=None, limit=0.0)
    line = bars({**zero, "error": None})[1]

    assert "NaN" not in line
