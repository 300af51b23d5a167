"""Why no training step can be taken that means something."""

from __future__ import annotations

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.missing import Missing
from placement_checks.core.placement import producer_of
from placement_checks.run.paired_sessions import PairedSessions
from placement_checks.run.precision import changed
from placement_checks.run.preconditions import random_steps
from placement_checks.run.runnable import RunnableProgram


def no_steps(sessions: PairedSessions) -> Missing | None:
    """Why no step can be taken."""
    programs = [session.program for session in (sessions.towers, sessions.reference)]
    if not all(program.placement.step.train_op for program in programs):
        return Missing(
            "the programs do not say which op is one step; return it from both builders: "
            "{'train_op': train_op}"
        )
    for session, feeds in sessions.both(sessions.batches[0]):
        name = random_steps(session.program, feeds)
        if name is not None:
            return Missing(f"a step of {session.program.name} depends on the random op '{name}'")
    for program in programs:
        if program.built.fed and _takes_turns(program):
            return Missing(
                f"several ops of {program.name} train, each other variables, and what one of them "
                "computes depends on which comes first"
            )
    return _no_steps_on_parts(sessions) if sessions.on_parts else None


def _takes_turns(program: RunnableProgram) -> bool:
    """Whether it was seen to run several ops that train different variables, as a GAN does."""
    analysis = analyse(program.placement)
    trained = program.gradient_tensors.gradients
    groups = set()
    for name in program.placement.step.train_op:
        runs = analysis.flow.needed_to_run([analysis.flow.number[producer_of(name)]])
        updates = analysis.updates.by_variable.items()
        groups.add(
            frozenset(
                variable
                for variable, of_variable in updates
                if variable in trained and any(runs[update.op] for update in of_variable)
            )
        )
    return len(groups - {frozenset()}) > 1


def _no_steps_on_parts(sessions: PairedSessions) -> Missing | None:
    """Why the reference can take no step with the mean of its gradients on parts of the rows."""
    reference = sessions.reference.program
    on_parts = f"{reference.name} computes on the rows of each tower"
    for program in (sessions.towers.program, reference):
        if name := next(changed(program), None):
            return Missing(f"{on_parts}, and the gradient of {name} is clipped, or else changed")
    if name := next(iter(reference.gradient_tensors.unread), None):
        return Missing(f"{on_parts}, and the gradient of {name} cannot be read")
    shapes = {variable.name: variable.shape for variable in reference.placement.variables}
    for name, gradient in reference.gradient_tensors.gradients.items():
        taken = reference.graph.get_tensor_by_name(gradient.values).shape
        if not taken.is_compatible_with(shapes[name]):
            return Missing(
                f"{on_parts}, and a step takes only some rows of the gradient of {name}"
            )
    return None
