"""Check that a comparison of two programs is conclusive, and find what limits its precision.

Before a run, `check_comparable` checks that both programs train the same variables, and that the
reference has one tower. Given feeds, `check_all_fed` checks that every placeholder has a value,
`check_repeatable` that no random op changes gradients, and `check_towers_ran_apart` that towers
ran on their own devices.

`precisions` and `random_op_in_step` find what else influences gradients or variables, in addition
to the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from placement_checks.analysis.graph.data_flow import Edges
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS, Arrays
from placement_checks.core.op_types import (
    GRADIENT_OUTPUTS,
    NO_COMPUTATION,
    PIPELINE_OUTPUTS,
    PLACEHOLDERS,
    PLACEHOLDERS_TO_FEED,
    RANDOM,
    RANDOM_STATELESS,
)
from placement_checks.core.placement import producer_of
from placement_checks.numerics.comparing import DEFAULT_LIMITS, Limits, differing_variables
from placement_checks.numerics.sampling import build_trial, measure_noise
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession
from placement_checks.util.text import join_and, nearest, plural

_MAX_DISTANCE = 10  # edges between a random op and the placeholder that disables it
_REPEATED = Limits(tolerance=1000)  # for two runs, which may add numbers in different orders


def check_all_fed(program: RunnableProgram, fed: Collection[str]) -> None:
    """Check that everything that the gradients and the step depend on has a value.

    Raises:
        CannotRun: a placeholder is not fed, or rows are read from an input pipeline.
    """
    placement = program.placement
    for name in program.ancestors([*program.gradients.tensors, *placement.step.train_op], fed):
        kind = placement.ops[name].type
        if kind in PLACEHOLDERS_TO_FEED:
            outputs = program.graph.get_operation_by_name(name).outputs
            if not any(output.consumers() for output in outputs):
                continue
            if any(output.dtype == "resource" for output in placement.details.outputs(name)):
                raise CannotRun(
                    f"{program.name} cannot be run: its step needs the resource '{name}', such as "
                    "a lookup table, which is created outside of the step and does not exist in "
                    "this run"
                )
            raise CannotRun(
                f"nothing feeds the placeholder '{name}' of {program.name}"
                f"{program.built_at(name)}",
                "list it in the inputs that its builder returns, and let the batch function "
                "return its value",
            )
        if kind in GRADIENT_OUTPUTS:
            raise CannotRun(
                f"{program.name} takes gradients from an accumulator, '{name}' ({kind})"
                f"{program.built_at(name)}, which may hold gradients of other runs"
            )
        if kind in PIPELINE_OUTPUTS:
            raise CannotRun(
                f"{program.name} reads rows from '{name}' ({kind})"
                f"{program.built_at(name)}, so both programs cannot be fed the same rows",
                "make it a placeholder_with_default, and list that in its inputs",
            )


def check_step_known(program: RunnableProgram) -> None:
    """Check that a program declares its training op.

    Raises:
        CannotRun: the program declares no training op.
    """
    if not program.placement.step.train_op:
        raise CannotRun(
            f"{program.name} declares no train_op",
            "return it from the function that builds the graph: {'train_op': train_op}",
        )


def check_repeatable(session: ProgramSession, feeds: Arrays, rows: int) -> None:
    """Check that two runs on a batch of ``rows`` rows give equal gradients.

    Gradients must not depend on stateless random ops either: such an op draws the same numbers in
    each run, but its counterpart in the reference draws different numbers. A run with another seed
    shows whether gradients depend on the op.

    Raises:
        CannotRun: the gradients depend on a random op, or differ for another reason.
    """
    program = session.program
    tensors, by_name = program.gradients.tensors, program.placement.ops
    ops = program.ancestors(tensors or program.placement.step.train_op, feeds)
    random = [name for name in ops if by_name[name].type in RANDOM]
    if random and not tensors:  # there are no gradients to compare
        raise _random_gradients(program, random[0], feeds)
    first, again = session.gradients(feeds), session.gradients(feeds)
    if _gradients_differ(first, again, rows, dict.fromkeys(first, 0.0), _REPEATED):
        if random:
            raise _random_gradients(program, random[0], feeds)
        raise CannotRun(f"two runs of {program.name} on the same rows give different gradients")
    noise = measure_noise(first, [again])
    for name in random:
        number = RANDOM_STATELESS.get(by_name[name].type)
        if number is None:
            continue
        seed = program.graph.get_operation_by_name(name).inputs[number].name
        (value,) = [None] if by_name[name].caller else session.fetch([seed], feeds)
        if value is None:  # in the body of a function, a branch or a loop
            raise _random_gradients(program, name, feeds)
        others = session.gradients({**feeds, seed: value + 1})
        if _gradients_differ(first, others, rows, noise, DEFAULT_LIMITS):
            raise _random_gradients(program, name, feeds)


def random_op_in_step(program: RunnableProgram, fed: Collection[str]) -> str | None:
    """Return a random op that affects a step but no gradient, such as noise on the weights."""
    behind_gradients = set(program.ancestors(program.gradients.tensors, fed))
    return next(
        (
            name
            for name in program.ancestors(program.placement.step.train_op, fed)
            if name not in behind_gradients and program.placement.ops[name].type in RANDOM
        ),
        None,
    )


def _gradients_differ(
    first: Arrays, second: Arrays, rows: int, noise: Mapping[str, float], limits: Limits
) -> bool:
    """Whether the gradients of two runs differ by more than the noise and the limits explain."""
    finite = {name: value for name, value in first.items() if np.all(np.isfinite(value))}
    dtypes = {name: str(value.dtype) for name, value in finite.items()}
    trial = build_trial(rows, (), finite, second, noise)
    return bool(differing_variables(trial, dtypes, limits))


def _random_gradients(program: RunnableProgram, random: str, feeds: Arrays) -> CannotRun:
    switch, source = _disabling_placeholder(program, random), program.built.program
    if switch is None and source and source.in_own_process:
        fix = "pass a value that disables it, such as a dropout rate: -- ARGS, or --let NAME=VALUE"
    elif switch is None:
        fix = (
            "let the builder take an argument that disables it, such as a dropout rate, and name "
            "a target that gives this argument"
        )
    elif f"{switch}:0" in feeds:
        fix = (
            f"'{switch}' is fed {feeds[f'{switch}:0']:g}; let the batch function return the value "
            "that disables it"
        )
    else:
        fix = (
            f"feed '{switch}' the value that disables it: list it in the inputs that the builder "
            "returns, and let the batch function return its value"
        )
    return CannotRun(
        f"the gradients of {program.name} depend on the random op '{random}' "
        f"({program.placement.ops[random].type}){program.built_at(random)}",
        fix,
    )


def _disabling_placeholder(program: RunnableProgram, random: str) -> str | None:
    """Return the scalar placeholder that decides whether a random op has an effect."""
    flow = analyze(program.placement).flow
    for op in _nearby_ops([flow.number[random]], flow.consumers):
        for before in _nearby_ops(flow.inputs[op], flow.inputs):
            name = flow.names[before]
            shapes = [output.shape for output in program.placement.details.outputs(name)]
            if flow.types[before] in PLACEHOLDERS and shapes == [()]:
                return name
    return None


def _nearby_ops(ops: Iterable[int], edges: Edges) -> Iterator[int]:
    """Yield ops and the ops that the edges lead to, nearest first."""
    nearest = list(ops)
    seen = set(nearest)
    for _ in range(_MAX_DISTANCE):
        yield from nearest
        reached = (other for op in nearest for other in edges[op])
        nearest = [other for other in reached if other not in seen]
        seen.update(nearest)


def check_towers_ran_apart(session: ProgramSession, feeds: Mapping[str, np.ndarray]) -> None:
    """Check that the towers ran on different devices.

    Raises:
        CannotRun: a device that a tower requests computed nothing, or all towers ran on the same
            device.
    """
    program = session.program
    requested = {device for tower in analyze(program.placement).towers for device in tower.devices}
    roots = program.gradients.tensors or program.placement.step.train_op
    needed = {program.placement.ops[name].requested for name in program.ancestors(roots, feeds)}
    kind, first = ("CPU", 1) if program.simulated else ("GPU", 0)
    ran = {
        (device.index or 0) - first
        for name, device in session.executed_devices(feeds).items()
        if device.type == kind
        and name in program.placement.ops
        and program.placement.ops[name].type not in NO_COMPUTATION
    }
    # A tower that no gradient depends on is not idle but ignored, which shows in the numbers.
    idle = [
        device
        for device in requested
        if (device.index or 0) not in ran and any(other.matches(device) for other in needed)
    ]
    towers = 1 if program.has_shared_inputs else len(program.inputs)
    if idle:
        where = join_and(device.short for device in sorted(idle))
        device = f"the device that simulates {where}" if program.simulated else where
        raise CannotRun(f"inconclusive run: no op of {program.name} ran on {device}")
    if len(requested) < min(2, towers):
        where = join_and(device.short for device in requested) or "the host"
        raise CannotRun(
            f"inconclusive run: {program.name} has inputs for {plural(towers, 'tower')}, "
            f"and all of them ran on {where}"
        )


def check_comparable(
    program: RunnableProgram, reference: RunnableProgram, *, same_towers: bool = False
) -> None:
    """Check that both programs train the same variables, and that the reference has one tower.

    With ``same_towers``, the reference must have as many towers as the program.

    Raises:
        InputError: the reference has several towers, or a step trains nothing.
        CannotRun: the variables or, with ``same_towers``, the numbers of towers differ; the
            training op is not known, or all gradients are inside of a loop.
    """
    towers = analyze(reference.placement).towers
    own = analyze(program.placement).towers
    if same_towers and len(towers) != len(own):
        raise CannotRun(
            f"cannot compare numbers: {program.name} has {plural(len(own), 'tower')}, but "
            f"{reference.name} has {len(towers)}"
        )
    if len(towers) > 1 and not same_towers:
        single, own_program = reference.built.program, program.built.program
        is_own_build = single and own_program and single.is_same(own_program)
        raise InputError(
            reference.name,
            f"it has {len(towers)} towers, on {join_and(towers)}, but a reference has one tower",
            "pass {gpus} to the argument or constant that sets the number of towers"
            if is_own_build
            else "name the program for one GPU as the reference",
        )
    for each in (reference, program):
        _check_trains(each)
    _check_same_variables(program, reference)


def _check_trains(program: RunnableProgram) -> None:
    if program.gradients.by_variable or program.gradients.unreadable:
        return
    if program.built.gradients_inside:
        raise CannotRun(program.built.gradients_inside)
    if program.placement.step.train_op:
        raise InputError(
            program.name, "its step trains no variable", "return the op that trains as train_op"
        )
    raise CannotRun(
        f"no op of {program.name} applies a gradient", "return the op that trains as train_op"
    )


def _check_same_variables(program: RunnableProgram, reference: RunnableProgram) -> None:
    shapes = {variable.name: variable.shape for variable in program.placement.variables}
    trained = [*reference.gradients.by_variable, *reference.gradients.unreadable]
    missing = [name for name in trained if name not in shapes]
    if missing:
        near = nearest(missing[0], shapes)
        others = plural(len(missing) - 1, "other variable")
        raise CannotRun(
            f"variables are compared by name, but {program.name} has no variable {missing[0]}"
            f"{f' (the nearest is {near})' if near else ''}"
            f"{f', nor {others} of the reference' if missing[1:] else ''}",
            "fix names-portable first",
        )
    for variable in reference.placement.variables:
        if variable.name in trained and shapes[variable.name] != variable.shape:
            raise CannotRun(
                f"variable {variable.name} has shape {shapes[variable.name]} in {program.name} "
                f"and {variable.shape} in the reference",
                "fix names-portable first",
            )


def precisions(program: RunnableProgram) -> dict[str, str]:
    """Return the coarsest dtype in the computation of each variable's gradient.

    With mixed precision, this dtype is coarser than the dtype of the variable.
    """
    analysis = analyze(program.placement)
    names = sorted(EPS, key=EPS.__getitem__)
    coarsest = [0] * len(analysis.flow.names)
    for op, name in zip(analysis.flow.ops, analysis.flow.names, strict=True):
        producers = analysis.flow.inputs[op]
        outputs = program.placement.details.outputs(name) if analysis.has_gradient(op) else ()
        own = [names.index(output.dtype) for output in outputs if output.dtype in EPS]
        coarsest[op] = max([*own, *(coarsest[producer] for producer in producers)], default=0)
    found = {}
    for variable, gradient in program.gradients.by_variable.items():
        dtype = program.variables[variable]
        behind = names[coarsest[analysis.flow.number[producer_of(gradient.values)]]]
        found[variable] = max(dtype, behind, key=lambda name: EPS.get(name, 0.0))
    return found
