"""How often records stand on stdout and on stderr."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from placement_checks.logs import Record
from placement_checks.logs.copies import Copies

A, B, C = (Record(name, "Add", "/job:localhost/replica:0/task:0/device:CPU:0") for name in "abc")
OLD = Record("a", None, "/job:localhost/replica:0/task:0/device:CPU:0")


def copies_of(numbers: Mapping[Record, complex]) -> Copies:
    copies = Copies()
    for record, number in numbers.items():
        copies.add(record, number)
    return copies


def test_of_two_streams_the_one_with_more_copies_says_how_often_a_record_was_made() -> None:
    copies = Copies.of([A, B, C], {0: 1, 1: 2}, {0: 3, 1: 2, 2: 1})

    assert copies.placements() == {A: 3, B: 2, C: 1}
    assert (copies.total(), copies.lacking_plain()) == (9, [A, C])
    assert (copies.plain(A), copies.logged(A), copies.plain(C), copies.logged(C)) == (1, 3, 0, 1)


def test_a_record_that_is_written_in_two_ways_is_one() -> None:
    copies = Copies.of([A, B, A], {0: 1, 1: 1}, {2: 1, 1: 1})

    assert (copies.placements(), copies.total()) == ({A: 1, B: 1}, 4)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        pytest.param({A: 1j, B: 1j}, {C: 1j, A: 1}, [A, B, C], id="as on stderr"),
        pytest.param({A: 1, B: 1}, {B: 1j, A: 1j}, [B, A], id="whose copies come later"),
        pytest.param({A: 1, B: 1j}, {C: 1j}, [B, C, A], id="without a copy last"),
        pytest.param({C: 1}, {B: 1, C: 1}, [C, B], id="of stdout alone"),
    ],
)
def test_the_order_is_that_of_stderr(
    first: dict[Record, complex], second: dict[Record, complex], order: list[Record]
) -> None:
    copies = copies_of(first)

    copies.take(copies_of(second))

    assert list(copies.placements()) == order


def test_what_was_taken_back_was_not_made() -> None:
    assert copies_of({A: 0, B: -1, C: 1}).placements() == {C: 1}


def test_parts_of_a_log_are_added_up() -> None:
    first, second = Copies.of([A, B, C], {0: 1, 1: 2}, {0: 1, 2: 3}), copies_of({B: 2j, OLD: 1})
    first.take(Copies.of([A, C], {0: 2, 1: 1}, {0: 2, 1: 1}))
    first.take(second)

    assert list(first.placements().items()) == [(A, 3), (C, 4), (B, 2), (OLD, 1)]
    assert (first.plain(C), first.logged(C), first.total()) == (1, 4, 16)
    assert (first.lacking_plain(), first.without_logged()) == ([C], [OLD])


def test_a_record_that_goes_by_another_name_is_counted_as_that() -> None:
    copies = Copies.of([A, B], {0: 1, 1: 1}, {1: 2})

    copies.rename(A, B)

    assert (copies.placements(), copies.plain(B), copies.total()) == ({B: 2}, 2, 4)


@pytest.mark.parametrize(
    "copies",
    [
        pytest.param(Copies(), id="nothing"),
        pytest.param(copies_of({OLD: 3}), id="without types"),
        pytest.param(Copies.of([A, B, OLD], {0: 2, 1: 1}, {0: 2, 2: 2, 1: 1}), id="some uneven"),
    ],
)
def test_another_process_gets_the_same(copies: Copies) -> None:
    got = pickle.loads(pickle.dumps(copies))

    assert list(got.placements().items()) == list(copies.placements().items())
    assert all(type(record) is Record for record in got.placements())
    for record in (A, B, OLD):
        assert (got.plain(record), got.logged(record)) == (
            copies.plain(record),
            copies.logged(record),
        )
