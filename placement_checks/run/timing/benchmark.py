"""Time steps of a program and its reference in turn, on comparable devices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle

import numpy as np
import tensorflow as tf

from placement_checks.analysis.step import schedule
from placement_checks.core.errors import CannotRun, UsageError
from placement_checks.core.measurement import Arrays
from placement_checks.core.program import BatchFunction
from placement_checks.core.timing import Circumstances, Loop, Simulated, Timing
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.feeding.interface import PASS_BATCH
from placement_checks.run.feeding.replayed import ReplayedFeeding
from placement_checks.run.preconditions import check_all_fed, check_step_known
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession
from placement_checks.run.timing.thread_pools import ONEDNN, POOL
from placement_checks.run.timing.trace import Tracer, tower_devices
from placement_checks.util.text import plural

MIN_TRACED, MAX_TRACED = 20, 60  # steps of each program
_TRACE_SECONDS = 20.0  # no further step is traced after this time
_ROWS = 128
_WARM_UP = 5  # steps of each loop that are not timed
_SECONDS = 600.0  # time limit of one step
_MAX_CORES = 1.3  # cores that a loop on one thread may use


class TimedLoop:
    """A loop over one step, with the wall and CPU time of each turn."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self._wall: list[float] = []
        self._cpu: list[float] = []

    def run(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self._step()
        self._wall.append(time.perf_counter() - wall)
        self._cpu.append(time.process_time() - cpu)

    def warm_up(self) -> Loop:
        """Take steps and return their times, which are not added to `loop`."""
        for _ in range(_WARM_UP):
            self.run()
        loop = self.loop
        self._wall, self._cpu = [], []
        return loop

    @property
    def loop(self) -> Loop:
        return Loop(self._wall, self._cpu)


class TimedPair:
    """The timed loops of a program and its reference.

    Every simulated device has one core: an op computes on one thread, the program has as many
    threads as devices, and the reference has one. Two more loops are controls. The program on one
    thread shows whether the machine was quiet (`Timing.baseline`). Several references at once, one
    for each tower, show whether each tower had a core (`Timing.contention`). On real GPUs, the
    baseline is a second loop of the reference.
    """

    def __init__(
        self,
        pair: ProgramPair,
        batch: BatchFunction | None,
        *,
        rows: int = 0,
        shares: Sequence[int] = (),
    ) -> None:
        """Open the sessions and take warm-up steps.

        Args:
            pair: the program and its reference.
            batch: returns the rows; None for random or replayed rows.
            rows: the size of the global batch; 0 for the placeholders' fixed size, or about 128.
            shares: the relative parts of the towers in a batch; empty for equal parts.

        Raises:
            InputError: a program or the batch function is at fault.
            CannotRun: the programs are sound, but cannot be fed the same rows.
            UsageError: the number of threads of an op was fixed by an earlier session.
        """
        self._pair = pair
        feeding = pair.feeding(batch, rows=rows, shares=shares, min_rows=_ROWS)
        if isinstance(feeding, ReplayedFeeding) and not feeding.takes_all_once:
            raise CannotRun(
                f"{pair.reference.name} takes {plural(feeding.inputs.reference_rows, 'row')} at "
                f"once, but {pair.towers.name} takes {feeding.rows}",
                f"build both for the same batch size, or {PASS_BATCH}",
            )
        self.rows = feeding.rows
        data = feeding.batch(np.random.default_rng(0), self.rows)
        to_towers, to_single = feeding.to_towers(data), feeding.to_reference(data)
        for program, feeds in ((pair.towers, to_towers), (pair.reference, to_single)):
            check_step_known(program)
            check_all_fed(program, feeds)
        with ExitStack() as stack:
            self._open(stack, to_towers, to_single)
            self._warm_up()
            self._stack = stack.pop_all()

    def __enter__(self) -> TimedPair:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, stack: ExitStack, to_towers: Arrays, to_single: Arrays) -> None:
        """Create the loops and tracers, in sessions that the stack closes."""
        gpus, simulated = self._pair.towers.gpus, self._pair.towers.simulated

        def open_session(program: RunnableProgram, feeds: Arrays, threads: int) -> ProgramSession:
            threads = threads if simulated else 0
            session = ProgramSession(program, _SECONDS, threads=threads, timed=True)
            stack.enter_context(session)
            session.initialize({})
            session.step(feeds)  # prepared steps do not explain errors
            return session

        single = open_session(self._pair.reference, to_single, 1)
        towers = open_session(self._pair.towers, to_towers, gpus)
        baseline = open_session(self._pair.towers, to_towers, 1) if simulated else single
        single_step = single.prepare_step(to_single)
        self._single = TimedLoop(single_step)
        self._towers = TimedLoop(towers.prepare_step(to_towers))
        self._baseline = TimedLoop(baseline.prepare_step(to_towers) if simulated else single_step)
        self._contention: TimedLoop | None = None
        if simulated and gpus <= len(os.sched_getaffinity(0)):
            others = [open_session(self._pair.reference, to_single, 1) for _ in range(gpus - 1)]
            steps = [single_step, *(session.prepare_step(to_single) for session in others)]
            self._pool = stack.enter_context(ThreadPoolExecutor(gpus))
            self._contention = TimedLoop(partial(self._in_parallel, steps))
        traced = [(towers, to_towers), (single, to_single)]
        traced.append((baseline, to_towers) if simulated else traced[1])
        self._tracers = [Tracer(session, feeds, self.rows) for session, feeds in traced]

    def _warm_up(self) -> None:
        others = [timed for timed in (self._baseline, self._contention) if timed]
        self._orders = cycle([(self._single, *others), (*reversed(others), self._single)])
        self._towers.warm_up()
        for timed in others:
            timed.warm_up()
        single = self._single.warm_up()
        if self._pair.towers.simulated:
            _check_single_threaded(single)

    def _in_parallel(self, steps: Sequence[Callable[[], object]]) -> None:
        """Take several steps at once, each in its own thread."""
        for _ in self._pool.map(lambda step: step(), steps):
            pass

    def run_others(self) -> None:
        """Take a step in every loop except the program's, in alternating order."""
        for timed in next(self._orders):
            timed.run()

    def run_towers(self) -> None:
        self._towers.run()

    def trace(self) -> Iterator[int]:
        """Trace steps of both programs in turn, and yield the number of traced steps so far."""
        begin = time.perf_counter()
        for number in range(MAX_TRACED):
            if number >= MIN_TRACED and time.perf_counter() - begin > _TRACE_SECONDS:
                return
            for tracer in self._tracers:
                tracer.step()
            yield number + 1

    def timing(self) -> Timing:
        """Return all times and traces so far."""
        towers, single, baseline = (tracer.trace() for tracer in self._tracers)
        simulated = self._pair.towers.simulated
        single_step = schedule.simulate(single.ops)
        towers_step = schedule.simulate((baseline if simulated else towers).ops)
        return Timing(
            circumstances(self._pair),
            self.rows,
            self._single.loop,
            self._towers.loop,
            self._baseline.loop,
            self._contention.loop if self._contention else None,
            towers,
            Simulated(single_step.seconds, towers_step.seconds)
            if single_step and towers_step
            else None,
            schedule.observed_overlap(towers, tower_devices(self._pair.towers)),
        )


def circumstances(pair: ProgramPair) -> Circumstances:
    """Return the names of both programs, and the devices and versions they run on."""
    simulated = pair.towers.simulated
    return Circumstances(
        program=pair.towers.built.name,
        reference=pair.reference.built.name,
        gpus=pair.towers.gpus,
        devices="simulated" if simulated else "real",
        kind="CPU devices of one core each" if simulated else _gpu_names(),
        cores=len(os.sched_getaffinity(0)),
        tensorflow=tf.__version__,
        onednn=os.environ.get(ONEDNN, "default"),
    )


def _gpu_names() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    details = (tf.config.experimental.get_device_details(gpu) for gpu in gpus)
    names = dict.fromkeys(str(detail.get("device_name", "GPU")) for detail in details)
    return f"{len(gpus)} x {', '.join(names)}"


def _check_single_threaded(loop: Loop) -> None:
    """Check that an op computes on one thread.

    Raises:
        UsageError: an earlier session of this process fixed the number of threads of an op.
    """
    cores = sum(loop.cpu) / sum(loop.wall)
    if cores > _MAX_CORES:
        raise UsageError(
            "timing",
            f"needs ops that use one core, but they use {cores:.1f}: an earlier session of this "
            "process fixed the number of threads of an op",
            f"set {POOL}=1 before TensorFlow starts, or time in a separate process",
            is_predicate=True,
        )
