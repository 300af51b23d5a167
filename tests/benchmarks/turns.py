"""What is measured in turn: a busy machine slows all of it alike."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, TypeVar

from placement_checks.core.timing import Spread

_WARM_UP = 5  # steps of each way that are not timed

T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """The seconds of a call, and its result."""
    gc.collect()
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def in_pairs(
    benchmark: Any, one: Callable[[], T], other: Callable[[], T], *, rounds: int
) -> list[tuple[T, T]]:
    """What two calls give that are made in turn; the figures of `benchmark` are of the first."""
    ones: list[T] = []
    others: list[T] = []
    benchmark.pedantic(
        lambda: ones.append(one()), setup=lambda: others.append(other()), rounds=rounds
    )
    return list(zip(ones, others, strict=True))


def one_core_each(config: Any, devices: int) -> Any:
    """The ``ConfigProto``, with a thread a device and one that an op computes on.

    Without ``TF_OVERRIDE_GLOBAL_THREADPOOL`` the first session of the process settles the latter.
    """
    config.inter_op_parallelism_threads = devices
    config.intra_op_parallelism_threads = 1
    config.use_per_session_threads = True
    return config


def in_turn(
    benchmark: Any, ways: Mapping[str, Callable[[], object]], *, rounds: int, steps: int = 1
) -> None:
    """Time ways to take a step, and keep the figures of all of them as ``extra_info``.

    Args:
        benchmark: the fixture; its own figures are of the turns of the first way.
        ways: what takes a step, by name. The others are compared with the first, round by round,
            and their order changes from one round to the next.
        rounds: in which each way has a turn; one where nothing is timed.
        steps: of a turn.
    """
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    first, *rest = ways
    others = deque(rest)

    def take(name: str) -> None:
        step = ways[name]
        began, spent = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        wall[name].append(time.perf_counter() - began)
        cpu[name].append(time.process_time() - spent)

    def take_others() -> None:
        for name in others:
            take(name)
        others.rotate()

    for step in ways.values():
        for _ in range(_WARM_UP):
            step()
    benchmark.pedantic(take, (first,), setup=take_others, rounds=rounds)
    for name in ways:
        figures: dict[str, Any] = {
            "median, ms": round(1000 * median(wall[name]) / steps, 3),
            "cores": round(sum(cpu[name]) / sum(wall[name]), 2),
        }
        if name != first:
            ratios = [mine / its for mine, its in zip(wall[name], wall[first], strict=True)]
            spread = Spread.from_values(ratios)._asdict()
            figures[f"over {first}"] = {key: round(each, 3) for key, each in spread.items()}
        benchmark.extra_info[name] = figures
