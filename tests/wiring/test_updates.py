"""What one training step is, where the program does not say so."""

from __future__ import annotations

import pytest
from towers import host, program, variable

from placement_checks.wiring import wiring


def roots(*ops, of):
    known = wiring(program(*ops, training={"train_op": (), "train_ops": of}))
    return [known.flow.names[op] for op in known.updates.roots]


@pytest.mark.parametrize(
    "kind", ["NoOp", "Identity", "IdentityN", "StatefulPartitionedCall", "If"]
)
def test_the_step_is_the_group_around_what_the_optimiser_returns(kind):
    around = [host("step_and_more", kind, "train"), host("all", "NoOp", "^step_and_more", "^loss")]

    assert roots(*around, of=("train",)) == ["all"]


def test_what_only_computes_with_the_step_is_no_group_of_it():
    assert roots(host("shown", "Add", "train", "one"), of=("train",)) == ["train"]


def test_of_the_updates_in_branches_that_are_taken_at_once_the_first_built_comes_first():
    """Those of one branch, among those that are always made."""
    graph = program(
        variable("v", "VariableV2"),
        host("cond/Switch", "RefSwitch", "v", "pred"),
        host("cond/first", "AssignAdd", "cond/Switch:1", "one"),
        host("always", "AssignAdd", "v", "one"),
        host("cond/other", "AssignAdd", "cond/Switch", "one"),
        host("train", "NoOp", "^cond/first", "^always", "^cond/other"),
    )
    known = wiring(graph)

    found = known.updates.at_once(known.updates.by_variable["v"])

    assert [known.flow.names[each.op] for each in found] == ["cond/first", "always"]
