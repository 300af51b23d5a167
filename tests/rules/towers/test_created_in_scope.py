from __future__ import annotations

from support.towers import gradient, host, on, program, variable
from support.verdicts import broken, kept, verdicts

from placement_checks import Device, Op, Placement
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.towers.created_in_scope import CreatedInScope

COPIES = {f"step/{i}": Copy("step/0", i) for i in (0, 1)}


def strategy(*outside: str, count: int = 2, copies: bool = False) -> Strategy:
    gpus = [Device.parse(f"/gpu:{i}") for i in range(count)]
    return Strategy("MirroredStrategy", gpus, COPIES if copies else {}, outside)


def each_updates(variable: str = "w", at: str = "replica_1/") -> list[Op]:
    """Each replica updates a variable by the sum."""
    names = [f"update/{variable}", f"{at}update/{variable}"]
    sums = "sum/w"
    return [
        *(on(i, name, "AssignSubVariableOp", variable, sums) for i, name in enumerate(names)),
        host("train", "NoOp", "^update/w", *(f"^{name}" for name in names)),
    ]


def with_slot(shape: tuple[int, ...]) -> Placement:
    """Each replica sets a variable that the update reads."""
    return program(
        variable("m", at="GPU:0"),
        *(
            on(i, f"{at}set/m", "AssignVariableOp", "m", gradient(i))
            for i, at in enumerate(("", "replica_1/"))
        ),
        host("m/read", "ReadVariableOp", "m"),
        host("update/w", "AssignSubVariableOp", "w", "m/read"),
        host("train", "NoOp", "^update/w", "^set/m", "^replica_1/set/m"),
        strategy=strategy("m"),
        shapes={"m": shape},
    )


CASES = {
    "a variable that each replica updates": broken(
        program(
            variable("w", at="GPU:0"),
            *each_updates(),
            strategy=strategy("w"),
            lines={"w": "net.py:3"},
        )
    ),
    "a variable that all replicas share on purpose": kept(
        program(*each_updates(), strategy=strategy("w")), allow=("w",)
    ),
    "a variable on one GPU": kept(program(variable("w", at="GPU:0"), strategy=strategy("w"))),
    "a variable on one GPU among copies of other variables": broken(
        program(variable("w", at="GPU:0"), strategy=strategy("w", copies=True))
    ),
    "a variable on the host that one op updates": kept(
        program(strategy=strategy("w", copies=True))
    ),
    "one replica updates the variable": kept(
        program(
            on(1, "replica_1/update/w", "AssignSubVariableOp", "w", "sum/w"),
            host("train", "NoOp", "^replica_1/update/w"),
            strategy=strategy("w"),
        )
    ),
    "towers by hand": kept(program(*each_updates(at="tower_1/"), strategy=strategy("w"))),
    "a variable in the scope that each replica updates": kept(
        program(*each_updates(), strategy=strategy())
    ),
    "a scalar that the update reads scales or counts": kept(with_slot(())),
    "a slot": broken(with_slot((4,))),
    "a variable that the update does not read": kept(
        program(
            variable("shown", at="GPU:0"),
            *(
                on(i, f"{at}set/m", "AssignAddVariableOp", "shown", gradient(i))
                for i, at in enumerate(("", "replica_1/"))
            ),
            host("train", "NoOp", "^update/w", "^set/m", "^replica_1/set/m"),
            strategy=strategy("shown"),
        )
    ),
}

test_verdicts = verdicts(CreatedInScope, CASES)
