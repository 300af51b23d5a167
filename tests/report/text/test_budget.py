from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from placement_checks.report.text.findings import allot_lines


@pytest.mark.parametrize(
    ("costs", "lines", "given"),
    [
        ([], 10, []),
        ([[]], 10, [0]),
        ([[3, 3], [3, 3]], 12, [2, 2]),
        ([[3, 3, 3], [3]], 6, [1, 1]),  # the first of each comes before the second of one
        ([[3, 3, 3], [3]], 9, [2, 1]),
        ([[9], [3]], 6, [0, 1]),
        ([[2, 9, 1], [1, 1]], 5, [1, 2]),  # in its order, without gaps
        ([[1]], 0, [0]),
        ([[1]], -3, [0]),
    ],
)
def test_lines_are_allotted_by_cost(
    costs: Sequence[Sequence[int]], lines: int, given: Sequence[int]
) -> None:
    assert allot_lines(costs, lines) == given


@pytest.mark.parametrize(
    ("costs", "lines", "always", "given"),
    [
        ([[9], [9], [1]], 5, [0, 1], [1, 1, 0]),  # even if they do not fit, and nothing remains
        ([[2, 2], [2]], 6, [0], [2, 1]),
        ([[2, 2], [2]], 4, [0], [1, 1]),  # the first of the other comes before its second
        ([[9, 1], [1]], 5, [0], [1, 0]),
        ([[], [2]], 2, [0], [0, 1]),
    ],
)
def test_the_first_item_is_always_shown(
    costs: Sequence[Sequence[int]], lines: int, always: Sequence[int], given: Sequence[int]
) -> None:
    assert allot_lines(costs, lines, always) == given


def test_costs_are_computed_as_needed() -> None:
    asked = []

    def costs() -> Iterator[int]:
        for number in range(1000):
            asked.append(number)
            yield 2

    assert allot_lines([costs()], 10) == [5]
    assert len(asked) == 6
