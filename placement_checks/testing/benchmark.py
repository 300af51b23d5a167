"""The fixture ``tower_benchmark``: compares the step time of towers with one GPU."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from placement_checks.core.errors import InputError
from placement_checks.core.timing import Timing
from placement_checks.report.commands.time import figures, write_legend, write_table
from placement_checks.testing import locations, markers

if TYPE_CHECKING:
    from placement_checks.core.program import Batch, TargetLike


ROUNDS = 30


class TowerBenchmark:
    """Times pairs of programs for one test."""

    def __init__(self, benchmark: Any, gpus: int, item: pytest.Item) -> None:
        self._benchmark = benchmark
        self._gpus = gpus
        self._item = item
        self._devices = markers.devices_of(item.config)
        self._policy = locations.configuration_of(item).settings.policy
        self._timings = Timings.from_config(item.config)

    def __call__(
        self,
        towers: TargetLike,
        single: TargetLike,
        batch: Batch = None,
        *,
        gpus: int | None = None,
        rows: int = 0,
        rounds: int = ROUNDS,
        fail_over: float | None = None,
    ) -> Timing:
        """Time training steps of towers and of one GPU in turn.

        Args:
            towers: the function that builds the towers, or a target that names it.
            single: the function or target of the program for one GPU.
            batch: ``batch(rng, n)`` returns arrays of n rows by input name; None for generated
                rows.
            gpus: the number of GPUs of the towers; by default the argument of the mark
                ``placement_gpu``, or 2.
            rows: the size of the global batch; 0 for the fixed size of the placeholders, or about
                128.
            rounds: the number of timed steps of each program; one with ``--benchmark-disable``.
            fail_over: the largest allowed ratio of the step times, towers to one GPU.

        Raises:
            AssertionError: the measured ratio is over ``fail_over``.
            Skipped: the ratio could not be measured because the machine was busy.
            InputError: a program or the batch function fails, or cannot be timed.
        """
        from placement_checks.capture.programs import load, load_reference
        from placement_checks.core.errors import CannotRun
        from placement_checks.run.compare.pair import ProgramPair
        from placement_checks.run.feeding.batches import load_batch_function
        from placement_checks.run.timing.benchmark import TimedPair
        from placement_checks.targets.forms import resolve
        from placement_checks.verification.policy import declared_by
        from placement_checks.verification.running import conditions_of

        __tracebackhide__ = True
        towers, single, batch = (
            locations.find_target(each, self._item) for each in (towers, single, batch)
        )
        disabled = self._benchmark.disabled
        try:
            built = load(resolve(towers), gpus or self._gpus)
            reference = load_reference(resolve(single), built)
            pair = ProgramPair.from_programs(built, reference, self._devices)
            conditions = conditions_of(self._policy.over(declared_by(built)))
            with TimedPair(
                pair,
                load_batch_function(batch, built.gpus, v1=built.v1),
                rows=rows or conditions.rows,
                shares=conditions.shares,
            ) as timed:
                self._benchmark.pedantic(timed.run_towers, setup=timed.run_others, rounds=rounds)
                for _ in timed.trace():
                    if disabled:
                        break
                timing = timed.timing()
        except CannotRun as reason:
            raise InputError(
                "tower_benchmark", f"cannot time the programs: {reason}", is_predicate=True
            ) from None
        self._benchmark.extra_info |= figures(timing)
        if disabled:
            return timing
        self._timings.add(timing)
        if fail_over is not None:
            if timing.ratio is None:
                pytest.skip(f"the ratio could not be measured: {timing.unmeasured}")
            if timing.ratio.median > fail_over:
                raise AssertionError(
                    f"the step time of the towers is {timing.ratio} of the step time of one GPU, "
                    f"more than {fail_over:g}, with {timing.rows} rows on {timing.at.kind}"
                )
        return timing


class Timings:
    """The plugin that prints all timings at the end of the run."""

    name = "placement-timings"

    def __init__(self) -> None:
        self._timings: list[Timing] = []

    def add(self, timing: Timing) -> None:
        self._timings.append(timing)

    @staticmethod
    def from_config(config: pytest.Config) -> Timings:
        """The plugin of this run, registered on the first call."""
        plugins = config.pluginmanager
        if not plugins.hasplugin(Timings.name):
            plugins.register(Timings(), Timings.name)
        registered: Timings = plugins.getplugin(Timings.name)
        return registered

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._timings:
            return
        terminalreporter.section("towers compared with one GPU")
        text = StringIO()
        console = Console(file=text)
        for at in dict.fromkeys(timing.at for timing in self._timings):
            write_table([timing for timing in self._timings if timing.at == at], console)
        write_legend(self._timings[0], console)
        terminalreporter.write(text.getvalue())
