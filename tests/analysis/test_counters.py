"""Counters, and what counts them; one-update has the cases."""

from __future__ import annotations

from towers import host, program

from placement_checks.analysis.counters import counted_apart, is_read
from placement_checks.analysis.tower_analysis import analyse


def test_what_adds_to_a_counter_is_known() -> None:
    analysis = analyse(program(host("train", "NoOp", "^update/w")))

    found = counted_apart(analysis, "step")

    assert found is not None
    assert analysis.flow.names[found] == "step/add"
    assert counted_apart(analysis, "w") is None


def test_only_the_step_reads() -> None:
    analysis = analyse(program(host("shown", "ScalarSummary", "tag", "step")))

    assert is_read(analysis, "w")
    assert not is_read(analyse(program(host("train", "NoOp", "^update/w"))), "step")
