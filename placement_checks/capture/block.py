"""Captures the code of a ``with watch()`` block until its first training step."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import replace

from placement_checks.capture.eager.calls import NotAGraphProgram
from placement_checks.capture.eager.errors import explain_refusals, no_traced_step_error
from placement_checks.capture.in_process.builder import (
    parse_flags,
    record_eager_code,
    record_in_new_graph,
)
from placement_checks.capture.in_process.sessions import StopProgram
from placement_checks.core.devices import checked_gpus
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.program import CapturedProgram, Program, Step, WatchedCode
from placement_checks.core.user_code import users_line
from placement_checks.tf.simulated_devices import configure_logical_cpus


@contextlib.contextmanager
def watch(gpus: int = 2, *, name: str = "", eager: bool = False) -> Iterator[WatchedCode]:
    """Capture the code in this block until its first training step, and end the block there.

    After the block, the yielded object is a target: ``place(watched)``.

    Args:
        gpus: the number of GPUs that the code finds, whichever function it asks.
        name: the name of the code in reports; by default the source line of the block.
        eager: whether the code is eager and its step a `tf.function`; otherwise the block builds a
            graph.

    Raises:
        UsageError: ``gpus`` is below 1 or above 256; or the code is eager, but TensorFlow has
            already started with too few logical CPU devices to simulate the GPUs.
        InputError: the block built nothing, or its graph is larger than 2 GB.
    """
    checked_gpus(gpus)
    line = users_line(traceback.extract_stack())
    code = WatchedCode(name or line or "the code of the block")
    program = Program(code.name, lambda: None)
    found: list[CapturedProgram] = []
    with (_watch_eager_code if eager else _watch_graph_code)(program, gpus, found):
        yield code
    reason = Missing("the code of a block cannot be built for one GPU", option="place a function")
    code.built = replace(found[0], loader=reason)


@contextlib.contextmanager
def _watch_graph_code(program: Program, gpus: int, found: list[CapturedProgram]) -> Iterator[None]:
    with record_in_new_graph(program, gpus) as (building, find_graph):
        try:
            with contextlib.suppress(StopProgram):
                yield
        except NotAGraphProgram:
            raise InputError(
                program.name, "its step is a tf.function", "write watch(eager=True)"
            ) from None
        if building.watch.steps:
            found.append(building.capture_step())
        else:
            found.append(building.capture_graph(find_graph(None), Step()))
    if not found[0].graph_def.node:
        raise InputError(
            program.name,
            "built no graph",
            "call the function that trains inside the block; if its step is a tf.function, write "
            "watch(eager=True)",
            is_predicate=True,
        )


@contextlib.contextmanager
def _watch_eager_code(program: Program, gpus: int, found: list[CapturedProgram]) -> Iterator[None]:
    configure_logical_cpus(gpus + 1)
    parse_flags(program)
    with record_eager_code(program, gpus) as building:
        with contextlib.suppress(StopProgram), explain_refusals(program.name):
            yield
        if not building.has_step:
            raise no_traced_step_error(program.name, building.calls)
        found.append(building.capture_step())
        if server := found[0].server:
            raise InputError(
                program.name,
                f"is one of several tasks, {server.name}, but a block runs as one task only",
                'place the function that trains: place(train.main, machine="worker*2: gpu*2")',
                is_predicate=True,
            )
