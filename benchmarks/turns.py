"""Alternating measurements: a busy machine slows all of them down alike."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, TypeVar

from placement_checks.core.timing import Spread

_WARM_UP = 5  # untimed steps of each loop

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
    """The results of two calls that are timed alternately.

    The figures of `benchmark` are the first call's.
    """
    ones: list[T] = []
    others: list[T] = []
    benchmark.pedantic(
        lambda: ones.append(one()), setup=lambda: others.append(other()), rounds=rounds
    )
    return list(zip(ones, others, strict=True))


def one_core_each(config: Any, devices: int) -> Any:
    """A ``ConfigProto`` with one thread for each device and one thread within an op.

    Without ``TF_OVERRIDE_GLOBAL_THREADPOOL``, the first session of the process fixes the number of
    threads within an op.
    """
    config.inter_op_parallelism_threads = devices
    config.intra_op_parallelism_threads = 1
    config.use_per_session_threads = True
    return config


def in_turn(
    benchmark: Any, ways: Mapping[str, Callable[[], object]], *, rounds: int, steps: int = 1
) -> None:
    """Time several loops alternately, and store the figures of all of them in ``extra_info``.

    Args:
        benchmark: the fixture; its own figures are the first loop's.
        ways: functions that take a step, by name. Each is compared with the first one, round by
            round. Their order changes with each round.
        rounds: the number of rounds, each with a turn of every loop; 1 if timing is disabled.
        steps: the number of steps in a turn.
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
