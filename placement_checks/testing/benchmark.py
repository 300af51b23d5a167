"""The fixture ``tower_benchmark``: pytest-benchmark times towers, and one GPU between them."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from placement_checks.core.devices import Devices
from placement_checks.core.errors import InputError
from placement_checks.core.timing import Timing, summary
from placement_checks.report.commands.time import write_legend, write_table

if TYPE_CHECKING:
    from placement_checks.core.program import Batch, Target


ROUNDS = 30


class TowerBenchmark:
    """Times pairs of programs for one test."""

    def __init__(self, benchmark: Any, gpus: int, devices: Devices, config: pytest.Config) -> None:
        self._benchmark = benchmark
        self._gpus = gpus
        self._devices = devices
        self._timings = Timings.of(config)

    def __call__(
        self,
        towers: Target,
        single: Target,
        batch: Batch = None,
        *,
        gpus: int | None = None,
        rows: int = 0,
        rounds: int = ROUNDS,
        fail_over: float | None = None,
    ) -> Timing:
        """Time the training steps of towers, and between them those of one GPU.

        Args:
            towers: the function that builds the towers, or a target that names it.
            single: that of the program for one GPU.
            batch: ``batch(rng, n)`` gives arrays of n rows by the names of the inputs; None for
                rows that are made up.
            gpus: how many the towers are built for; default: those of the mark ``gpu``, or 2.
            rows: of the global batch; 0 for as many as placeholders are made for, or about 128.
            rounds: steps that are timed of each program; one with ``--benchmark-disable``.
            fail_over: the largest ratio, time of the towers over that of one GPU.

        Raises:
            AssertionError: the measured ratio is over ``fail_over``.
            Skipped: it could not be measured, because the machine was busy.
            InputError: a program or the batch function is at fault, or cannot be timed.
        """
        from placement_checks.capture.programs import load, load_reference
        from placement_checks.core.errors import CannotRun
        from placement_checks.run.compare.pair import ProgramPair
        from placement_checks.run.feeding.batches import load_batch_function
        from placement_checks.run.timing.benchmark import TimedPair

        __tracebackhide__ = True
        disabled = self._benchmark.disabled
        try:
            built = load(towers, gpus or self._gpus)
            pair = ProgramPair.from_programs(built, load_reference(single, built), self._devices)
            with TimedPair(pair, load_batch_function(batch, built.gpus), rows=rows) as timed:
                self._benchmark.pedantic(timed.run_towers, setup=timed.run_others, rounds=rounds)
                for _ in timed.trace():
                    if disabled:
                        break
                timing = timed.timing()
        except CannotRun as reason:
            raise InputError("tower_benchmark", f"cannot time this: {reason}") from None
        self._benchmark.extra_info |= summary(timing.document())
        if disabled:
            return timing
        self._timings.add(timing)
        if fail_over is not None:
            _judge(timing, fail_over)
        return timing


def _judge(timing: Timing, most: float) -> None:
    __tracebackhide__ = True
    if timing.ratio is None:
        pytest.skip(f"no ratio is measured: {timing.unmeasured}")
    if timing.ratio.median > most:
        raise AssertionError(
            f"the towers take {timing.ratio} of the time of one GPU, more than {most:g}, with "
            f"{timing.rows} rows on {timing.at.kind}"
        )


class Timings:
    """The plugin that prints what was timed, at the end of the run."""

    name = "placement-timings"

    def __init__(self) -> None:
        self._timings: list[Timing] = []

    def add(self, timing: Timing) -> None:
        self._timings.append(timing)

    @staticmethod
    def of(config: pytest.Config) -> Timings:
        """The one of this run."""
        plugins = config.pluginmanager
        if not plugins.hasplugin(Timings.name):
            plugins.register(Timings(), Timings.name)
        registered: Timings = plugins.getplugin(Timings.name)
        return registered

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._timings:
            return
        terminalreporter.section("towers beside one GPU")
        text = StringIO()
        console = Console(file=text)
        for at in dict.fromkeys(timing.at for timing in self._timings):
            write_table([timing for timing in self._timings if timing.at == at], console)
        write_legend(self._timings[0], console)
        terminalreporter.write(text.getvalue())
