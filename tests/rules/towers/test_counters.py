"""Step counters and the ops that increment them; test_one_update.py has the cases."""

from __future__ import annotations

from support.towers import host, program

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.rules.towers.one_update import is_read, separate_increment


def test_the_op_that_adds_to_a_counter_is_found() -> None:
    analysis = analyse(program(host("train", "NoOp", "^update/w")))

    found = separate_increment(analysis, "step")

    assert found is not None
    assert analysis.flow.names[found] == "step/add"
    assert separate_increment(analysis, "w") is None


def test_only_the_step_reads() -> None:
    analysis = analyse(program(host("shown", "ScalarSummary", "tag", "step")))

    assert is_read(analysis, "w")
    assert not is_read(analyse(program(host("train", "NoOp", "^update/w"))), "step")
