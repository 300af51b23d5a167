"""How often records are on stdout and on stderr."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from placement_checks.logs import Record
from placement_checks.logs.copies import Copies

A, B, C = (Record(name, "Add", "/job:localhost/replica:0/task:0/device:CPU:0") for name in "abc")


def copies_of(plain: Sequence[Record] = (), logged: Sequence[Record] = ()) -> Copies:
    copies = Copies()
    copies.plain.update(plain)
    copies.logged.update(logged)
    return copies


def test_stream_with_more_copies_counts() -> None:
    copies = copies_of([A, B, B], [A, A, A, B, B, C])

    assert copies.placements() == {A: 3, B: 2, C: 1}
    assert (copies.total(), copies.without_logged()) == (9, [])
    assert copies.lacking_plain() == {A: 2, C: 1}


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        pytest.param(copies_of([], [A, B]), copies_of([A], [C]), [A, B, C], id="as on stderr"),
        pytest.param(copies_of([A, B]), copies_of([], [B, A]), [B, A], id="copies in a later log"),
        pytest.param(copies_of([A], [B]), copies_of([], [C]), [B, C, A], id="stdout only is last"),
        pytest.param(copies_of([C]), copies_of([B, C]), [C, B], id="stdout only"),
    ],
)
def test_order_of_placements(first: Copies, second: Copies, order: list[Record]) -> None:
    first.update(second)

    assert list(first.placements()) == order


def test_subtracted_copies_are_no_placements() -> None:
    copies = copies_of([A, C])
    copies.plain[A] -= 1
    copies.plain[B] -= 1

    assert copies.placements() == {C: 1}
    assert copies.without_logged() == [C]


def test_a_renamed_record_counts_as_the_original() -> None:
    copies = copies_of([A, B], [B, B])

    copies.rename(A, B)

    assert (copies.placements(), copies.plain[B], copies.total()) == ({B: 2}, 2, 4)


def test_logs_of_one_run_add_up() -> None:
    copies = copies_of([A], [A, B])

    copies.update(copies_of([A, C], [C, C]))

    assert copies.placements() == {A: 2, B: 1, C: 2}
    assert copies.lacking_plain() == {B: 1, C: 1}
