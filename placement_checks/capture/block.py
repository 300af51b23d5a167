"""Watches code of a test until its first training step."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from placement_checks.capture.eager.calls import NotAGraphProgram
from placement_checks.capture.eager.errors import no_traced_step, refusals_told
from placement_checks.capture.in_process.builder import (
    built_program,
    in_new_graph,
    noting_eager_code,
    parse_flags,
)
from placement_checks.capture.in_process.recorder import Built
from placement_checks.capture.in_process.sessions import Stopped
from placement_checks.core.devices import checked_gpus
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.program import Program, Step, WatchedCode
from placement_checks.core.user_code import users_frames
from placement_checks.tf.simulated_devices import configure_logical_cpus


@contextlib.contextmanager
def watch(gpus: int = 2, *, name: str = "", eager: bool = False) -> Iterator[WatchedCode]:
    """Watch the code in this block until its first training step, and end the block there.

    What the block yields is a target when it has ended: ``place(watched)``.

    Args:
        gpus: how many GPUs it finds, by whatever call it asks.
        name: what it is called in reports; by default where the block is.
        eager: whether it is eager code, whose step is a `tf.function`, and not built into a graph.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256; or the code is eager, and TensorFlow has
            started with too few logical CPUs for these GPUs.
        InputError: it built nothing, or its graph is larger than 2 GB.
    """
    checked_gpus(gpus)
    code = WatchedCode(name or _place_of_block())
    program = Program(code.name, lambda: None)
    with (_watching_eagerly if eager else _watching)(program, gpus) as found:
        yield code
    reason = Missing("the code of a block cannot be run for one GPU", "place a function")
    code.built = built_program(program, gpus, found[0], lambda _: reason)


@contextlib.contextmanager
def _watching(program: Program, gpus: int) -> Iterator[list[Built]]:
    """Watch what this block builds into a graph."""
    found: list[Built] = []
    with in_new_graph(program, gpus) as (building, graph_of):
        with contextlib.suppress(Stopped), _told_of_eager(program):
            yield found
        if building.watch.steps:
            found.append(building.trained())
        else:
            found.append(building.built(graph_of(None), Step()))
    if not found[0].source.graph_def.node:
        raise InputError(
            program.name,
            "built no graph",
            "call the function that trains within the block; if its step is a tf.function, write "
            "watch(eager=True)",
        )


@contextlib.contextmanager
def _watching_eagerly(program: Program, gpus: int) -> Iterator[list[Built]]:
    """Watch what this block traces."""
    found: list[Built] = []
    configure_logical_cpus(gpus + 1)
    parse_flags(program)
    with noting_eager_code(program, gpus) as building:
        with contextlib.suppress(Stopped), refusals_told(program.name):
            yield found
        if not building.has_step:
            raise no_traced_step(program.name, building.calls)
        built = building.trained()
        if built.worker is not None:
            raise InputError(
                program.name,
                f"is one of several tasks, {built.worker.name}, and a block is that task alone",
                'place the function that trains: place(train.main, machine="worker*2: gpu*2")',
            )
        found.append(built)


@contextlib.contextmanager
def _told_of_eager(program: Program) -> Iterator[None]:
    """Tell of a step that is a traced function."""
    try:
        yield
    except NotAGraphProgram:
        raise InputError(
            program.name, "its step is a tf.function", "write watch(eager=True)"
        ) from None


def _place_of_block() -> str:
    """The line of the block, which is the user's innermost."""
    frames = users_frames(traceback.extract_stack(), None)
    return str(frames[-1]) if frames else "the code of the block"
