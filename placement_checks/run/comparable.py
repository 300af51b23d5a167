"""Whether two programs can be compared: they train the same variables, one of them on one GPU.

And which variables are not, as their values are not the same in every run of one program.
"""

from __future__ import annotations

from collections.abc import Mapping

from placement_checks.analysis.races import races
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.errors import CannotRun, InputError
from placement_checks.run.runnable import RunnableProgram
from placement_checks.util.text import joined, nearest, plural


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
            f"it has {len(towers)} towers, on {joined(towers)}, and a reference has one",
            "name the program for one GPU as the reference",
        )
    _check_trains(reference)
    _check_trains(program)
    _check_same_variables(program, reference)


def races_of(program: RunnableProgram, reference: RunnableProgram) -> Mapping[str, str]:
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
