"""Whether a run means anything: all is fed, nothing is random, the towers ran apart.

Whether two programs can be compared: they train the same variables, one of them on one GPU.

And which variables are not, as their values are not the same in every run of one program.

What lies between the loss and a gradient: how precisely it is computed, and what changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.read_write_races import races
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS
from placement_checks.core.op_types import (
    BRANCHES,
    COLLECTIVE_GATHER,
    COLLECTIVE_GATHER_V1,
    COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_V1,
    GRADIENT_OUTPUTS,
    LINEAR,
    NCCL_REDUCE,
    NO_COMPUTATION,
    PIPELINE_OUTPUTS,
    PLACEHOLDERS,
    PLACEHOLDERS_TO_FEED,
    RANDOM,
    RANDOM_STATELESS,
)
from placement_checks.core.placement import producer_of
from placement_checks.numerics.comparing import compare_gradients
from placement_checks.numerics.reducing import build_trial
from placement_checks.run.graph_rewrites import fed_ops
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession, Values
from placement_checks.util.text import join_and, nearest, plural

_PIPELINE = PIPELINE_OUTPUTS | GRADIENT_OUTPUTS
_MAX_DISTANCE = 10  # steps between a random op and what switches it


def ancestors(program: RunnableProgram, roots: Iterable[str], fed: Collection[str]) -> list[str]:
    """The ops that run for some tensors or ops, in the order of building; not behind fed ones."""
    flow = analyse(program.placement).flow
    ends = {flow.number[op] for op in fed_ops(program.placement, fed)}
    todo = [flow.number[producer_of(root)] for root in roots]
    seen = set(todo)
    while todo:
        op = todo.pop()
        if op in ends:
            continue
        for producer in (*flow.inputs[op], *flow.control_inputs.get(op, ())):
            if producer not in seen:
                seen.add(producer)
                todo.append(producer)
    return [flow.names[op] for op in sorted(seen - ends)]


def gradient_tensors(program: RunnableProgram) -> list[str]:
    """The tensors that make up the gradients."""
    gradients = program.gradient_tensors.gradients.values()
    return [tensor for gradient in gradients for tensor in gradient if tensor]


def check_all_fed(program: RunnableProgram, fed: Collection[str]) -> None:
    """Check that nothing behind the gradients and the step is left without a value.

    Raises:
        CannotRun: a placeholder is not listed, or rows come from a pipeline.
    """
    training = program.placement.step
    ops = program.placement.ops
    for name in ancestors(program, [*gradient_tensors(program), *training.train_op], fed):
        if ops[name].type in PLACEHOLDERS_TO_FEED and _is_read(program, name):
            if _is_resource(program, name):
                raise CannotRun(
                    f"{program.name} takes '{name}', such as a lookup table, from outside of its "
                    "step, and that is not there when the step is run alone"
                )
            raise CannotRun(
                f"nothing feeds the placeholder '{name}' of {program.name}{_built_at(program, name)}; "
                "list it in the inputs that its builder returns, and give its value in the batch "
                "function"
            )
        if ops[name].type in _PIPELINE:
            raise CannotRun(
                f"{program.name} takes rows from '{name}' ({ops[name].type})"
                f"{_built_at(program, name)}, so that both programs cannot be given the same; make it a "
                "placeholder_with_default, and list that in its inputs"
            )


def _is_read(program: RunnableProgram, op: str) -> bool:
    """Whether something takes what an op yields, in the graph that runs."""
    outputs = program.graph.get_operation_by_name(op).outputs
    return any(output.consumers() for output in outputs)


def _is_resource(program: RunnableProgram, op: str) -> bool:
    outputs = program.placement.details.outputs(op)
    return any(output.dtype == "resource" for output in outputs)


def _built_at(program: RunnableProgram, op: str) -> str:
    """Where an op was built, for a refusal: a traceback is read for each op that is asked for."""
    where = program.placement.where(op)
    return f", built at {where}" if where else ""


def check_step_known(program: RunnableProgram) -> None:
    """Check that a program says what one step is.

    Raises:
        CannotRun: it does not.
    """
    if not program.placement.step.train_op:
        raise CannotRun(
            f"{program.name} does not say which op is one step; return it from the function that "
            "builds the graph: {'train_op': train_op}"
        )


def check_repeatable(session: ProgramSession, feeds: Values) -> None:
    """Check that the gradients are those of the last run when the program runs again.

    Raises:
        CannotRun: a random op reaches them and is not switched off.
    """
    program = session.program
    analysis = analyse(program.placement)
    tensors = gradient_tensors(program)
    ops = ancestors(program, tensors or program.placement.step.train_op, feeds)
    random = [name for name in ops if program.placement.ops[name].type in RANDOM]
    if random and not tensors:  # no two runs can be compared
        raise _random_gradients(program, analysis, random[0], feeds)
    first = session.gradients(feeds)
    if _gradients_differ(first, session.gradients(feeds)):
        if not random:
            raise CannotRun(
                f"two runs of {program.name} on the same rows give different gradients"
            )
        raise _random_gradients(program, analysis, random[0], feeds)
    for name in random:
        if program.placement.ops[name].type in RANDOM_STATELESS:
            if program.placement.ops[name].caller:  # it cannot be fed
                raise _random_gradients(program, analysis, name, feeds)
            drawn = f"{name}:0"
            others = _other_numbers(session.run(drawn, feeds))
            if _gradients_differ(first, session.gradients({**feeds, drawn: others})):
                raise _random_gradients(program, analysis, name, feeds)


def random_op_in_step(program: RunnableProgram, fed: Collection[str]) -> str | None:
    """A random op that reaches a step beside the gradients, such as noise on the weights."""
    drawn = set(ancestors(program, gradient_tensors(program), fed))
    return next(
        (
            name
            for name in ancestors(program, program.placement.step.train_op, fed)
            if name not in drawn and program.placement.ops[name].type in RANDOM
        ),
        None,
    )


def _gradients_differ(some: Values, others: Values) -> bool:
    """Whether gradients differ by more than what another order of additions does to them."""
    finite = {name: value for name, value in some.items() if np.all(np.isfinite(value))}
    dtypes = {name: str(value.dtype) for name, value in finite.items()}
    trial = build_trial(0, (), finite, others, dict.fromkeys(finite, 0.0))
    compared = compare_gradients(trial, dtypes, tolerance=1000)
    return any(gradient.state == "differs" for gradient in compared)


def _other_numbers(drawn: np.ndarray) -> np.ndarray:
    """Other numbers than those drawn, within the same bounds."""
    others = drawn[..., ::-1] if drawn.ndim else drawn
    return others * drawn.dtype.type(0.5) if drawn.dtype.kind == "f" else others


def _random_gradients(
    program: RunnableProgram, analysis: TowerAnalysis, random: str, feeds: Values
) -> CannotRun:
    switch = _disabling_placeholder(program, analysis, random)
    if switch is None:
        fix = (
            "let the builder take an argument that leaves it out, such as the rate of a dropout, "
            "and name a builder that gives it"
        )
    elif f"{switch}:0" in feeds:
        fix = (
            f"'{switch}' is fed {feeds[f'{switch}:0']:g}; let the batch function give what "
            "switches it off"
        )
    else:
        fix = (
            f"feed '{switch}' with what switches it off: list it in the inputs that the builder "
            "returns, and give its value in the batch function"
        )
    return CannotRun(
        f"the gradients of {program.name} depend on the random op '{random}' "
        f"({program.placement.ops[random].type}){_built_at(program, random)}; {fix}"
    )


def _disabling_placeholder(
    program: RunnableProgram, analysis: TowerAnalysis, random: str
) -> str | None:
    """The scalar placeholder that decides what becomes of what a random op draws."""
    flow = analysis.flow
    after = _nearby_ops([flow.number[random]], lambda op: flow.consumers[op])
    for op in after:
        for before in _nearby_ops(flow.inputs[op], lambda op: flow.inputs[op]):
            name = flow.names[before]
            shapes = [output.shape for output in program.placement.details.outputs(name)]
            if flow.types[before] in PLACEHOLDERS and shapes == [()]:
                return name
    return None


def _nearby_ops(ops: Iterable[int], following: Callable[[int], Sequence[int]]) -> Iterator[int]:
    """Some ops and those a few edges away, the nearest first."""
    nearest = list(ops)
    seen = set(nearest)
    for _ in range(_MAX_DISTANCE):
        yield from nearest
        reached = (other for op in nearest for other in following(op))
        nearest = [other for other in reached if other not in seen]
        seen.update(nearest)


def check_towers_ran_apart(session: ProgramSession, feeds: Mapping[str, np.ndarray]) -> None:
    """Check that the towers ran on devices of their own.

    Raises:
        CannotRun: a device that a tower asks for computed nothing, or one had them all.
    """
    program = session.program
    requested = {device for tower in analyse(program.placement).towers for device in tower.devices}
    roots = gradient_tensors(program) or program.placement.step.train_op
    needed = {program.placement.ops[name].requested for name in ancestors(program, roots, feeds)}
    kind, first = ("CPU", 1) if program.simulated else ("GPU", 0)
    ran = {
        (device.index or 0) - first
        for name, device in session.ran_on(feeds).items()
        if device.type == kind
        and name in program.placement.ops
        and program.placement.ops[name].type not in NO_COMPUTATION
    }
    # A tower that no gradient needs is left out of the mean, which the numbers tell.
    idle = [
        device
        for device in requested
        if (device.index or 0) not in ran and any(other.matches(device) for other in needed)
    ]
    towers = 1 if program.shared else len(program.inputs)
    if idle:
        raise CannotRun(
            f"the run shows nothing: no op of {program.name} ran on what stands in for "
            f"{join_and(device.short for device in sorted(idle))}"
        )
    if len(requested) < min(2, towers):
        where = join_and(device.short for device in requested) or "the host"
        raise CannotRun(
            f"the run shows nothing: {program.name} has inputs for {plural(towers, 'tower')}, "
            f"and all of them ran on {where}"
        )


def check_comparable(program: RunnableProgram, reference: RunnableProgram) -> None:
    """Check that both programs train the same variables, and the reference on one device.

    Raises:
        InputError: the reference has towers, or a step trains nothing.
        CannotRun: the variables differ, it is not known what a step is, or all gradients are
            taken inside of a loop.
    """
    towers = analyse(reference.placement).towers
    if len(towers) > 1:
        raise InputError(
            reference.name,
            f"it has {len(towers)} towers, on {join_and(towers)}, and a reference has one",
            "name the program for one GPU as the reference",
        )
    _check_trains(reference)
    _check_trains(program)
    _check_same_variables(program, reference)


def shared_races(program: RunnableProgram, reference: RunnableProgram) -> Mapping[str, str]:
    """The variables with a race in either program, each with the variable raced for.

    Programs for one GPU and for several are scheduled differently, so that the same race ends
    otherwise in each, run after run.
    """
    return {**races(program.placement), **races(reference.placement)}


def _check_trains(program: RunnableProgram) -> None:
    """Refuse a program whose step trains nothing, or whose gradients cannot be read."""
    if program.gradient_tensors.gradients or program.gradient_tensors.unread:
        return
    if program.built.gradients_inside:
        raise CannotRun(program.built.gradients_inside)
    if program.placement.step.train_op:
        raise InputError(
            program.name, "its step trains no variable", "return the op that trains as train_op"
        )
    raise CannotRun(
        f"no op of {program.name} is seen to apply a gradient; return the op that trains as "
        "train_op"
    )


def _check_same_variables(program: RunnableProgram, reference: RunnableProgram) -> None:
    """Variables are compared by name, so those that are trained must have one name and shape."""
    shapes = {variable.name: variable.shape for variable in program.placement.variables}
    trained = [*reference.gradient_tensors.gradients, *reference.gradient_tensors.unread]
    missing = [name for name in trained if name not in shapes]
    if missing:
        near = nearest(missing[0], shapes)
        raise CannotRun(
            f"variables are compared by name, and {program.name} has none called {missing[0]}"
            + (f" (the nearest is {near})" if near else "")
            + (
                f", nor {plural(len(missing) - 1, 'other variable')} of the reference"
                if missing[1:]
                else ""
            )
            + "; fix names-portable first"
        )
    for variable in reference.placement.variables:
        if variable.name in trained and shapes[variable.name] != variable.shape:
            raise CannotRun(
                f"variable {variable.name} has shape {shapes[variable.name]} in {program.name} "
                f"and {variable.shape} in the reference; fix names-portable first"
            )


def precisions(program: RunnableProgram) -> dict[str, str]:
    """The coarsest dtype in which the gradient of each variable is computed.

    That of the variable tells nothing where the model computes in another, as in mixed precision.
    """
    analysis = analyse(program.placement)
    names = sorted(EPS, key=EPS.__getitem__)
    coarsest = [0] * len(analysis.flow.names)
    for op, producers in enumerate(analysis.flow.inputs):
        own = [
            names.index(output.dtype)
            for output in (
                program.placement.details.outputs(analysis.flow.names[op])
                if analysis.backward.ops[op]
                else ()
            )
            if output.dtype in EPS
        ]
        coarsest[op] = max([*own, *(coarsest[producer] for producer in producers)], default=0)
    found = {}
    for variable, gradient in program.gradient_tensors.gradients.items():
        dtype = program.variables[variable]
        behind = names[coarsest[analysis.flow.number[producer_of(gradient.values)]]]
        found[variable] = max(dtype, behind, key=lambda name: EPS.get(name, 0.0))
    return found


# A strategy adds up what replicas have computed, or gives each the rows of all.
_SUMS = LINEAR | {
    *(NCCL_REDUCE, COLLECTIVE_REDUCE, COLLECTIVE_GATHER),
    *(COLLECTIVE_REDUCE_V1, COLLECTIVE_GATHER_V1),
}


def clipped_gradients(program: RunnableProgram) -> Iterator[str]:
    """The variables whose gradient is clipped, or else changed, before it is applied.

    What does not depend on gradients, such as the rows of a tower, only scales them, or chooses
    one of the branches of a condition.
    """
    analysis = analyse(program.placement)
    flow, backward = analysis.flow, analysis.backward.ops
    of_gradients = flow.masks([int(is_backward) for is_backward in backward])

    def changes(op: int) -> bool:
        if not of_gradients[op] or backward[op] or flow.types[op] in _SUMS:
            return False
        # Its other inputs, and the ops of its branches, are between loss and update themselves.
        return flow.types[op] not in BRANCHES or bool(of_gradients[flow.inputs[op][0]])

    for variable, gradient in program.gradient_tensors.gradients.items():
        start = flow.number[producer_of(gradient.values)]
        if any(map(changes, flow.walk_back([start], lambda op: not backward[op]))):
            yield variable
