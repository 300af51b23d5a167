from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.graphs import op, placement
from support.towers import host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import GLOBAL
from placement_checks.rules.towers.names_portable import NamesPortable


def read_in(variables: Sequence[str], *scopes: Sequence[str], **more: Any) -> Placement:
    """A tower on each GPU, which reads the variables in the scopes of one item of `scopes`."""
    ops = [variable(name) for name in variables]
    for i, names in enumerate(scopes):
        for name, scope in zip(variables, names, strict=True):
            ops += [
                on(i, f"{scope}/read_{i}", "ReadVariableOp", name),
                on(i, f"{scope}/MatMul_{i}", "MatMul", "x", f"{scope}/read_{i}"),
            ]
    return program(*ops, gpus=(), machine=f"gpu*{len(scopes)}", **more)


def reference(
    *ops: Op, variables: Sequence[str] = ("w",), saved: Sequence[str] | None = None, **more: Any
) -> Placement:
    """The program for one GPU: its variables, and the names that it saves."""
    collections = {} if saved is None else {"variables": saved}
    return program(
        *ops,
        gpus=[0],
        variables=variables,
        program="train.py:single",
        collections=collections,
        **more,
    )


def beside(other: Placement, *ops: Op, trained: Sequence[str] = (), **more: Any) -> Evidence:
    collections = {"trainable_variables": trained}
    return Evidence(program(*ops, collections=collections, **more), reference=other)


def traced(*, here: bool, there: bool) -> Evidence:
    """Variables with other names in the reference; the steps are functions that TensorFlow traces.

    Checkpoints of objects need no names: optimizers of Keras 2 use other slot names under a
    strategy.
    """
    return beside(
        reference(variables=["fc/weights"], step={"traced": there}),
        variables=["weights"],
        step={"traced": here},
    )


NO_VARIABLE = placement(host("a", "NoOp"))


def read_copies(count: int) -> Placement:
    """Each tower reads its copy in the copy's scope."""
    return program(
        *(on(i, f"v{i}/w/read", "ReadVariableOp", f"v{i}/w") for i in range(count)),
        *(on(i, f"v{i}/MatMul", "MatMul", f"v{i}/w/read") for i in range(count)),
        mirrored=True,
        gpus=range(count),
    )


def copies(name: str) -> Evidence:
    """A copy for each tower, and a reference with one variable of this name."""
    return beside(reference(variables=[name]), mirrored=True, trained=["v0/w", "v1/w"])


def images(**more: Any) -> Placement:
    """A variable in the scope of each tower."""
    names = [f"tower_{i}/images" for i in (0, 1)]
    return read_in(names, *([f"tower_{i}"] * 2 for i in (0, 1)), **more)


def experts() -> Placement:
    """Each GPU holds an expert, in the scope of its tower, and both towers use both experts."""
    names = [f"tower_{i}/expert" for i in (0, 1)]
    return program(
        *(variable(name, at=f"GPU:{i}") for i, name in enumerate(names)),
        *(
            on(i, f"tower_{tower}/of_{i}", "MatMul", f"tower_{tower}/x", name)
            for tower in (0, 1)
            for i, name in enumerate(names)
        ),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/of_0", f"tower_{i}/of_1") for i in (0, 1)),
    )


def own_variables() -> Placement:
    """Each tower reads a variable of its own, in its scope."""
    return program(
        *(variable(f"tower_{i}/own") for i in (0, 1)),
        *(on(i, f"tower_{i}/of_own", "MatMul", f"tower_{i}/x", f"tower_{i}/own") for i in (0, 1)),
        *(on(i, f"tower_{i}/loss", "Mean", f"tower_{i}/of_own") for i in (0, 1)),
    )


KEPT = beside(
    reference(variables=["old/a", "w"], shapes={"w": (1,)}), variables=["w", "v"], trained=["v"]
)


TWO = program(variables=["tower_0/a", "tower_0/b"])


SLOT = program(variable("tower_0/w/Adam"), variables=["tower_0/w"])


CASES = {
    **{f"{count} towers": kept(program(gpus=range(count))) for count in (2, 12)},
    "a variable in the scope of the first tower": broken(
        program(variables=["tower_0/w"], lines={"tower_0/w": "main.py:30 net.py:7"})
    ),
    # variables-shared reports it too.
    **{
        f"each of {count} towers has its own variable": broken(
            program(*(variable(f"tower_{i}/own") for i in range(count)), gpus=range(count))
        )
        for count in (2, 12)
    },
    **{
        f"scopes {' and '.join(scopes)}": broken(
            read_in([f"{scopes[0]}/w"], *([f"{scope}/w"] for scope in scopes))
        )
        for scopes in (
            ("tower_0", "tower_1"),
            ("clone_0", "clone_1"),
            ("gpu0", "gpu1"),
            ("GPU-0", "GPU-1"),
            ("replica_3", "replica_7"),
            ("0", "1"),
            ("model/tower_0", "model/tower_1"),
            ("model/tower_0/net", "model/tower_1/net"),
        )
    },
    # clone and clone_1: only the second variable's scope has a number.
    "the scope that TensorFlow gives a second tower": broken(
        read_in(["clone/w", "clone_1/w"], ["clone/w", "clone/v"], ["clone_1/w", "clone_1/v"])
    ),
    "layers in towers": kept(read_in(["conv1/w"], ["tower_0/conv1"], ["tower_1/conv1"])),
    "a layer that is built again": kept(read_in(["conv1/w"], ["conv1"], ["conv1_1"])),
    "conv1 and conv2 of one model": kept(
        read_in(["conv1/w", "conv2/w"], ["conv1", "conv2"], ["conv1_1", "conv2_1"])
    ),
    "fc and fc_1 of one model, without scopes for towers": kept(
        read_in(["fc/w", "fc_1/w"], ["fc", "fc_1"], ["fc_2", "fc_1_1"])
    ),
    "numbered blocks in towers": kept(
        read_in(
            ["block_0/w", "block_1/w"],
            ["tower_0/block_0", "tower_0/block_1"],
            ["tower_1/block_0", "tower_1/block_1"],
        )
    ),
    "a scope that all towers share": kept(read_in(["stage_0/w"], ["stage_0"], ["stage_0"])),
    "a scope that all towers share next to one of each": kept(
        read_in(["stage_0/w", "v"], ["stage_0", "stage_1"], ["stage_0", "stage_2"])
    ),
    "the other tower has a scope of that name elsewhere": kept(
        read_in(["model/tower_0/w"], ["model/tower_0"], ["tower_1"])
    ),
    "a name without a number": kept(read_in(["head/w"], ["head"], ["body"])),
    "no op is in the scope": kept(read_in(["tower_0/w"], ["a"], ["b"])),
    "the other tower has no such scope": kept(read_in(["tower_0/w"], ["tower_0"], ["other"])),
    "the variable itself": kept(read_in(["tower_0"], ["tower_0"], ["tower_1"])),
    "the last part of the name": kept(read_in(["w/tower_0"], ["tower_0"], ["tower_1"])),
    # Its numbered layers are on different GPUs.
    "one model on two GPUs": not_checked(
        program(
            variable("layer_0/w"),
            variable("layer_1/w"),
            on(0, "layer_0/MatMul", "MatMul", "x", "layer_0/w"),
            on(1, "layer_1/MatMul", "MatMul", "layer_0/MatMul", "layer_1/w"),
            gpus=(),
            machine="gpu*2",
        )
    ),
    "ops of the host in scopes with numbers": kept(
        program(
            variable("batch_0/w"), *(host(f"batch_{i}/cut", "Slice", "images") for i in (0, 1))
        )
    ),
    "gradients in scopes with numbers": kept(
        program(
            variable("gradients_1/w"),
            *(
                on(i, f"gradients_{i}/tower_{i}/w/MatMul_grad/MatMul_1", "MatMul", f"tower_{i}/x")
                for i in (0, 1)
            ),
        )
    ),
    "slots in the scope of a tower": broken(
        program(variable("tower_0/w/Adam"), variable("tower_0/w/Adam_1"), variables=["tower_0/w"])
    ),
    "three variables in the scope of a tower": broken(
        program(variables=["tower_0/conv/w", "tower_0/conv/b", "tower_0/fc/w", "shared/w"])
    ),
    "all variables in the scope of a tower are allowed": kept(TWO, allow=("tower_*",)),
    **{
        f"two variables in the scope of a tower, allowed: {allow}": broken(TWO, allow=allow)
        for allow in ((), ("tower_0/a",), ("Tower_*", "a"))
    },
    "a slot of an allowed variable": broken(SLOT, allow=("tower_0/w",)),
    "an allowed slot of an allowed variable": kept(SLOT, allow=("tower_0/w", "tower_0/w/*")),
    "without a placer and a train op": broken(
        program(
            variables=["tower_0/w"],
            placer=None,
            assigned=Missing("no wheel"),
            step={"train_op": ()},
        )
    ),
    **{
        f"{len(gpus)} towers with the names of the reference, which saves {saved}": kept(
            beside(reference(saved=saved), gpus=gpus, trained=["w"])
        )
        for saved in (None, (), ("w", "step"))
        for gpus in (range(1), range(2), range(12))
    },
    "a traced step, and a reference with one": kept(traced(here=True, there=True)),
    "a traced step, and a reference without one": broken(traced(here=True, there=False)),
    "a reference with a traced step": broken(traced(here=False, there=True)),
    "the towers lack a name of the reference": broken(
        beside(
            reference(
                variables=["fc/weights"],
                lines={"fc/weights": "single.py:3 net.py:9", "w": "x.py:1"},
            ),
            variables=["model/weights"],
        )
    ),
    "the towers lack a name, and have no similar name": broken(
        beside(reference(variables=["fc"]))
    ),
    "the reference has the similar name too": broken(beside(reference(variables=["w", "w1"]))),
    "the reference lacks a trained variable": broken(
        beside(
            reference(lines={"w": "single.py:3"}),
            variables=["w", "v"],
            trained=["v", "w"],
            lines={"v": "main.py:8 net.py:2"},
        )
    ),
    # Queues, counters of towers, moving averages: the reference need not have them.
    "the reference lacks an untrained variable": kept(
        beside(reference(), variables=["w", "v"], trained=["w"])
    ),
    "another shape in the reference": broken(
        beside(reference(shapes={"w": (3, 4)}), shapes={"w": (4, 3)}, lines={"w": "main.py:8"})
    ),
    "another shape of a variable that is not saved": broken(
        beside(reference(shapes={"w": (3, 4)}, saved=["step"]))
    ),
    "the reference saves two of three variables": broken(
        beside(reference(variables=["w", "local/total", "fc"], saved=["w", "fc"]))
    ),
    "the reference has three variables": broken(
        beside(reference(variables=["w", "local/total", "fc"]))
    ),
    "the towers lack a variable and its slot": broken(
        beside(reference(variable("fc/Adam"), variable("w/Adam"), variables=["w", "fc"]))
    ),
    **{
        f"names and a shape that differ, allowed: {allow}": broken(KEPT, allow=allow)
        for allow in ((), ("old/*",), ("old/a", "v"))
    },
    "all names that differ are allowed": kept(KEPT, allow=("?", "old/?")),
    # There is one finding per variable, and one for the missing name.
    "the reference lacks a variable in the scope of a tower": broken(
        beside(reference(), variables=["tower_0/w"], trained=["tower_0/w"])
    ),
    "one tower and a reference": broken(
        beside(reference(variables=["fc"]), gpus=[0], variables=["tower_0/w"])
    ),
    "the towers lack twelve names": broken(
        beside(reference(variables=[f"layer_{n}/w" for n in range(12)]), variables=["x"])
    ),
    **{
        f"shape {ours}, and {theirs} in the reference": kept(
            beside(reference(shapes={"w": theirs}), shapes={"w": ours})
        )
        for ours, theirs in [
            (None, (3, 4)),
            ((3, 4), None),
            ((None, 4), (3, 4)),
            ((3, 4), (3, None)),
        ]
    },
    **{
        f"shape {ours}, and {theirs} in the reference": broken(
            beside(reference(shapes={"w": theirs}), shapes={"w": ours})
        )
        for ours, theirs in [((3, 4), (3, 5)), ((None, 4), (3, 5)), ((3, 4), (3,)), ((3,), (3, 4))]
    },
    # It was restored from a program with more towers, and all towers read it.
    "a scope with the number of a missing tower": kept(
        read_in(["tower_9/w"], ["tower_0"], ["tower_1"])
    ),
    "a deep scope of a tower": broken(
        read_in(["net/a/tower_1/w"], ["net/a/tower_0"], ["net/a/tower_1"])
    ),
    "another tower has another deep scope": kept(
        read_in(["net/a/tower_1/w"], ["net/b/tower_0"], ["net/a/tower_1"])
    ),
    "no variable here and in the reference": not_checked(
        Evidence(NO_VARIABLE, reference=NO_VARIABLE)
    ),
    # Any scope renames a tf.Variable, and the line to edit creates it.
    "a variable of get_variable and a variable of tf.Variable": broken(
        program(
            op("tower_0/w/Initializer/zeros", "Const"),
            variables=["tower_0/w", "tower_0/b"],
            lines={
                "tower_0/w": "main.py:20 net.py:7",
                "tower_0/b": "main.py:20 net.py:8",
                "loss": "main.py:30",
            },
        )
    ),
    "two variables in the scope of a tower": broken(TWO),
    **{f"the copies of {count} towers": kept(read_copies(count)) for count in (2, 12)},
    "experts in the scopes of towers": broken(experts()),
    "each tower reads its own variable": broken(own_variables()),
    "variables in the scopes of towers": broken(images()),
    "global variables in the scopes of towers": broken(
        images(collections={GLOBAL: ["tower_0/images", "tower_1/images"]})
    ),
    "local variables in the scopes of towers": kept(images(collections={GLOBAL: ["w"]})),
    **{f"the reference has the copy {name}": kept(copies(name)) for name in ("v0/w", "v1/w")},
    "the reference has no copy": broken(copies("w")),
}

test_verdicts = verdicts(NamesPortable, CASES)
