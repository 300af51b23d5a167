"""Runs a program and its reference on the same rows, from the same variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import EPS, Array, Arrays, Measurement, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.core.placement import producer_of
from placement_checks.core.program import BatchFunction
from placement_checks.loading.saved_case import Case
from placement_checks.numerics.comparing import differing
from placement_checks.numerics.noise import mean_over, noise_of, unsure_in
from placement_checks.numerics.trajectories import compared, made_up_for, stale
from placement_checks.run.comparable import comparable
from placement_checks.run.devices import full_precision
from placement_checks.run.feeding import Batch, Feeding
from placement_checks.run.pair import ProgramPair
from placement_checks.run.precision import changed, precisions
from placement_checks.run.preconditions import all_fed, apart, behind, nothing_random, random_steps
from placement_checks.run.reference_runs import Alone
from placement_checks.run.session import Running, Values
from placement_checks.util.text import counted

_ORDERS = 3  # other orders of the rows, in which the noise is measured


@dataclass(frozen=True)
class Conditions:
    """How programs are run.

    Attributes:
        rows: of the global batch; 0 for as many as the placeholders are made for, or a few.
        shares: the parts of the batch for each tower; empty for equal ones.
        scale: what the gradients of the program are multiplied by on purpose.
        by_tower: whether the reference is to compute on the rows of each tower alone.
        steps: how many are taken.
        seconds: that one run may take.
        seed: of the batches.
    """

    rows: int = 0
    shares: Sequence[int] = ()
    scale: float = 1.0
    by_tower: bool = False
    steps: int = 3
    seconds: float = 60.0
    seed: int = 0


def measure(pair: ProgramPair, batch: BatchFunction | None, conditions: Conditions) -> Measurement:
    """Run both programs of a pair, and compare what they compute.

    Args:
        pair: the program and its reference.
        batch: gives the rows; None for rows that are made up.
        conditions: how they are run.

    Raises:
        InputError: a program or the batch function is at fault.
        CannotRun: the programs are sound, but numbers would mean nothing.
    """
    comparable(pair.towers, pair.reference)
    feeding = pair.feeding(batch, rows=conditions.rows, shares=conditions.shares)
    with (
        full_precision(),
        Running(pair.towers, conditions.seconds) as running,
        Running(pair.reference, conditions.seconds) as alone,
    ):
        return _Comparison(running, alone, feeding, conditions, batch).measurement()


class _Comparison:
    """Two programs in their sessions."""

    def __init__(
        self,
        towers: Running,
        reference: Running,
        feeding: Feeding,
        conditions: Conditions,
        batch: BatchFunction | None,
    ) -> None:
        self._towers = towers
        self._reference = reference
        self._alone = Alone(reference, feeding, towers.program.gpus)
        self._feeding = feeding
        self._conditions = conditions
        self._case = batch if isinstance(batch, Case) else None
        self._rng = np.random.default_rng(conditions.seed)
        self._batches: list[Batch] = []
        self._start: Mapping[str, npt.NDArray[Any]] = {}
        self._notes: list[str] = []
        self._precisions = _coarser(precisions(towers.program), precisions(reference.program))

    def measurement(self) -> Measurement:
        """Everything that is measured."""
        program, single = self._towers.program, self._reference.program
        self._begin()
        rows = self._feeding.rows
        batch = self._batch(rows)
        for running, feeds in self._both(batch):
            all_fed(running.program, feeds)
        apart(self._towers, self._feeding.to_towers(batch))
        self._towers.begin(self._start)
        for running, feeds in self._both(batch):
            nothing_random(running, feeds)
        trials = [self._trial(batch, rows)]
        if self._feeding.odd and not self._conditions.by_tower:
            trials += self._odd_trial(program.name)
        measured = Measurement(
            reference=single.name,
            devices="simulated" if program.simulated else "real",
            towers=program.gpus,
            dtypes=program.variables,
            precisions=self._precisions,
            trials=trials,
            scale=self._conditions.scale,
            trajectory=self._trajectory(),
            unread={**single.received.unread, **program.received.unread},
            missing=dict(self._missing()),
            changed=frozenset([*changed(single), *changed(program)]),
            optimizers=frozenset(program.received.optimizers),
            updates=program.received.updates,
            notes=self._notes,
        )
        if not _differs(measured):
            return measured
        return replace(measured, saved=Case(self._batches, self._start).save(program.name))

    def _both(self, batch: Batch) -> Iterator[tuple[Running, Batch]]:
        """Each program with its feeds."""
        yield self._towers, self._feeding.to_towers(batch)
        yield self._reference, self._feeding.to_reference(batch)

    def _begin(self) -> None:
        """Give the variables of both programs the same values."""
        self._reference.begin({})
        first = self._reference.program.built.initial.initializers
        values = {name: value for name, value in self._reference.values().items() if name in first}
        if self._case and self._case.start:
            self._start = self._case.first(values)
        else:
            trained = self._reference.program.received.gradients
            self._start = {
                name: self._uneven(value) if name in trained else value
                for name, value in values.items()
            }
        self._reference.load(self._start)
        self._towers.begin(self._start)

    def _uneven(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values that differ, for those that are all alike: zeros hide what they multiply."""
        if value.size < 2 or np.any(value != value.flat[0]):
            return value
        size = max(1.0, abs(float(value.flat[0])))
        return (value + size * self._rng.uniform(0.05, 0.15, value.shape)).astype(value.dtype)

    def _batch(self, rows: int) -> Batch:
        batch = self._feeding.batch(self._rng, rows)
        self._batches.append(batch)
        return batch

    def _odd_trial(self, name: str) -> Iterator[Trial]:
        rows = self._feeding.odd
        try:
            batch = self._batch(rows)
        except InputError as error:
            self._notes.append(f"there is no batch of {rows} rows: {error.message}")
            return
        try:
            self._towers.gradients(self._feeding.to_towers(batch))
        except InputError:
            self._batches = self._batches[:1]
            self._notes.append(f"{name} takes no batch of {rows} rows")
            return
        yield self._trial(batch, rows)

    def _orders(self, rows: int) -> list[list[int]]:
        return [self._rng.permutation(rows).tolist() for _ in range(_ORDERS)]

    def _pair(self, batch: Batch, rows: int) -> Trial:
        """The gradients of both programs on one batch."""
        fetched = self._towers.gradients(self._feeding.to_towers(batch))
        expected = self._alone.gradients(batch)
        common = [name for name in expected if name in fetched]
        return Trial(
            rows,
            self._feeding.split if rows == self._feeding.rows else (),
            {name: expected[name] for name in common},
            {
                name: np.asarray(fetched[name], np.float64) / self._conditions.scale
                for name in common
            },
            noise_of(
                expected, [self._alone.gradients(batch, order) for order in self._orders(rows)]
            ),
        )

    def _trial(self, batch: Batch, rows: int) -> Trial:
        """The gradients of both programs on one batch; if they differ, also what explains it."""
        trial = self._pair(batch, rows)
        self._no_number(trial.expected, batch)
        parts = self._alone.on_parts(batch, rows)
        expected = mean_over(parts, rows) if self._conditions.by_tower and parts else {}
        trial = replace(
            trial,
            expected={name: expected.get(name, value) for name, value in trial.expected.items()},
            start={name: np.asarray(self._start[name], np.float64) for name in trial.expected},
            parts=parts,
        )
        stray = [name for name, value in trial.found.items() if not np.all(np.isfinite(value))]
        if stray:
            return replace(trial, stray=dict(self._strays(stray, batch)))
        if not differing(trial, self._precisions):
            return trial
        return replace(
            trial,
            each=self._alone.on_each(batch, rows),
            shifted=dict(self._alone.shifted(batch, rows)),
        )

    def _missing(self) -> Iterator[tuple[str, bool]]:
        program, single = self._towers.program, self._reference.program
        ours, theirs = program.received, single.received
        for name in single.received.gradients:
            if name not in ours.gradients and name not in ours.unread:
                yield name, True
        for name in ours.gradients:
            untrained = name not in theirs.gradients and name not in theirs.unread
            if untrained and name in single.variables:
                yield name, False

    def _no_number(self, expected: Arrays, batch: Batch) -> None:
        """Refuse a reference whose gradient is no number.

        Raises:
            InputError: it is so, on rows of the user's.
            CannotRun: it is so, on rows that were made up.
        """
        stray = next((name for name in expected if not np.all(np.isfinite(expected[name]))), None)
        if stray is None:
            return
        op, where = self._stray(self._reference, stray, self._feeding.to_reference(batch))
        at = f", built at {where}" if where else ""
        message = (
            f"its gradient of {stray} is no number; the first op that yields none is {op}{at}"
        )
        cure = "give rows with --batch on which the reference can be trained"
        if self._feeding.made_up:
            raise CannotRun(f"{self._reference.program.name}: {message}; {cure}")
        raise InputError(self._reference.program.name, message, cure)

    def _strays(
        self, names: Sequence[str], batch: Batch
    ) -> Iterator[tuple[str, tuple[str, str | None]]]:
        for name in names:
            yield name, self._stray(self._towers, name, self._feeding.to_towers(batch))

    def _stray(self, running: Running, variable: str, feeds: Batch) -> tuple[str, str | None]:
        gradient = running.program.received.gradients[variable].values
        op = running.first_stray(behind(running.program, [gradient], feeds), feeds)
        op = op or producer_of(gradient)
        return op, running.program.placement.where(op)

    def _values(self, running: Running) -> dict[str, Any]:
        """The variables that are numbers; local ones, such as a metric's, are not compared."""
        return {
            name: np.asarray(value, np.float64)
            for name, value in running.values().items()
            if name in running.program.built.initial.initializers
            and np.asarray(value).dtype.kind not in "OSU"
        }

    def _also_of_copies(self, values: Arrays) -> dict[str, Array]:
        """The reference's values, also for the copies that a strategy keeps equal."""
        program = self._towers.program
        kept = program.built.initial.mirrors.keys() - program.built.initial.unsynchronised
        copies = {copy: program.built.initial.mirrors[copy] for copy in sorted(kept)}
        return {**values, **{copy: values[of] for copy, of in copies.items() if of in values}}

    def _trajectory(self) -> Trajectory | Missing:
        """Some steps of both programs, or why there are none."""
        if self._conditions.by_tower:
            return Missing(
                "the statistics are those of each tower's rows, which the reference takes no "
                "step with; only the gradients are compared"
            )
        if not all(
            running.program.placement.step.train_op for running in (self._towers, self._reference)
        ):
            return Missing(
                "which op is one step is not said; return it from both builders: "
                "{'train_op': train_op}"
            )
        for running, feeds in self._both(self._batches[0]):
            name = random_steps(running.program, feeds)
            if name is not None:
                return Missing(
                    f"a step of {running.program.name} depends on the random op '{name}'"
                )
        batches = [self._batch(self._feeding.rows) for _ in range(self._conditions.steps)]
        orders = [list(range(self._feeding.rows)), *self._orders(self._feeding.rows)]
        ways = []
        gradients = []
        ends: Values = {}
        for order in orders:
            self._reference.load(self._start)
            values, slopes = [], []
            for batch in batches:
                slopes.append(self._alone.gradients(batch, order))
                self._reference.step(self._feeding.to_reference(batch, order))
                values.append(self._also_of_copies(self._values(self._reference)))
            ways.append(values)
            gradients.append(slopes)
            ends = ends or self._reference.values()
        expected, *others = ways
        first = self._also_of_copies(self._start)
        start = {name: np.asarray(first[name], np.float64) for name in expected[0]}
        strange = [name for name in start if not np.all(np.isfinite(expected[-1][name]))]
        if strange:
            return Missing(
                f"after {counted(len(batches), 'step')} of the reference {strange[0]} holds what "
                "is no number"
            )
        if all(np.array_equal(expected[-1][name], start[name]) for name in start):
            raise InputError(
                self._reference.program.name,
                f"{counted(self._conditions.steps, 'step')} changed none of its variables",
                "return the op that trains as train_op",
            )
        self._towers.begin(self._start)
        found = []
        for batch in batches:
            self._towers.step(self._feeding.to_towers(batch))
            found.append(self._values(self._towers))
        noise = [
            noise_of(values, [way[number] for way in others])
            for number, values in enumerate(expected)
        ]
        return Trajectory(start, expected, found, noise, unsure_in(gradients), self._late(ends))

    def _late(self, ends: Values) -> Trial:
        """The gradients after the last step, with the reference's variables in both programs.

        What else a program computes with, such as copies of its own that no step refreshes, is
        as its own steps have left it.
        """
        self._reference.load(ends)
        self._towers.load(ends)
        return self._pair(self._batch(self._feeding.rows), self._feeding.rows)


def _coarser(some: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Of each variable the dtype with the larger eps."""
    return {
        name: max(some[name], others[name], key=lambda dtype: EPS.get(dtype, 0.0))
        for name in some.keys() & others.keys()
    }


def _differs(measured: Measurement) -> bool:
    """Whether a rule may find a difference."""
    if measured.missing or (
        made_up_for(measured) == 1
        and any(differing(each, measured.precisions) for each in measured.trials)
    ):
        return True
    if not measured.trajectory:
        return False
    scale = measured.scale * made_up_for(measured)
    _, apart = compared(measured, measured.trajectory, scale=scale)
    return bool(apart or stale(measured))
