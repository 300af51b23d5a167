"""Placements that differ from one another, for the tests of baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from support.graphs import op
from support.towers import host, program, variable

from placement_checks import Placement
from placement_checks.baseline.build import baseline_from_placement
from placement_checks.baseline.compare import compare
from placement_checks.baseline.text import parse, render
from placement_checks.core.baseline import Difference
from placement_checks.core.placement import StepOps
from placement_checks.core.variables import Variables
from placement_checks.report.common.baseline import render_text

TWO = program(variables=["w", "v"])
WITH_SLOTS = program(
    *(variable(f"{name}/m") for name in ("w", "v")),
    *(
        host(f"update/{name}", "ResourceApplyMomentum", name, f"{name}/m", "rate", f"mean/{name}")
        for name in ("w", "v")
    ),
    variables=["w", "v"],
)


def moved(graph: Placement, **places: str) -> Placement:
    """The placement with some ops on other devices:

    `moved(graph, **{"tower_1/loss": "/cpu:0"})`.
    """
    devices = {name: op("", "", "", place).assigned for name, place in places.items()}
    ops = {
        name: old._replace(assigned=devices.get(name, old.assigned))
        for name, old in graph.ops.items()
    }
    return graph.with_assigned(ops)


def renamed(graph: Placement, new_name: Callable[[str], str]) -> Placement:
    """The program with other names.

    Its step lists the backward ops, because names no longer show them.
    """

    def source(text: str) -> str:
        mark = "^" if text.startswith("^") else ""
        name, colon, output = text.removeprefix("^").partition(":")
        return f"{mark}{new_name(name) if name in graph.ops else name}{colon}{output}"

    def step_of(step: StepOps) -> StepOps:
        backward = {new_name(name) for name in graph.ops if name.startswith("gradients/")}
        return step._replace(
            train_op=[*map(source, step.train_op)],
            losses=[*map(source, step.losses)],
            objectives=[*map(source, step.objectives)],
            backward=backward,
        )

    def colocated(name: str) -> list[str]:
        if not name.startswith("gradients/"):
            return []
        return [new_name(name.split("/", 1)[1].rpartition("_grad/")[0])]

    return replace(
        graph,
        ops={
            new_name(name): old._replace(
                name=new_name(name),
                inputs=[*map(source, old.inputs)],
                colocated=colocated(name),
            )
            for name, old in graph.ops.items()
        },
        variables=Variables(each._replace(name=new_name(each.name)) for each in graph.variables),
        step=step_of(graph.step),
    )


def difference(old: Placement, new: Placement, *, exact: bool = False) -> Difference:
    """Difference of a placement from the baseline of another one, which is written to text and
    read back."""
    baseline = parse(render(baseline_from_placement(old)), "towers.toml")
    return compare(baseline, new, "towers.toml", exact=exact)


def report(old: Placement, new: Placement, *, exact: bool = False) -> str:
    return render_text(difference(old, new, exact=exact))
