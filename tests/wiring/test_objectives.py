"""Which tower a loss belongs to."""

from __future__ import annotations

from towers import host, on, program

from placement_checks.wiring import wiring


def losses(*ops, of, **more):
    """The losses of each tower by name, and whether they are the parts of one."""
    known = wiring(program(*ops, training={"objectives": of}, **more))
    names = [[known.flow.names[op] for op in each] for each in known.losses.of]
    return names, known.losses.joint


def test_a_loss_on_the_host_belongs_to_the_tower_it_is_computed_from():
    ops = [host(f"loss_{i}", "Cast", f"tower_{i}/loss") for i in (0, 1)]

    assert losses(*ops, of=("loss_1", "loss_0")) == ([["loss_0"], ["loss_1"]], False)


def test_a_loss_of_several_towers_belongs_to_the_one_that_has_none():
    """The mistake that losses-apart finds."""
    both = host("both", "AddN", "tower_0/loss", "tower_1/loss")

    assert losses(both, of=("tower_0/loss", "both")) == ([["tower_0/loss"], ["both"]], False)


def test_the_parts_of_one_loss_are_the_last_ops_of_the_towers():
    """On the host as well, and on whichever GPU a constant was built."""
    ops = [
        host("squared", "Square", "tower_1/loss"),
        on(0, "half", "Const"),
        host("sum", "AddN", "tower_0/loss", "squared"),
        host("total", "Mul", "half", "sum"),
    ]

    assert losses(*ops, of=("total",)) == ([["tower_0/loss"], ["squared"]], True)


def test_the_parts_of_one_loss_on_a_towers_gpu_are_those_that_depend_on_one_tower():
    ops = [
        on(0, "sum", "AddN", "tower_0/loss", "tower_1/loss"),
        on(0, "half", "Const"),
        on(0, "total", "Mul", "sum", "half"),
    ]

    assert losses(*ops, of=("total",)) == ([["tower_0/loss"], ["tower_1/loss"]], True)
