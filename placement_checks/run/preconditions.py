"""Whether a run means anything: all is fed, nothing is random, the towers ran apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.errors import CannotRun
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
from placement_checks.numerics.comparing import gradients
from placement_checks.numerics.reducing import trial_of
from placement_checks.run.fed_ops import fed_ops
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession, Values
from placement_checks.util.text import joined, plural

_PIPELINE = PIPELINE_OUTPUTS | GRADIENT_OUTPUTS
_MAX_STEPS = 10  # steps between a random op and what switches it


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
                f"nothing feeds the placeholder '{name}' of {program.name}{_at(program, name)}; "
                "list it in the inputs that its builder returns, and give its value in the batch "
                "function"
            )
        if ops[name].type in _PIPELINE:
            raise CannotRun(
                f"{program.name} takes rows from '{name}' ({ops[name].type})"
                f"{_at(program, name)}, so that both programs cannot be given the same; make it a "
                "placeholder_with_default, and list that in its inputs"
            )


def _is_read(program: RunnableProgram, op: str) -> bool:
    """Whether something takes what an op yields, in the graph that runs."""
    outputs = program.graph.get_operation_by_name(op).outputs
    return any(output.consumers() for output in outputs)


def _is_resource(program: RunnableProgram, op: str) -> bool:
    outputs = program.placement.details.outputs(op)
    return any(output.dtype == "resource" for output in outputs)


def _at(program: RunnableProgram, op: str) -> str:
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
        raise _depends_on_random(program, analysis, random[0], feeds)
    first = session.gradients(feeds)
    if _differ(first, session.gradients(feeds)):
        if not random:
            raise CannotRun(
                f"two runs of {program.name} on the same rows give different gradients"
            )
        raise _depends_on_random(program, analysis, random[0], feeds)
    for name in random:
        if program.placement.ops[name].type in RANDOM_STATELESS:
            if program.placement.ops[name].caller:  # it cannot be fed
                raise _depends_on_random(program, analysis, name, feeds)
            drawn = f"{name}:0"
            others = _other_numbers(session.run(drawn, feeds))
            if _differ(first, session.gradients({**feeds, drawn: others})):
                raise _depends_on_random(program, analysis, name, feeds)


def random_steps(program: RunnableProgram, fed: Collection[str]) -> str | None:
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


def _differ(some: Values, others: Values) -> bool:
    """Whether gradients differ by more than what another order of additions does to them."""
    finite = {name: value for name, value in some.items() if np.all(np.isfinite(value))}
    dtypes = {name: str(value.dtype) for name, value in finite.items()}
    trial = trial_of(0, (), finite, others, dict.fromkeys(finite, 0.0))
    compared = gradients(trial, dtypes, tolerance=1000)
    return any(gradient.state == "differs" for gradient in compared)


def _other_numbers(drawn: np.ndarray) -> np.ndarray:
    """Other numbers than those drawn, within the same bounds."""
    others = drawn[..., ::-1] if drawn.ndim else drawn
    return others * drawn.dtype.type(0.5) if drawn.dtype.kind == "f" else others


def _depends_on_random(
    program: RunnableProgram, analysis: TowerAnalysis, random: str, feeds: Values
) -> CannotRun:
    switch = _switch(program, analysis, random)
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
        f"({program.placement.ops[random].type}){_at(program, random)}; {fix}"
    )


def _switch(program: RunnableProgram, analysis: TowerAnalysis, random: str) -> str | None:
    """The scalar placeholder that decides what becomes of what a random op draws."""
    flow = analysis.flow
    after = _near([flow.number[random]], lambda op: flow.consumers[op])
    for op in after:
        for before in _near(flow.inputs[op], lambda op: flow.inputs[op]):
            name = flow.names[before]
            shapes = [output.shape for output in program.placement.details.outputs(name)]
            if flow.types[before] in PLACEHOLDERS and shapes == [()]:
                return name
    return None


def _near(ops: Iterable[int], following: Callable[[int], Sequence[int]]) -> Iterator[int]:
    """Some ops and those a few edges away, the nearest first."""
    nearest = list(ops)
    seen = set(nearest)
    for _ in range(_MAX_STEPS):
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
            f"{joined(device.short for device in sorted(idle))}"
        )
    if len(requested) < min(2, towers):
        where = joined(device.short for device in requested) or "the host"
        raise CannotRun(
            f"the run shows nothing: {program.name} has inputs for {plural(towers, 'tower')}, "
            f"and all of them ran on {where}"
        )
