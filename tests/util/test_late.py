"""Sequences that are computed when they are read."""

from __future__ import annotations

from placement_checks.util.late import Late


def test_elements_are_computed_once_when_they_are_read() -> None:
    computed = []

    def compute() -> list[int]:
        computed.append(1)
        return [3, 4]

    late = Late(compute)
    assert not computed
    assert late == Late(lambda: [3, 4])
    assert late != Late(lambda: [3])
    assert ([*late], late[0], len(late)) == ([3, 4], 3, 2)
    assert len(computed) == 1
